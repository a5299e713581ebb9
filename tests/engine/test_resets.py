"""A reset that comes right behind the last bytes is seen, and does not spoil a whole answer in front of it."""

import socket
import struct
from pathlib import Path

import pytest
from helpers import STREAM, Client, answer, measure, scripted

FIRST_HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + STREAM[:200]


def then_reset(data: bytes):  # type: ignore[no-untyped-def]
    """Answers with `data` and resets in the same breath, so that the client finds both at once."""

    def script(client: Client) -> None:
        client.request()
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.send(data)
        client.sock.close()

    return script


@pytest.mark.parametrize("cut", [0, 1, 40, len(FIRST_HALF)])
def test_a_reset_right_behind_part_of_an_answer(tmp_path: Path, cut: int) -> None:
    with scripted(then_reset(FIRST_HALF[:cut])) as url:
        _, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 4, "requests": 12})
    assert summary.counts.by_failure == {"reset": 12}


@pytest.mark.usefixtures("stale_however_late")
def test_a_reset_right_behind_a_whole_answer_does_not_spoil_it(tmp_path: Path) -> None:
    with scripted(then_reset(answer())) as url:
        _, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 4, "requests": 40})
    assert (summary.counts.ok, summary.counts.by_failure) == (40, {})
