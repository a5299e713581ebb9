"""Where the time of one request went: the client's own instants, and what the server says of itself."""

import time

import msgspec

from inferometer.errors import UserError
from inferometer.infer.endpoint import Endpoint
from inferometer.infer.result import ServerSide
from inferometer.probe import kserve
from inferometer.probe.roundtrip import Instants
from inferometer.records import Spent
from inferometer.types import ServerTiming
from inferometer.wire.kserve.control import ModelStatistics, difference

_PATIENCE_S = 0.5
_PAUSE_S = 0.01

NOT_COUNTED = "its statistics did not count the request in time"


class TimePart(msgspec.Struct, frozen=True):
    name: str
    start: int
    """ns after the first part's start."""
    length: int


def parts(instants: Instants) -> tuple[TimePart, ...]:
    """Four parts, one after the other, that are the whole."""
    marks = (instants.connect_from, instants.connected, instants.written, instants.first_byte, instants.done)
    names = ("connect", "send", "wait", "receive")
    return tuple(
        TimePart(name, start - marks[0], end - start) for name, start, end in zip(names, marks, marks[1:], strict=False)
    )


# --- the server's side -----------------------------------------------------------------------------------------------


class StatisticsDelta:
    """A model's statistics: taken before the request, and compared with those after it.

    Not of decoupled models, whose sums end when the model has taken the request, before or after its answers.
    """

    def __init__(self, whom: Endpoint) -> None:
        self._whom = whom
        self._before = None if _is_decoupled(whom) else self._ask()

    def since(self) -> ServerSide | str | None:
        """What the model spent on the requests since, or why that is not known; None where the server has no statistics.

        Servers count a request when they are rid of it, which may be after its answer has come: so they are asked again,
        for half a second, and once more when that is over.
        """
        if self._before is None:
            return None
        end = time.monotonic() + _PATIENCE_S
        while True:
            is_last = time.monotonic() >= end
            try:
                found = _between(self._before, self._ask() or ())
            except UserError as error:  # the server was started anew in between
                return error.what
            if found is not None:
                return found
            if is_last:
                return NOT_COUNTED
            time.sleep(_PAUSE_S)

    def _ask(self) -> tuple[ModelStatistics, ...] | None:
        whom = self._whom
        try:
            found: tuple[ModelStatistics, ...] = kserve.question(
                whom.peer, whom.headers, "statistics", whom.reached.model, whom.server.version or ""
            )
        except UserError:  # not offered, or broken: the request can be made all the same
            return None
        return found


def _is_decoupled(whom: Endpoint) -> bool:
    facts = whom.reached.facts
    return facts is not None and facts.config is not None and facts.config.decoupled


def _between(before: tuple[ModelStatistics, ...], after: tuple[ModelStatistics, ...]) -> ServerSide | None:
    """None while no request is counted."""
    changes = difference(before, after)
    requests = sum(one.success.count + one.fail.count for one in changes)
    queued = _average(changes, "queue")
    computed = [_average(changes, name) for name in ("compute_input", "compute_infer", "compute_output")]
    if not requests or queued is None or None in computed:
        return None
    return ServerSide(queued, sum(one or 0 for one in computed), "its statistics", requests)


def _average(changes: tuple[ModelStatistics, ...], name: str) -> int | None:
    each: list[Spent] = [getattr(one, name) for one in changes]
    count = sum(one.count for one in each)
    return sum(one.ns for one in each) // count if count else None


def from_timing(timing: ServerTiming | None) -> ServerSide | None:
    return ServerSide(timing.queue, timing.compute, "its server-timing") if timing is not None else None


def rest(instants: Instants, server: ServerSide) -> int | None:
    """What is left of the request's time when the server's own is taken off: the network, and what it does not count.

    None where the server's own is longer: statistics go on after an answer is sent, and a decoupled model's much longer.
    """
    left = instants.done - instants.sent - max(server.queue, 0) - max(server.compute, 0)
    return left if left >= 0 else None
