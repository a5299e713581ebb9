"""Types shared by protocols, queues and backends.

A front end (kserve/, openai/) creates an `Inference` and submits it; it is called with each response and then, exactly once,
with the end. A backend (backends/) is a loader: from a `Loading` to a `Loaded`, once per instance. All callbacks run in
the event loop's thread; only `Loaded.run` is called in a thread of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from inferometer.errors import UserError
from inferometer.tensors import Tensor

NEVER = 1 << 62

Parameter = bool | int | float | str
Parameters = Mapping[str, Parameter]
Tensors = dict[str, Tensor]
Compute = tuple[int, int, int]
"""Nanoseconds of joining the inputs, inferring, and splitting the outputs."""

Code = Literal[
    "CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "UNAUTHENTICATED",
]  # fmt: skip
"""Names of gRPC's status codes; grpc.StatusCode[code] is the number."""

HTTP_STATUS: dict[Code, int] = {
    "CANCELLED": 499, "INVALID_ARGUMENT": 400, "DEADLINE_EXCEEDED": 504, "NOT_FOUND": 404, "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403, "RESOURCE_EXHAUSTED": 429, "UNIMPLEMENTED": 501, "INTERNAL": 500, "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
}  # fmt: skip


class Refused(Exception):  # noqa: N818  (not an error of ours: a response)
    """An error response: gRPC's status code, and a message with the expected and the actual value. Over HTTP also a
    status, if it is not that of the code, OpenAI's `code` as a label, and more headers."""

    def __init__(self, code: Code, message: str, label: str = "", *, status: int = 0, headers: bytes = b"") -> None:
        super().__init__(message)
        self.code: Code = code if code in tuple(HTTP_STATUS) else "INTERNAL"  # models may raise it with any code
        # UTF-8 cannot encode lone surrogates, as in file names that are not valid UTF-8.
        self.message = str(message).encode("utf-8", "backslashreplace").decode()
        self.status, self.label, self.headers = status or HTTP_STATUS[self.code], label or self.code.lower(), headers


def reason(error: BaseException) -> Refused:
    """Convert an exception to an error of one line, without its frames and the tensors that they hold."""
    if isinstance(error, Refused):
        return Refused(error.code, error.message, error.label, status=error.status, headers=error.headers)
    try:
        text = " ".join((str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}").split())
    except Exception:  # str() of a model's own exception may raise; the client must get a response
        text = type(error).__name__
    if len(text) > 1000:  # libraries put the cause at the end of long messages
        text = f"{text[:500]} ... {text[-500:]}"
    return Refused("INTERNAL", text)


class Wanted(msgspec.Struct, frozen=True):
    """A requested output."""

    name: str
    classes: int = 0
    """Classification: the number of best classes, sent as "value:index:label"; 0: the tensor itself."""
    placed: Any = None
    """Where it goes in shared memory (RegionSlice), if it is not sent."""
    binary: bool = False
    """HTTP: as binary data or as JSON."""


def ignore(*_: object) -> None:
    """The callback of a request or call that has not begun, or is over."""


class TextPart(msgspec.Struct, array_like=True):
    """A part of the response to a request of the OpenAI endpoints. The first one shows that the request is accepted, and
    has `prompt_tokens`; the last one of a text has `finish_reason` and `started`."""

    text: str = ""
    """May be "" while a character or a stop text is incomplete."""
    tokens: int = 0
    prompt_tokens: int = 0
    finish_reason: Literal["stop", "length"] | None = None
    stopped: str | None = None
    """The stop text that ended the text, if one did."""
    started: int = 0
    """When the model began to compute, in monotonic ns."""
    data: list[Any] = []
    """The embeddings as bytes of float32, or the tokens of /tokenize."""


class Inference(msgspec.Struct, eq=False):
    """One request: created by a front end, queued, batched, and responded to. Times are monotonic ns."""

    model: str
    inputs: Tensors
    responded: Callable[[Any], None] | None = None
    """Called with the outputs of each response: once, or any number of times for decoupled models. None: `outputs` is
    enough. Those that were written to shared memory have no data."""
    ended: Callable[[Refused | None], None] = ignore
    """Called once, after the last response; with the reason if it was refused or failed."""
    arrived: int = 0
    version: str = ""
    """"" for the newest; `submit` sets the one it chose."""
    id: str = ""
    wanted: tuple[Wanted, ...] = ()
    """The outputs of each response, in this order; () for all."""
    parameters: Parameters = {}
    deadline: int = NEVER
    """The inference is not started after this time; it ends with DEADLINE_EXCEEDED."""
    unread: Mapping[str, Any] = {}
    """Inputs in shared memory (RegionSlice) whose data is not read yet (b"")."""
    binary: bool = False
    """HTTP: whether outputs are sent as binary data if no outputs are named."""
    signature: Any = None
    """The name, datatype, shape and size of each input, if the front end knows them from an earlier request."""
    text: Any = None
    """A request of the OpenAI endpoints (openai.requests.TextRequest) instead of inputs: responses are TextParts."""

    # Set by the models:
    rows: int = 1
    """Size of the batch dimension; 1 for models without one."""
    key: Any = None
    """Requests with equal keys may share a batch."""
    owner: Any = None
    """The `Model` that holds it until it is over; None if it is computed at once."""
    is_over: bool = False
    queued: int = -1
    started: int = -1
    """When an instance took it; -1 while it is queued."""
    finished: int = -1
    queue_ns: int = 0
    compute_ns: int = 0
    """Both are set when the first response is sent."""
    outputs: tuple[Tensor, ...] = ()
    """Those of the last response, unless `responded` was called with them."""

    def end(self, why: Refused | None) -> None:
        """Call `ended`, and drop the callbacks: they may refer to the request, whose tensors would then be freed only by
        the garbage collector."""
        self.is_over = True
        ended, self.responded, self.ended = self.ended, None, ignore
        ended(why)


class Loading(msgspec.Struct, frozen=True):
    """What a loader is called with."""

    name: str
    config: Any
    """The `inference.ModelConfig` message; a loader may fill in what is left open (inputs, outputs)."""
    folder: Path | None = None
    """The version folder (REPOSITORY/MODEL/1), or the folder of a single model; None for built-in models."""
    file: Path | None = None
    device: str = "cpu"
    """cpu, cuda, cuda:1, ..."""
    instance: int = 0
    version: str = "1"
    backend: str = ""
    labels: Mapping[str, tuple[str, ...]] = {}
    """Labels of the outputs whose configuration names a file."""
    loader: "Loader | None" = None
    """Instead of the backend's."""

    def parameter(self, name: str, default: str = "") -> str:
        found = self.config.parameters
        return str(found[name].string_value) if name in found else default

    def error(self, what: str, remedy: str = "") -> UserError:
        return UserError(f"model {self.name}: {what}", remedy)


Emit = Callable[[Tensors | TextPart], None]
Finish = Callable[[Refused | None], None]
Begin = Callable[[Tensors, Inference, Emit, Finish], Callable[[], None] | None]
"""begin(inputs, first, emit, finish): runs in the loop's thread and never blocks. `first` is the first request of the
batch. It calls `emit` for each response and `finish` once, now or later, and may return a function that cancels it. If it
queues requests itself, it sets `first.started`."""


class Loaded(msgspec.Struct):
    """An instance of a model. It has one of `run`, `begin` and `instant`."""

    run: Callable[[Tensors, Parameters], Tensors | Iterator[Tensors]] | None = None
    """Computes in one of the instance's threads; returns an iterator if the model is decoupled. Whatever it raises is the
    response to all requests of the batch: Refused with its code, anything else as INTERNAL."""
    run_texts: Callable[[list[Any]], list[TextPart | Refused]] | None = None
    """Like `run`, for a batch of requests of the OpenAI endpoints (Inference.text)."""
    begin: Begin | None = None
    instant: Callable[[Tensors, Parameters], Tensors] | None = None
    """Computes in the loop's thread, without a queue: for models that take microseconds."""
    is_remote: bool = False
    """Whether the model runs in another process, which queues, batches and counts its requests."""
    slots: int = 1
    """Concurrent executions; 0: no limit, for models that run in the loop."""
    labels: Mapping[str, tuple[str, ...]] = {}
    """Labels of an output's classes, by index."""
    max_len: int = 0
    """Maximum tokens of prompt and text together, for models that the OpenAI endpoints serve as well: decoupled ones
    generate text, others compute embeddings. 0: not a text model."""
    close: Callable[[], None] = lambda: None
    threads: Any = None
    """The threads in which `run` is called; set by the model that it belongs to."""


Loader = Callable[[Loading], Loaded]
"""Raises UserError if the model cannot be loaded: what is wrong, and what to do (install an extra, fix the file)."""
