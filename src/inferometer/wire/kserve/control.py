"""What a KServe v2 server says about itself and its models: the typed answers, and over HTTP the ways to ask for them.

A `Question` is an exchange to be made: method, path, body, and how to read the answer. `read` gives the typed answer, or
raises NotOffered where the server has no such thing (MLServer knows neither configuration nor statistics), or a UserError
with the server's own words. Numbers may come as JSON strings: that is how protocol buffers write 64-bit ones.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from inferometer.errors import UserError
from inferometer.records import Spent
from inferometer.tensors import TensorSpec
from inferometer.wire.failures import bounded
from inferometer.wire.http1 import error_message

# --- the typed answers, the same over HTTP and gRPC ------------------------------------------------------------------


class ServerMetadata(msgspec.Struct, frozen=True):
    name: str
    version: str = ""
    extensions: tuple[str, ...] = ()


class ModelMetadata(msgspec.Struct, frozen=True):
    name: str
    versions: tuple[str, ...] = ()
    platform: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()


class ModelConfig(msgspec.Struct, frozen=True):
    name: str
    max_batch_size: int = 0
    """0: the model takes no batches; its shapes have no batch dimension."""
    decoupled: bool = False
    """A request may have any number of answers."""
    sequence_batching: bool = False
    labels: dict[str, str] = {}
    """The label file of each output that has one."""
    optional: tuple[str, ...] = ()
    """Inputs that a request may do without; the metadata does not tell."""
    raw: dict[str, Any] = {}


class IndexEntry(msgspec.Struct, frozen=True):
    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class BatchStatistics(msgspec.Struct, frozen=True):
    """The executions of batches of one size."""

    size: int
    compute_input: Spent = Spent()
    compute_infer: Spent = Spent()
    compute_output: Spent = Spent()


class ModelStatistics(msgspec.Struct, frozen=True):
    """What a model did since the server started, or between two such answers (`difference`)."""

    name: str
    version: str = ""
    inference_count: int = 0
    """Inferences: a batch of n counts n."""
    execution_count: int = 0
    """Executions: a batch counts 1."""
    success: Spent = Spent()
    fail: Spent = Spent()
    queue: Spent = Spent()
    compute_input: Spent = Spent()
    compute_infer: Spent = Spent()
    compute_output: Spent = Spent()
    cache_hit: Spent = Spent()
    cache_miss: Spent = Spent()
    batches: tuple[BatchStatistics, ...] = ()
    """By size, ascending."""


class ShmStatus(msgspec.Struct, frozen=True):
    """A registered region of system shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int


class NotOffered(UserError):  # noqa: N818 - said by the server, not broken
    """The server has no such endpoint."""


def difference(before: Sequence[ModelStatistics], after: Sequence[ModelStatistics]) -> tuple[ModelStatistics, ...]:
    """What happened between two answers. A model that only `after` has was loaded since: all of it counts."""
    earlier = {(one.name, one.version): one for one in before}
    return tuple(_since(earlier.get((one.name, one.version)), one) for one in after)


def _since(before: ModelStatistics | None, after: ModelStatistics) -> ModelStatistics:
    if before is None:
        return after
    spent = {name: _spent_since(getattr(before, name), getattr(after, name)) for name in _SPENT}
    batches = {batch.size: batch for batch in before.batches}
    since = ModelStatistics(
        name=after.name,
        version=after.version,
        inference_count=after.inference_count - before.inference_count,
        execution_count=after.execution_count - before.execution_count,
        batches=tuple(
            batch for one in after.batches if (batch := _batch_since(batches.get(one.size), one)).compute_infer.count
        ),
        **spent,
    )
    counts = (since.inference_count, since.execution_count, *(one.count for one in spent.values()))
    if min(counts) < 0:
        raise UserError(
            f"the statistics of {after.name} went backwards: the server or the model was started anew in between",
            "run again while the server stays up",
        )
    return since


_SPENT = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def _spent_since(before: Spent, after: Spent) -> Spent:
    return Spent(after.count - before.count, after.ns - before.ns)


def _batch_since(before: BatchStatistics | None, after: BatchStatistics) -> BatchStatistics:
    before = before or BatchStatistics(after.size)
    return BatchStatistics(
        after.size,
        _spent_since(before.compute_input, after.compute_input),
        _spent_since(before.compute_infer, after.compute_infer),
        _spent_since(before.compute_output, after.compute_output),
    )


# --- the ways to ask, over HTTP --------------------------------------------------------------------------------------

T = TypeVar("T")


class Question(msgspec.Struct, Generic[T], frozen=True):
    what: str
    """What is asked for, for messages: "the statistics of resnet"."""
    method: str
    path: str
    body: bytes
    parse: Callable[[Any], T]
    """From the answer's JSON; what is not as it should be raises a KeyError, TypeError or ValueError."""
    subject: str = ""
    """The model or region asked about, where it may be that there is none of that name."""


def model_path(model: str, version: str = "") -> str:
    """/v2/models/M or /v2/models/M/versions/V; names are percent-encoded."""
    return f"/v2/models/{_quoted(model)}" + (f"/versions/{_quoted(version)}" if version else "")


def _quoted(name: str) -> str:
    return quote(name, safe="")


def live() -> Question[bool]:
    return Question("the server's health (live)", "GET", "/v2/health/live", b"", _yes)


def ready() -> Question[bool]:
    return Question("the server's health (ready)", "GET", "/v2/health/ready", b"", _yes)


def model_ready(model: str, version: str = "") -> Question[bool]:
    return Question(f"the health of {model}", "GET", model_path(model, version) + "/ready", b"", _yes, model)


def server_metadata() -> Question[ServerMetadata]:
    return Question("the server's metadata", "GET", "/v2", b"", _server_metadata)


def model_metadata(model: str, version: str = "") -> Question[ModelMetadata]:
    return Question(f"the metadata of {model}", "GET", model_path(model, version), b"", _model_metadata, model)


def model_config(model: str, version: str = "") -> Question[ModelConfig]:
    """To be asked of a model that has said what it takes: then a 404, in whatever words, is the endpoint's."""
    return Question(f"the configuration of {model}", "GET", model_path(model, version) + "/config", b"", config_from)


def repository_index() -> Question[tuple[IndexEntry, ...]]:
    return Question("the repository's index", "POST", "/v2/repository/index", b"{}", _index)


def statistics(model: str = "", version: str = "") -> Question[tuple[ModelStatistics, ...]]:
    """Of one model, or of all."""
    path = model_path(model, version) if model else "/v2/models"
    return Question(f"the statistics of {model or 'all models'}", "GET", path + "/stats", b"", _statistics, model)


def shm_register(region: str, key: str, byte_size: int, offset: int = 0) -> Question[None]:
    """`key` is what shm_open knows the memory by: it starts with a slash."""
    body = msgspec.json.encode({"key": key, "offset": offset, "byte_size": byte_size})
    return Question(
        f"the registration of shared memory {region}", "POST", _shm_path(region) + "/register", body, _nothing, region
    )


def shm_unregister(region: str = "") -> Question[None]:
    """One region, or all of them, other clients' too."""
    return Question(
        f"the removal of {f'shared memory {region}' if region else 'all shared memory'}",
        "POST",
        _shm_path(region) + "/unregister",
        b"",
        _nothing,
        region,
    )


def shm_status(region: str = "") -> Question[tuple[ShmStatus, ...]]:
    """Of one region, or of all."""
    return Question("the status of shared memory", "GET", _shm_path(region) + "/status", b"", _shm_status, region)


def _shm_path(region: str) -> str:
    return "/v2/systemsharedmemory" + (f"/region/{_quoted(region)}" if region else "")


# --- what the answers mean -------------------------------------------------------------------------------------------

_NO_ENDPOINT = ("", "not found", "method not allowed", "not implemented")


def read(question: Question[T], status: int, body: bytes) -> T:
    """The typed answer; NotOffered or UserError where there is none."""
    if question.parse is _yes:
        return _health(question, status, body)
    if status != 200:
        raise _refusal(question, status, body)
    try:
        tree = json.loads(body) if body.strip() else None
        if isinstance(tree, dict) and tree.get("error"):
            raise UserError(f"asked for {question.what}, the server answered: {error_message(body)}")
        return question.parse(tree)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        start = body[:200].decode("utf-8", "replace")
        raise UserError(
            f"asked for {question.what}, the server answered with something else: {bounded(start)} ({_named(error)})",
            "is it a KServe v2 server?",
        ) from None


def _named(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _health(question: Question[T], status: int, body: bytes) -> T:
    """200 is yes, and whatever JSON it carries may still say no; 400 (Triton) and 503 (MLServer) are no."""
    if status == 200:
        return question.parse(body)
    if status in (400, 503):
        return question.parse(None)
    raise _refusal(question, status, body)


def _refusal(question: Question[T], status: int, body: bytes) -> UserError:
    """Two kinds of 404 exist: there is no such endpoint, and there is no such model; the second has words of its own."""
    message = error_message(body)
    generic = message.lower().rstrip(".") in _NO_ENDPOINT or not body.lstrip().startswith(b"{")
    if status in (405, 501) or (status == 404 and (generic or not question.subject)):
        return NotOffered(f"the server does not offer {question.what} ({status}{': ' if message else ''}{message})")
    return UserError(f"asked for {question.what}, the server answered {status}: {message}")


def whole_number(value: Any) -> int:
    """A JSON number, or a string that holds one."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is not a whole number")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _yes(body: bytes | None) -> bool:
    if body is None:
        return False
    try:
        tree = json.loads(body)
    except ValueError:
        return True
    return not (isinstance(tree, dict) and False in (tree.get("live"), tree.get("ready")))


def _nothing(tree: Any) -> None:
    return None


def _server_metadata(tree: Any) -> ServerMetadata:
    extensions = tree.get("extensions") or ()
    return ServerMetadata(_text(tree["name"]), _text(tree.get("version") or ""), tuple(map(_text, extensions)))


def _model_metadata(tree: Any) -> ModelMetadata:
    return ModelMetadata(
        name=_text(tree["name"]),
        versions=tuple(map(_text, tree.get("versions") or ())),
        platform=_text(tree.get("platform") or ""),
        inputs=_specs(tree.get("inputs") or ()),
        outputs=_specs(tree.get("outputs") or ()),
    )


def _specs(tensors: Any) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(_text(one["name"]), _text(one["datatype"]), tuple(map(whole_number, one["shape"])))
        for one in tensors
    )


def config_from(tree: Mapping[str, Any]) -> ModelConfig:
    """From the configuration as a tree with the .proto's own names, which is what HTTP sends."""
    return ModelConfig(
        name=_text(tree["name"]),
        max_batch_size=whole_number(tree.get("max_batch_size", 0)),
        decoupled=bool((tree.get("model_transaction_policy") or {}).get("decoupled", False)),
        sequence_batching="sequence_batching" in tree,
        labels={one["name"]: one["label_filename"] for one in tree.get("output") or () if one.get("label_filename")},
        optional=tuple(_text(one["name"]) for one in tree.get("input") or () if one.get("optional")),
        raw=dict(tree),
    )


def _index(tree: Any) -> tuple[IndexEntry, ...]:
    return tuple(
        IndexEntry(
            name=_text(one["name"]),
            version=_text(one.get("version") or ""),
            state=_text(one.get("state") or "").removeprefix("State."),  # so MLServer has it over gRPC
            reason=_text(one.get("reason") or ""),
        )
        for one in tree
    )


def _statistics(tree: Any) -> tuple[ModelStatistics, ...]:
    return tuple(_model_statistics(one) for one in tree["model_stats"])


def _model_statistics(tree: Any) -> ModelStatistics:
    spent = tree.get("inference_stats") or {}
    return ModelStatistics(
        name=_text(tree["name"]),
        version=_text(tree.get("version") or ""),
        inference_count=whole_number(tree.get("inference_count", 0)),
        execution_count=whole_number(tree.get("execution_count", 0)),
        batches=tuple(sorted(map(_batch, tree.get("batch_stats") or ()), key=lambda batch: batch.size)),
        **{name: _spent(spent.get(name)) for name in _SPENT},
    )


def _batch(tree: Any) -> BatchStatistics:
    names = ("compute_input", "compute_infer", "compute_output")
    return BatchStatistics(whole_number(tree["batch_size"]), *(_spent(tree.get(name)) for name in names))


def _spent(tree: Any) -> Spent:
    return Spent(whole_number(tree.get("count", 0)), whole_number(tree.get("ns", 0))) if tree else Spent()


def _shm_status(tree: Any) -> tuple[ShmStatus, ...]:
    return tuple(
        ShmStatus(
            _text(one["name"]), _text(one["key"]), whole_number(one.get("offset", 0)), whole_number(one["byte_size"])
        )
        for one in tree
    )
