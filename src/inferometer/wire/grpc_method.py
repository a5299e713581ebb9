"""Any method of any gRPC service: a payload is a list of messages, as JSON or as bytes."""

from collections.abc import Mapping, Sequence
from functools import partial

from inferometer.types import Calls, Request
from inferometer.wire import grpc
from inferometer.wire.context import USER_AGENT, CallContext, class_heads
from inferometer.wire.grpc_framing import framed


def encode(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode calls of the method that `context.descriptors` defines."""
    from inferometer.wire import protobuf  # noqa: PLC0415 - only gRPC needs it, and it takes long to import

    method = protobuf.load(context.descriptors).method(context.method)
    tails = tuple(
        b"".join(framed(protobuf.encode(method.input, message), context.compression) for message in request.payload)
        for request in requests
    )
    return Calls(
        **class_heads(context, partial(heads, context, method.path)),
        tails=tails,
        n_in=(-1,) * len(tails),
        n_out=(0,) * len(tails),
        response=partial(grpc.GrpcResponse, method.server_streaming),
        counts_tokens=False,
    )


def heads(context: CallContext, path: str, own: Mapping[str, str] = {}) -> tuple[bytes, ...]:
    """The header block of a call to `path`, for each target. The metadata `own` overrides that of the run."""
    blocks = []
    for target in context.targets:
        credentials = {"authorization": target.credentials} if target.credentials else {}
        metadata = credentials | USER_AGENT | context.headers | dict(own)
        blocks.append(
            grpc.header_block(path, target.authority, target.tls, metadata, context.deadline, context.compression)
        )
    return tuple(blocks)
