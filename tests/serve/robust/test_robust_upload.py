"""SIGTERM while requests are still arriving: they are served if they are complete before the drain ends."""

import signal
from pathlib import Path

import pytest
from robust_peer import PORTS, Child, Http, child, http_request, infer_head, small
from waiting import until

SIZE = 400_000
HEAD = infer_head("identity", SIZE, [1, SIZE // 4])
CHAT = b'{"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'


def accepted(server: Child) -> Http:
    """Return a connection that the server has accepted: it has already served a request."""
    client = Http(server.url)
    assert client.request(small())[0] == 200
    return client


def has_unread_bytes(server: Child, client: Http) -> bool:
    """Whether the kernel holds bytes that either side has not read, according to /proc/net/tcp."""
    mine, its = f"{client.sock.getsockname()[1]:04X}", f"{server.address[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        ends = {local.partition(":")[2], remote.partition(":")[2]}
        if ends == {mine, its} and queues != "00000000:00000000":
            return True
    return False


def wait_until_read(server: Child, *clients: Http) -> None:
    """Wait until the server has read everything that was sent."""
    until(lambda: not any(has_unread_bytes(server, client) for client in clients), "the server has read everything")


def test_a_request_in_transit_is_served_when_complete() -> None:
    with child("identity", "sim", *PORTS, "--drain=60s") as server:
        with accepted(server) as upload, accepted(server) as chat:
            upload.sock.sendall(HEAD + bytes(SIZE // 2))
            whole = http_request("POST", "/v1/chat/completions", CHAT)
            chat.sock.sendall(whole[:-1])
            wait_until_read(server, upload, chat)
            server.process.send_signal(signal.SIGTERM)
            until(server.refuses_connections, "connections are refused")
            assert server.process.poll() is None
            status, body = upload.request(bytes(SIZE - SIZE // 2))
            assert (status, body[-SIZE:]) == (200, bytes(SIZE))
            assert upload.closes
            status, body = chat.request(whole[-1:])
            assert (status, b'"choices"' in body) == (200, True)
        assert server.process.wait(30) == 0
        assert server.errors() == ""


def test_incomplete_requests_are_closed_when_the_drain_ends() -> None:
    cuts = (10, len(HEAD) + 1000)  # within the headers, and within the body
    with child("identity", *PORTS, "--drain=500ms") as server:
        with accepted(server) as in_headers, accepted(server) as in_body:
            for upload, cut in zip((in_headers, in_body), cuts, strict=True):
                upload.sock.sendall((HEAD + bytes(SIZE))[:cut])
            wait_until_read(server, in_headers, in_body)
            server.process.send_signal(signal.SIGTERM)
            for upload in (in_headers, in_body):
                assert upload.sock.recv(1) == b""
        assert server.process.wait(30) == 0
        assert server.errors() == ""


@pytest.mark.slow
def test_a_stalled_request_ends_with_the_stall_timeout() -> None:
    with child("identity", *PORTS, "--drain=600s", "--stalled=300ms") as server:
        with accepted(server) as upload:
            upload.sock.sendall(HEAD)
            wait_until_read(server, upload)
            server.process.send_signal(signal.SIGTERM)
            assert upload.sock.recv(1) == b""
        assert server.process.wait(30) == 0
