"""A model's inputs and outputs: KServe v2 over HTTP or gRPC, one response or a stream of them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from inferometer import memory
from inferometer.apis import APIS
from inferometer.errors import UserError
from inferometer.infer import classes, inputs, time_split
from inferometer.infer.endpoint import Endpoint
from inferometer.infer.flags import InferFlags
from inferometer.infer.result import Arrived, InputTensor, Response, Result
from inferometer.probe import roundtrip
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.roundtrip import Arriving, Instants
from inferometer.tensors import Tensor
from inferometer.types import Fail
from inferometer.wire import grpc_method, reported_times
from inferometer.wire.context import USER_AGENT
from inferometer.wire.grpc import GrpcResponse
from inferometer.wire.grpc_framing import framed
from inferometer.wire.http1 import ID, heads, tail
from inferometer.wire.kserve import grpc, http, validation
from inferometer.wire.kserve.infer import InferOptions, InferResponse

_TAG = "infer"

T = TypeVar("T")


@memory.enough_for("the request")
def request(endpoint: Endpoint, options: InferFlags) -> tuple[Result, Fail | None]:
    """Make the inference; also return the failure of a stream that failed after its first responses."""
    facts = endpoint.reached.facts
    assert facts is not None
    labels = classes.read_labels(options.labels)
    given = inputs.build(options, facts)
    by_server = classes.classified_by_server(options, facts)
    infer = InferOptions(
        parameters=endpoint.server.parameters,
        outputs=by_server or tuple(endpoint.server.outputs),
        classification=options.top_classes if by_server else 0,
        binary=not APIS[endpoint.server.api].has_json_tensors,
    )
    statistics = time_split.StatisticsDelta(endpoint)
    received, instants, fail = send(endpoint, [item.tensor for item in given], infer)
    if not received.responses:
        endpoint.raise_for(fail)
    responses = tuple(
        _response(at - instants.sent, response, options, by_server, labels) for at, response in received.responses
    )
    return _result(endpoint, received, instants, given, responses, statistics), fail


def is_streamed(options: InferFlags, facts: ModelFacts, is_grpc: bool) -> bool:
    """Whether to stream: as --stream says, otherwise if the model may send any number of responses."""
    decoupled = facts.config is not None and facts.config.decoupled
    if decoupled and is_grpc and options.stream is False:
        raise UserError(
            f"the model {facts.metadata.name} is decoupled: a request may have any number of responses",
            "leave --no-stream out",
        )
    if decoupled and not is_grpc:
        raise UserError(
            f"the model {facts.metadata.name} is decoupled: a request may have any number of responses, which HTTP cannot carry",
            "use the server's grpc:// port, or for text --api generate",
        )
    return decoupled if options.stream is None else options.stream


def _result(
    endpoint: Endpoint,
    received: "Received",
    instants: Instants,
    given: tuple[InputTensor, ...],
    responses: tuple[Response, ...],
    statistics: time_split.StatisticsDelta,
) -> Result:
    facts, first = endpoint.reached.facts, received.responses[0][1] if received.responses else None
    assert facts is not None
    over = "gRPC" if endpoint.peer.target.grpc else "HTTP"
    how = ", streamed" if endpoint.server.stream else ", JSON" if APIS[endpoint.server.api].has_json_tensors else ""
    return Result(
        kind="tensors",
        url=endpoint.peer.target.url,
        api=f"KServe v2 over {over}{how}",
        model=facts.metadata.name,
        version=(first.version if first is not None else "") or endpoint.server.version or "",
        instants=instants,
        server=time_split.from_timing(received.timing) or statistics.since(),
        inputs=given,
        responses=responses,
    )


def _response(
    at: int, response: InferResponse, options: InferFlags, by_server: tuple[str, ...], labels: Sequence[str]
) -> Response:
    outputs = tuple(tensor for tensor in response.outputs if isinstance(tensor, Tensor))
    found = {}
    for tensor in outputs:
        if tensor.name in by_server and tensor.datatype == "BYTES":
            found[tensor.name] = classes.from_server(tensor)
        elif classes.looks_like_scores(tensor, options):
            found[tensor.name] = classes.from_scores(tensor, options.top_classes, labels)
    return Response(at, outputs, found)


# --- the two protocols -----------------------------------------------------------------------------------------------


class Received(Arrived):
    """The responses, and the server's account of its time."""

    def __init__(self) -> None:
        super().__init__()
        self.responses: list[tuple[int, InferResponse]] = []


def send(endpoint: Endpoint, tensors: list[Tensor], infer: InferOptions) -> tuple[Received, Instants, Fail | None]:
    """Send the tensors and receive the responses, over the protocol of the endpoint; also return the failure, if it is one."""
    over = _over_grpc if endpoint.peer.target.grpc else _over_http
    return over(endpoint, tensors, infer)


def _over_http(
    endpoint: Endpoint, tensors: list[Tensor], infer: InferOptions
) -> tuple[Received, Instants, Fail | None]:
    server, reached, received = endpoint.server, endpoint.reached, Received()
    content_headers, body = http.encode(tensors, infer)
    path = http.infer_path(reached.model, server.version or "")
    headers = USER_AGENT | server.headers | reached.secrets
    head = heads(reached.targets[:1], path, headers, _TAG)[0] + ID % 0
    decoder = reported_times.timed(validation.KeptDecoder, endpoint.context)()
    instants, fail = roundtrip.over_http(
        endpoint.peer, head + tail(content_headers, body), decoder, lambda at, events: None
    )
    received.timing = decoder.received.timing
    if fail is None:
        response = _decoded(endpoint, validation.read_http, decoder.content)
        received.responses.append((instants.done, response))
    return received, instants, fail


def _over_grpc(
    endpoint: Endpoint, tensors: list[Tensor], infer: InferOptions
) -> tuple[Received, Instants, Fail | None]:
    received = Received()
    instants, fail = roundtrip.drained(_grpc_events(endpoint, tensors, infer, received.kept), received.note)
    for at, data in received.messages:
        received.responses.extend((at, response) for response in _grpc_responses(endpoint, data))
    return received, instants, fail


def stream(endpoint: Endpoint, tensors: list[Tensor], infer: InferOptions) -> Iterator[InferResponse]:
    """Yield the responses to one request over gRPC as they arrive. Raises UserError when the stream fails."""
    kept: list[bytes] = []
    with contextlib.closing(_grpc_events(endpoint, tensors, infer, kept)) as arriving:
        while True:
            try:
                next(arriving)
            except StopIteration as end:
                endpoint.raise_for(end.value[1])
                return
            while kept:
                yield from _grpc_responses(endpoint, kept.pop(0))


def _grpc_events(endpoint: Endpoint, tensors: list[Tensor], infer: InferOptions, kept: list[bytes]) -> Arriving:
    """Make the call; the messages of the response are appended to `kept`."""
    server, reached, stream = endpoint.server, endpoint.reached, bool(endpoint.server.stream)
    message = grpc.infer_request(reached.model, server.version or "", tensors, infer)
    block = grpc_method.heads(endpoint.context, grpc.STREAM_INFER if stream else grpc.INFER)[0]
    check = grpc.stream_error if stream else None
    decoder = reported_times.timed(lambda: GrpcResponse(stream, check, kept), endpoint.context)()
    return roundtrip.grpc_events(endpoint.peer, block, framed(message), decoder, server.deadline)


def _grpc_responses(endpoint: Endpoint, message: bytes) -> Iterator[InferResponse]:
    """The response in the message, unless it is the error with which a stream fails."""
    response = _decoded(endpoint, grpc.stream_response if endpoint.server.stream else grpc.infer_response, message)
    if isinstance(response, InferResponse):
        yield response


def _decoded(endpoint: Endpoint, read: Callable[..., T], *arguments: Any) -> T:
    """Decode a response; errors get the URL."""
    try:
        return read(*arguments)
    except UserError as error:
        raise UserError(
            f"{endpoint.peer.target.url}: {error.what}", error.remedy or "check that it is a KServe v2 server"
        ) from None
