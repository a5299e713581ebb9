"""The records: one row a request and one row a chunk, as columns. The records are the product; all else follows from them.

The row's layout stands here once. The engine packs rows of it into a spool with `ROW_STRUCT`, numpy views the same bytes
through `ROW`; from the merge on they are `Columns`, and requests.parquet has these columns under these names.

Times are int64 nanoseconds: CLOCK_MONOTONIC in the spool, since t=0 of the run everywhere else. What did not happen is
MISSING: it is excluded and counted, never 0.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.series import TimeSeries

MISSING = -(1 << 63)
"""The time of what did not happen."""

ROW = np.dtype(
    [
        ("id", "<i8"),
        ("intended", "<i8"),  # when the plan had it; closed loop: when its user was ready
        ("sent", "<i8"),  # just before its first byte was handed to the kernel
        ("first_byte", "<i8"),
        ("first_token", "<i8"),
        ("last_token", "<i8"),
        ("done", "<i8"),  # the last byte of the answer, or the failure
        ("held", "<i8"),  # ns of sent - intended that were not the client's doing: the cap, or connecting
        ("read_delay", "<i8"),  # the longest that bytes of this answer lay in the socket unread, ns; -1: not known
        ("queue", "<i8"),  # ns that the server says the request waited there; -1: it does not say
        ("compute", "<i8"),  # ns that the server says it worked on it; -1: it does not say
        ("bytes_in", "<i8"),
        ("chunk_start", "<i8"),  # this request's slice of the chunk columns
        ("chunk_count", "<i4"),
        ("bytes_out", "<i4"),
        ("n_in", "<i4"),  # -1: not known
        ("n_out", "<i4"),  # -1: not known
        ("n_want", "<i4"),  # output tokens asked for; 0: as many as the server likes
        ("cached", "<i4"),  # prompt tokens that the server had cached; -1: it does not say
        ("reasoning", "<i4"),  # of n_out; -1: it does not say
        ("stage", "<i2"),
        ("shard", "<i2"),
        ("url", "<i2"),  # which of the base URLs
        ("status", "<i2"),  # the protocol's: HTTP 200, 503 ...; 0: none came
        ("failure", "<i4"),  # 0: ok; else 1 + the place in the list of failures
        ("counted_by", "<i1"),  # who counted n_out: see COUNTED_BY
        ("attempts", "<i1"),  # 2 where a stale connection made it be sent again
        ("open_loop", "<i1"),  # 1 where the plan had set the instant
    ]
)

ROW_STRUCT = struct.Struct(
    "<" + "".join({"i8": "q", "i4": "i", "i2": "h", "u2": "H", "i1": "b"}[ROW[n].str[1:]] for n in ROW.names or ())
)
assert ROW_STRUCT.size == ROW.itemsize

NAMES: tuple[str, ...] = ROW.names or ()
TIMES = ("intended", "sent", "first_byte", "first_token", "last_token", "done")
COUNTED_BY = ("nobody", "server", "tokenizer")

PHASES = ("warmup", "steady", "cooldown")
"""Which part of the run a request belongs to; only `steady` is counted."""

DROPPED = "dropped"
"""The failure code of a request that the cap kept from being sent."""
CANCELLED = "cancelled"
"""The failure code of a request that was in flight, or still to be sent, when the run was ended."""
UNREACHED = 30
"""Seconds on end without a connection after which a closed stage that only a number of requests would end is given up."""


_CACHE_LINE = 64


class _Named(Protocol):
    def __getitem__(self, name: str, /) -> NDArray[Any]: ...


class Columns:
    """Rows, each column an array of its own: reading one does not drag the others through the processor's cache.

    `rows["sent"]` is a column; `rows[mask]` and `rows[a:b]` are some of the rows, of which a column is picked when it is
    asked for. `np.asarray(rows)` has them as an array of ROW, for whoever wants them one by one.
    """

    def __init__(self, count: int, source: _Named, chosen: slice | NDArray[Any] = slice(None)) -> None:
        self._count, self._source, self._chosen = count, source, chosen

    @classmethod
    def empty(cls, count: int) -> "Columns":
        """Room for so many rows, to be filled: in one piece, which the kernel backs with large pages, in half the time."""
        room = np.empty(count * ROW.itemsize + len(NAMES) * _CACHE_LINE, np.uint8)
        columns, at = {}, 0
        for name in NAMES:
            end = at + count * ROW[name].itemsize
            columns[name] = room[at:end].view(ROW[name])
            at = -(-end // _CACHE_LINE) * _CACHE_LINE
        return cls(count, columns)

    @classmethod
    def of(cls, rows: NDArray[np.void]) -> "Columns":
        """The columns of an array of ROW, copied."""
        return cls(len(rows), {name: rows[name].copy() for name in NAMES})

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, key: str, /) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, key: slice | NDArray[Any], /) -> "Columns": ...
    def __getitem__(self, key: str | slice | NDArray[Any], /) -> "NDArray[Any] | Columns":
        if isinstance(key, str):
            return self._source[key][self._chosen]
        if isinstance(key, slice):
            return Columns(len(range(*key.indices(self._count))), self, key)
        count = int(np.count_nonzero(key)) if key.dtype == np.bool_ else len(key)
        return self if key.dtype == np.bool_ and count == self._count else Columns(count, self, key)

    def __iter__(self) -> Iterator[np.void]:
        return iter(np.asarray(self))

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[np.void]:
        rows = np.empty(self._count, ROW)
        for name in NAMES:
            rows[name] = self[name]
        return rows


class Failure(msgspec.Struct, frozen=True):
    code: str
    message: str


class Chunks(msgspec.Struct, frozen=True):
    """The chunk columns, or a piece of them: when each arrived and how many tokens it carried."""

    arrival: NDArray[np.int64]
    tokens: NDArray[np.uint16]


class Sample(msgspec.Struct, frozen=True):
    """How one shard's process fared over one interval of the run (a fraction of a second)."""

    shard: int
    at: int
    """ns since t=0, the interval's end."""
    cpu: float
    """Share of one core that the process used."""
    rss: int
    """Bytes of memory that the process holds."""
    memory: float
    """Share of the machine's memory in use."""
    stall: int
    """The longest that the loop stood still, ns."""
    stalled: int
    """Sum of the standstills of 10 ms and more, ns."""
    clock_step: int
    """Wall clock against monotonic clock since t=0, ns."""
    in_flight: int


class Records(msgspec.Struct, frozen=True):
    """Everything that was recorded, but for the chunks, which may be too many to hold and come in pieces."""

    rows: Columns
    phase: NDArray[np.int8]
    """A place in PHASES for each row."""
    failures: tuple[Failure, ...]
    samples: tuple[Sample, ...]


# --- a run: the records, and what is known about where they come from -------------------------------------------------


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage asked for; 0 where it does not apply."""

    type: str
    """As the config names it: constant, poisson ... closed."""
    open: bool
    name: str = ""
    rate: float = 0.0
    """Open loop: requests a second, on average over the stage."""
    duration: float = 0.0
    """Seconds, as `ramp_up` and `think`."""
    requests: int = 0
    concurrency: int = 0
    """Closed loop: requests in flight. Open loop: the cap."""
    ramp_up: float = 0.0
    think: float = 0.0
    stable: float = 0.0
    """It ends when three windows in a row agree within this share; 0: there is no such rule."""
    window: float = 0.0
    """Seconds."""


class Spent(msgspec.Struct, frozen=True):
    """How often, and for how long in all."""

    count: int = 0
    ns: int = 0


class StageStatistics(msgspec.Struct, frozen=True):
    """What a KServe server says that it spent its time on during one stage. A batch of n is n inferences in one execution."""

    inferences: int = 0
    executions: int = 0
    success: Spent = Spent()
    fail: Spent = Spent()
    queue: Spent = Spent()
    compute_input: Spent = Spent()
    compute_infer: Spent = Spent()
    compute_output: Spent = Spent()
    cache_hit: Spent = Spent()
    cache_miss: Spent = Spent()


class Outcome(msgspec.Struct, frozen=True):
    """How the run ended."""

    interrupted: bool = False
    errors: tuple[str, ...] = ()
    """Workers that died or hung, one line each."""
    given_up: tuple[int, ...] = ()
    """Stages (the first is 0) that were ended before all was sent, since the server could not be reached for UNREACHED s."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json: everything about a run that is not a record."""

    schema: int = 1
    inferometer: str
    started: str
    """Wall clock at t=0, ISO 8601."""
    t0_wall_ns: int
    config: dict[str, object]
    """With secrets removed."""
    plan: tuple[StagePlan, ...]
    workload: dict[str, object]
    """`distinct`: different prompts made; `digest`: of the spec, the seed and what they were made from."""
    clock: dict[str, object]
    """`stamps`: kernel | user; its source, its offset ..."""
    seeds: dict[str, int]
    versions: dict[str, str]
    host: dict[str, object]
    server: dict[str, object] = {}
    """KServe: the server's name and version, the model's inputs, outputs and batch size."""
    statistics: tuple[StageStatistics | None, ...] = ()
    """KServe: for each stage, as far as the server says."""
    no_statistics: tuple[str, ...] = ()
    """For each stage why there are none; empty where there are."""
    observer_errors: dict[str, str] = {}
    """Why an observer's series are missing or incomplete, by the observer's name."""
    outcome: Outcome = Outcome()


class Run(msgspec.Struct, frozen=True):
    """A whole run, as the store reads it."""

    folder: Path
    manifest: Manifest
    records: Records
    chunk_total: int
    chunks: Callable[[], Iterator[Chunks]]
    """The chunk columns from the start, in pieces small enough to hold; read when asked for."""
    series: Callable[[], tuple[TimeSeries, ...]] = tuple
    """What observers recorded beside the run, and the client's own health; read when asked for."""
