"""Protection against clients that make the server work without being served: an allowance for frames that earn nothing."""

from collections.abc import Callable

from inferometer.wire.http2.events import Http2Error
from inferometer.wire.http2.frames import ENHANCE_YOUR_CALM


class Allowance:
    """The number of frames of some kind that the client may still send. It grows with time, up to a maximum, and with what the client
    earns, which it may save: on a busy machine, much of what thousands of requests entail arrives at once."""

    __slots__ = ("_clock", "_earned", "_most", "_per_second", "_refilled", "_what", "left")

    def __init__(self, what: str, most: int, per_second: int, clock: Callable[[], float]) -> None:
        self._what = what
        self._most = self.left = most
        self._per_second = per_second
        self._clock = clock
        self._refilled = clock()
        self._earned = 0

    def refill(self, earned: int) -> None:
        """Refill the allowance, of which nothing is left; raises Http2Error if the client sends faster than it grows.

        `earned`: the frames that the client has earned so far on this connection.
        """
        now = self._clock()
        grown = min(int((now - self._refilled) * self._per_second), self._most)
        self.left += grown + earned - self._earned
        self._refilled, self._earned = now, earned
        if self.left < 0:
            raise Http2Error(ENHANCE_YOUR_CALM, f"the client sent {self._what} faster than the server accepts them")
