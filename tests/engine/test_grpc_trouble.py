"""Servers that refuse or reset streams, close HTTP/2 connections, or change their limits."""

import os
import signal
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from grpc_peers import HEAD, OK, GrpcPeer, failures_of, framed, hard_close, one, run, scripted_grpc
from h2.settings import SettingCodes
from helpers import Client, scripted
from waiting import until

from inferometer.records import MISSING
from inferometer.store.spool import Control

REFUSED_STREAM, INTERNAL_ERROR, CANCEL, ENHANCE_YOUR_CALM = 7, 2, 8, 11
SINGLE = {"client": {"connections": 1}, "load": one()}


# --- streams ---------------------------------------------------------------------------------------------------------


def test_refused_stream_is_resent_once_and_counts_from_its_first_attempt(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            seen.append((peer.number, stream))
            if len(seen) == 1:
                time.sleep(0.03)
                peer.reset(stream, REFUSED_STREAM)
            else:
                peer.respond(stream)

    done, summary = run(tmp_path, scripted_grpc(script), client={"connections": 2}, load=one(requests=3))
    assert summary.counts.ok == 3
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert rows["attempts"].tolist() == [2, 1, 1]
    assert rows["done"][0] - rows["sent"][0] >= 30_000_000
    assert rows["held"][0] == 0
    assert seen[0][0] != seen[1][0]


def test_stream_that_is_refused_twice_is_a_failure(tmp_path: Path) -> None:
    count = 0

    def script(peer: GrpcPeer) -> None:
        nonlocal count
        for stream in peer.requests():
            count += 1
            peer.reset(stream, REFUSED_STREAM)

    done, summary = run(tmp_path, scripted_grpc(script), **SINGLE)
    assert summary.counts.by_failure == {"stream_reset": 1}
    assert count == 2
    assert "REFUSED_STREAM" in failures_of(done).pop()[1]


@pytest.mark.parametrize(
    ("code", "name"), [(INTERNAL_ERROR, "INTERNAL_ERROR"), (ENHANCE_YOUR_CALM, "ENHANCE_YOUR_CALM")]
)
@pytest.mark.parametrize("begun", [False, True])
def test_reset_stream_reports_its_code_and_the_others_continue(
    tmp_path: Path, code: int, name: str, begun: bool
) -> None:
    def script(peer: GrpcPeer) -> None:
        for count, stream in enumerate(peer.requests()):
            if count != 1:
                peer.respond(stream)
                continue
            if begun:
                peer.head(stream)
            peer.reset(stream, code)

    done, summary = run(tmp_path, scripted_grpc(script), client={"connections": 1}, load=one(requests=4))
    assert (summary.counts.ok, summary.counts.by_failure) == (3, {"stream_reset": 1})
    assert name in failures_of(done).pop()[1]
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert (rows["first_byte"][1] != MISSING) == begun
    assert rows["attempts"].tolist() == [1] * 4


def test_calls_that_the_client_gives_up_are_cancelled_at_the_server(tmp_path: Path) -> None:
    peers: dict[int, GrpcPeer] = {}

    def script(peer: GrpcPeer) -> None:
        peers[peer.number] = peer
        peer.request()
        while not peer.resets and peer.receive():
            pass

    with scripted_grpc(script) as url:
        _, summary = run(tmp_path, url, server={"timeouts": {"total": "80ms"}}, **SINGLE)
        until(lambda: 1 in peers and bool(peers[1].resets), "the server hears of it")
    assert summary.counts.by_failure == {"total_timeout": 1}
    assert peers[1].resets == [(1, CANCEL)]


# --- connections that end --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stale_however_late")
def test_no_call_is_lost_on_a_connection_that_was_closed_while_idle(tmp_path: Path) -> None:
    """The server reads the calls and closes without a response: they were all sent over a connection that had been idle."""
    seen: list[int] = []

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            seen.append(peer.number)
            if peer.number == 1:
                for _ in range(2):
                    peer.request()
                return
            peer.respond(stream)

    load = {"type": "closed", "concurrency": 3, "requests": 6, "ramp_up": 0}
    done, summary = run(tmp_path, scripted_grpc(script), client={"connections": 1}, load=load)
    assert (summary.counts.ok, summary.counts.failed) == (6, 0)
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert sorted(rows["attempts"].tolist()) == [1, 1, 1, 2, 2, 2]
    assert (rows["held"] == 0).all()


@pytest.mark.usefixtures("stale_however_late")
def test_call_whose_connection_closes_twice_is_a_failure(tmp_path: Path) -> None:
    count = 0

    def script(peer: GrpcPeer) -> None:
        nonlocal count
        if peer.request() is not None:
            count += 1

    _, summary = run(tmp_path, scripted_grpc(script), **SINGLE)
    assert summary.counts.by_failure == {"closed": 1}
    assert count == 2


@pytest.mark.parametrize("hard", [False, True])
def test_connection_that_ends_during_calls_fails_all_of_them(tmp_path: Path, hard: bool) -> None:
    """One response is half complete, one has not begun; a third was complete, so the connection does not count as stale."""

    def script(peer: GrpcPeer) -> None:
        if peer.number != 1:
            peer.polite()
            return
        first, second, third = (peer.request() for _ in range(3))
        if first is None or second is None or third is None:
            return
        peer.respond(first)
        peer.head(second)
        peer.data(second, framed(b"abc")[:6])
        receive_until_quiet(peer)
        if hard:
            hard_close(peer)

    def receive_until_quiet(peer: GrpcPeer) -> None:
        peer.request()

    load = {"type": "closed", "concurrency": 3, "requests": 4, "ramp_up": 0}
    done, summary = run(tmp_path, scripted_grpc(script), client={"connections": 1}, load=load)
    assert summary.counts.ok == 1
    assert summary.counts.by_failure == ({"reset": 3} if hard else {"cut_short": 1, "closed": 2})
    assert set(done.records.rows["attempts"]) == {1}


def test_malformed_http2_ends_the_connection_but_responses_before_it_count(tmp_path: Path) -> None:
    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            if peer.number == 1:
                peer.h2.send_headers(stream, HEAD)
                peer.h2.send_data(stream, framed(b""))
                peer.h2.send_headers(stream, OK, end_stream=True)
                data = peer.h2.data_to_send()
                peer.sock.sendall(data + struct.pack(">HBBBI", 0, 4, 3, 0, 0) + bytes(4))  # RST_STREAM of stream 0
                peer.request()
                return
            peer.respond(stream)

    done, summary = run(tmp_path, scripted_grpc(script), client={"connections": 1}, load=one(requests=3))
    assert (summary.counts.ok, summary.counts.failed) == (3, 0)
    assert set(done.records.rows["attempts"]) <= {1, 2}


def test_calls_in_flight_when_http2_is_malformed_fail(tmp_path: Path) -> None:
    def script(peer: GrpcPeer) -> None:
        for _ in peer.requests():
            peer.sock.sendall(struct.pack(">HBBBI", 0, 4, 3, 0, 0) + bytes(4))

    done, summary = run(tmp_path, scripted_grpc(script), **SINGLE)
    assert summary.counts.by_failure == {"malformed_http2": 1}
    assert "RST_STREAM" in failures_of(done).pop()[1]


# --- limits that change ----------------------------------------------------------------------------------------------


def test_calls_wait_on_the_open_connection_for_a_server_that_allows_no_streams_yet(tmp_path: Path) -> None:
    connections = 0

    def script(peer: GrpcPeer) -> None:
        nonlocal connections
        connections += 1
        if peer.number:
            peer.receive()
            peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 5})
            threading.Event().wait(0.1)
            peer.flush()
        peer.polite()

    _, summary = run(
        tmp_path, scripted_grpc(script, settings={SettingCodes.MAX_CONCURRENT_STREAMS: 0}), client={"connections": 1}
    )
    assert summary.counts.ok == 6
    assert connections <= 3


def test_calls_fail_in_time_if_the_server_never_allows_a_stream(tmp_path: Path) -> None:
    connections = 0

    def script(peer: GrpcPeer) -> None:
        nonlocal connections
        connections += 1
        peer.polite()

    with scripted_grpc(script, settings={SettingCodes.MAX_CONCURRENT_STREAMS: 0}) as url:
        _, summary = run(
            tmp_path, url, server={"timeouts": {"connect": "200ms"}}, client={"connections": 1}, load=one(requests=2)
        )
    assert summary.counts.by_failure == {"connect_timeout": 2}
    assert connections <= 6


def interrupt_when_running(folder: Path) -> None:
    """Send Ctrl-C as soon as the users have sent."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for path in folder.rglob("0.control"):
            if path.stat().st_size and Control(path, create=False)["sent"]:
                os.kill(os.getpid(), signal.SIGINT)
                return
        time.sleep(0.01)


def test_calls_that_wait_for_a_stream_are_cancelled_when_the_run_ends(tmp_path: Path) -> None:
    with scripted_grpc(lambda peer: peer.polite(), settings={SettingCodes.MAX_CONCURRENT_STREAMS: 0}) as url:
        threading.Thread(target=interrupt_when_running, args=(tmp_path,)).start()
        done, summary = run(
            tmp_path,
            url,
            server={"timeouts": {"connect": 0}},
            client={"connections": 1, "grace": "100ms"},
            load={"type": "closed", "concurrency": 3, "requests": 9, "ramp_up": 0},
        )
    assert summary.counts.ok == 0
    assert len(done.records.rows["id"]) == 3
    assert {failure.code for failure in done.records.failures} == {"cancelled"}


def test_waiting_calls_are_not_sent_when_those_before_them_are_cancelled(tmp_path: Path) -> None:
    """The server allows one stream at a time, and the second connection stays silent: after the grace period, nothing is sent."""
    received: list[int] = []
    all_received = threading.Event()

    def script(client: Client) -> None:
        if client.number == 1:
            received.extend(GrpcPeer(client, {SettingCodes.MAX_CONCURRENT_STREAMS: 1}).requests())
            all_received.set()
        elif client.number:
            while client.sock.recv(65536):
                pass

    with scripted(script) as url:
        threading.Thread(target=interrupt_when_running, args=(tmp_path,)).start()
        done, _ = run(
            tmp_path,
            url.replace("http", "grpc", 1),
            server={"timeouts": {"connect": 0, "total": "60s"}},
            client={"connections": 1, "grace": "100ms"},
            load={"type": "closed", "concurrency": 3, "requests": 9, "ramp_up": 0},
        )
        assert all_received.wait(30)
    assert {failure.code for failure in done.records.failures} == {"cancelled"}
    assert len(done.records.rows["id"]) == 3
    assert received == [1]


def test_response_that_arrives_before_a_write_fails_is_read(tmp_path: Path) -> None:
    """The server's windows allow all of a large request; it responds after the headers, and closes with the rest unread."""

    def script(peer: GrpcPeer) -> None:
        if not peer.number:
            return
        peer.h2.increment_flow_control_window(2**31 - 1 - 65_535)
        peer.flush()
        while not peer.heads:
            if not peer.receive():
                return
        peer.head(1, [*HEAD, ("grpc-status", "8"), ("grpc-message", "too much")], end=True)

    large = tmp_path / "large.bin"
    large.write_bytes(b"\x0a\x80\x80\x80\x0a" + bytes(10 << 21))
    done, _ = run(
        tmp_path,
        scripted_grpc(script, settings={SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1}),
        data={"type": "messages", "path": str(large)},
        **SINGLE,
    )
    assert failures_of(done) == {("grpc_RESOURCE_EXHAUSTED", "too much")}
