"""SIGTERM while requests are still coming: those whose heads came before are served, and nobody is cut off without a word."""

import signal
import socket
from pathlib import Path

import pytest
from robust_peer import PORTS, Child, Http, child, http_request, infer_head, small
from waiting import until

SIZE = 400_000
HEAD = infer_head("identity", SIZE, [1, SIZE // 4])
CHAT = b'{"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'


def asks(server: Child) -> Http:
    """A connection that is known to be taken: it has asked something."""
    client = Http(server.address)
    assert client.ask(small())[0] == 200
    return client


def unread(server: Child, client: Http) -> bool:
    """Whether the kernel has bytes of theirs that one of them has not read, as /proc/net/tcp tells."""
    mine, its = f"{client.sock.getsockname()[1]:04X}", f"{server.address[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        ends = {local.partition(":")[2], remote.partition(":")[2]}
        if ends == {mine, its} and queues != "00000000:00000000":
            return True
    return False


def taken(server: Child, *clients: Http) -> None:
    """All that was sent is in the server's hands."""
    until(lambda: not any(unread(server, client) for client in clients), "what was sent is read")


def refuses(server: Child) -> bool:
    try:
        socket.create_connection(server.address, timeout=30).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_request_that_was_coming_is_served_when_it_is_complete() -> None:
    with child("identity", "sim", *PORTS, "--drain=60s") as server:
        with asks(server) as upload, asks(server) as chat:
            upload.sock.sendall(HEAD + bytes(SIZE // 2))
            whole = http_request("POST", "/v1/chat/completions", CHAT)
            chat.sock.sendall(whole[:-1])
            taken(server, upload, chat)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: refuses(server), "no connection is taken any more")
            assert server.process.poll() is None
            status, body = upload.ask(bytes(SIZE - SIZE // 2))
            assert (status, body[-SIZE:]) == (200, bytes(SIZE))
            assert upload.closes
            status, body = chat.ask(whole[-1:])
            assert (status, b'"choices"' in body) == (200, True)
        assert server.process.wait(30) == 0
        assert server.errors() == ""


@pytest.mark.parametrize("cut", [10, len(HEAD) + 1000], ids=["in its head", "in its body"])
def test_one_that_does_not_come_to_its_end_is_refused_in_words(cut: int) -> None:
    with child("identity", *PORTS, "--drain=500ms") as server:
        with asks(server) as upload:
            upload.sock.sendall((HEAD + bytes(SIZE))[:cut])
            taken(server, upload)
            server.process.send_signal(signal.SIGTERM)
            assert upload.answer() == (503, b'{"error":"the server has stopped"}')
            assert upload.closes
        assert server.process.wait(30) == 0
        assert server.errors() == ""


@pytest.mark.slow
def test_one_that_stalls_ends_with_the_patience_for_that() -> None:
    with child("identity", *PORTS, "--drain=600s", "--stalled=1s") as server:
        with asks(server) as upload:
            upload.sock.sendall(HEAD)
            taken(server, upload)
            server.process.send_signal(signal.SIGTERM)
            assert upload.answer()[0] == 408
        assert server.process.wait(30) == 0


def test_a_second_signal_does_not_wait_for_it() -> None:
    with child("identity", *PORTS, "--drain=600s") as server:
        with asks(server) as upload:
            upload.sock.sendall(HEAD)
            taken(server, upload)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: refuses(server), "no connection is taken any more")
            assert server.stop() == 0
        assert server.errors() == ""
