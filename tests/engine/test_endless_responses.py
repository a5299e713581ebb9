"""Responses that do not end fail as soon as they are far longer than what was requested."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_peers import failures_of, grpcio, one, run
from helpers import Client, measure, scripted

from inferometer.engine import inflight

BOMB = gzip.compress(bytes(1 << 28))
OPEN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
TOKENS = b'data: {"choices": [{"text": "x"}]}\n\n' * 500


def repeats(*parts: bytes) -> Callable[[Client], None]:
    """A script that responds with the first part, and then with the others until the client closes."""

    def script(client: Client) -> None:
        while client.request():
            client.sock.sendall(parts[0])
            while True:
                for part in parts[1:]:
                    client.sock.sendall(part)

    return script


@pytest.mark.parametrize(
    ("script", "stream", "code", "message"),
    [
        (repeats(OPEN[:-2] + b"Content-Encoding: gzip\r\n\r\n", BOMB), True, "too_large", "were compressed to less"),
        (repeats(OPEN, TOKENS), True, "too_large", "more than 4,128 chunks, although 2 tokens were requested"),
        (repeats(OPEN, b"data: " + bytes(60_000)), True, "too_large", "more than 4.03 MiB, although 2 tokens"),
        (repeats(OPEN + b"data: ", b"x" * 60_000), True, "too_large", "more than 4.03 MiB, although 2 tokens"),
        (repeats(OPEN, b" " * 60_000), False, "too_large", "more than 4.03 MiB, although 2 tokens"),
        (
            repeats(OPEN[:17], b"X-More: " + b"x" * 60_000 + b"\r\n"),
            True,
            "malformed_http",
            "more than 1 MiB of headers",
        ),
    ],
    ids=["bomb", "tokens", "data", "line", "body", "headers"],
)
def test_a_response_without_an_end_is_a_failure(
    tmp_path: Path, script: Callable[[Client], None], stream: bool, code: str, message: str
) -> None:
    found, _ = measure(tmp_path, scripted(script), server={"api": "completions", "stream": stream})
    (failure,) = found.records.failures
    assert (failure.code, message in failure.message) == (code, True), failure
    assert len(found.records.rows) == 6


def test_a_call_without_an_end_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflight, "_MOST_TOKENS", 1000)

    def endless(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        while context.is_active():
            yield bytes(1000)

    found, _ = run(tmp_path, grpcio(Down=endless), "Down", load=one(), server={"stream": True})
    assert failures_of(found) == {("too_large", "more than 1,000 chunks")}
