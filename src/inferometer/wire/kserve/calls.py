"""Encoders for KServe v2 servers: inferences over HTTP or gRPC, and Triton's generate."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import msgspec

from inferometer.apis import APIS
from inferometer.tensors import Tensor
from inferometer.types import Calls, Decoder, Request, ResponseCheck
from inferometer.wire import grpc as grpc_wire
from inferometer.wire import grpc_framing, grpc_method
from inferometer.wire.context import USER_AGENT, CallContext, model_of, prompt_text
from inferometer.wire.http1 import BodyDecoder, TimedResponseDecoder, class_heads, numbered
from inferometer.wire.kserve import generate, grpc, http, persistent, validation
from inferometer.wire.kserve.http import CountedResponse, InferOptions


def encode(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode inferences, over gRPC or HTTP as the targets say."""
    return (_encode_grpc if context.targets[0].grpc else _encode_http)(context, requests)


def _encode_http(context: CallContext, requests: Sequence[Request]) -> Calls:
    bodies = []
    for request, tensors, options in _inferences(context, requests):
        content_headers, body = http.encode(tensors, options)
        encoding_headers, body = http.compressed(body, context.compression)
        bodies.append((content_headers | encoding_headers | request.options.headers, body))
    path, headers = http.infer_path(context.model, context.version), USER_AGENT | context.headers
    heads, tails = numbered(context.targets, path, headers, bodies, context.tag)
    own_heads = class_heads(context.targets, path, headers, context.tag, context.class_headers)
    if context.expected:
        check = validation.OutputCheck(context.expected, validation.read_http)
        return _tensor_calls(context, heads, own_heads, tails, check, decoder=validation.KeptDecoder)
    return _tensor_calls(context, heads, own_heads, tails, decoder=partial(_decoder, CountedResponse))


def _encode_persistent(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode messages without frames: the stream adds the id of each request (persistent.py)."""
    final = persistent.FINAL_REQUESTED if context.decoupled else {}
    tails = tuple(
        grpc.infer_request(
            model_of(context, request),
            context.version,
            tensors,
            msgspec.structs.replace(options, parameters=options.parameters | final),
        )
        for request, tensors, options in _inferences(context, requests)
    )
    # A deadline in the headers would be that of the whole stream.
    heads = grpc_method.heads(msgspec.structs.replace(context, deadline=0.0), grpc.STREAM_INFER)
    check = validation.OutputCheck(context.expected, validation.read_stream) if context.expected else None
    response = partial(persistent.PersistentStream, context.tag, context.decoupled, check is not None)
    encoded = _tensor_calls(context, heads, (), tails, check, response=response)
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
    heads, own_heads = grpc_method.heads(context, path), grpc_method.class_heads(context, path)
    if context.expected:
        read = validation.read_stream if context.stream else validation.read_grpc
        check = validation.OutputCheck(context.expected, read)
        kept = lambda: grpc_wire.GrpcResponse(context.stream, error, [])  # noqa: E731
        return _tensor_calls(context, heads, own_heads, tuple(tails), check, response=kept)
    response = partial(grpc_wire.GrpcResponse, True, error) if context.stream else grpc_wire.GrpcResponse
    return _tensor_calls(context, heads, own_heads, tuple(tails), response=response)


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
    heads: tuple[bytes, ...],
    class_heads: tuple[tuple[bytes, ...], ...],
    tails: tuple[bytes, ...],
    check: ResponseCheck | None = None,
    **create: Callable[[], object],
) -> Calls:
    return Calls(
        heads=heads,
        class_heads=class_heads,
        tails=tails,
        n_in=(-1,) * len(tails),
        n_out=(0,) * len(tails),
        counts_tokens=False,
        sequences=context.sequenced.lengths,
        check=check,
        **create,  # type: ignore[arg-type]
    )


# --- Triton's generate -----------------------------------------------------------------------------------------------


def encode_generate(context: CallContext, requests: Sequence[Request]) -> Calls:
    """Encode requests to `generate`, or to `generate_stream` if responses are streamed."""
    headers = USER_AGENT | {"Content-Type": "application/json"} | context.headers
    bodies = ((request.options.headers, _generate_body(context, request)) for request in requests)
    path = generate.generate_path(context.model, context.version, context.stream)
    heads, tails = numbered(context.targets, path, headers, bodies, context.tag)
    return Calls(
        heads=heads,
        class_heads=class_heads(context.targets, path, headers, context.tag, context.class_headers),
        tails=tails,
        n_in=tuple(request.n_in or -1 for request in requests),
        n_out=tuple(request.n_out for request in requests),
        decoder=partial(_decoder, partial(generate.body_decoder, context.stream)),
    )


def _generate_body(context: CallContext, request: Request) -> bytes:
    extra = context.parameters | context.body | request.options.body
    return generate.request_body(prompt_text(request), request.n_out, context.stream, extra)


def _decoder(body: Callable[[], BodyDecoder]) -> Decoder:
    return TimedResponseDecoder(body())
