"""Servers that do with an HTTP/2 connection what servers do: refuse, reset, close, change their limits."""

import os
import signal
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from grpc_peers import HEAD, OK, GrpcPeer, following, framed, hard_close, one, run, said
from h2.settings import SettingCodes
from helpers import Client, scripted
from waiting import until

from inferometer.records import MISSING
from inferometer.store.spool import Control

REFUSED_STREAM, INTERNAL_ERROR, CANCEL, ENHANCE_YOUR_CALM = 7, 2, 8, 11
SINGLE = {"client": {"connections": 1}, "load": one()}


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_refused_stream_is_sent_again_once(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            seen.append((peer.number, stream))
            if len(seen) == 1:
                peer.reset(stream, REFUSED_STREAM)
            else:
                peer.answer(stream)

    with following(script) as url:
        done, summary = run(tmp_path, url, client={"connections": 2}, load=one(requests=3))
    assert summary.counts.ok == 3
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert rows["attempts"].tolist() == [2, 1, 1]
    assert rows["held"][0] > 0
    assert seen[0][0] != seen[1][0]


def test_a_stream_that_is_refused_twice_is_a_failure(tmp_path: Path) -> None:
    count = 0

    def script(peer: GrpcPeer) -> None:
        nonlocal count
        for stream in peer.requests():
            count += 1
            peer.reset(stream, REFUSED_STREAM)

    with following(script) as url:
        done, summary = run(tmp_path, url, **SINGLE)
    assert summary.counts.by_failure == {"stream_reset": 1}
    assert count == 2
    assert "REFUSED_STREAM" in said(done).pop()[1]


@pytest.mark.parametrize(
    ("code", "name"), [(INTERNAL_ERROR, "INTERNAL_ERROR"), (ENHANCE_YOUR_CALM, "ENHANCE_YOUR_CALM")]
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_that_is_reset_says_by_which_code_and_the_others_go_on(
    tmp_path: Path, code: int, name: str, begun: bool
) -> None:
    def script(peer: GrpcPeer) -> None:
        for count, stream in enumerate(peer.requests()):
            if count != 1:
                peer.answer(stream)
                continue
            if begun:
                peer.head(stream)
            peer.reset(stream, code)

    with following(script) as url:
        done, summary = run(tmp_path, url, client={"connections": 1}, load=one(requests=4))
    assert (summary.counts.ok, summary.counts.by_failure) == (3, {"stream_reset": 1})
    assert name in said(done).pop()[1]
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert (rows["first_byte"][1] != MISSING) == begun
    assert rows["attempts"].tolist() == [1] * 4


def test_what_we_give_up_is_cancelled_at_the_server(tmp_path: Path) -> None:
    peers: dict[int, GrpcPeer] = {}

    def script(peer: GrpcPeer) -> None:
        peers[peer.number] = peer
        peer.request()
        while not peer.resets and peer.hear():
            pass

    with following(script) as url:
        _, summary = run(tmp_path, url, server={"timeouts": {"total": "80ms"}}, **SINGLE)
        until(lambda: 1 in peers and bool(peers[1].resets), "the server hears of it")
    assert summary.counts.by_failure == {"total_timeout": 1}
    assert peers[1].resets == [(1, CANCEL)]


# --- connections that end --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stale_however_late")
def test_a_connection_that_was_closed_while_idle_costs_no_call(tmp_path: Path) -> None:
    """The server takes the calls in and closes without a word: they were all sent into a connection that had been idle."""
    seen: list[int] = []

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            seen.append(peer.number)
            if peer.number == 1:
                for _ in range(2):
                    peer.request()
                return
            peer.answer(stream)

    load = {"type": "closed", "concurrency": 3, "requests": 6}
    with following(script) as url:
        done, summary = run(tmp_path, url, client={"connections": 1}, load=load)
    assert (summary.counts.ok, summary.counts.failed) == (6, 0)
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert sorted(rows["attempts"].tolist()) == [1, 1, 1, 2, 2, 2]
    assert (rows["held"][rows["attempts"] == 2] > 0).all()


@pytest.mark.usefixtures("stale_however_late")
def test_a_call_that_is_cut_off_twice_is_a_failure(tmp_path: Path) -> None:
    count = 0

    def script(peer: GrpcPeer) -> None:
        nonlocal count
        if peer.request() is not None:
            count += 1

    with following(script) as url:
        _, summary = run(tmp_path, url, **SINGLE)
    assert summary.counts.by_failure == {"closed": 1}
    assert count == 2


@pytest.mark.parametrize("hard", [False, True])
def test_a_connection_that_ends_in_the_middle_ends_all_its_calls(tmp_path: Path, hard: bool) -> None:
    """One is half answered, one not at all; a third had been answered, so nobody takes the connection for stale."""

    def script(peer: GrpcPeer) -> None:
        if peer.number != 1:
            peer.polite()
            return
        first, second, third = (peer.request() for _ in range(3))
        if first is None or second is None or third is None:
            return
        peer.answer(first)
        peer.head(second)
        peer.data(second, framed(b"abc")[:6])
        hear_until_quiet(peer)
        if hard:
            hard_close(peer)

    def hear_until_quiet(peer: GrpcPeer) -> None:
        peer.request()

    load = {"type": "closed", "concurrency": 3, "requests": 4}
    with following(script) as url:
        done, summary = run(tmp_path, url, client={"connections": 1}, load=load)
    assert summary.counts.ok == 1
    assert summary.counts.by_failure == ({"reset": 3} if hard else {"cut_short": 1, "closed": 2})
    assert set(done.records.rows["attempts"]) == {1}


def test_bytes_that_break_http2_end_the_connection_but_not_what_was_answered_before_them(tmp_path: Path) -> None:
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
            peer.answer(stream)

    with following(script) as url:
        done, summary = run(tmp_path, url, client={"connections": 1}, load=one(requests=3))
    assert (summary.counts.ok, summary.counts.failed) == (3, 0)
    assert set(done.records.rows["attempts"]) <= {1, 2}


def test_what_was_under_way_then_is_malformed(tmp_path: Path) -> None:
    def script(peer: GrpcPeer) -> None:
        for _ in peer.requests():
            peer.sock.sendall(struct.pack(">HBBBI", 0, 4, 3, 0, 0) + bytes(4))

    with following(script) as url:
        done, summary = run(tmp_path, url, **SINGLE)
    assert summary.counts.by_failure == {"malformed_http2": 1}
    assert "RST_STREAM" in said(done).pop()[1]


# --- limits that change ----------------------------------------------------------------------------------------------


def test_a_server_that_allows_no_streams_yet_is_waited_for_on_the_connection_there_is(tmp_path: Path) -> None:
    connections = 0

    def script(peer: GrpcPeer) -> None:
        nonlocal connections
        connections += 1
        if peer.number:
            peer.hear()
            peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 5})
            threading.Event().wait(0.1)
            peer.flush()
        peer.polite()

    with following(script, settings={SettingCodes.MAX_CONCURRENT_STREAMS: 0}) as url:
        _, summary = run(tmp_path, url, client={"connections": 1})
    assert summary.counts.ok == 6
    assert connections <= 3


def test_a_server_that_never_allows_a_stream_fails_the_calls_in_time(tmp_path: Path) -> None:
    connections = 0

    def script(peer: GrpcPeer) -> None:
        nonlocal connections
        connections += 1
        peer.polite()

    with following(script, settings={SettingCodes.MAX_CONCURRENT_STREAMS: 0}) as url:
        _, summary = run(
            tmp_path, url, server={"timeouts": {"connect": "200ms"}}, client={"connections": 1}, load=one(requests=2)
        )
    assert summary.counts.by_failure == {"connect_timeout": 2}
    assert connections <= 6


def interrupt_when_running(folder: Path) -> None:
    """Ctrl-C as soon as the users have asked."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for path in folder.rglob("0.control"):
            if path.stat().st_size and Control(path, create=False)["sent"]:
                os.kill(os.getpid(), signal.SIGINT)
                return
        time.sleep(0.01)


def test_what_waits_for_a_stream_when_the_run_is_ended_is_cancelled(tmp_path: Path) -> None:
    with following(lambda peer: peer.polite(), settings={SettingCodes.MAX_CONCURRENT_STREAMS: 0}) as url:
        threading.Thread(target=interrupt_when_running, args=(tmp_path,)).start()
        done, summary = run(
            tmp_path,
            url,
            server={"timeouts": {"connect": 0}},
            client={"connections": 1, "grace": "100ms"},
            load={"type": "closed", "concurrency": 3, "requests": 9},
        )
    assert summary.counts.ok == 0
    assert len(done.records.rows["id"]) == 3
    assert {failure.code for failure in done.records.failures} == {"cancelled"}


def test_what_waits_is_not_sent_when_those_before_it_are_cancelled(tmp_path: Path) -> None:
    """One stream at a time, and a second connection that says nothing: when the grace is over, nothing new is sent."""
    asked: list[int] = []
    heard_all = threading.Event()

    def script(client: Client) -> None:
        if client.number == 1:
            asked.extend(GrpcPeer(client, {SettingCodes.MAX_CONCURRENT_STREAMS: 1}).requests())
            heard_all.set()
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
            load={"type": "closed", "concurrency": 3, "requests": 9},
        )
        assert heard_all.wait(30)
    assert {failure.code for failure in done.records.failures} == {"cancelled"}
    assert len(done.records.rows["id"]) == 3
    assert asked == [1]


def test_an_answer_that_comes_before_the_connection_breaks_under_our_writing_is_heard(tmp_path: Path) -> None:
    """The server has allowed all of a large request, answers after its headers, and closes with the rest unread."""

    def script(peer: GrpcPeer) -> None:
        if not peer.number:
            return
        peer.h2.increment_flow_control_window(2**31 - 1 - 65_535)
        peer.flush()
        while not peer.heads:
            if not peer.hear():
                return
        peer.head(1, [*HEAD, ("grpc-status", "8"), ("grpc-message", "too much")], end=True)

    large = tmp_path / "large.bin"
    large.write_bytes(b"\x0a\x80\x80\x80\x0a" + bytes(10 << 21))
    with following(script, settings={SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1}) as url:
        done, _ = run(tmp_path, url, data={"type": "messages", "path": str(large)}, **SINGLE)
    assert said(done) == {("grpc_RESOURCE_EXHAUSTED", "too much")}
