"""Misbehaving writes: split into small segments, or delayed. They replace a connection's `write` and `finish`; the
order of the bytes, and of what comes after them, is preserved."""

from collections import deque

from inferometer.serve.http.connection import Connection
from inferometer.serve.sim.clockwork import Clockwork
from inferometer.timing.clock import now


def write_split(connection: Connection, size: int, data: bytes) -> None:
    """Send in segments of at most `size` bytes."""
    for at in range(0, len(data), size):
        connection.write(data[at : at + size])


class Slow:
    """Sends every write in two halves, `gap` ns apart; the next write waits until both are sent."""

    def __init__(self, connection: Connection, clockwork: Clockwork, gap: int) -> None:
        self._connection, self._clockwork, self._gap = connection, clockwork, gap
        self._pieces: deque[bytes | bool] = deque()  # a bool is the end of the response: whether to keep the connection
        self._waiting = False

    def write(self, data: bytes) -> None:
        middle = len(data) // 2
        self._pieces += (data[:middle], data[middle:])
        self._go_on()

    def finish(self, keep_alive: bool = True) -> None:
        self._pieces.append(keep_alive)
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting or self._connection.closed or not self._pieces:
            return
        piece = self._pieces.popleft()
        if isinstance(piece, bool):
            self._connection.finish(piece)
            return
        self._connection.write(piece)
        self._waiting = True
        self._clockwork.at(now() + self._gap, self._rested)

    def _rested(self) -> None:
        self._waiting = False
        self._go_on()
