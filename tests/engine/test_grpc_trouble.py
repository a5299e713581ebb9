"""Servers that do with an HTTP/2 connection what servers do: refuse, reset, go away, fall silent, speak something else."""

import os
import signal
import socket
import ssl
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import trustme
from grpc_peers import HEAD, OK, Peer, following, framed, one, run, said
from h2.settings import SettingCodes
from helpers import Client, measure, scripted

from inferometer.engine.spool import Control
from inferometer.errors import UserError
from inferometer.records import MISSING

REFUSED_STREAM, INTERNAL_ERROR, CANCEL, ENHANCE_YOUR_CALM = 7, 2, 8, 11
SINGLE = {"client": {"connections": 1}, "load": one()}


def hard_close(peer: Peer) -> None:
    """A reset rather than a close."""
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.sock.close()


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_refused_stream_is_sent_again_once(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def script(peer: Peer) -> None:
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

    def script(peer: Peer) -> None:
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
    def script(peer: Peer) -> None:
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
    peers: list[Peer] = []

    def script(peer: Peer) -> None:
        peers.append(peer)
        peer.request()
        while not peer.resets and peer.hear():
            pass

    with following(script) as url:
        _, summary = run(tmp_path, url, server={"timeouts": {"total": "80ms"}}, **SINGLE)
    assert summary.counts.by_failure == {"total_timeout": 1}
    assert peers[-1].resets == [(1, CANCEL)]


# --- going away ------------------------------------------------------------------------------------------------------


def test_what_lies_above_the_last_stream_goes_elsewhere_and_the_rest_is_answered(tmp_path: Path) -> None:
    """Four calls under way; the server goes away having looked at two of them, which it answers afterwards."""
    seen: list[tuple[int, int]] = []

    def script(peer: Peer) -> None:
        streams = []
        for stream in peer.requests():
            seen.append((peer.number, stream))
            if peer.number != 1:
                peer.answer(stream)
                continue
            streams.append(stream)
            if len(streams) == 4:
                peer.go_away(streams[1])
                peer.answer(streams[1])
                peer.answer(streams[0])

    load = {"type": "closed", "concurrency": 4, "requests": 12}
    with following(script) as url:
        done, summary = run(tmp_path, url, client={"connections": 1}, load=load)
    assert (summary.counts.ok, summary.counts.failed) == (12, 0)
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert sorted(rows["attempts"].tolist()) == [1] * 10 + [2] * 2
    assert [number for number, _ in seen].count(1) == 4
    assert len(seen) == 14


def test_a_server_that_goes_away_is_closed_when_its_last_answer_came(tmp_path: Path) -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        for stream in peer.requests():
            if peer.number == 1:
                peer.go_away(stream)
            peer.answer(stream)
        if peer.number == 1:
            gone.set()

    with following(script) as url:
        done, summary = run(tmp_path, url, client={"connections": 1}, load=one(requests=30, think="10ms"))
        assert gone.is_set()
    assert summary.counts.ok == 30
    assert set(done.records.rows["attempts"]) == {1}


def test_a_channel_that_closes_after_its_last_call_was_given_up(tmp_path: Path) -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        for stream in peer.requests():
            if peer.number == 1:
                peer.go_away(stream)
            else:
                gone.wait(10)
                peer.answer(stream)
        if peer.number == 1:
            gone.set()

    with following(script) as url:
        _, summary = run(
            tmp_path,
            url,
            server={"timeouts": {"total": "100ms"}},
            client={"connections": 1},
            load=one(requests=2, concurrency=1),
        )
        assert gone.is_set()
    assert (summary.counts.ok, summary.counts.by_failure) == (1, {"total_timeout": 1})


def test_a_server_that_goes_away_as_soon_as_it_is_connected_to(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        settings = struct.pack(">HBBBI", 0, 0, 4, 0, 0)
        client.send(settings + struct.pack(">HBBBIII", 0, 8, 7, 0, 0, 0, 0))
        client.request()

    with scripted(script) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url.replace("http", "grpc", 1))
    assert "goes away" in caught.value.what


def test_the_same_in_the_middle_of_a_run_is_a_failure_not_a_storm_of_connections(tmp_path: Path) -> None:
    connections = 0

    def script(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        if peer.number > 1:
            peer.go_away(0)
            peer.request()
            return
        for stream in peer.requests():
            peer.go_away(stream)
            peer.answer(stream)

    with following(script) as url:
        _, summary = run(tmp_path, url, client={"connections": 1}, load=one(requests=4))
    assert (summary.counts.ok, summary.counts.failed) == (1, 3)
    assert set(summary.counts.by_failure) <= {"connect_failed", "stream_reset"}
    assert connections <= 2 + 2 * 3


@pytest.mark.parametrize("hard", [False, True])
def test_calls_that_never_left_say_that_no_connection_could_be_opened(tmp_path: Path, hard: bool) -> None:
    """The server goes away, and ends every connection after it without a word: as one that stops does to those that it has
    not taken yet. Nothing was sent over them, so it is not said that the server reset or closed what it may have seen."""

    def script(client: Client) -> None:
        if client.number > 1:
            client.sock.recv(65536)  # the client's preface: it is connected
            if hard:
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sock.close()
            return
        peer = Peer(client, {})
        for stream in peer.requests():
            peer.go_away(stream)
            peer.answer(stream)

    with scripted(script) as url:
        done, summary = run(
            tmp_path, url.replace("http", "grpc", 1), client={"connections": 1}, load=one(requests=4, think="1ms")
        )
    assert (summary.counts.ok, summary.counts.by_failure) == (1, {"connect_failed": 3})
    word = "reset" if hard else "closed"
    assert said(done) == {("connect_failed", f"the server {word} the connection before it was ready for a request")}
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert rows["attempts"].tolist() == [1, 0, 0, 0]
    assert (rows["sent"] == MISSING).tolist() == [False, True, True, True]


@pytest.mark.parametrize("hard", [False, True])
def test_a_server_that_goes_away_and_ends_the_connection_has_refused_only_what_lies_above(
    tmp_path: Path, hard: bool
) -> None:
    """Four calls under way; it may have begun with two of them, which have failed. The two others go elsewhere."""
    seen: list[int] = []

    def script(peer: Peer) -> None:
        if peer.number != 1:
            for stream in peer.requests():
                seen.append(stream)
                peer.answer(stream)
            return
        streams = [peer.request() for _ in range(4)]
        assert streams[1] is not None
        peer.go_away(streams[1])
        if hard:
            hard_close(peer)

    load = {"type": "closed", "concurrency": 4, "requests": 4}
    with following(script) as url:
        done, summary = run(tmp_path, url, client={"connections": 1}, load=load)
    assert (summary.counts.ok, summary.counts.by_failure) == (2, {"reset" if hard else "closed": 2})
    rows = np.asarray(done.records.rows)
    assert sorted(rows["attempts"][rows["failure"] == 0].tolist()) == [2, 2]
    assert sorted(rows["attempts"][rows["failure"] != 0].tolist()) == [1, 1]
    assert len(seen) == 2


def test_an_answer_and_the_going_away_in_the_same_bytes_let_nothing_go_over_that_connection(tmp_path: Path) -> None:
    """One stream at a time, and a second connection that says nothing: a call waits for the first one's answer."""
    over = threading.Event()

    def script(client: Client) -> None:
        if client.number == 2:
            over.wait(10)
            return
        peer = Peer(client, {SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        for stream in peer.requests():
            if client.number == 1:
                over.wait(0.1)
                peer.h2.send_headers(stream, HEAD)
                peer.h2.send_data(stream, framed(b""))
                peer.h2.send_headers(stream, OK, end_stream=True)
                peer.sock.sendall(peer.h2.data_to_send() + struct.pack(">HBBBIII", 0, 8, 7, 0, 0, stream, 0))
            else:
                peer.answer(stream)

    with scripted(script) as url:
        _, summary = run(
            tmp_path,
            url.replace("http", "grpc", 1),
            server={"timeouts": {"connect": "400ms"}},
            client={"connections": 1},
            load={"type": "closed", "concurrency": 2, "requests": 6},
        )
    over.set()
    assert summary.counts.ok + summary.counts.failed == 6
    assert set(summary.counts.by_failure) == {"connect_timeout"}
    assert summary.counts.ok >= 3


# --- connections that end --------------------------------------------------------------------------------------------


def test_a_connection_that_was_closed_while_idle_costs_no_call(tmp_path: Path) -> None:
    """The server takes the calls in and closes without a word: they were all sent into a connection that had been idle."""
    seen: list[int] = []

    def script(peer: Peer) -> None:
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


def test_a_call_that_is_cut_off_twice_is_a_failure(tmp_path: Path) -> None:
    count = 0

    def script(peer: Peer) -> None:
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

    def script(peer: Peer) -> None:
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

    def hear_until_quiet(peer: Peer) -> None:
        peer.request()

    load = {"type": "closed", "concurrency": 3, "requests": 4}
    with following(script) as url:
        done, summary = run(tmp_path, url, client={"connections": 1}, load=load)
    assert summary.counts.ok == 1
    assert summary.counts.by_failure == ({"reset": 3} if hard else {"cut_short": 1, "closed": 2})
    assert set(done.records.rows["attempts"]) == {1}


def test_bytes_that_break_http2_end_the_connection_but_not_what_was_answered_before_them(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
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
    def script(peer: Peer) -> None:
        for _ in peer.requests():
            peer.sock.sendall(struct.pack(">HBBBI", 0, 4, 3, 0, 0) + bytes(4))

    with following(script) as url:
        done, summary = run(tmp_path, url, **SINGLE)
    assert summary.counts.by_failure == {"malformed_http2": 1}
    assert "RST_STREAM" in said(done).pop()[1]


# --- answers that are none -------------------------------------------------------------------------------------------


def plain(status: str, kind: str) -> list[tuple[str, str]]:
    return [(":status", status), ("content-type", kind)]


def trailers_only(peer: Peer, stream: int) -> None:
    peer.head(stream, [*HEAD, ("grpc-status", "5"), ("grpc-message", "no%20such%20thing")], end=True)


def without_trailers(peer: Peer, stream: int) -> None:
    peer.head(stream)
    peer.data(stream, framed(b"abc"), end=True)


def without_status(peer: Peer, stream: int) -> None:
    peer.answer(stream, b"abc", [("x-other", "1")])


def bare(peer: Peer, stream: int) -> None:
    peer.head(stream, end=True)


def cut_message(peer: Peer, stream: int) -> None:
    peer.head(stream)
    peer.data(stream, framed(b"abcdef")[:7])
    peer.head(stream, OK, end=True)


def no_message(peer: Peer, stream: int) -> None:
    peer.head(stream)
    peer.head(stream, OK, end=True)


def two_messages(peer: Peer, stream: int) -> None:
    peer.head(stream)
    peer.data(stream, framed(b"abc") * 2)
    peer.head(stream, OK, end=True)


def busy(peer: Peer, stream: int) -> None:
    peer.head(stream, plain("503", "text/plain"))
    peer.data(stream, b"come back later", end=True)


def not_found(peer: Peer, stream: int) -> None:
    peer.head(stream, plain("404", "text/plain"), end=True)


def web_page(peer: Peer, stream: int) -> None:
    peer.head(stream, plain("200", "text/html"))
    peer.data(stream, b"<html>", end=True)


def packed_by_nobody(peer: Peer, stream: int) -> None:
    peer.head(stream)
    peer.data(stream, b"\x01\x00\x00\x00\x03abc")
    peer.head(stream, OK, end=True)


def unknown_status(peer: Peer, stream: int) -> None:
    peer.head(stream, [*HEAD, ("grpc-status", "77")], end=True)


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        (trailers_only, "grpc_NOT_FOUND", "no such thing"),
        (without_trailers, "cut_short", "the stream ended without trailers"),
        (without_status, "malformed_grpc", "the answer has no grpc-status"),
        (bare, "malformed_grpc", "the answer has no grpc-status"),
        (cut_message, "cut_short", "the stream ended in the middle of a message"),
        (no_message, "cut_short", "the call ended well but without an answer"),
        (two_messages, "malformed_grpc", "a call that has one answer was given several"),
        (busy, "http_503", ""),
        (not_found, "http_404", ""),
        (web_page, "not_grpc", "the server answers with text/html"),
        (packed_by_nobody, "malformed_grpc", "a message is compressed by 'nobody knows what'"),
        (unknown_status, "grpc_77", ""),
    ],
)
def test_an_answer_that_is_none_is_a_failure_of_its_call_alone(tmp_path: Path, how, code: str, message: str) -> None:  # type: ignore[no-untyped-def]
    def script(peer: Peer) -> None:
        for count, stream in enumerate(peer.requests()):
            if count:
                peer.answer(stream)
            else:
                how(peer, stream)

    with following(script) as url:
        done, summary = run(tmp_path, url, client={"connections": 1}, load=one(requests=3))
    assert (summary.counts.ok, summary.counts.by_failure) == (2, {code: 1})
    assert said(done) == {(code, message)}


# --- limits that change ----------------------------------------------------------------------------------------------


def test_a_server_that_allows_no_streams_yet_is_waited_for_on_the_connection_there_is(tmp_path: Path) -> None:
    connections = 0

    def script(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        if peer.number:
            peer.hear()
            peer.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 5})
            threading.Timer(0.1, peer.flush).start()
        peer.polite()

    with following(script, settings={SettingCodes.MAX_CONCURRENT_STREAMS: 0}) as url:
        _, summary = run(tmp_path, url, client={"connections": 1})
    assert summary.counts.ok == 6
    assert connections <= 3


def test_a_server_that_never_allows_a_stream_fails_the_calls_in_time(tmp_path: Path) -> None:
    connections = 0

    def script(peer: Peer) -> None:
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
    end = time.monotonic() + 20
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

    def script(client: Client) -> None:
        if client.number == 1:
            asked.extend(Peer(client, {SettingCodes.MAX_CONCURRENT_STREAMS: 1}).requests())
        elif client.number:
            while client.sock.recv(65536):
                pass

    with scripted(script) as url:
        threading.Thread(target=interrupt_when_running, args=(tmp_path,)).start()
        done, _ = run(
            tmp_path,
            url.replace("http", "grpc", 1),
            server={"timeouts": {"connect": 0, "total": "3s"}},
            client={"connections": 1, "grace": "100ms"},
            load={"type": "closed", "concurrency": 3, "requests": 9},
        )
    assert {failure.code for failure in done.records.failures} == {"cancelled"}
    assert len(done.records.rows["id"]) == 3
    assert asked == [1]


def test_an_answer_that_comes_before_the_connection_breaks_under_our_writing_is_heard(tmp_path: Path) -> None:
    """The server has allowed all of a large request, answers after its headers, and closes with the rest unread."""

    def script(peer: Peer) -> None:
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


# --- servers of another kind -----------------------------------------------------------------------------------------


def http1(client: Client) -> None:
    client.sock.recv(65536)
    client.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_an_http1_server_behind_grpc_is_one_clear_line(tmp_path: Path) -> None:
    with scripted(http1) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url.replace("http", "grpc", 1))
    assert "does not speak HTTP/2: it answered 'HTTP/1.1 400 Bad Request'" in caught.value.what
    assert not list((tmp_path / "runs").glob("*/spool"))


def test_the_same_where_the_server_is_asked_something_first(tmp_path: Path) -> None:
    with scripted(http1) as url, pytest.raises(UserError) as caught:
        measure(tmp_path, url.replace("http", "grpc", 1), data={"type": "tensors"})
    assert "it answered 'HTTP/1.1 400 Bad Request'" in caught.value.what
    assert "http://" in caught.value.remedy


def test_a_status_line_that_never_ends(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.sock.recv(65536)
        client.send(b"HTTP/1.1 400")

    with scripted(script) as url, pytest.raises(UserError, match=r"it answered 'HTTP/1\.1 400'"):
        run(tmp_path, url.replace("http", "grpc", 1))


def test_a_grpc_server_behind_http_is_one_clear_line(tmp_path: Path) -> None:
    with following(lambda peer: peer.polite()) as url, pytest.raises(UserError) as caught:
        measure(tmp_path, url.replace("grpc", "http", 1), server={"model": None})
    assert "speaks HTTP/2 (gRPC?), not HTTP/1.1" in caught.value.what
    assert url in caught.value.remedy


def test_a_server_that_accepts_and_says_nothing_is_given_up_before_the_start(tmp_path: Path) -> None:
    def silent(client: Client) -> None:
        while client.sock.recv(65536):
            pass

    with scripted(silent) as url, pytest.raises(UserError, match=r"no answer on 2 of 2 connections within 0\.2 s"):
        run(tmp_path, url.replace("http", "grpc", 1), server={"timeouts": {"connect": "200ms"}})


def test_one_that_falls_silent_in_the_middle_is_a_connect_timeout(tmp_path: Path) -> None:
    """The second connection is accepted and no settings come; the third is a good one again."""
    over = threading.Event()

    def script(client: Client) -> None:
        if client.number == 2:
            over.wait(10)
            return
        peer = Peer(client, {})
        for stream in peer.requests():
            if client.number == 1:
                peer.go_away(stream)
            peer.answer(stream)

    with scripted(script) as url:
        done, summary = run(
            tmp_path,
            url.replace("http", "grpc", 1),
            server={"timeouts": {"connect": "200ms"}},
            client={"connections": 1},
            load=one(requests=4),
        )
    over.set()
    assert (summary.counts.ok, summary.counts.by_failure) == (3, {"connect_timeout": 1})
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert rows["sent"][1] == MISSING
    assert rows["done"][1] - rows["intended"][1] >= 200_000_000


def test_a_server_that_is_gone_in_the_middle_of_the_run(tmp_path: Path) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)

    def serve_one_and_stop() -> None:
        look, _ = listener.accept()
        first, _ = listener.accept()
        listener.close()
        look.close()
        peer = Peer(Client(first, 1), {})
        stream = peer.request()
        if stream is not None:
            peer.answer(stream)
            peer.request()
        first.close()

    threading.Thread(target=serve_one_and_stop, daemon=True).start()
    url = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
    _, summary = run(
        tmp_path, url, client={"connections": 1}, load={"type": "closed", "concurrency": 1, "duration": "500ms"}
    )
    assert summary.counts.ok == 1
    assert 1 <= summary.counts.by_failure["connect_refused"] <= 10
    assert set(summary.counts.by_failure) == {"connect_refused"}


def test_a_missing_client_certificate_that_the_server_tells_of(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2"])
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = {"tls": {"ca": str(tmp_path / "ca.pem")}}
    with following(lambda peer: peer.polite(), context) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url, server=server)
    assert "certificate" in caught.value.what


def test_over_tls_http2_is_what_is_asked_for(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["http/1.1", "h2"])
    chosen: list[str | None] = []

    def script(peer: Peer) -> None:
        assert isinstance(peer.sock, ssl.SSLSocket)
        chosen.append(peer.sock.selected_alpn_protocol())
        peer.polite()

    with following(script, context) as url:
        assert run(tmp_path, url, server={"tls": {"verify": False}})[1].counts.ok == 6
    assert set(chosen) == {"h2"}
