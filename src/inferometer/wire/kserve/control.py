"""What a KServe v2 server reports about itself and its models, whether over HTTP or gRPC.

control_requests.py requests these and reads them from the responses.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict

from inferometer.errors import UserError
from inferometer.records import Spent, StageStatistics
from inferometer.tensors import TensorSpec

S = TypeVar("S", bound=msgspec.Struct)


class NotOffered(UserError):  # noqa: N818 - a property of the server, not an error of the user
    """The server has no such endpoint. (MLServer, for example, offers neither configuration nor statistics.)"""


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
    """0: the model does not support batching, and its shapes have no batch dimension."""
    decoupled: bool = False
    """Whether a request may have any number of responses."""
    sequence_batching: bool = False
    labels: dict[str, str] = {}
    """The label file of each output that has one."""
    optional: tuple[str, ...] = ()
    """Inputs that a request may leave out; the metadata does not include this."""
    raw: dict[str, Any] = {}


class IndexEntry(msgspec.Struct, frozen=True):
    """A model in the server's repository."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


class ShmStatus(msgspec.Struct, frozen=True):
    """A registered region of system shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int


# --- statistics ------------------------------------------------------------------------------------------------------


class BatchStatistics(msgspec.Struct, frozen=True):
    """The executions with one batch size."""

    size: int
    compute_input: Spent = Spent()
    compute_infer: Spent = Spent()
    compute_output: Spent = Spent()


class ModelStatistics(msgspec.Struct, frozen=True):
    """What a model did since the server started, or between two such reports (`difference`)."""

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


SPENT_FIELDS = tuple(name for name, default in asdict(StageStatistics()).items() if isinstance(default, Spent))
"""The fields of ModelStatistics that are counts with durations; servers use the same names."""


def difference(before: Sequence[ModelStatistics], after: Sequence[ModelStatistics]) -> tuple[ModelStatistics, ...]:
    """What happened between two reports. A model that only `after` contains was loaded in between: all of it counts."""
    earlier = {(one.name, one.version): one for one in before}
    return tuple(_model_since(earlier.get((one.name, one.version)), one) for one in after)


def _model_since(before: ModelStatistics | None, after: ModelStatistics) -> ModelStatistics:
    if before is None:
        return after
    known = {batch.size: batch for batch in before.batches}
    batches = (_since(known.get(one.size, BatchStatistics(one.size)), one) for one in after.batches)
    ran = tuple(batch for batch in batches if batch.compute_infer.count)
    since = msgspec.structs.replace(_since(before, after), batches=ran)
    spent = (getattr(since, name).count for name in SPENT_FIELDS)
    if min(since.inference_count, since.execution_count, *spent) < 0:
        raise UserError(
            f"the statistics of {after.name} went backwards: the server or the model was restarted in between",
            "run again and keep the server running",
        )
    return since


def _since(before: S, after: S) -> S:
    """`after`, with every count and every time less those of `before`."""
    changes: dict[str, Any] = {}
    for name in after.__struct_fields__:
        earlier, later = getattr(before, name), getattr(after, name)
        if isinstance(later, Spent):
            changes[name] = Spent(later.count - earlier.count, later.ns - earlier.ns)
        elif name.endswith("_count"):
            changes[name] = later - earlier
    return msgspec.structs.replace(after, **changes)
