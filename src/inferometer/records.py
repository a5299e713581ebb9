"""The records: one row a request and one row a chunk, as columns. The records are the product; all else follows from them.

The row's layout stands here once. The engine packs rows of it into a spool with `ROW_STRUCT`, numpy views the same bytes
as columns through `ROW`, and requests.parquet has these columns under these names.

Times are int64 nanoseconds: CLOCK_MONOTONIC in the spool, since t=0 of the run everywhere else. What did not happen is
MISSING: it is excluded and counted, never 0.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

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

TIMES = ("intended", "sent", "first_byte", "first_token", "last_token", "done")
COUNTED_BY = ("nobody", "server", "tokenizer")

PHASES = ("warmup", "steady", "cooldown")
"""Which part of the run a request belongs to; only `steady` is counted."""

DROPPED = "dropped"
"""The failure code of a request that the cap kept from being sent."""
CANCELLED = "cancelled"
"""The failure code of a request that was in flight, or still to be sent, when the run was ended."""


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

    rows: NDArray[np.void]
    """Of dtype ROW."""
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


class Outcome(msgspec.Struct, frozen=True):
    """How the run ended."""

    interrupted: bool = False
    errors: tuple[str, ...] = ()
    """Workers that died or hung, one line each."""


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
    outcome: Outcome = Outcome()


class Run(msgspec.Struct, frozen=True):
    """A whole run, as the store reads it."""

    folder: Path
    manifest: Manifest
    records: Records
    chunk_total: int
    chunks: Callable[[], Iterator[Chunks]]
    """The chunk columns from the start, in pieces small enough to hold; read when asked for."""
