"""gRPC servers that send GOAWAY: calls that they have seen complete or fail, the others are sent over another connection."""

import socket
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from grpc_peers import HEAD, OK, GrpcPeer, failures_of, framed, hard_close, one, run, scripted_grpc
from h2.settings import SettingCodes
from helpers import Client, scripted

from inferometer.errors import UserError
from inferometer.records import MISSING


def test_calls_above_the_last_stream_are_resent_and_the_others_complete(tmp_path: Path) -> None:
    """Of four calls in flight, the server has processed two when it sends GOAWAY; it completes them afterwards."""
    seen: list[tuple[int, int]] = []

    def script(peer: GrpcPeer) -> None:
        streams = []
        for stream in peer.requests():
            seen.append((peer.number, stream))
            if peer.number != 1:
                peer.respond(stream)
                continue
            streams.append(stream)
            if len(streams) == 4:
                peer.go_away(streams[1])
                peer.respond(streams[1])
                peer.respond(streams[0])

    load = {"type": "closed", "concurrency": 4, "requests": 12}
    done, summary = run(tmp_path, scripted_grpc(script), client={"connections": 1}, load=load)
    assert (summary.counts.ok, summary.counts.failed) == (12, 0)
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert sorted(rows["attempts"].tolist()) == [1] * 10 + [2] * 2
    assert [number for number, _ in seen].count(1) == 4
    assert len(seen) == 14


def test_connection_is_closed_after_goaway_and_the_last_response(tmp_path: Path) -> None:
    gone = threading.Event()
    was_gone: list[bool] = []

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            if peer.number == 1:
                peer.go_away(stream)
            elif not was_gone:
                was_gone.append(gone.wait(30))
            peer.respond(stream)
        if peer.number == 1:
            gone.set()

    done, summary = run(tmp_path, scripted_grpc(script), client={"connections": 1}, load=one(requests=30))
    assert was_gone == [True]
    assert summary.counts.ok == 30
    assert set(done.records.rows["attempts"]) == {1}


def test_connection_is_closed_after_goaway_when_its_last_call_was_given_up(tmp_path: Path) -> None:
    gone = threading.Event()

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            if peer.number == 1:
                peer.go_away(stream)
            else:
                gone.wait(30)
                peer.respond(stream)
        if peer.number == 1:
            gone.set()

    with scripted_grpc(script) as url:
        _, summary = run(
            tmp_path,
            url,
            server={"timeouts": {"total": "1s"}},
            client={"connections": 1},
            load=one(requests=2, concurrency=1),
        )
        assert gone.is_set()
    assert (summary.counts.ok, summary.counts.by_failure) == (1, {"total_timeout": 1})


def test_goaway_right_after_the_settings_is_a_clear_error(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        settings = struct.pack(">HBBBI", 0, 0, 4, 0, 0)
        client.send(settings + struct.pack(">HBBBIII", 0, 8, 7, 0, 0, 0, 0))
        client.request()

    with scripted(script) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url.replace("http", "grpc", 1))
    assert "the server sent GOAWAY" in caught.value.what


def test_goaway_right_after_the_settings_during_a_run_is_a_failure_and_not_a_storm_of_connections(
    tmp_path: Path,
) -> None:
    connections = 0

    def script(peer: GrpcPeer) -> None:
        nonlocal connections
        connections += 1
        if peer.number > 1:
            peer.go_away(0)
            peer.request()
            return
        for stream in peer.requests():
            peer.go_away(stream)
            peer.respond(stream)

    _, summary = run(tmp_path, scripted_grpc(script), client={"connections": 1}, load=one(requests=4))
    assert (summary.counts.ok, summary.counts.failed) == (1, 3)
    assert set(summary.counts.by_failure) <= {"connect_failed", "stream_reset"}
    assert connections <= 2 + 2 * 3


@pytest.mark.parametrize("hard", [False, True])
def test_calls_that_were_never_sent_report_that_no_connection_could_be_opened(tmp_path: Path, hard: bool) -> None:
    """The server sends GOAWAY and then ends every new connection immediately, as a server that stops does with connections that it
    has not accepted yet. Nothing was sent over them, so the failure is not `reset` or `closed`, which the server may have seen."""

    def script(client: Client) -> None:
        if client.number > 1:
            client.sock.recv(65536)  # the client's preface: the connection is established
            if hard:
                client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sock.close()
            return
        peer = GrpcPeer(client, {})
        for stream in peer.requests():
            peer.go_away(stream)
            peer.respond(stream)

    with scripted(script) as url:
        done, summary = run(
            tmp_path, url.replace("http", "grpc", 1), client={"connections": 1}, load=one(requests=4, think="1ms")
        )
    assert (summary.counts.ok, summary.counts.by_failure) == (1, {"connect_failed": 3})
    word = "reset" if hard else "closed"
    assert failures_of(done) == {
        ("connect_failed", f"the server {word} the connection before it was ready for a request")
    }
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert rows["attempts"].tolist() == [1, 0, 0, 0]
    assert (rows["sent"] == MISSING).tolist() == [False, True, True, True]


@pytest.mark.parametrize("hard", [False, True])
def test_goaway_and_close_fail_the_calls_up_to_the_last_stream_and_resend_the_others(
    tmp_path: Path, hard: bool
) -> None:
    """Of four calls in flight, the server may have begun two, which fail. The two others are sent over another connection."""
    seen: list[int] = []

    def script(peer: GrpcPeer) -> None:
        if peer.number != 1:
            for stream in peer.requests():
                seen.append(stream)
                peer.respond(stream)
            return
        streams = [peer.request() for _ in range(4)]
        assert streams[1] is not None
        peer.go_away(streams[1])
        if hard:
            hard_close(peer)

    load = {"type": "closed", "concurrency": 4, "requests": 4}
    done, summary = run(tmp_path, scripted_grpc(script), client={"connections": 1}, load=load)
    assert (summary.counts.ok, summary.counts.by_failure) == (2, {"reset" if hard else "closed": 2})
    rows = np.asarray(done.records.rows)
    assert sorted(rows["attempts"][rows["failure"] == 0].tolist()) == [2, 2]
    assert sorted(rows["attempts"][rows["failure"] != 0].tolist()) == [1, 1]
    assert len(seen) == 2


def test_no_call_is_sent_over_a_connection_after_a_response_and_goaway_in_the_same_bytes(tmp_path: Path) -> None:
    """The server allows one stream at a time, and the second connection stays silent: a call waits for the first one's response."""
    over = threading.Event()

    def script(client: Client) -> None:
        if client.number == 2:
            over.wait(30)
            return
        peer = GrpcPeer(client, {SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        for stream in peer.requests():
            if client.number == 1:
                over.wait(0.1)
                peer.h2.send_headers(stream, HEAD)
                peer.h2.send_data(stream, framed(b""))
                peer.h2.send_headers(stream, OK, end_stream=True)
                peer.sock.sendall(peer.h2.data_to_send() + struct.pack(">HBBBIII", 0, 8, 7, 0, 0, stream, 0))
            else:
                peer.respond(stream)

    with scripted(script) as url:
        _, summary = run(
            tmp_path,
            url.replace("http", "grpc", 1),
            server={"timeouts": {"connect": "1s"}},
            client={"connections": 1},
            load={"type": "closed", "concurrency": 2, "requests": 6},
        )
    over.set()
    assert summary.counts.ok + summary.counts.failed == 6
    assert set(summary.counts.by_failure) == {"connect_timeout"}
    assert summary.counts.ok >= 3
