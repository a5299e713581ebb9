"""The records of a run: one row per request and one row per chunk, stored as columns. Every report is computed from them.

This file defines the layout once. The engine packs rows into a spool with `ROW_STRUCT`, numpy views the same bytes through
`ROW`, and after the merge they are `Columns`. requests.parquet has the columns of `ROW` under the same names, with these
differences: a value that is MISSING or not known (-1) is null; `failure` is the failure's code, null for success, with the
server's text in `message`; `counted_by` and `in_counted_by` are words of COUNTED_BY; `class` and `replica` are the names that
they are indices of; and `phase` is a word of PHASES.

Times are int64 nanoseconds: of CLOCK_MONOTONIC in the spool, since t=0 of the run everywhere else. The time of an event
that did not happen is MISSING. Such values are left out of the statistics and counted; they are never treated as 0.
"""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from inferometer.series import TimeSeries

MISSING = -(1 << 63)
"""The time of an event that did not happen."""

ROW = np.dtype(
    [
        ("id", "<i8"),  # position in the plan, counted from 0 over all stages
        # Times
        ("intended", "<i8"),  # when the plan wanted it sent; closed loop: when its user was ready to send it
        ("sent", "<i8"),  # just before the first byte was handed to the kernel, on the first attempt
        ("first_byte", "<i8"),  # arrival of the first byte of the response
        ("first_token", "<i8"),  # arrival of the first chunk that carries a token
        ("first_content", "<i8"),  # arrival of the first chunk that carries content or a tool call, not only reasoning
        ("last_token", "<i8"),  # arrival of the last chunk that carries a token
        ("done", "<i8"),  # arrival of the last byte of the response, or when the request failed
        # Durations in nanoseconds
        ("held", "<i8"),  # part of sent - intended that the load or the network caused: the cap, or connecting
        ("read_delay", "<i8"),  # the longest time that bytes of the response waited in the socket; -1: not known
        ("queue", "<i8"),  # time that the request waited in the server, as the server reports it; -1: not reported
        ("compute", "<i8"),  # time that the server computed, as the server reports it; -1: not reported
        ("server_total", "<i8"),  # time from receiving to responding, as the server reports it; -1: not reported
        ("rtt", "<i8"),  # the shortest round trip on the connection so far, as the kernel measured it; -1: not known
        (
            "wasted",
            "<i8",
        ),  # time from the first attempt to the last one, if client.retries repeated the request; else 0
        # Sizes
        ("bytes_in", "<i8"),  # bytes received
        ("chunk_start", "<i8"),  # index of this request's first row in chunks.parquet
        ("session", "<i8"),  # the session that the request belongs to: the id of its first request; -1: none
        ("chunk_count", "<i4"),  # number of its rows there, which follow one another
        ("bytes_out", "<i4"),  # bytes sent
        ("n_in", "<i4"),  # input tokens; -1: not known
        ("n_out", "<i4"),  # output tokens; -1: not known
        ("n_want", "<i4"),  # output tokens that were requested; 0: left to the server
        ("cached", "<i4"),  # input tokens that the server took from its cache; -1: not reported
        ("reasoning", "<i4"),  # how many of n_out are reasoning tokens; -1: not reported
        ("first_tokens", "<i4"),  # output tokens in the first chunk; -1: not known
        ("streamed_tokens", "<i4"),  # output tokens in all chunks; -1: not known how many each chunk carries
        # Origin and outcome
        ("turn", "<i4"),  # its turn in the session, from 0; -1: no session
        ("turns", "<i4"),  # how many turns the session was to have; -1: no session, or its first turn failed
        ("stage", "<i2"),  # index of the stage in the plan
        ("shard", "<i2"),  # index of the client process
        ("url", "<i2"),  # index of the base URL in server.url
        ("class", "<i2"),  # index of the traffic class in Records.classes; -1: there are no classes
        ("replica", "<i2"),  # index in Records.replicas of the address that it was sent to; -1: it was not sent
        ("status", "<i2"),  # status of the protocol: HTTP 200, 503 ...; 0: no response
        ("failure", "<i4"),  # 0: success; otherwise 1 + index in Records.failures
        ("counted_by", "<i1"),  # where n_out comes from: index in COUNTED_BY
        ("in_counted_by", "<i1"),  # where n_in comes from: index in COUNTED_BY
        (
            "attempts",
            "<i1",
        ),  # times it was sent: 2 if the server closed or refused the first attempt unprocessed; client.retries
        # may repeat it more often, and then attempts to connect count, too
        ("open_loop", "<i1"),  # 1: open loop, the plan set `intended`; 0: closed loop
    ]
)

ROW_STRUCT = struct.Struct(
    "<" + "".join({"i8": "q", "i4": "i", "i2": "h", "u2": "H", "i1": "b"}[ROW[n].str[1:]] for n in ROW.names or ())
)
assert ROW_STRUCT.size == ROW.itemsize

NAMES: tuple[str, ...] = ROW.names or ()
TIMES = ("intended", "sent", "first_byte", "first_token", "first_content", "last_token", "done")
UNKNOWN = (
    *("read_delay", "queue", "compute", "server_total", "rtt", "session", "n_in", "n_out", "cached", "reasoning"),
    *("first_tokens", "streamed_tokens", "turn", "turns"),
)
"""Columns in which -1 means `not known`; on disk that is null."""
NAMED = {"class": "classes", "replica": "replicas"}
"""Columns with the index of a name, or -1 for none, and the field of Records that has the names. On disk, they are the names."""
COUNTED_BY = ("nobody", "server", "tokenizer", "chunks")
"""Where a number of tokens comes from: it is not known, the server's usage, the client's tokenizer, or, for the output of a streamed
response that neither counted, the number of chunks with tokens. A chunk has at least one token, so that is a lower bound."""

PHASES = ("warmup", "steady", "cooldown", "start")
"""The part of the run that a request belongs to. Only `steady` requests are in the statistics. `start`: while the users of a closed
loop start, and each user's first request."""

DROPPED = "dropped"
"""Failure code of a request that was due while the cap was reached, and was not sent."""
CANCELLED = "cancelled"
"""Failure code of a request that was in flight, or waiting to be sent, when the run was interrupted."""
LOST = "lost"
"""Failure code of a request whose client process died: it was in flight then, or was never sent."""

_CACHE_LINE = 64


class _Named(Protocol):
    def __getitem__(self, name: str, /) -> NDArray[Any]: ...


class Columns:
    """Rows with each column in its own array, so that reading one column leaves the others out of the processor's cache.

    `rows["sent"]` is a column. `rows[mask]` and `rows[a:b]` are a selection of the rows; its columns are gathered when they
    are read. `np.asarray(rows)` is an array of ROW, for reading row by row.
    """

    def __init__(self, count: int, source: _Named, chosen: slice | NDArray[Any] = slice(None)) -> None:
        self._count, self._source, self._chosen = count, source, chosen

    @classmethod
    def empty(cls, count: int) -> "Columns":
        """`count` uninitialized rows, in one allocation: the kernel backs it with large pages, which takes half the time."""
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
    """A way in which requests failed. Requests with the same code and message share one."""

    code: str
    """See wire/failures.py."""
    message: str


class Chunks(msgspec.Struct, frozen=True):
    """The columns of chunks.parquet, or a slice of them: when each chunk arrived, and how many tokens it carried."""

    arrival: NDArray[np.int64]
    tokens: NDArray[np.uint16]


class Sample(msgspec.Struct, frozen=True):
    """How one client process did over one interval of the run (a fraction of a second)."""

    shard: int
    at: int
    """End of the interval, ns since t=0."""
    cpu: float
    """CPU time of the process as a share of one core, without `spinning`."""
    rss: int
    """Resident memory of the process in bytes."""
    memory: float
    """Share of the machine's memory that is in use."""
    stall: int
    """Longest stall of the event loop, ns."""
    stalled: int
    """Sum of the stalls of at least 10 ms, ns."""
    clock_step: int
    """How far the wall clock has moved against the monotonic clock since t=0, ns."""
    in_flight: int
    """Requests of the process in flight at the end of the interval."""
    reads: int = 0
    """Reads of sockets."""
    unstamped: int = 0
    """How many of these reads had no kernel timestamp, although kernel timestamps are in use: they were stamped when they were read."""
    spinning: float = 0.0
    """CPU time spent on keeping the processor awake, as a share of one core. It is not part of `cpu`."""


class Records(msgspec.Struct, frozen=True):
    """Everything that was recorded except the chunks, which may not fit into memory (see `Run.chunks`)."""

    rows: Columns
    phase: NDArray[np.int8]
    """An index into PHASES for each row."""
    failures: tuple[Failure, ...]
    samples: tuple[Sample, ...]
    classes: tuple[str, ...] = ()
    """Names of the traffic classes, in the order of data.classes."""
    replicas: tuple[str, ...] = ()
    """Addresses that requests were sent to, `HOST:PORT` after the lookup of the name, in the order of their first rows."""


# --- a run in progress ------------------------------------------------------------------------------------------------


_NO_ROWS = np.zeros(0, ROW)


def _no_rows() -> NDArray[np.void]:
    return _NO_ROWS


def _no_ages() -> NDArray[np.int64]:
    return np.zeros((0, 2), np.int64)


class Snapshot(msgspec.Struct, frozen=True):
    """The current state of the run."""

    started: bool
    elapsed: float = 0.0
    """Seconds since t=0."""
    sent: int = 0
    ok: int = 0
    failed: int = 0
    in_flight: int = 0
    queued: int = 0
    stage: int = 0
    stopping: bool = False
    t0: int = 0
    rows: Callable[[], NDArray[np.void]] = _no_rows
    """Return the rows of all requests that ended since the last snapshot whose rows were read, with monotonic times. Every call for one
    snapshot returns the same array, so that several readers share it: do not change it. The first call is slow."""
    peeks: Callable[[], NDArray[np.int64]] = _no_ages
    """Return the time to first token and the latest gap of some requests in flight, in ns."""
    draining: bool = False
    """The next stage starts when the requests in flight have ended."""
    pausing: bool = False
    """The next stage starts after a pause."""
    prepared: float = 1.0
    """Before t=0: the share of the requests that are encoded."""
    starts_in: float = 0.0
    """Before t=0: seconds until the start, if it is set."""
    observed: dict[str, float] = {}
    """The latest figures of observers, by the names of server_metrics/vocabulary.py."""
    ages: Callable[[], NDArray[np.int64]] = _no_ages
    """Return for some requests in flight how long ago they started (at their intended instant; closed loop: when they were sent), in
    ns, and whether their first token has arrived (1 or 0)."""


# --- a run: its records, and the circumstances under which they were taken -------------------------------------------


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one stage, as planned; 0 for what does not apply."""

    type: str
    """Its type in the config: constant, poisson ... closed."""
    open: bool
    """Open or closed loop."""
    name: str = ""
    unit: str = "requests"
    """What `rate`, `requests` and the concurrency of a closed loop count: requests, or sessions."""
    rate: float = 0.0
    """Open loop: requests or sessions per second, averaged over the stage."""
    duration: float = 0.0
    """Seconds, like `ramp_up` and `think`."""
    requests: int = 0
    concurrency: int = 0
    """Closed loop: number of users. Open loop: maximum number of requests in flight."""
    ramp_up: float = 0.0
    """Closed loop: time over which the users start. 0 also if only the first response determines it."""
    think: float = 0.0
    drain: bool = False
    """Every request of the stages before had ended when this stage started."""
    pause: float = 0.0
    """Seconds between the end of the stage before (with `drain`, of its last request) and the start of this one."""
    first_id: int = 0
    """Id of the stage's first request. Closed loop: the users' first requests have the ids first_id ... first_id + concurrency - 1."""
    users: int = 0
    """Open loop: this many sessions take turns, each at the instants of the plan. 0: each turn follows the turn before."""
    stable: float = 0.0
    """The stage ends when three windows in a row agree within this share; 0: this rule is off."""
    window: float = 0.0
    """Length of such a window in seconds."""


class Spent(msgspec.Struct, frozen=True):
    """How often something happened, and how long it took in total."""

    count: int = 0
    ns: int = 0


class StageStatistics(msgspec.Struct, frozen=True):
    """What a KServe server reports about its work during one stage. A batch of n is n inferences in one execution."""

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


class Trip(msgspec.Struct, frozen=True):
    """A limit of `abort.on` that was exceeded, which ended the run or a stage."""

    limit: str
    """The limit as it is in the config: `failure_rate > 20%`."""
    ended: str
    """What it ended: `run` or `stage`."""
    stage: int
    at: float
    """Seconds since t=0."""
    value: float | None
    """What was measured: a share, a number of failures, or seconds."""
    reason: str
    """The measured value in words: `failure_rate 34 % > 20 % over the last 10 s (41 of 120 requests)`."""


class CutShort(msgspec.Struct, frozen=True):
    """A stage that was ended early because the server did not keep up with it."""

    stage: int
    after: float
    """Seconds for which requests were sent."""
    planned: float
    """Seconds for which they would have been sent."""


class Outcome(msgspec.Struct, frozen=True):
    """How the run ended."""

    interrupted: bool = False
    errors: tuple[str, ...] = ()
    """One line for each client process that died or hung."""
    given_up: tuple[int, ...] = ()
    """Indices of the stages that ended early because the server could not be reached for server.timeouts.unreached."""
    notes: tuple[str, ...] = ()
    """What the user should know about the run, although nothing failed."""
    trips: tuple[Trip, ...] = ()
    """Limits of `abort.on` that were exceeded: one, or one for each stage that was ended."""
    cut_short: tuple[CutShort, ...] = ()
    """Stages that were ended early because they were overloaded."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests before the run showed (probe/estimate.py). None: not known. Times are in seconds, for one request at a time."""

    requests: int = 0
    """Number of requests sent."""
    e2e: float | None = None
    """Median duration of a request, from the send to the end of its response."""
    is_cut: bool = False
    """No response was complete when the time was up: `e2e` is an estimate, or a lower bound."""
    ttft: float | None = None
    """Median time to the first token."""
    request_bytes: int | None = None
    response_bytes: int | None = None
    """Medians, with headers."""
    chunks: float | None = None
    """Median number of chunks per response."""
    chunks_per_second: float | None = None
    """How fast the chunks of one response arrive."""
    cpu: float | None = None
    """CPU time of the client per request, for sending it and for receiving and decoding its response. A run spends less on a
    stream, because it reads many responses at a time and seldom sleeps."""
    failure: str = ""
    """Why a request failed. The rest was not sent."""
    skipped: str = ""
    """Why there was no probe."""
    processes_because: str = ""
    """How the number of client processes was chosen."""

    @property
    def e2e_ns(self) -> int:
        """The duration of a request in nanoseconds; 0: not known."""
        return round((self.e2e or 0) * 1e9)


class RunPart(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a run this is (`inferometer run --shard`), and what all parts together are."""

    number: int
    """Counted from 0."""
    of: int
    """How many parts there are."""
    start_ns: int
    """The start that is set: wall clock, nanoseconds since 1970."""
    plan: tuple[StagePlan, ...]
    """The load of all parts together."""
    distinct: int = 0
    """Number of different requests that the data has; 0: each id has its own."""


class MergedPart(msgspec.Struct, frozen=True, kw_only=True):
    """One of the parts that a run was merged from."""

    number: int
    run: str
    """Name of its folder."""
    t0_wall_ns: int
    """Its t=0 by its own wall clock."""
    requests: int
    processes: int
    """Number of its client processes, which follow those of the parts before in the column `shard`."""
    host: dict[str, object]
    clock: dict[str, object]
    interrupted: bool = False
    errors: tuple[str, ...] = ()


class Merged(msgspec.Struct, frozen=True):
    """What a run was merged from (`inferometer merge`)."""

    of: int
    """How many parts were planned."""
    parts: tuple[MergedPart, ...]

    @property
    def missing(self) -> list[int]:
        """The numbers of the parts that are missing."""
        return sorted(set(range(self.of)) - {part.number for part in self.parts})


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json: everything about a run except its records."""

    schema: int = 1
    inferometer: str
    started: str
    """Wall clock at t=0, ISO 8601."""
    t0_wall_ns: int
    config: dict[str, object]
    """The config as it ran, with secrets removed."""
    plan: tuple[StagePlan, ...]
    workload: dict[str, object]
    """`distinct`: number of different requests; `digest`: hash of the data's spec, the seed and the files that it uses; `salt`: the
    word that data.salt must be set to for the same prompts again (synthetic prompts with a salt); `skipped`: broken rows of a dataset,
    how many there were and why the first is broken; `filtered`: rows left out by their length; `notes`: the same in sentences."""
    probe: Probe = Probe()
    clock: dict[str, object]
    """`stamps` (kernel or user), the clock source, its offset ..."""
    seeds: dict[str, int]
    versions: dict[str, str]
    host: dict[str, object]
    """The machine that the client ran on; `has_server`: whether all addresses of the server were its own."""
    server: dict[str, object] = {}
    """KServe: name and version of the server; inputs, outputs and batch size of the model."""
    statistics: tuple[StageStatistics | None, ...] = ()
    """KServe: one per stage; None if the server does not report it."""
    no_statistics: tuple[str, ...] = ()
    """For each stage, why there are no statistics; empty if there are."""
    observer_errors: dict[str, str] = {}
    """Why an observer's series are missing or incomplete, by the observer's name or by what they are about."""
    observer_cpu: dict[str, float] = {}
    """CPU seconds that each observer took, by its name: of its threads, without those that gRPC runs on its own."""
    outcome: Outcome = Outcome()
    part: RunPart | None = None
    """The run is one part of another one. None: it is not."""
    merged: Merged | None = None
    """The run was merged from parts. None: it was not. Times of different parts are from clocks that were not compared."""


def class_names(manifest: Manifest) -> tuple[str, ...]:
    """Names of the run's traffic classes; none if its data is not a mix."""
    return tuple(str(each.get("name")) for each in class_settings(manifest))


def class_settings(manifest: Manifest) -> list[dict[str, object]]:
    """The settings of each traffic class, as they are in the config."""
    data = manifest.config.get("data")
    classes = data.get("classes") if isinstance(data, dict) and data.get("type") == "mix" else None
    return [each for each in classes if isinstance(each, dict)] if isinstance(classes, list | tuple) else []


class Body(msgspec.Struct, frozen=True):
    """The texts of one request (`keep: text`)."""

    id: int
    session: int
    """-1: it belongs to no session; likewise `turn` and `class_`."""
    turn: int
    stage: int
    class_: int
    request: str
    """The body as it was sent: JSON."""
    response: str | None
    """The generated text, joined from all chunks; None if no text arrived."""
    finish_reason: str | None
    """Why the generation ended, if the server says so."""


class Run(msgspec.Struct, frozen=True):
    """A run as read from its folder."""

    folder: Path
    manifest: Manifest
    records: Records
    chunk_total: int
    chunks: Callable[[], Iterator[Chunks]]
    """Reads the chunk columns from the start, in slices that fit into memory."""
    series: "Callable[[], tuple[TimeSeries, ...]]" = tuple
    """Reads what observers recorded beside the run, and the client's own health."""
