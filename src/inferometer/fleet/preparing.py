"""Prepares a shard's requests before t=0: builds and encodes them block by block, into a file that is then mapped into memory.

If there is much to build and this machine has cores to spare, other processes build the blocks (builders.py). They come back in order, and a
request depends on its id alone, so the bytes are the same whoever builds them.
"""

import shutil
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from inferometer import workload
from inferometer.config.data import Data
from inferometer.config.data.sessions import Sessions
from inferometer.errors import ANOTHER_FOLDER, UserError
from inferometer.fleet.conversations import encode_sessions, with_sessions
from inferometer.store.folder import disk_errors
from inferometer.store.request_file import Packed, RequestFile, packed
from inferometer.types import Calls
from inferometer.units import format_bytes
from inferometer.wire import calls
from inferometer.wire.context import CallContext
from inferometer.workload import tokenizer

Progress = Callable[[int, int], None]
"""Called with the number of requests that are prepared, and of all. It may raise Stopped."""

_BLOCK_BYTES = 4 << 20
_FIRST_BLOCK, _MAX_BLOCK = 16, 4_096
"""Requests per block: as many as make _BLOCK_BYTES, but not more than _MAX_BLOCK; _FIRST_BLOCK while their size is not known."""

_LONG = 2.0
"""Other processes help if this one would build for more than this many seconds; starting them takes about half a second."""
_PARALLEL = 1.5
"""A process that uses more cores than this builds on several of them already."""


class Stopped(Exception):  # noqa: N818 - not an error
    """The run was stopped before it started."""


def no_progress(done: int, total: int) -> None:
    """Ignore the progress."""


class Source(msgspec.Struct, frozen=True):
    """What requests are built from, besides their ids."""

    data: Data
    """Its salt is already that of the run."""
    seed: int
    context: CallContext
    sessions: Sessions = msgspec.field(default_factory=Sessions)
    """How sessions are run."""


class Part(msgspec.Struct, frozen=True):
    """Requests to build: those with these ids, the first of which has this index among all requests of the shard."""

    first: int
    ids: Sequence[int]


class Block(msgspec.Struct, frozen=True, tag=True):
    """Some encoded requests. The fields are those of Calls, and the later turns if they are the first turns of sessions."""

    tails: Packed
    n_in: Sequence[int]
    n_out: Sequence[int]
    classes: Sequence[int]
    sessions: Packed


def prepare(
    source: Source,
    ids: Sequence[Sequence[int]],
    folder: Path,
    *,
    shards: int = 1,
    builders: int = 1,
    size: int = 0,
    progress: Progress = no_progress,
) -> Calls:
    """Encode the requests with these ids, one sequence of ids after the other, into a file in the file system of `folder`.

    `shards`: how many do that at the same time. `builders`: how many processes may build requests for this one. `size`: bytes of a
    request, if that is known.
    """
    total = sum(map(len, ids))
    parts = _Parts(ids, size)
    progress(0, total)
    first, block = build(source, parts.take())
    prepared = _Prepared(folder, shards, total)
    try:
        for each in chain([block], _following(source, parts, builders)):
            prepared.add(each)
            parts.size = prepared.mean_size
            progress(prepared.count, total)
        return prepared.calls(source, first)
    finally:
        prepared.close()


def build(source: Source, part: Part) -> tuple[Calls, Block]:
    """Build and encode some requests."""
    requests = workload.build(source.data, source.seed, part.ids)
    encoded = calls.encode(msgspec.structs.replace(source.context, first_index=part.first), requests)
    counter = workload.tokenizer_of(source.data)
    if counter is None:  # another vocabulary would give other counts
        encoded = msgspec.structs.replace(encoded, n_in=(-1,) * len(requests))
    if counter in (None, tokenizer.SERVER):  # the server is not to be disturbed while other shards are running
        encoded = msgspec.structs.replace(encoded, counts_tokens=False)
    has_sessions = workload.has_sessions(source.data)
    sessions = encode_sessions(requests, source.sessions, source.context) if has_sessions else []
    tails = packed(encoded.tails)
    return encoded, Block(tails, encoded.n_in, encoded.n_out, encoded.classes, packed(sessions))


def _following(source: Source, parts: "_Parts", builders: int) -> Iterator[Block]:
    """Build all blocks but the first: in this process or, if that would take long, in others."""
    while parts.left:
        started, cpu_started = time.perf_counter(), time.process_time()
        part = parts.take()
        yield build(source, part)[1]
        took, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        is_parallel = cpu > _PARALLEL * took  # the tokenizer has threads of its own
        if builders > 1 and parts.is_regular and not is_parallel and parts.left * took / len(part.ids) > _LONG:
            from inferometer.fleet.builders import build_blocks  # noqa: PLC0415 - few runs need it

            yield from build_blocks(source, parts, builders)


class _Parts:
    """Divides ids into parts whose requests have about _BLOCK_BYTES together."""

    def __init__(self, ids: Sequence[Sequence[int]], size: float) -> None:
        self._ids = deque(each for each in ids if each)
        self._taken = 0
        self.left = sum(map(len, ids))
        self.size = size
        """Mean bytes of a request; 0: not known."""

    @property
    def is_regular(self) -> bool:
        """Whether all ids that are left are ranges, which are short to send to another process."""
        return all(isinstance(each, range) for each in self._ids)

    def take(self) -> Part:
        """Take the ids of the next block."""
        count = min(int(_BLOCK_BYTES / self.size) + 1, _MAX_BLOCK) if self.size else _FIRST_BLOCK
        ids = self._ids.popleft()
        if len(ids) > count:
            self._ids.appendleft(ids[count:])
            ids = ids[:count]
        part = Part(self._taken, ids)
        self._taken += len(ids)
        self.left -= len(ids)
        return part


class _Prepared:
    """The blocks so far: bytes go into files, the numbers into arrays."""

    def __init__(self, folder: Path, shards: int, total: int) -> None:
        self._folder, self._shards, self._total = folder, shards, total
        with disk_errors(folder):
            self._tails, self._sessions = RequestFile(folder), RequestFile(folder)
        self._n_in, self._n_out, self._classes = array("i"), array("i"), array("h")

    @property
    def count(self) -> int:
        return len(self._n_in)

    @property
    def mean_size(self) -> float:
        return (self._tails.size + self._sessions.size) / self.count

    def add(self, block: Block) -> None:
        with disk_errors(self._folder):
            self._tails.append(block.tails)
            self._sessions.append(block.sessions)
        if not self.count:
            self._check_space((self._tails.size + self._sessions.size) / len(block.n_in))
        self._n_in.extend(block.n_in)
        self._n_out.extend(block.n_out)
        self._classes.extend(block.classes)

    def _check_space(self, size: float) -> None:
        """Raise UserError if the disk is too small for requests of this size."""
        free = shutil.disk_usage(self._folder).free
        needed = size * self._total * self._shards
        if needed > free:
            raise UserError(
                f"{self._folder}: the run's requests need about {format_bytes(needed)}, but only {format_bytes(free)} are free",
                f"free some space, or {ANOTHER_FOLDER}; or make the run shorter",
            )

    def calls(self, source: Source, first: Calls) -> Calls:
        """Return all requests, with everything else from the `first` ones."""
        prepared = msgspec.structs.replace(
            first, tails=self._tails.mapped(), n_in=self._n_in, n_out=self._n_out, classes=self._classes
        )
        if len(sessions := self._sessions.mapped()):
            prepared = with_sessions(prepared, sessions, source.sessions, source.context)
            return msgspec.structs.replace(prepared, session_classes=workload.session_classes(source.data))
        return prepared

    def close(self) -> None:
        self._tails.close()
        self._sessions.close()
