"""The clocks of other machines: how far they are ahead, how sure that is, and what remains of it after a run."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.fleet import clocks
from inferometer.fleet.clocks import ClockOffset, NodeClock, Reading, described

WAYS = st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)), min_size=1, max_size=30)


class Channel:
    """Two clocks that are `offset` apart, and a channel between them whose ways there and back take these times."""

    def __init__(self, offset: int, ways: list[tuple[int, int]]) -> None:
        self.time, self.offset = 10**12, offset
        self._ways: Iterator[tuple[int, int]] = iter(ways)

    def ping(self) -> Reading:
        there, back = next(self._ways)
        self.time += there
        reading = Reading(self.time + self.offset, 5 - self.offset)  # its wall clock is 5 ns ahead of our monotonic one
        self.time += back
        return reading


@given(st.integers(-(10**15), 10**15), WAYS)
def test_a_known_offset_is_within_the_stated_uncertainty(offset: int, ways: list[tuple[int, int]]) -> None:
    channel = Channel(offset, ways)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "now", lambda: channel.time)
        patch.setattr(clocks, "wall_offset", lambda: 0)
        found = clocks.measure(channel.ping, len(ways))
    assert abs(found.offset - offset) <= found.uncertainty <= min(map(sum, ways)) / 2 + 1
    assert abs(found.wall - 5) <= found.uncertainty


@given(
    st.integers(-(10**12), 10**12),
    st.integers(-(10**7), 10**7),
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    st.floats(0, 1),
)
def test_the_bound_holds_at_any_time_of_a_run_with_drift(
    offset: int, drift: int, uncertainties: tuple[int, int], errors: tuple[float, float], at: float
) -> None:
    """The schedule is converted by the offset that was measured at the start, whatever the true one has become."""
    first, last = (round(error * uncertainty) for error, uncertainty in zip(errors, uncertainties, strict=True))
    start = ClockOffset(offset + first, uncertainties[0], 0)
    end = ClockOffset(offset + drift + last, uncertainties[1], 0)
    true = offset + drift * at
    assert abs(true - start.offset) <= NodeClock("n", (0,), start, end).bound + 1


def test_the_manifest_says_which_shards_have_which_clock() -> None:
    start = ClockOffset(1_000, 50, 7)
    nodes = [NodeClock("10.0.0.1", (0, 2), start, ClockOffset(1_030, 40, 9)), NodeClock("10.0.0.2", (1,), start)]
    first, second = described(nodes)["nodes"]  # type: ignore[misc]
    assert first == {
        "node": "10.0.0.1", "shards": [0, 2], "offset_ns": 1_000, "uncertainty_ns": 50, "wall_offset_ns": 7,
        "drift_ns": 30, "end_uncertainty_ns": 40, "bound_ns": 70,
    }  # fmt: skip
    assert (second["drift_ns"], second["bound_ns"]) == (None, 50)  # it died
    assert described([]) == {}
