"""How far the monotonic clock of another machine is ahead of this one's, how sure that is, and how it changed during a run.

Cristian's algorithm: the other clock was read at some time between the send of the question and the arrival of its response, so
it is known to within half of that round trip. Of many round trips, the shortest says the most. Latencies are differences of one
clock and do not depend on any of this; only the common start, and the time axis that all shards share, do.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from inferometer.timing.clock import now, wall_offset

PINGS = 24


class Reading(NamedTuple):
    """What another machine's clocks showed: the monotonic one, and how far its wall clock is ahead of that (ns)."""

    monotonic: int
    wall_ahead: int


class ClockOffset(msgspec.Struct, frozen=True):
    """How far another machine's clocks are ahead, in ns."""

    offset: int
    """Its monotonic clock minus ours."""
    uncertainty: int
    """The true offset differs from `offset` by at most this."""
    wall: int
    """Its wall clock minus ours, with the same uncertainty."""


class NodeClock(msgspec.Struct, frozen=True):
    """The clock of a node before the run and, if the node was still there, after it. Part of the manifest; times are in ns."""

    node: str
    shards: tuple[int, ...]
    start: ClockOffset
    end: ClockOffset | None = None

    @property
    def bound(self) -> int:
        """The most by which an instant on the common time axis can be wrong, if the clock ran evenly: the schedule uses the
        offset at the start."""
        if self.end is None:
            return self.start.uncertainty
        return max(self.start.uncertainty, abs(self.end.offset - self.start.offset) + self.end.uncertainty)


def measure(ping: Callable[[], Reading], pings: int = PINGS) -> ClockOffset:
    """Measure the clocks of another machine; `ping` reads them there."""
    samples = []
    for _ in range(pings):
        sent = now()
        reading = ping()
        samples.append((sent, reading.monotonic, now()))
    sent, other, received = min(samples, key=lambda each: each[2] - each[0])
    offset, uncertainty = other - (sent + received) // 2, (received - sent + 1) // 2
    return ClockOffset(offset, uncertainty, offset + reading.wall_ahead - wall_offset())


def described(nodes: Iterable[NodeClock]) -> dict[str, object]:
    """The entries of the manifest's `clock` about the nodes of a fleet."""
    found = list(nodes)
    if not found:
        return {}
    return {
        "nodes": [
            {
                "node": node.node,
                "shards": list(node.shards),
                "offset_ns": node.start.offset,
                "uncertainty_ns": node.start.uncertainty,
                "wall_offset_ns": node.start.wall,
                "drift_ns": node.end.offset - node.start.offset if node.end else None,
                "end_uncertainty_ns": node.end.uncertainty if node.end else None,
                "bound_ns": node.bound,
            }
            for node in found
        ]
    }
