"""Tensors in system shared memory: set up before t=0, and removed however the run ends.

There is one region per run, a file under /dev/shm: first the inputs, each distinct tensor once, then slots that the server
writes outputs into. Every server registers it under the name of the file, and requests refer to offsets in it.

- A region that a killed run left behind is removed and unregistered by the next run (shm_region.py).
- At the end the file is removed first, which always succeeds, then it is unregistered. If a server refuses because it is still
  processing requests, the next run unregisters the region.
"""

import contextlib
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from types import FrameType

import msgspec

from inferometer.config.schema import Server
from inferometer.errors import UserError
from inferometer.probe import kserve, query, shm_region
from inferometer.probe.connect import Peer
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.shm_region import PREFIX, Region, aligned, sweep
from inferometer.tensors import Tensor, TensorSpec, datatype_of, elements
from inferometer.wire.context import Sequenced, SharedRefs, ShmRef
from inferometer.wire.failures import meaning
from inferometer.wire.kserve import grpc, http
from inferometer.wire.kserve.control import ShmStatus
from inferometer.wire.kserve.infer import InferOptions, InferResponse

_ROOM = 256 << 20
"""Bytes for the outputs of all shards, exceeded only if the requests in flight need more."""
_SLOTS_PER_USER = 4
"""Slots are used in turn, but responses arrive out of order: a request that is overtaken this often shares its slot."""
_KEY = "server.shared_memory"
_UNREGISTER_S = 5.0
"""Seconds to wait at the end for a server to unregister a region that requests are still using."""
_RETRY_S = 0.05

Payload = tuple[Tensor, ...]


class Portion(msgspec.Struct, frozen=True):
    """What one shard sends: its nth request has the tensors payloads[n % len(payloads)]."""

    payloads: Sequence[Payload]
    at_once: int
    """Maximum number of requests in flight, as far as it is known."""
    sequences: tuple[int, ...] = ()
    """Lengths of the sequences that the payloads form, one after the other; empty: no sequences."""


class Served(msgspec.Struct, frozen=True):
    """The servers that share the region, and the model that all of them serve."""

    peers: Sequence[Peer]
    headers: dict[str, str]
    server: Server
    model: str
    facts: ModelFacts


@contextlib.contextmanager
def shared(served: Served, portions: Iterable[Portion]) -> Iterator[tuple[SharedRefs, ...]]:
    """Put the tensors into shared memory for the duration of the block; yields where each shard's tensors are."""
    if sys.platform != "linux" or not shm_region.FOLDER.is_dir():
        raise UserError(
            f"this system does not have {shm_region.FOLDER}",
            "run on Linux, or set {server.shared_memory} to false",
            _KEY,
        )
    sweep()
    with _signals_as_exceptions():
        region = Region()
        registered: list[Peer] = []
        try:
            region.create()
            refs = _lay_out(region, served, portions)
            for peer in served.peers:
                registered.append(peer)
                _register(peer, served.headers, region)
                _forget_leftovers(peer, served.headers)
            yield refs
        finally:
            region.remove()
            for peer in registered:
                _unregister(peer, served.headers, region.name)


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP, which would kill the process, into an exception, so that the region is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    earlier = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in earlier:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in earlier:
            signal.signal(number, signal.SIG_DFL)


# --- layout -------------------------------------------------------------------------------------------------


class _Shard(msgspec.Struct, frozen=True):
    """A portion whose inputs are in the region; its tensors are no longer kept in memory."""

    inputs: tuple[dict[str, ShmRef], ...]
    at_once: int
    sequences: tuple[int, ...]

    def slots(self, room: int) -> int:
        """Number of slots that its requests use in turn: at most `room`, but at least one per request in flight."""
        if self.sequences:  # the requests of a sequence are never in flight together
            return len(self.sequences)
        return min(max(len(self.inputs), _SLOTS_PER_USER * self.at_once), max(room, self.at_once, 1))


def _lay_out(region: Region, served: Served, portions: Iterable[Portion]) -> tuple[SharedRefs, ...]:
    """Put the inputs of all shards first, then the slots. Portions are generated one at a time."""
    shards: list[_Shard] = []
    largest: Payload = ()
    batch = 1
    for portion in portions:
        inputs = tuple(_put(region, payload) for payload in portion.payloads)
        shards.append(_Shard(inputs, portion.at_once, portion.sequences))
        largest = max((*portion.payloads, largest), key=_size)  # if none has any bytes, still a payload
        batch = max((batch, *(payload[0].shape[0] for payload in portion.payloads if payload and payload[0].shape)))
    sizes = _output_sizes(served, largest, batch, bool(shards[0].sequences))
    room = _ROOM // len(shards) // max(_stride(sizes), 1)
    return tuple(SharedRefs(shard.inputs, _outputs(region, sizes, shard, room)) for shard in shards)


def _size(payload: Payload) -> int:
    return sum(len(tensor.data) for tensor in payload)


def _put(region: Region, payload: Payload) -> dict[str, ShmRef]:
    """Put a request's tensors. Empty ones stay in the message: servers refuse references of size 0."""
    return {tensor.name: region.put(tensor.data) for tensor in payload if tensor.data}


def _outputs(region: Region, sizes: dict[str, int], shard: _Shard, room: int) -> tuple[dict[str, ShmRef], ...]:
    """Where the outputs of the nth request are written."""
    count, stride = shard.slots(room), _stride(sizes)
    start = region.reserve(count * stride)
    slots = [_slot(region.name, sizes, start + n * stride) for n in range(count)]
    return tuple(slot for slot, times in zip(slots, shard.sequences or repeat(1), strict=False) for _ in range(times))


def _slot(name: str, sizes: dict[str, int], offset: int) -> dict[str, ShmRef]:
    slot = {}
    for output, size in sizes.items():
        slot[output] = ShmRef(name, size, offset)
        offset += aligned(size)
    return slot


def _stride(sizes: dict[str, int]) -> int:
    return sum(map(aligned, sizes.values()))


# --- the size of outputs -------------------------------------------------------------------------------------------


def _output_sizes(served: Served, largest: Payload, batch: int, in_sequences: bool) -> dict[str, int]:
    """Bytes to reserve per output: from the metadata, or 1.5 times the size seen in a first inference."""
    wanted = _wanted(served)
    has_batch = served.facts.max_batch > 0
    sizes = {spec.name: _fixed_size(spec, batch if has_batch else 0) for spec in wanted}
    unknown = [name for name, size in sizes.items() if size is None]
    seen = _seen_sizes(served, largest, in_sequences) if unknown else {}
    for name in unknown:
        if name not in seen:
            raise UserError(
                f"the size of the output {name} is not known: the metadata does not give it, and a first inference did not "
                "return it",
                "name the outputs that the model returns with {server.outputs}",
                _KEY,
            )
        sizes[name] = seen[name] * 3 // 2 + 1024
    return {name: max(size or 0, 1) for name, size in sizes.items()}


def _wanted(served: Served) -> list[TensorSpec]:
    """The outputs to request."""
    known = {spec.name: spec for spec in served.facts.metadata.outputs}
    if not known:
        raise UserError("the server does not list the outputs of the model", "measure without shared memory", _KEY)
    return [known[name] for name in served.server.outputs or known]


def _fixed_size(spec: TensorSpec, batch: int) -> int | None:
    """The size of an output; None: it depends on the request."""
    shape = (batch, *spec.shape[1:]) if batch and spec.shape[:1] == (-1,) else spec.shape
    size = datatype_of(spec.name, spec.datatype).size
    return elements(shape) * size if size and -1 not in shape else None


def _seen_sizes(served: Served, payload: Payload, in_sequences: bool) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for response in _inferred(served, payload, in_sequences):
        for output in response.outputs:
            if isinstance(output, Tensor):
                sizes[output.name] = max(len(output.data), sizes.get(output.name, 0))
    return sizes


def _inferred(served: Served, payload: Payload, in_sequences: bool) -> list[InferResponse]:
    """Make one inference with the tensors in the messages."""
    server, version = served.server, served.server.version or ""
    peer = msgspec.structs.replace(served.peers[0], timeout=float(server.timeouts.total))
    sequenced = Sequenced((1,) if in_sequences else (), secrets.randbits(40) + 1)
    parameters = server.parameters | next(sequenced.parameters())
    options = InferOptions(parameters=parameters, outputs=tuple(server.outputs))
    try:
        if not peer.target.grpc:
            own, body = http.encode(payload, options)
            path = http.infer_path(served.model, version)
            reply = query.http(peer, "POST", path, served.headers | own, body, max_size=peer.max_size)
            return [http.decode(reply.status, reply.headers, reply.body)]
        message = grpc.infer_request(served.model, version, payload, options)
        path = grpc.STREAM_INFER if server.stream else grpc.INFER
        reply = query.grpc(peer, path, [message], served.headers, server.deadline, max_size=peer.max_size)
        if reply.fail is not None:
            raise UserError(reply.fail.message or meaning(reply.fail.code))
        return [_read(piece, bool(server.stream)) for _, piece in reply.pieces]
    except UserError as error:
        raise UserError(
            f"{peer.target.url}: a first inference, to find the size of the outputs: {error.what}",
            error.remedy or "check the data and the server's log",
        ) from None


def _read(message: bytes, streamed: bool) -> InferResponse:
    response = grpc.stream_response(message) if streamed else grpc.infer_response(message)
    if isinstance(response, str):
        raise UserError(response)
    return response


# --- registration -----------------------------------------------------------------------------------------


def _register(peer: Peer, headers: dict[str, str], region: Region) -> None:
    try:
        kserve.shm_register(peer, headers, region.name, f"/{region.name}", region.size)
    except UserError as error:
        if region.name in (one.name for one in _status(peer, headers)):
            return  # two URLs of one server
        raise UserError(
            error.what,
            f"the server must run on this machine, as this user, and see its {shm_region.FOLDER} (docker: --ipc=host); "
            "or set {server.shared_memory} to false",
        ) from None


def _status(peer: Peer, headers: dict[str, str]) -> tuple[ShmStatus, ...]:
    """The registered regions; empty if the server does not list them."""
    try:
        return kserve.shm_status(peer, headers)
    except UserError:
        return ()


def _forget_leftovers(peer: Peer, headers: dict[str, str]) -> None:
    """Unregister regions of killed runs: those whose file is gone. (The server shares this /dev/shm, as registering has shown.)"""
    for status in _status(peer, headers):
        if status.name.startswith(PREFIX) and not (shm_region.FOLDER / status.name).exists():
            _unregister(peer, headers, status.name, patience=0)


def _unregister(peer: Peer, headers: dict[str, str], name: str, patience: float = _UNREGISTER_S) -> None:
    """Unregister a region. A server that still processes a request refuses until it is done; one that is gone does not matter."""
    limit = min(peer.connect_timeout or _UNREGISTER_S, _UNREGISTER_S)
    peer = msgspec.structs.replace(peer, connect_timeout=limit, timeout=_UNREGISTER_S)
    end = time.monotonic() + patience
    while True:
        with contextlib.suppress(UserError):
            kserve.shm_unregister(peer, headers, name)
            return
        if time.monotonic() > end or name not in (one.name for one in _status(peer, headers)):
            return
        time.sleep(_RETRY_S)
