"""A reset right after the last bytes is noticed, and does not fail a response that was complete before it."""

import socket
import struct
from pathlib import Path

import pytest
from helpers import STREAM, Client, http_response, measure, scripted

FIRST_HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + STREAM[:200]


def then_reset(data: bytes):  # type: ignore[no-untyped-def]
    """Send `data` and reset immediately, so that the client finds both at once."""

    def script(client: Client) -> None:
        client.request()
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.send(data)
        client.sock.close()

    return script


@pytest.mark.parametrize("cut", [0, 1, 40, len(FIRST_HALF)])
def test_reset_right_after_part_of_a_response_is_a_failure(tmp_path: Path, cut: int) -> None:
    _, summary = measure(
        tmp_path, scripted(then_reset(FIRST_HALF[:cut])), load={"type": "closed", "concurrency": 4, "requests": 12}
    )
    assert summary.counts.by_failure == {"reset": 12}


@pytest.mark.usefixtures("stale_however_late")
def test_reset_right_after_a_complete_response_does_not_fail_it(tmp_path: Path) -> None:
    _, summary = measure(
        tmp_path, scripted(then_reset(http_response())), load={"type": "closed", "concurrency": 4, "requests": 40}
    )
    assert (summary.counts.ok, summary.counts.by_failure) == (40, {})
