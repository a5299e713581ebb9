"""Deadlines of gRPC calls: they are sent to the server, and the client enforces them itself, whatever the server does.

The instant at which the response's last byte arrived decides, not when a timer fired or when the bytes were read.
"""

import select
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import pytest
from grpc_peers import HEAD, OK, GrpcPeer, failures_of, framed, grpcio, one, run, scripted_grpc
from h2.settings import SettingCodes
from helpers import measure, polite, scripted
from waiting import PATIENCE_S, until

from inferometer.engine import timeouts
from inferometer.engine.reader import Reader
from inferometer.engine.shard import Shard
from inferometer.engine.timeouts import Timeouts
from inferometer.probe import roundtrip
from inferometer.probe.connect import Peer
from inferometer.timing import clock
from inferometer.timing.deadlines import Deadlines
from inferometer.types import Event, Fail
from inferometer.units import NS
from inferometer.wire.grpc import GrpcResponse, header_block
from inferometer.wire.target import parse

CANCEL = 8
EXCEEDED = "grpc_DEADLINE_EXCEEDED"
SHORT = ("50ms", 0.05, "the deadline of 50 ms passed before the response was complete")
"""The setting, the same in seconds, and the message of the failure."""
LONG = {"deadline": "50s", "timeouts": {"total": "60s"}}
"""A deadline that does not pass during a test."""
SINGLE = {"client": {"connections": 1}, "load": one()}
stamped = pytest.mark.skipif(clock.prime() is None, reason="the kernel does not stamp here")


def wait_past(seconds: float) -> None:
    """Wait until a deadline has passed that began before this call."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end)


def expire_when(monkeypatch: pytest.MonkeyPatch, condition: Callable[[Shard], bool]) -> None:
    """Sweep, as soon as the condition holds, with a clock that is past a deadline of 50 s. The kernel's stamps stay right."""
    tick, sweep, real = Shard._tick, Timeouts.sweep, timeouts.now

    def sweep_late(self: Timeouts) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(timeouts, "now", lambda: real() + 100 * NS)
            sweep(self)

    def tick_and_sweep(shard: Shard, due: int) -> None:
        tick(shard, due)
        if condition(shard):
            shard._loop.call_soon(sweep_late, shard._timeouts)

    monkeypatch.setattr(Shard, "_tick", tick_and_sweep)


# --- in a run --------------------------------------------------------------------------------------------------------


def test_call_without_a_response_ends_by_its_deadline_and_is_cancelled_at_the_server(tmp_path: Path) -> None:
    peers: list[GrpcPeer] = []

    def script(peer: GrpcPeer) -> None:
        if peer.number:
            peers.append(peer)
            peer.request()
            while not peer.resets and peer.receive():
                pass

    with scripted_grpc(script) as url:
        server = {"deadline": SHORT[0], "timeouts": {"total": "30s"}}
        done, _ = run(tmp_path, url, server=server, **SINGLE)
        until(lambda: bool(peers and peers[0].resets), "the server receives the reset")
    assert failures_of(done) == {(EXCEEDED, SHORT[2])}
    assert peers[0].resets == [(1, CANCEL)]
    (row,) = done.records.rows
    assert row["done"] - row["sent"] >= SHORT[1] * NS


def test_other_calls_on_the_connection_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(peer: GrpcPeer) -> None:
        silent = peer.request()
        for stream in peer.requests():
            assert stream != silent
            peer.respond(stream)

    expire_when(monkeypatch, lambda shard: shard.state.ok == 4)
    load = {"type": "closed", "concurrency": 2, "requests": 5}
    done, summary = run(tmp_path, scripted_grpc(script), server=LONG, client={"connections": 1}, load=load)
    assert (summary.counts.ok, summary.counts.by_failure) == (4, {EXCEEDED: 1})
    assert set(done.records.rows["attempts"]) == {1}


def test_stream_that_misses_its_deadline_keeps_the_messages_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            peer.head(stream)
            peer.data(stream, framed(b"") * 2)

    expire_when(monkeypatch, lambda shard: any(flight.arrivals for _, flight in shard._dispatcher.flights()))
    done, _ = run(tmp_path, scripted_grpc(script), "Down", server=LONG, **SINGLE)
    assert failures_of(done) == {(EXCEEDED, "the deadline of 50 s passed before the response was complete")}
    assert done.records.rows["chunk_count"].tolist() == [2]


@pytest.mark.parametrize("ending", ["answer", "status", "reset", "close"])
def test_response_after_the_deadline_is_late_even_if_no_sweep_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(Timeouts, "sweep", lambda self: None)

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            wait_past(SHORT[1])
            if ending == "answer":
                peer.respond(stream)
            elif ending == "status":
                peer.head(stream, [*HEAD, ("grpc-status", "14"), ("grpc-message", "no")], end=True)
            elif ending == "reset":
                peer.reset(stream, CANCEL)
            else:
                return

    done, summary = run(
        tmp_path, scripted_grpc(script), server={"deadline": SHORT[0]}, client={"connections": 1}, load=one()
    )
    assert (summary.counts.ok, failures_of(done)) == (0, {(EXCEEDED, SHORT[2])})


@stamped
def test_response_that_arrived_in_time_counts_even_if_it_is_read_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline has passed for the sweep while the response is still unread in the socket."""
    requested, responded = threading.Event(), threading.Event()
    readable, found = Reader._readable, 0

    def read_nothing_more(reader: Reader, ready: Sequence[tuple[int, int]]) -> None:
        if not requested.is_set():
            readable(reader, ready)

    def is_in_the_socket(shard: Shard) -> bool:
        nonlocal found
        found += responded.is_set() and bool(select.select(list(shard._reader._sources), [], [], PATIENCE_S)[0])
        return found > 0

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            requested.set()
            peer.respond(stream)
            responded.set()

    monkeypatch.setattr(Reader, "_readable", read_nothing_more)
    expire_when(monkeypatch, is_in_the_socket)
    done, summary = run(tmp_path, scripted_grpc(script), server=LONG, **SINGLE)
    assert found
    assert (summary.counts.ok, failures_of(done)) == (1, set())


def test_response_that_is_being_read_when_its_deadline_passes_is_decoded_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep comes due when a part of the response is read and not yet decoded, and the next part has arrived."""
    requested, shards = threading.Event(), list[Shard]()
    start, sweep, catch_up, real, due = Shard.run, Timeouts.sweep, Deadlines.catch_up, timeouts.now, 0

    async def run_shard(shard: Shard) -> None:
        shards.append(shard)
        await start(shard)

    def catching_up(deadlines: Deadlines) -> None:
        nonlocal due
        catch_up(deadlines)
        if requested.is_set() and not due:
            assert select.select(list(shards[0]._reader._sources), [], [], PATIENCE_S)[0]
            due = 1
            shards[0]._timeouts._sweep_soon()

    def sweep_late(self: Timeouts) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(timeouts, "now", lambda: real() + due * 100 * NS)
            sweep(self)

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            requested.set()
            peer.respond(stream, bytes(1_000_000))

    monkeypatch.setattr(Shard, "run", run_shard)
    monkeypatch.setattr(Timeouts, "sweep", sweep_late)
    monkeypatch.setattr(Deadlines, "catch_up", catching_up)
    done, _ = run(tmp_path, scripted_grpc(script), server=LONG, **SINGLE)
    assert due
    assert {code for code, _ in failures_of(done)} <= {
        EXCEEDED
    }  # or none, depending on what had arrived when the sweep got its turn


def test_status_that_the_server_sends_in_time_is_kept(tmp_path: Path) -> None:
    def late(message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it waited too long in the queue")

    done, _ = run(tmp_path, grpcio(Unary=late), server={"deadline": "30s"}, load=one())
    assert failures_of(done) == {(EXCEEDED, "it waited too long in the queue")}


def test_call_that_was_never_sent_has_not_missed_its_deadline(tmp_path: Path) -> None:
    server = {"deadline": "1ms", "timeouts": {"connect": "1s"}}
    _, summary = run(
        tmp_path,
        scripted_grpc(lambda peer: peer.polite(), settings={SettingCodes.MAX_CONCURRENT_STREAMS: 0}),
        server=server,
        **SINGLE,
    )
    assert summary.counts.by_failure == {"connect_timeout": 1}


def test_timeout_that_is_shorter_than_the_deadline_comes_first_in_a_run(tmp_path: Path) -> None:
    server = {"deadline": "30s", "timeouts": {"total": "50ms"}}
    _, summary = run(tmp_path, scripted_grpc(lambda peer: list(peer.requests())), server=server, **SINGLE)
    assert summary.counts.by_failure == {"total_timeout": 1}


def test_deadline_is_ignored_over_http(tmp_path: Path) -> None:
    _, summary = measure(tmp_path, scripted(polite), server={"deadline": "1us"})
    assert (summary.counts.ok, summary.counts.failed) == (6, 0)


# --- a single call ---------------------------------------------------------------------------------------------------


class SingleCall:
    """One call of t.S/Down with a deadline, and what was received."""

    def __init__(self, url: str, deadline: float, timeout: float = PATIENCE_S, body: bytes = b"") -> None:
        self.kept: list[bytes] = []
        block = header_block("/t.S/Down", "x", False, {}, deadline)
        response = GrpcResponse(True, None, self.kept)
        peer = Peer(parse(url), timeout=timeout)
        self.instants, self.fail = roundtrip.over_grpc(peer, block, framed(body), response, self.on_events, deadline)

    def on_events(self, at: int, events: Sequence[Event]) -> None:
        pass


def late_after_a_message(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Move the client's clock past a deadline of 50 s once a message was received. The kernel's stamps stay right."""
    real, late = roundtrip.now, threading.Event()
    monkeypatch.setattr(roundtrip, "now", lambda: real() + late.is_set() * 100 * NS)
    monkeypatch.setattr(SingleCall, "on_events", lambda call, *_: late.set() if call.kept else None)
    return late


@pytest.mark.parametrize("timeout", [0, PATIENCE_S])
def test_single_call_ends_by_its_deadline_and_is_cancelled_at_the_server(timeout: float) -> None:
    peers: list[GrpcPeer] = []

    def script(peer: GrpcPeer) -> None:
        peers.append(peer)
        peer.sock.settimeout(PATIENCE_S)
        peer.request()
        while not peer.resets and peer.receive():
            pass

    with scripted_grpc(script) as url:
        call = SingleCall(url, SHORT[1], timeout)
        until(lambda: bool(peers and peers[0].resets), "the server receives the reset")
    assert call.fail == Fail(EXCEEDED, SHORT[2], True)
    assert peers[0].resets == [(1, CANCEL)]
    assert call.instants.done - call.instants.sent >= SHORT[1] * NS


def test_single_call_that_the_server_stops_reading_ends_by_its_deadline() -> None:
    over = threading.Event()

    def script(peer: GrpcPeer) -> None:
        peer.h2.increment_flow_control_window(2**31 - 1 - 65_535)
        peer.flush()
        over.wait(PATIENCE_S)

    with scripted_grpc(script, settings={SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1}) as url:
        call = SingleCall(url, 0.3, body=bytes(64 << 20))
        over.set()
    assert call.fail is not None and call.fail.code == EXCEEDED


def test_single_call_keeps_messages_received_before_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    late_after_a_message(monkeypatch)

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            peer.head(stream)
            peer.data(stream, framed(b"abc"))

    with scripted_grpc(script) as url:
        call = SingleCall(url, 50)
    assert call.fail is not None and call.fail.code == EXCEEDED
    assert call.kept == [b"abc"]


def test_single_call_ignores_a_response_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roundtrip, "_MIN_WAIT_S", PATIENCE_S)  # as if the timer were late

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            wait_past(SHORT[1])
            peer.respond(stream, b"abc")

    with scripted_grpc(script) as url:
        call = SingleCall(url, SHORT[1])
    assert call.fail == Fail(EXCEEDED, SHORT[2], True)
    assert call.kept == []


@stamped
def test_single_call_accepts_a_response_that_arrived_in_time_and_is_read_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(roundtrip, "_MIN_WAIT_S", PATIENCE_S)  # the rest of the response is still on its way
    late = late_after_a_message(monkeypatch)

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            peer.head(stream)
            peer.data(stream, framed(b"abc"))
            late.wait(PATIENCE_S)
            peer.head(stream, OK, end=True)

    with scripted_grpc(script) as url:
        call = SingleCall(url, 50)
    assert call.fail is None
    assert call.kept == [b"abc"]


def test_timeout_that_is_shorter_than_the_deadline_comes_first_in_a_single_call() -> None:
    with (
        scripted_grpc(lambda peer: list(peer.requests())) as url,
        pytest.raises(roundtrip.UserError, match="did not respond within 100 ms"),
    ):
        SingleCall(url, 20, timeout=0.1)
