"""Rows and chunks on disk as they happen, and the few numbers that parent and shard exchange.

A shard packs each finished request directly into a mapped file: there is no system call on the hot path and no message to another
process, and a process that dies leaves behind what it had recorded. The parent reads the same files for the live view and, at the
end, to merge them. Space is allocated before it is written, so that a full disk is an error here and not a SIGBUS.

    SPOOL/0.control   the numbers of CONTROL, 8 bytes each
    SPOOL/0.rows      records.ROW structs
    SPOOL/0.arrivals  int64 ns            one per chunk; a request's chunks are contiguous
    SPOOL/0.tokens    uint16              one per chunk
    SPOOL/0.failures  JSON lines; rows refer to them by number
    SPOOL/0.replicas  JSON lines; rows refer to them by number
    SPOOL/0.samples   JSON lines
    SPOOL/0.bodies    texts of requests and responses, with `keep: text` only (body_spool.py)
    SPOOL/0.peek      of some requests in flight: PEEKS pairs of int64 ns (time to first token and latest gap), then AGES pairs of int64
                      (ns since the request started, and 1 if its first token has arrived)
"""

import errno
import mmap
import os
import sys
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from inferometer.printable import hide
from inferometer.records import MISSING, NAMES, ROW, ROW_STRUCT, TIMES, Chunks, Columns, Failure, Records, Sample
from inferometer.timing.clock import now
from inferometer.units import NS

T = TypeVar("T")

_pack, _ROW_SIZE = ROW_STRUCT.pack, ROW_STRUCT.size
_COLUMNS = len(NAMES)


class FinishedRequest(Protocol):
    """A msgspec struct whose first fields are those of records.ROW, with its chunks (engine/inflight.py)."""

    chunk_start: int
    chunk_count: int
    first_token: int
    last_token: int
    arrivals: list[int]
    counts: list[int]


CONTROL = (
    # written by the parent
    "t0",  # monotonic ns at which the run starts; 0: not yet
    "stop",  # 1: send nothing more, and end after the grace period; 2: end now
    "past",  # stages before this one must end now
    "abandoned",  # requests of stages before this one are cancelled, if it waits for them at a barrier or there are no more stages
    "released",  # the last stage behind a barrier that may start
    "release_at",  # when that stage starts, monotonic ns
    "grants",  # how often the parent has dealt out requests of a closed stage to this shard; the last time:
    "grant_stage",
    "grant_from",  # the first id
    "grant_to",  # the id after the last
    "grant_is_last",  # 1: nothing more will be dealt out in this stage
    # written by the shard
    "state",  # an index into STATES
    "heartbeat",  # monotonic ns of the last sign of life
    "recorded",  # monotonic ns; all responses that ended before are in the spool
    "rows",
    "chunks",
    "failures",
    "sent",
    "ok",
    "failed",
    "in_flight",
    "queued",
    "stage",
    "waiting",  # the stage behind a barrier that the shard is ready for: all its earlier requests have ended
    "reached",  # the stage behind a barrier or a pause before which the shard has stopped sending
    "issued",  # requests sent of the closed stage in progress, if the parent deals them out: plus STAGE_STEP * (1 + stage)
    "grants_taken",  # the value of `grants` that the shard has seen
    "ended",  # monotonic ns at which the shard had nothing more to do
    "interrupted",
    "disk_full",
    "recounted",  # 1: tokens were counted after the run, which changed rows
    "stored",  # 1: the chunks and texts are in the bucket of the run, and not in the parent's spool (shard_files.py)
)
FROM_PARENT = CONTROL[: CONTROL.index("state")]
"""The numbers that the parent writes; the shard writes the others."""
STAGE_STEP = 1 << 40
"""Makes the stage and the number of its requests a single number, which is read and written at once."""
STATES = ("starting", "ready", "running", "done")
_INDEX = {name: index for index, name in enumerate(CONTROL)}

PEEKS = 64
"""Maximum number of requests in flight shown to the live view, for streams that last longer than its window."""
AGES = 256
"""Maximum number of requests in flight whose age is published."""
_FIRST_ROWS = 1 << 14
_FIRST_CHUNKS = 1 << 18
_BLOCK = 4_096
"""Rows processed at a time when merging: this many stay in the processor's cache."""
_SAMPLE_SIZE = 2_048
"""Bytes from the end of a file of samples in which there is a complete one."""
_MAX_REPLICAS = 30_000
"""Maximum number of distinct addresses, which is limited by the type of the column. Requests to later ones have none."""
_MAX_FAILURES = 60_000
"""Maximum number of distinct failures. Later ones are recorded by their code alone, without the message."""


class Control:
    """The numbers of CONTROL, in a mapped file that parent and shard share.

    Each is read and written through an int64 view, in a single 8-byte access: a reader sees either the old number or the new one.
    (struct.pack_into zeroes the bytes first and fills them one by one; a reader in between would see a heartbeat of 0.)
    """

    def __init__(self, path: Path, create: bool) -> None:
        size = 8 * len(CONTROL)
        if create:
            path.write_bytes(bytes(size))
        elif path.stat().st_size != size:
            raise ValueError("its files are not yet complete, or were recorded by another version of inferometer")
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), 8 * len(CONTROL))).cast("q")

    def __getitem__(self, name: str) -> int:
        return self._numbers[_INDEX[name]]

    def __setitem__(self, name: str, value: int) -> None:
        self._numbers[_INDEX[name]] = value

    @property
    def state(self) -> str:
        return STATES[self["state"]]

    @state.setter
    def state(self, name: str) -> None:
        self["state"] = STATES.index(name)


class _Column:
    """A file that grows, and is written through a memory map."""

    def __init__(self, path: Path, size: int) -> None:
        self._file = path.open("w+b")
        _allocate(self._file.fileno(), size)
        self.map = mmap.mmap(self._file.fileno(), size)
        self.size = size

    def grow(self) -> None:
        _allocate(self._file.fileno(), 2 * self.size)
        if sys.platform == "linux":
            self.map.resize(2 * self.size)
        else:  # mremap is not available
            self.map.close()
            self.map = mmap.mmap(self._file.fileno(), 2 * self.size)
        self.size *= 2

    def close(self, used: int) -> None:
        self.map.close()
        self._file.truncate(used)
        self._file.close()


class _Lines:
    """A file of JSON lines. A line is either complete or missing."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._size = 0

    def add(self, entry: msgspec.Struct | str) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        if self._file.write(line) != len(line):  # the disk filled up in the middle of the line
            self._file.seek(self._size)
            self._file.truncate()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(line)

    def close(self) -> None:
        self._file.close()


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


class Spool:
    """The shard's side: writes a row for each request that ended."""

    def __init__(
        self, folder: Path, shard: int, expected_rows: int, expected_chunks: int, secrets: tuple[str, ...] = ()
    ) -> None:
        self._secrets = secrets
        self.control = Control(folder / f"{shard}.control", create=False)
        row_room = max(expected_rows, _FIRST_ROWS)
        self._rows = _Column(folder / f"{shard}.rows", row_room * ROW.itemsize)
        chunk_room = max(expected_chunks, _FIRST_CHUNKS)
        self._arrivals = _Column(folder / f"{shard}.arrivals", chunk_room * 8)
        self._tokens = _Column(folder / f"{shard}.tokens", chunk_room * 2)
        self._failures = _Lines(folder / f"{shard}.failures")
        self._replicas = _Lines(folder / f"{shard}.replicas")
        self._replica_numbers: dict[str, int] = {}
        self._samples = _Lines(folder / f"{shard}.samples")
        self._peek = _Column(folder / f"{shard}.peek", (PEEKS + AGES) * 16)
        self._known: dict[tuple[str, str], int] = {}
        self.rows = 0
        self.chunks = 0

    def failure(self, code: str, message: str) -> int:
        """Return the value of a row's `failure` column for this failure."""
        if len(self._known) >= _MAX_FAILURES:
            message = ""
        number = self._known.get((code, message))
        if number is None:
            self._failures.add(Failure(code, hide(message, self._secrets)))
            number = self._known[code, message] = len(self._known) + 1
            self.control["failures"] = number
        return number

    def replica(self, address: str) -> int:
        """Return the value of a row's `replica` column for this address. Raises OSError when the disk is full."""
        number = self._replica_numbers.get(address)
        if number is None:
            if len(self._replica_numbers) >= _MAX_REPLICAS:
                return -1
            self._replicas.add(address)
            number = self._replica_numbers[address] = len(self._replica_numbers)
        return number

    def add(self, flights: Sequence[FinishedRequest]) -> None:
        """Add requests that ended. Raises OSError when the disk is full, after writing those that there was room for."""
        packed: list[bytes] = []
        full: OSError | None = None
        for flight in flights:
            flight.chunk_start = self.chunks
            try:
                if flight.arrivals:
                    self._add_chunks(flight)
                packed.append(_pack(*astuple(flight)[:_COLUMNS]))  # type: ignore[arg-type]  # twice as fast as pack_into
            except OSError as error:
                full = error
        begin, end = self.rows * _ROW_SIZE, (self.rows + len(packed)) * _ROW_SIZE
        try:
            while end > self._rows.size:
                self._rows.grow()
        except OSError as error:
            full = error
            end = self._rows.size // _ROW_SIZE * _ROW_SIZE
        self._rows.map[begin:end] = b"".join(packed)[: end - begin]
        self.rows = end // _ROW_SIZE
        if full is not None:
            raise full

    def _add_chunks(self, flight: FinishedRequest) -> None:
        arrivals = flight.arrivals
        flight.first_token, flight.last_token = arrivals[0], arrivals[-1]
        flight.chunk_count = len(arrivals)
        start, end = self.chunks, self.chunks + len(arrivals)
        while end * 8 > self._arrivals.size:
            self._arrivals.grow()
        while end * 2 > self._tokens.size:
            self._tokens.grow()
        self._arrivals.map[start * 8 : end * 8] = array("q", arrivals).tobytes()
        self._tokens.map[start * 2 : end * 2] = array("H", flight.counts).tobytes()
        self.chunks = end

    def set_tokens(self, counts: Mapping[int, int], counted_by: int) -> None:
        """Set the output tokens of requests, by request id, that were counted after the run."""
        view = np.frombuffer(self._rows.map, ROW, count=self.rows)
        counted = [(row, counts[id]) for row, id in enumerate(view["id"].tolist()) if id in counts]
        rows, tokens = np.array(counted, np.int64).reshape(-1, 2).T
        view["n_out"][rows], view["counted_by"][rows] = tokens, counted_by
        one_each = (view["chunk_count"][rows] == tokens) & (tokens > 0)  # otherwise the tokens of a chunk are not known
        view["first_tokens"][rows[one_each]], view["streamed_tokens"][rows[one_each]] = 1, tokens[one_each]
        del view
        self.control["recounted"] = 1

    def count_chunks(self, counted_by: int) -> None:
        """Set the output tokens of complete responses that were not counted to the number of their chunks."""
        view = np.frombuffer(self._rows.map, ROW, count=self.rows)
        rows = np.flatnonzero((view["counted_by"] == 0) & (view["failure"] == 0) & (view["chunk_count"] > 0))
        view["n_out"][rows], view["counted_by"][rows] = view["chunk_count"][rows], counted_by
        del view
        if len(rows):
            self.control["recounted"] = 1

    def sample(self, sample: Sample) -> None:
        self._samples.add(sample)

    def peek(self, pairs: list[int], ages: list[int]) -> None:
        """Publish the time to first token and the latest gap, alternating, of at most PEEKS requests in flight; and the age and
        whether the first token has arrived, alternating, of at most AGES."""
        padded = pairs + [0] * (2 * PEEKS - len(pairs)) + ages + [0] * (2 * AGES - len(ages))
        self._peek.map[:] = array("q", padded).tobytes()

    def publish(self) -> None:
        """Publish the numbers of chunks and rows to the parent. The chunks come first, so that no row points beyond them."""
        self.control["chunks"] = self.chunks
        self.control["rows"] = self.rows

    def close(self) -> None:
        self.publish()
        self._rows.close(self.rows * ROW.itemsize)
        self._arrivals.close(self.chunks * 8)
        self._tokens.close(self.chunks * 2)
        self._failures.close()
        self._replicas.close()
        self._samples.close()
        self._peek.close(0)


# --- the reader's side -----------------------------------------------------------------------------------------------


def rows_of(folder: Path, shard: int, count: int, first: int = 0) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Return a copy of a shard's rows from `first` up to `count`. Times are those of the monotonic clock."""
    return np.fromfile(folder / f"{shard}.rows", ROW, count=count - first, offset=first * ROW.itemsize)


def await_end(folder: Path, shards: int, timeout: float = 3.0) -> None:
    """Wait for shards whose parent was killed: they end by themselves, usually within milliseconds.

    A shard that had not started to record by then gets a control file that says so.
    """
    for path in (folder / f"{shard}.control" for shard in range(shards)):
        if not path.exists() or not path.stat().st_size:
            Control(path, create=True)
    controls = [Control(folder / f"{shard}.control", create=False) for shard in range(shards)]
    end = time.monotonic() + timeout
    while time.monotonic() < end and any(
        control.state == "running" and now() - control["heartbeat"] < NS // 2 for control in controls
    ):
        time.sleep(0.02)


def merge(folder: Path, shards: int) -> tuple[Records, Iterator[Chunks]]:
    """Merge all shards' records, with times since t=0; the chunks come in pieces."""
    controls = [Control(folder / f"{shard}.control", create=False) for shard in range(shards)]
    rows = Columns.empty(sum(control["rows"] for control in controls))
    failures, replicas, samples = list[Failure](), list[str](), list[Sample]()
    chunks = at = 0
    for shard, control in enumerate(controls):
        own_chunks = _chunk_count(folder, shard, control)
        for first in range(0, control["rows"], _BLOCK):
            block = rows_of(folder, shard, min(first + _BLOCK, control["rows"]), first)
            if own_chunks < control["chunks"]:
                block["chunk_count"] = 0
            _put(block, rows[at : at + len(block)], control["t0"], chunks, len(failures), len(replicas))
            at += len(block)
        failures += failures_of(folder, shard)
        replicas += _lines(folder / f"{shard}.replicas", str)
        samples += _lines(folder / f"{shard}.samples", Sample)
        chunks += own_chunks
    rows = rows[:at]
    rows["failure"][:], used = renumbered(rows["failure"], failures)
    replica, addresses = renumbered(rows["replica"] + np.int32(1), replicas)
    rows["replica"][:] = replica - 1
    return (
        Records(rows, np.zeros(at, np.int8), used, tuple(samples), replicas=addresses),
        pieces(folder, range(shards)),
    )


def _chunk_count(folder: Path, shard: int, control: Control) -> int:
    """Return how many chunks of a shard there are: none if it was lost before they were copied or stored completely."""
    count, sizes = control["chunks"], {"arrivals": 8, "tokens": 2}
    paths = {folder / f"{shard}.{name}": count * size for name, size in sizes.items()}
    is_here = all(path.exists() and path.stat().st_size >= size for path, size in paths.items())
    return count if is_here or control["stored"] else 0


def renumbered(numbers: NDArray[np.int32], entries: Sequence[T]) -> tuple[NDArray[np.int32], tuple[T, ...]]:
    """Return the numbers and entries with duplicates (of several shards) and unused ones removed, in order of first use.

    Number n is that of entry n - 1; 0 stands for none.
    """
    if not numbers.any():
        return numbers, ()
    present, first = np.unique(numbers, return_index=True)
    used: dict[T, int] = {}
    new_number = np.zeros(len(entries) + 1, np.int32)
    for number in present[np.argsort(first)].tolist():
        if number:
            new_number[number] = used.setdefault(entries[number - 1], len(used) + 1)
    return new_number[numbers], tuple(used)


def _put(
    block: np.ndarray[tuple[int], np.dtype[np.void]],
    rows: Columns,
    t0: int,
    chunks: int,
    failures: int,
    replicas: int,
) -> None:
    """Copy a shard's rows into the columns. The numbers at the end are of what comes before the shard's own."""
    for name in NAMES:
        rows[name][:] = block[name]
    for name in TIMES:
        times = rows[name]
        never = times == 0
        times -= t0
        times[never] = MISSING
    rows["chunk_start"][:] += chunks
    rows["failure"][rows["failure"] > 0] += failures
    rows["replica"][rows["replica"] >= 0] += replicas


def peeks_of(folder: Path, shard: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the time to first token and the latest gap of some requests in flight, in ns; gap 0: there is none yet."""
    pairs = _pairs_of(folder, shard)[:PEEKS]
    return pairs[pairs[:, 0] > 0]


def ages_of(folder: Path, shard: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return how long ago some requests in flight started, in ns, and whether their first token has arrived (1 or 0)."""
    pairs = _pairs_of(folder, shard)[PEEKS:]
    return pairs[pairs[:, 0] > 0]


def _pairs_of(folder: Path, shard: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    path = folder / f"{shard}.peek"
    return np.fromfile(path, "<i8").reshape(-1, 2) if path.exists() else np.zeros((0, 2), np.int64)


def latest_sample(folder: Path, shard: int) -> Sample | None:
    """Return the latest sample of a shard's health; None if there is none yet."""
    try:
        with (folder / f"{shard}.samples").open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _SAMPLE_SIZE, 0))
            complete, _, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return None
    line = complete.rpartition(b"\n")[2]
    return msgspec.json.decode(line, type=Sample) if line else None


def failures_of(folder: Path, shard: int) -> list[Failure]:
    """Return the failures that a shard's rows refer to, as far as they are written."""
    return _lines(folder / f"{shard}.failures", Failure)


def _lines(path: Path, kind: type[T]) -> list[T]:
    """Read JSON lines, without a last line that a crash cut off."""
    if not path.exists():
        return []
    return [
        msgspec.json.decode(line, type=kind)
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


def complete_lines(path: Path, offset: int, most: int) -> bytes:
    """Read complete lines from an offset on: about `most` bytes, or a single line if it is longer."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(most)
        while not (end := data.rfind(b"\n") + 1) and (more := file.read(most)):
            data += more
    return data[:end]


def pieces(folder: Path, shards: Iterable[int], size: int = 1 << 20) -> Iterator[Chunks]:
    """Yield the chunks of these shards, with times since t=0."""
    for shard in shards:
        control = Control(folder / f"{shard}.control", create=False)
        count = _chunk_count(folder, shard, control)
        for first in range(0, count, size):
            here = min(size, count - first)
            arrival = np.fromfile(folder / f"{shard}.arrivals", "<i8", here, offset=first * 8)
            tokens = np.fromfile(folder / f"{shard}.tokens", "<u2", here, offset=first * 2)
            yield Chunks(arrival - control["t0"], tokens)
