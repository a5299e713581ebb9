"""Builds and encodes the requests of a run, block by block, into files that all shards map (store/request_file.py).

If there is much to build, other processes do that, one per core (builders.py). A request depends on its id alone, so the bytes are the same
whoever builds them.
"""

import pickle
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from inferometer import workload
from inferometer.apis import APIS
from inferometer.config.data import Data
from inferometer.config.data.sessions import Sessions
from inferometer.errors import ANOTHER_FOLDER, UserError
from inferometer.store import known_turns
from inferometer.store.folder import disk_errors
from inferometer.store.request_file import KNOWN, LIVE, NONE, Block, RequestWriter, block
from inferometer.types import Request, Turn, TurnResponse
from inferometer.units import format_bytes
from inferometer.wire import calls
from inferometer.wire.context import CallContext
from inferometer.wire.history import history
from inferometer.workload.session import converse

Progress = Callable[[int, int], None]
"""Called with the number of requests that are prepared, and of all."""

_BLOCK_BYTES = 4 << 20
_FIRST_BLOCK, _MAX_BLOCK = 16, 4_096
"""Requests per block: as many as make _BLOCK_BYTES, but not more than _MAX_BLOCK; _FIRST_BLOCK while their size is not known."""

_LONG = 2.0
"""Other processes build if this one would take longer than this many seconds; starting them takes about half a second."""
_PARALLEL = 1.5
"""A process that uses more cores than this builds on several of them already."""
_UNUSED = TurnResponse("", -1, -1)


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


class Piece(msgspec.Struct, frozen=True):
    """Requests to build: those with these ids, the first of which has this index among all that are prepared together."""

    first: int
    ids: Sequence[int]


def prepare(
    source: Source,
    ids: Sequence[Sequence[int]],
    writer: RequestWriter,
    folder: Path,
    *,
    builders: int = 1,
    size: int = 0,
    copies: int = 1,
    progress: Progress = no_progress,
) -> None:
    """Encode the requests with these ids, one sequence of ids after the other, into the files of the writer, which are in `folder`.

    `builders`: how many processes may build them. `size`: bytes of a request, if that is known. `copies`: how many times as much is
    written in all.
    """
    total = sum(map(len, ids))
    pieces = Pieces(ids, size)
    progress(0, total)
    while pieces.left:
        started, cpu_started = time.perf_counter(), time.process_time()
        piece = pieces.take()
        with disk_errors(folder):
            writer.append(build(source, piece))
        if not piece.first:
            _check_space(folder, writer.size / writer.count * total * copies)
        pieces.size = writer.size / writer.count
        progress(writer.count, total)
        took, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        is_parallel = cpu > _PARALLEL * took  # the tokenizer has threads of its own
        takes_long = pieces.left * took / len(piece.ids) > _LONG and piece.first
        if takes_long and builders > 1 and pieces.is_regular and not is_parallel:
            from inferometer.prepare.builders import build_all  # noqa: PLC0415 - few runs need it

            for _ in build_all(source, pieces, writer, folder, builders):
                progress(writer.count, total)


def build(source: Source, piece: Piece) -> Block:
    """Build and encode some requests."""
    requests = workload.build(source.data, source.seed, piece.ids)
    encoded = calls.encode(msgspec.structs.replace(source.context, first_index=piece.first), requests)
    # Without a tokenizer of its own, the tokens of the data are those of another vocabulary.
    n_in = encoded.n_in if workload.tokenizer_of(source.data) is not None else (-1,) * len(requests)
    has_sessions = workload.has_sessions(source.data)
    sessions = encode_sessions(requests, source.sessions, source.context) if has_sessions else ()
    return block(encoded.tails, n_in, encoded.n_out, encoded.classes, sessions)


def encode_sessions(requests: Sequence[Request], settings: Sessions, context: CallContext) -> list[bytes]:
    """Encode the later turns of sessions, one entry for each first turn."""
    form, tail = APIS[context.api].history_form, calls.turn_encoder(context)

    def entry(request: Request) -> bytes:
        if not request.later:
            return NONE
        if not are_known(request.later, settings):
            return LIVE + pickle.dumps(request)
        session = converse(request, history(form))
        next(session)
        return KNOWN + known_turns.encode([session.send(_UNUSED) for _ in request.later], tail)

    return list(map(entry, requests))


def are_known(later: tuple[Turn, ...], settings: Sessions) -> bool:
    """Whether the prompts of all these turns are known before the run, whatever the server responds."""
    if all(turn.payload is not None for turn in later):
        return True
    has_responses = all(turn.payload is not None or turn.response is not None for turn in later)
    return has_responses and not settings.context and settings.on_failure == "end"


def _check_space(folder: Path, needed: float) -> None:
    """Raise UserError if the disk is too small for all requests."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder}: the run's requests need about {format_bytes(needed)}, but only {format_bytes(free)} are free",
            f"free some space, or {ANOTHER_FOLDER}; or make the run shorter",
        )


class Pieces:
    """Divides ids into pieces whose requests have about _BLOCK_BYTES together."""

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

    def take(self) -> Piece:
        """Take the ids of the next block."""
        count = min(int(_BLOCK_BYTES / self.size) + 1, _MAX_BLOCK) if self.size else _FIRST_BLOCK
        ids = self._ids.popleft()
        if len(ids) > count:
            self._ids.appendleft(ids[count:])
            ids = ids[:count]
        piece = Piece(self._taken, ids)
        self._taken += len(ids)
        self.left -= len(ids)
        return piece
