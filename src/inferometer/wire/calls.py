"""Requests as bytes, whatever the API: one function that knows them all."""

from collections.abc import Sequence

import msgspec

from inferometer.config.schema import Server
from inferometer.types import Calls, Request
from inferometer.wire import grpc, openai, protobuf
from inferometer.wire.kserve import calls as kserve
from inferometer.wire.kserve.calls import Sequenced, SharedRefs
from inferometer.wire.target import Target


class CallContext(msgspec.Struct, frozen=True):
    """Whom and how to ask: what all requests of a run share."""

    server: Server
    model: str
    targets: tuple[Target, ...]
    secrets: dict[str, str]
    """Headers that no file may hold."""
    tag: str
    """Stands in every request's X-Request-Id before its id."""
    descriptors: bytes = b""
    """`api: grpc`: the descriptor set that has the method."""


def encode(
    asked: CallContext, requests: Sequence[Request], sequenced: Sequenced, shared: SharedRefs | None = None
) -> Calls:
    server = asked.server
    common = (server, asked.model, asked.targets, asked.secrets, requests)
    match server.api:
        case "grpc":
            return _any_method(asked, requests)
        case "kserve" if asked.targets[0].grpc:
            return kserve.over_grpc(*common, sequenced, shared)
        case "kserve" | "kserve-json":
            return kserve.over_http(*common, asked.tag, sequenced, shared)
        case "generate":
            return kserve.generated(*common, asked.tag)
        case _:
            return openai.calls(*common, asked.tag)


def _any_method(asked: CallContext, requests: Sequence[Request]) -> Calls:
    """Any method of any service; a payload is a list of messages, as JSON or as bytes."""
    server = asked.server
    method = protobuf.load(asked.descriptors).method(server.method or "")
    tails = tuple(
        b"".join(grpc.framed(protobuf.to_bytes(method, message), server.compression) for message in request.payload)
        for request in requests
    )
    streamed = method.server_streaming
    return Calls(
        heads=kserve.grpc_heads(server, asked.targets, asked.secrets, method.path),
        tails=tails,
        n_in=(-1,) * len(tails),
        n_out=(0,) * len(tails),
        answer=lambda: grpc.GrpcResponse(streamed),
        is_text=False,
    )
