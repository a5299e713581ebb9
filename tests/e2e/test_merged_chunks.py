"""Chunks that the server's socket merges are reported as such, and not blamed on the client."""

import socket
import sys
import time
from pathlib import Path

import pytest
from helpers import Client, measure, scripted

TOKENS = 12
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(event: bytes) -> bytes:
    data = b"data: " + event + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def without_nodelay(client: Client) -> None:
    """Send the headers and a token every 10 ms, over a socket with Nagle's algorithm."""
    client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    while client.request():
        client.send(HEAD)
        for _ in range(TOKENS):
            time.sleep(0.01)
            client.send(chunk(b'{"choices":[{"text":" a"}]}'))
        client.send(chunk(b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d}}' % TOKENS))
        client.send(chunk(b"[DONE]") + b"0\r\n\r\n")


@pytest.mark.skipif(sys.platform != "linux", reason="kernel timestamps")
def test_a_server_without_tcp_nodelay_is_recognised(tmp_path: Path) -> None:
    """The client acknowledges the headers 40 ms later, and only then does the server's kernel send the first tokens."""
    with scripted(without_nodelay) as url:
        _, summary = measure(
            tmp_path,
            url,
            server={"api": "completions"},
            data={"type": "prompts", "prompts": ["hello"], "output": TOKENS},
            load={"type": "closed", "concurrency": 2, "requests": 16},
        )
    found = {check.name: check for check in summary.checks}
    assert found["merged_chunks"].status == "warn" and "TCP_NODELAY" in found["merged_chunks"].message
    assert found["read_delay"].status != "fail"
