"""A client may send as many frames that earn nothing as time and its requests allow, whenever it sends them."""

import pytest

from inferometer.wire.http2.events import Http2Error
from inferometer.wire.http2.floods import Allowance

MOST, PER_SECOND = 10, 2


def frames_until_refused(allowance: Allowance, earned: int) -> int:
    count = 0
    with pytest.raises(Http2Error, match="the client sent pings faster than the server accepts them"):
        while True:
            allowance.left -= 1
            if allowance.left < 0:
                allowance.refill(earned)
            count += 1
    return count


@pytest.mark.parametrize(
    ("seconds", "earned", "allowed"),
    [(0.0, 0, MOST), (1.0, 0, MOST + PER_SECOND), (1e6, 0, 2 * MOST), (0.0, 1_000, MOST + 1_000)],
    ids=["at once", "after a second", "after a long time", "after many requests"],
)
def test_allowance(seconds: float, earned: int, allowed: int) -> None:
    times = iter([0.0, seconds])
    allowance = Allowance("pings", MOST, PER_SECOND, lambda: next(times, seconds))
    assert frames_until_refused(allowance, earned) == allowed
