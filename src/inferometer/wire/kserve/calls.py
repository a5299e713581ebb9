"""Encodes inferences for KServe v2 servers, over HTTP or gRPC."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from inferometer.apis import APIS
from inferometer.tensors import Tensor
from inferometer.types import Calls, Request, ResponseCheck
from inferometer.wire import grpc as grpc_wire
from inferometer.wire import grpc_framing, grpc_method
from inferometer.wire.compression import compressed
from inferometer.wire.context import USER_AGENT, CallContext, class_heads, model_of
from inferometer.wire.http1 import TimedResponseDecoder, heads, tail
from inferometer.wire.kserve import grpc, http, persistent, validation
from inferometer.wire.kserve.http import CountedResponse
from inferometer.wire.kserve.infer import InferOptions


def encode(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode inferences, over gRPC or HTTP as the targets say."""
    return (_encode_grpc if context.targets[0].grpc else _encode_http)(context, requests)


def _encode_http(context: CallContext, requests: Sequence[Request]) -> Calls:
    tails = []
    for request, tensors, options in _inferences(context, requests):
        content_headers, body = http.encode(tensors, options)
        if context.compression != "none":
            content_headers["Content-Encoding"] = context.compression
            body = compressed(body, context.compression)
        tails.append(tail(content_headers | request.options.headers, body))
    path, headers = http.infer_path(context.model, context.version), USER_AGENT | context.headers
    made = class_heads(context, partial(heads, context.targets, path, headers, context.tag))
    if context.expected:
        check = validation.OutputCheck(context.expected, validation.read_http)
        return _tensor_calls(context, made, tails, check, decoder=validation.KeptDecoder)
    return _tensor_calls(context, made, tails, decoder=lambda: TimedResponseDecoder(CountedResponse()))


def _encode_persistent(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode messages without frames: the stream adds the id of each request (persistent.py)."""
    final = persistent.FINAL_REQUESTED if context.decoupled else {}
    tails = []
    for request, tensors, plain in _inferences(context, requests):
        options = msgspec.structs.replace(plain, parameters=plain.parameters | final)
        tails.append(grpc.infer_request(model_of(context, request), context.version, tensors, options))
    # A deadline in the headers would be that of the whole stream.
    made = {"heads": grpc_method.heads(msgspec.structs.replace(context, deadline=0.0), grpc.STREAM_INFER)}
    check = validation.OutputCheck(context.expected, validation.read_stream) if context.expected else None
    response = partial(persistent.PersistentStream, context.tag, context.decoupled, check is not None)
    encoded = _tensor_calls(context, made, tails, check, response=response)
    return msgspec.structs.replace(encoded, is_persistent=True)


def _encode_grpc(context: CallContext, requests: Sequence[Request]) -> Calls:
    if context.persistent:
        return _encode_persistent(context, requests)
    tails = []
    for request, tensors, options in _inferences(context, requests):
        message = grpc.infer_request(model_of(context, request), context.version, tensors, options)
        tails.append(grpc_framing.framed(message, context.compression))
    path = grpc.STREAM_INFER if context.stream else grpc.INFER
    error = grpc.stream_error if context.stream else None
    made = class_heads(context, partial(grpc_method.heads, context, path))
    if context.expected:
        read = validation.read_stream if context.stream else validation.read_grpc
        check = validation.OutputCheck(context.expected, read)
        kept = lambda: grpc_wire.GrpcResponse(context.stream, error, [])  # noqa: E731
        return _tensor_calls(context, made, tails, check, response=kept)
    response = partial(grpc_wire.GrpcResponse, True, error) if context.stream else grpc_wire.GrpcResponse
    return _tensor_calls(context, made, tails, response=response)


def _inferences(
    context: CallContext, requests: Sequence[Request]
) -> Iterator[tuple[Request, tuple[Tensor, ...], InferOptions]]:
    """Yield each request with its tensors and options."""
    shared = context.shared
    first = context.first_index
    all_parameters = islice(context.sequenced.parameters(), first, None)
    for n, (request, parameters) in enumerate(zip(requests, all_parameters, strict=False), first):
        assert isinstance(request.payload, tuple)
        yield (
            request,
            request.payload,
            InferOptions(
                parameters=context.parameters | request.options.body | parameters,
                outputs=context.outputs,
                binary=not APIS[context.api].has_json_tensors,
                shm_inputs=shared.inputs[n % len(shared.inputs)] if shared else {},
                shm_outputs=shared.outputs[n % len(shared.outputs)] if shared else {},
            ),
        )


def _tensor_calls(
    context: CallContext,
    made: dict[str, Any],
    tails: Sequence[bytes],
    check: ResponseCheck | None = None,
    **create: Callable[[], object],
) -> Calls:
    return Calls(
        **made,
        tails=tuple(tails),
        n_in=(-1,) * len(tails),
        n_out=(0,) * len(tails),
        counts_tokens=False,
        sequences=context.sequenced.lengths,
        check=check,
        **create,  # type: ignore[arg-type]
    )
