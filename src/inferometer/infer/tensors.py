"""A model's inputs and its outputs: KServe v2 over HTTP or gRPC, one answer or a stream of them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from inferometer import memory
from inferometer.apis import APIS
from inferometer.errors import UserError
from inferometer.infer import classes, inputs, time_split
from inferometer.infer.endpoint import Endpoint
from inferometer.infer.flags import InferFlags
from inferometer.infer.result import InputTensor, Response, Result
from inferometer.probe import roundtrip
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.roundtrip import Instants
from inferometer.tensors import Tensor
from inferometer.types import Event, Fail, ServerTiming
from inferometer.wire import grpc_method
from inferometer.wire.context import USER_AGENT
from inferometer.wire.grpc import GrpcResponse, framed
from inferometer.wire.http1 import TimedResponseDecoder, numbered
from inferometer.wire.kserve import grpc, http
from inferometer.wire.kserve.http import InferOptions, InferResponse

_TAG = "infer"

T = TypeVar("T")


@memory.enough_for("the request")
def ask(whom: Endpoint, options: InferFlags) -> tuple[Result, Fail | None]:
    """What was answered and, of a stream that failed after some answers, why."""
    facts = whom.reached.facts
    assert facts is not None
    labels = classes.read_labels(options.labels)
    given = inputs.build(options, facts)
    by_server = classes.asked_of_server(options, facts)
    infer = InferOptions(
        parameters=whom.server.parameters,
        outputs=by_server or tuple(whom.server.outputs),
        classification=options.best if by_server else 0,
        binary=not APIS[whom.server.api].has_json_tensors,
    )
    statistics = time_split.StatisticsDelta(whom)
    asked = _over_grpc if whom.peer.target.grpc else _over_http
    heard, instants, fail = asked(whom, [one.tensor for one in given], infer)
    if not heard.answers:
        whom.raise_for(fail)
    responses = tuple(_response(at - instants.sent, answer, options, by_server, labels) for at, answer in heard.answers)
    return _result(whom, heard, instants, given, responses, statistics), fail


def is_streamed(options: InferFlags, facts: ModelFacts, is_grpc: bool) -> bool:
    """As told; else where the model may have any number of answers."""
    decoupled = facts.config is not None and facts.config.decoupled
    if decoupled and is_grpc and options.stream is False:
        raise UserError(
            f"the model {facts.metadata.name} is decoupled: a request may have any number of answers",
            "leave --no-stream out",
        )
    if decoupled and not is_grpc:
        raise UserError(
            f"the model {facts.metadata.name} is decoupled: a request may have any number of answers, which HTTP has no way for",
            "use the server's grpc:// port, or for text --api generate",
        )
    return decoupled if options.stream is None else options.stream


def _result(
    whom: Endpoint,
    heard: "_TensorResponse",
    instants: Instants,
    given: tuple[InputTensor, ...],
    responses: tuple[Response, ...],
    statistics: time_split.StatisticsDelta,
) -> Result:
    facts, first = whom.reached.facts, heard.answers[0][1] if heard.answers else None
    assert facts is not None
    over = "gRPC" if whom.peer.target.grpc else "HTTP"
    how = ", streamed" if whom.server.stream else ", JSON" if APIS[whom.server.api].has_json_tensors else ""
    return Result(
        kind="tensors",
        url=whom.peer.target.url,
        api=f"KServe v2 over {over}{how}",
        model=facts.metadata.name,
        version=(first.version if first is not None else "") or whom.server.version or "",
        instants=instants,
        server=time_split.from_timing(heard.timing) or statistics.since(),
        inputs=given,
        responses=responses,
    )


def _response(
    at: int, answer: InferResponse, options: InferFlags, by_server: tuple[str, ...], labels: Sequence[str]
) -> Response:
    outputs = tuple(one for one in answer.outputs if isinstance(one, Tensor))
    found = {}
    for one in outputs:
        if one.name in by_server and one.datatype == "BYTES":
            found[one.name] = classes.said_by_server(one)
        elif classes.looks_like_scores(one, options):
            found[one.name] = classes.found_here(one, options.best, labels)
    return Response(at, outputs, found)


# --- the two protocols -----------------------------------------------------------------------------------------------


class _TensorResponse:
    """What came, and what the server said about its time."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, InferResponse]] = []
        self.timing: ServerTiming | None = None

    def note(self, events: Sequence[Event]) -> None:
        self.timing = next((event for event in events if isinstance(event, ServerTiming)), self.timing)


class _Kept:
    """The body of an answer over HTTP, to be read when it is whole."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._pieces: list[bytes] = []

    @property
    def text(self) -> str:
        return ""

    @property
    def whole(self) -> bytes:
        return b"".join(self._pieces)

    def feed(self, piece: bytes, events: list[Event]) -> None:
        self._pieces.append(piece)

    def finish(self, events: list[Event]) -> Fail | None:
        return None


class _Decoder(TimedResponseDecoder):
    """Keeps the headers too: where the JSON ends is in one of them."""

    __slots__ = ("fields",)

    def reset(self) -> None:
        super().reset()
        self.fields: dict[str, str] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields[name.decode("latin-1").lower()] = value.decode("latin-1")
        super().on_header(name, value)


def _over_http(
    whom: Endpoint, tensors: list[Tensor], infer: InferOptions
) -> tuple[_TensorResponse, Instants, Fail | None]:
    server, reached, heard = whom.server, whom.reached, _TensorResponse()
    own, body = http.encode(tensors, infer)
    path = http.infer_path(reached.model, server.version or "")
    headers = USER_AGENT | server.headers | reached.secrets
    heads, tails = numbered(reached.targets[:1], path, headers, [(own, body)], _TAG)
    kept = _Kept()
    decoder = _Decoder(kept)

    def note(_: int, events: Sequence[Event]) -> None:
        heard.note(events)

    instants, fail = roundtrip.over_http(whom.peer, heads[0] + b"0" + tails[0], decoder, note)
    if fail is None:
        answer = _told(whom, http.decode, decoder.status, decoder.fields, kept.whole)
        heard.answers.append((instants.done, answer))
    return heard, instants, fail


def _over_grpc(
    whom: Endpoint, tensors: list[Tensor], infer: InferOptions
) -> tuple[_TensorResponse, Instants, Fail | None]:
    server, reached, heard = whom.server, whom.reached, _TensorResponse()
    stream = bool(server.stream)
    message = grpc.infer_request(reached.model, server.version or "", tensors, infer)
    path = grpc.STREAM_INFER if stream else grpc.INFER
    block = grpc_method.heads(whom.context, path)[0]
    kept: list[bytes] = []
    arrived: list[tuple[int, bytes]] = []

    def note(at: int, events: Sequence[Event]) -> None:
        heard.note(events)
        arrived.extend((at, one) for one in kept)
        kept.clear()

    check = grpc.stream_error if stream else None
    answer = GrpcResponse(stream, check, kept)
    instants, fail = roundtrip.over_grpc(whom.peer, block, framed(message), answer, note, server.deadline)
    for at, one in arrived:
        read = _told(whom, grpc.stream_answer if stream else grpc.infer_answer, one)
        if isinstance(read, InferResponse):  # else it is the error that `fail` says
            heard.answers.append((at, read))
    return heard, instants, fail


def _told(whom: Endpoint, read: Callable[..., T], *arguments: Any) -> T:
    try:
        return read(*arguments)
    except UserError as error:
        raise UserError(
            f"{whom.peer.target.url}: {error.what}", error.remedy or "check that it is a KServe v2 server"
        ) from None
