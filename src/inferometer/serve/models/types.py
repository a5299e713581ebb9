"""What passes between protocols, queues and backends.

A front end (kserve/) makes an `Inference` and submits it; it hears each answer and then, exactly once, the end. A backend
(backends/) is a loader: from a `Loading` to a `Loaded`, once for each instance. All callbacks happen in the event loop's
thread; only `Loaded.run` is called in a thread of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from inferometer.tensors import Tensor, TensorSpec

NEVER = 1 << 62

Parameter = bool | int | float | str
Parameters = Mapping[str, Parameter]
Tensors = dict[str, Tensor]

# --- refusals --------------------------------------------------------------------------------------------------------

Code = Literal[
    "CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "UNAUTHENTICATED",
]  # fmt: skip
"""gRPC's names; grpc.StatusCode[code] is the number."""

HTTP_STATUS: dict[Code, int] = {
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
}


class Refused(Exception):  # noqa: N818  (not an error of ours: an answer)
    """What a client is told instead of an answer: the code, and a message that names the expected and the given."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = sendable(str(message))


def sendable(text: str) -> str:
    """As UTF-8 can have it: half a character of UTF-16, as file names that are not UTF-8 have some, is written out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# --- one request -----------------------------------------------------------------------------------------------------


class Placed(msgspec.Struct, frozen=True):
    """Where an output is to go: into a registered region of shared memory."""

    region: str
    byte_size: int
    offset: int = 0


class Unread(msgspec.Struct, frozen=True):
    """An input's bytes that are still to be got, from shared memory or out of a message's typed contents, once all else is found
    to be right; in a thread where they may be many."""

    read: Callable[[], bytes | memoryview]
    """In any thread; Refused where they are not what they should be."""
    size: int = -1
    """Bytes that they will be, where that is known."""


class Wanted(msgspec.Struct, frozen=True):
    """An output that was asked for."""

    name: str
    classes: int = 0
    """Classification: the best so many, as "value:index:label"; 0: the tensor itself."""
    placed: Placed | None = None
    binary: bool | None = None
    """HTTP: as binary data or as JSON; None: as the request says for all outputs."""


class Output(msgspec.Struct, frozen=True):
    """An output of an answer. Where it was written to shared memory, the tensor's data is empty."""

    tensor: Tensor
    wanted: Wanted | None = None
    """None where no outputs were named: all are sent."""


class Inference:
    """One request on its way: made by a front end, queued, batched, answered. Times are monotonic ns."""

    __slots__ = (
        "answer", "arrived", "compute_ns", "deadline", "ended", "finished", "id", "inputs", "is_over", "key",
        "memory", "model", "parameters", "place", "queue_ns", "queued", "rows", "started", "unread", "version", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        model: str,
        inputs: Tensors,
        *,
        answer: Callable[[tuple[Output, ...]], None],
        ended: Callable[[Refused | None], None],
        arrived: int,
        version: str = "",
        id: str = "",
        wanted: tuple[Wanted, ...] = (),
        parameters: Parameters = {},  # noqa: B006  (never written to)
        deadline: int = NEVER,
        unread: Mapping[str, Unread] = {},
    ) -> None:
        self.model = model
        self.version = version
        """"" for the newest; `submit` puts the one in that it chose."""
        self.id = id
        self.inputs = inputs
        self.unread = unread
        """Of which inputs the data is not there yet (b"")."""
        self.wanted = wanted
        self.memory: Mapping[str, Any] = {}
        """Where the outputs go that are wanted in shared memory: what their regions were when it was submitted."""
        self.parameters = parameters
        self.arrived = arrived
        self.deadline = deadline
        """Not begun after this instant: it ends with DEADLINE_EXCEEDED then."""
        self.answer = answer
        """Called with the outputs of each answer: once, or for decoupled models any number of times."""
        self.ended = ended
        """Called once, after the last answer; with the reason where there is no (further) answer."""
        self.rows = 1
        """In the batch dimension; 1 for models without one."""
        self.is_over = False
        self.started = -1
        """When an instance took it; -1 while it waits."""
        self.finished = -1
        self.queue_ns = 0
        self.compute_ns = 0
        """Both are there when the (first) answer is."""
        self.queued = -1
        """When it was accepted."""
        self.key: Any = None
        """Requests of equal keys may share a batch."""
        self.place: Any = None
        """What has it now: a model's queue, then an execution."""


# --- backends --------------------------------------------------------------------------------------------------------


class Loading(msgspec.Struct, frozen=True):
    """What a loader is given."""

    name: str
    config: Any
    """The `inference.ModelConfig` message of proto/kserve.proto; a loader may fill in what is left open (inputs, outputs)."""
    folder: Path | None = None
    """The version's folder (REPOSITORY/MODEL/1), or the folder of a model that is given by itself; None for built-in ones."""
    file: Path | None = None
    """The model's own file, where there is one."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, ..."""
    instance: int = 0

    def parameter(self, name: str, default: str = "") -> str:
        """One of the config's `parameters`."""
        found = self.config.parameters
        return str(found[name].string_value) if name in found else default


Begin = Callable[
    [Tensors, Parameters, Callable[[Tensors], None], Callable[[Refused | None], None]], Callable[[], None] | None
]
"""begin(inputs, parameters, emit, finish): in the loop's thread, never blocking. It calls `emit` for each answer and
`finish` once, at once or later, and may return what cancels it."""


class Loaded(msgspec.Struct):
    """An instance of a model. It has either `run` or `begin`."""

    run: Callable[[Tensors, Parameters], Tensors | Iterator[Tensors]] | None = None
    """Computes, in a thread of the instance's own; an iterator where the model is decoupled. Refused and UserError are
    answers; whatever else it raises is INTERNAL, and the server goes on. A batch of several requests that fails is run again,
    each of them alone."""
    begin: Begin | None = None
    slots: int = 1
    """Executions at the same time; 0: no limit."""
    labels: Mapping[str, tuple[str, ...]] = {}
    """Of an output's classes, by index."""
    close: Callable[[], None] = lambda: None


Loader = Callable[[Loading], Loaded]
"""Raises UserError where the model cannot be loaded: what is wrong, and what to do (install an extra, fix the file)."""


class ModelSignature(msgspec.Struct, frozen=True):
    """A model's inputs and outputs as the metadata has them, with -1 for the batch where it takes one."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
