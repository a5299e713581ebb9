"""Tensors in system shared memory: set up before t=0, and taken away however the run ends.

There is one region a run, a file under /dev/shm: first the inputs, each different tensor once, then slots that the server
writes outputs into. Every server registers it under the file's own name, and requests name places in it.

- The file is written and allocated, never mapped: where there is no room, that is an error here and no SIGBUS in the server.
- Whoever made a region holds a lock on it while it lives. One whose lock is free was left behind by a run that was killed:
  the next run removes it, and takes it off the server's list.
- In the end the file goes first, which nothing can hold up, and then the servers are told. One that will not let go, since
  requests of ours are still in it, is told again by the next run.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from types import FrameType

import msgspec

from inferometer.config.schema import Server
from inferometer.errors import UserError
from inferometer.probe import kserve, query
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.roundtrip import Peer
from inferometer.tensors import Tensor, TensorSpec, datatype_of, elements
from inferometer.units import format_bytes
from inferometer.wire.context import Sequenced, SharedRefs
from inferometer.wire.failures import meaning
from inferometer.wire.kserve import grpc, http
from inferometer.wire.kserve.control import ShmStatus
from inferometer.wire.kserve.http import InferOptions, InferResponse, ShmRef

PREFIX = "inferometer-"
FOLDER = Path("/dev/shm")

_ROOM = 256 << 20
"""Bytes for the outputs of all shards. More are taken only where the requests in flight need them."""
_SLOTS_PER_USER = 4
"""Slots are used in turn, and answers do not come in turn: a request that is overtaken this often shares its slot."""
_ALIGNED = 64
_GOODBYE = 5.0
"""Seconds that a server is given in the end to answer, and to let go of a region that requests are still using."""
_ASK_AGAIN = 0.05

Payload = tuple[Tensor, ...]


class Portion(msgspec.Struct, frozen=True):
    """What a shard sends: its nth request has the tensors payloads[n % len(payloads)]."""

    payloads: Sequence[Payload]
    at_once: int
    """Requests in flight at the most, as far as that is known."""
    sequences: tuple[int, ...] = ()
    """The payloads lie in sequences of so many each, sent one after the other; empty: there are none."""


class Served(msgspec.Struct, frozen=True):
    """Whom to ask: the servers, and the model that all of them have."""

    places: Sequence[Peer]
    headers: dict[str, str]
    server: Server
    model: str
    facts: ModelFacts


@contextlib.contextmanager
def shared(served: Served, portions: Iterable[Portion]) -> Iterator[tuple[SharedRefs, ...]]:
    """Where the tensors of each shard's requests lie, for as long as the context lasts."""
    if sys.platform != "linux" or not FOLDER.is_dir():
        raise UserError(
            f"server.shared_memory: this system has no {FOLDER}", "run on Linux, or set server.shared_memory to false"
        )
    sweep()
    with _ended_in_order():
        region = Region()
        told: list[Peer] = []
        try:
            region.create()
            refs = _laid_out(region, served, portions)
            for place in served.places:
                told.append(place)
                _register(place, served.headers, region)
                _forget_leftovers(place, served.headers)
            yield refs
        finally:
            region.remove()
            for place in told:
                _unregister(place, served.headers, region.name)


# --- the region ------------------------------------------------------------------------------------------------------


class Region:
    """A file in shared memory that grows at its end."""

    def __init__(self) -> None:
        self.name = _new_name()
        self.size = 0
        self._file = -1
        self._known: dict[bytes, ShmRef] = {}

    @property
    def path(self) -> Path:
        return FOLDER / self.name

    def create(self) -> None:
        self._open()
        while not os.fstat(self._file).st_nlink:  # another run swept it away before it was locked
            os.close(self._file)
            self.name = _new_name()
            self._open()

    def _open(self) -> None:
        with _room_needed(0):
            self._file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def put(self, data: bytes | memoryview) -> ShmRef:
        """These bytes; the same ones are there once."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._known[digest] = self._next(len(data))
            with _room_needed(self.size):
                _write(self._file, data, known.offset)
        return known

    def reserve(self, size: int) -> int:
        """The offset of so many bytes that the server may write to."""
        place = self._next(size)
        if size:
            with _room_needed(self.size):
                os.posix_fallocate(self._file, place.offset, size)
        return place.offset

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _next(self, size: int) -> ShmRef:
        offset = _aligned(self.size)
        self.size = offset + size
        return ShmRef(self.name, size, offset)


def _new_name() -> str:
    return f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}"


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _write(file: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(file, rest, offset)
        rest, offset = rest[count:], offset + count


@contextlib.contextmanager
def _room_needed(size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        needed = f", {format_bytes(size)} of tensors are wanted there" if size else ""
        raise UserError(
            f"{FOLDER}: {error.strerror or error}{needed}",
            "make it larger (mount -o remount,size=..., docker --shm-size), take smaller tensors, or lower the concurrency",
        ) from None


def sweep() -> None:
    """Remove what runs that were killed left behind."""
    for path in FOLDER.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # gone by now, in use (its lock is held), or somebody else's
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP end the process as an exception does, where they would end it on the spot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    earlier = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in earlier:
        signal.signal(number, heard)
    try:
        yield
    finally:
        for number in earlier:
            signal.signal(number, signal.SIG_DFL)


# --- what lies where -------------------------------------------------------------------------------------------------


class _Shard(msgspec.Struct, frozen=True):
    """A portion whose inputs are in the region: what is left of it when its tensors are let go."""

    inputs: tuple[dict[str, ShmRef], ...]
    at_once: int
    sequences: tuple[int, ...]

    def slots(self, room: int) -> int:
        """How many slots its requests take in turn, where there is room for so many: at least one for each in flight."""
        if self.sequences:  # the requests of a sequence are never in flight together
            return len(self.sequences)
        return min(max(len(self.inputs), _SLOTS_PER_USER * self.at_once), max(room, self.at_once, 1))


def _laid_out(region: Region, served: Served, portions: Iterable[Portion]) -> tuple[SharedRefs, ...]:
    """Inputs first, those of one shard after the other, then the slots. (Portions are made when they are asked for.)"""
    shards: list[_Shard] = []
    largest: Payload = ()
    batch = 1
    for portion in portions:
        inputs = tuple(_put(region, payload) for payload in portion.payloads)
        shards.append(_Shard(inputs, portion.at_once, portion.sequences))
        largest = max((*portion.payloads, largest), key=_size)  # of those without any bytes, one that is a request
        batch = max((batch, *(payload[0].shape[0] for payload in portion.payloads if payload and payload[0].shape)))
    sizes = _output_sizes(served, largest, batch, bool(shards[0].sequences))
    room = _ROOM // len(shards) // max(_stride(sizes), 1)
    return tuple(SharedRefs(shard.inputs, _outputs(region, sizes, shard, room)) for shard in shards)


def _size(payload: Payload) -> int:
    return sum(len(tensor.data) for tensor in payload)


def _put(region: Region, payload: Payload) -> dict[str, ShmRef]:
    """Tensors without any bytes are left to the message: a server refuses a place of no size."""
    return {tensor.name: region.put(tensor.data) for tensor in payload if tensor.data}


def _outputs(region: Region, sizes: dict[str, int], shard: _Shard, room: int) -> tuple[dict[str, ShmRef], ...]:
    """Where the nth request's outputs go."""
    count, stride = shard.slots(room), _stride(sizes)
    start = region.reserve(count * stride)
    slots = [_slot(region.name, sizes, start + n * stride) for n in range(count)]
    return tuple(slot for slot, times in zip(slots, shard.sequences or repeat(1), strict=False) for _ in range(times))


def _slot(name: str, sizes: dict[str, int], offset: int) -> dict[str, ShmRef]:
    slot = {}
    for output, size in sizes.items():
        slot[output] = ShmRef(name, size, offset)
        offset += _aligned(size)
    return slot


def _stride(sizes: dict[str, int]) -> int:
    return sum(map(_aligned, sizes.values()))


# --- how large outputs are -------------------------------------------------------------------------------------------


def _output_sizes(served: Served, largest: Payload, batch: int, in_sequences: bool) -> dict[str, int]:
    """Bytes to set aside for each output: what the metadata says, or else what an inference shows and half as much again."""
    wanted = _wanted(served)
    has_batch = served.facts.max_batch > 0
    sizes = {spec.name: _fixed_size(spec, batch if has_batch else 0) for spec in wanted}
    unknown = [name for name, size in sizes.items() if size is None]
    seen = _seen_sizes(served, largest, in_sequences) if unknown else {}
    for name in unknown:
        if name not in seen:
            raise UserError(
                f"server.shared_memory: nobody knows how large the output {name} is: the metadata does not say, and a first "
                "inference did not give it",
                "name the outputs that the model does give: server.outputs",
            )
        sizes[name] = seen[name] * 3 // 2 + 1024
    return {name: max(size or 0, 1) for name, size in sizes.items()}


def _wanted(served: Served) -> list[TensorSpec]:
    """The outputs to ask for."""
    known = {spec.name: spec for spec in served.facts.metadata.outputs}
    if not known:
        raise UserError(
            "server.shared_memory: the server does not say which outputs the model has", "measure without shared memory"
        )
    return [known[name] for name in served.server.outputs or known]


def _fixed_size(spec: TensorSpec, batch: int) -> int | None:
    """None: it depends on the request."""
    shape = (batch, *spec.shape[1:]) if batch and spec.shape[:1] == (-1,) else spec.shape
    size = datatype_of(spec.name, spec.datatype).size
    return elements(shape) * size if size and -1 not in shape else None


def _seen_sizes(served: Served, payload: Payload, in_sequences: bool) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for answer in _inferred(served, payload, in_sequences):
        for output in answer.outputs:
            if isinstance(output, Tensor):
                sizes[output.name] = max(len(output.data), sizes.get(output.name, 0))
    return sizes


def _inferred(served: Served, payload: Payload, in_sequences: bool) -> list[InferResponse]:
    """One inference by hand, tensors in the messages."""
    server, version = served.server, served.server.version or ""
    place = msgspec.structs.replace(served.places[0], timeout=float(server.timeouts.total))
    sequenced = Sequenced((1,) if in_sequences else (), secrets.randbits(40) + 1)
    parameters = server.parameters | next(sequenced.parameters())
    options = InferOptions(parameters=parameters, outputs=tuple(server.outputs))
    try:
        if not place.target.grpc:
            own, body = http.encode(payload, options)
            reply = query.http(place, "POST", http.infer_path(served.model, version), served.headers | own, body)
            return [http.decode(reply.status, reply.headers, reply.body)]
        message = grpc.infer_request(served.model, version, payload, options)
        path = grpc.STREAM_INFER if server.stream else grpc.INFER
        reply = query.grpc(place, path, [message], served.headers, server.deadline)
        if reply.fail is not None:
            raise UserError(reply.fail.message or meaning(reply.fail.code))
        return [_read(piece, bool(server.stream)) for _, piece in reply.pieces]
    except UserError as error:
        raise UserError(
            f"{place.target.url}: a first inference, to see how large the outputs are: {error.what}",
            error.remedy or "check the data and the server's log",
        ) from None


def _read(message: bytes, streamed: bool) -> InferResponse:
    answer = grpc.stream_answer(message) if streamed else grpc.infer_answer(message)
    if isinstance(answer, str):
        raise UserError(answer)
    return answer


# --- what the server is told -----------------------------------------------------------------------------------------


def _register(place: Peer, headers: dict[str, str], region: Region) -> None:
    try:
        kserve.question(place, headers, "shm_register", region.name, f"/{region.name}", region.size)
    except UserError as error:
        if region.name in (one.name for one in _status(place, headers)):
            return  # two URLs of one server
        raise UserError(
            error.what,
            f"the server must run on this machine, as this user, and see its {FOLDER} (docker: --ipc=host); "
            "or set server.shared_memory to false",
        ) from None


def _status(place: Peer, headers: dict[str, str]) -> tuple[ShmStatus, ...]:
    """What is registered; nothing where the server does not say."""
    try:
        found: tuple[ShmStatus, ...] = kserve.question(place, headers, "shm_status")
    except UserError:
        return ()
    return found


def _forget_leftovers(place: Peer, headers: dict[str, str]) -> None:
    """Regions of ours whose file is gone belong to runs that were killed. (By now it is known that its /dev/shm is ours.)"""
    for one in _status(place, headers):
        if one.name.startswith(PREFIX) and not (FOLDER / one.name).exists():
            _unregister(place, headers, one.name, patience=0)


def _unregister(place: Peer, headers: dict[str, str], name: str, patience: float = _GOODBYE) -> None:
    """A server that is gone has forgotten it by itself. One that still works on a request refuses until that is done."""
    limit = min(place.connect_timeout or _GOODBYE, _GOODBYE)
    place = msgspec.structs.replace(place, connect_timeout=limit, timeout=_GOODBYE)
    end = time.monotonic() + patience
    while True:
        with contextlib.suppress(UserError):
            kserve.question(place, headers, "shm_unregister", name)
            return
        if time.monotonic() > end or name not in (one.name for one in _status(place, headers)):
            return
        time.sleep(_ASK_AGAIN)
