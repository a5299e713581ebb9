"""Where the time of one request went: the client's own instants, and the server's account of its part."""

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
    """Four consecutive parts that add up to the total."""
    marks = (instants.connect_from, instants.connected, instants.written, instants.first_byte, instants.done)
    names = ("connect", "send", "wait", "receive")
    return tuple(
        TimePart(name, start - marks[0], end - start) for name, start, end in zip(names, marks, marks[1:], strict=False)
    )


# --- the server's side -----------------------------------------------------------------------------------------------


class StatisticsDelta:
    """A model's statistics before the request, to be compared with those after it.

    Decoupled models are left out: their statistics cover the time until the model has accepted the request, which may be before
    or after its responses.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._before = None if _is_decoupled(endpoint) else self._fetch()

    def since(self) -> ServerSide | str | None:
        """What the model spent on requests since then, or why that is not known; None if the server has no statistics.

        Servers may count a request after its response has arrived, so the statistics are polled for half a second, and once more
        after that.
        """
        if self._before is None:
            return None
        end = time.monotonic() + _PATIENCE_S
        while True:
            is_last = time.monotonic() >= end
            try:
                found = _between(self._before, self._fetch() or ())
            except UserError as error:  # the server was restarted in between
                return error.line
            if found is not None:
                return found
            if is_last:
                return NOT_COUNTED
            time.sleep(_PAUSE_S)

    def _fetch(self) -> tuple[ModelStatistics, ...] | None:
        endpoint = self._endpoint
        model, version = endpoint.reached.model, endpoint.server.version or ""
        try:
            return kserve.statistics(endpoint.peer, endpoint.headers, model, version)
        except UserError:  # not offered, or broken: the request can be made anyway
            return None


def _is_decoupled(endpoint: Endpoint) -> bool:
    facts = endpoint.reached.facts
    return facts is not None and facts.config is not None and facts.config.decoupled


def _between(before: tuple[ModelStatistics, ...], after: tuple[ModelStatistics, ...]) -> ServerSide | None:
    """The average time per request; None if no request has been counted yet."""
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


def from_timing(timing: ServerTiming | None, is_streamed: bool = False) -> ServerSide | None:
    """The server's account; the total in the header of a streamed response is left out, because it ends where the stream begins."""
    if timing is None:
        return None
    return ServerSide(timing.queue, timing.compute, "its server-timing", total=-1 if is_streamed else timing.total)


class OutsideModel(msgspec.Struct, frozen=True):
    """What is left of a request's time beside the server's queue and compute, in ns; None if it is not known."""

    rest: int | None = None
    """All of it: network + protocol. None if the server's time is longer than the request's: statistics include work after a response
    is sent, for decoupled models much of it."""
    protocol: int | None = None
    """In the server, but neither in its queue nor in the model."""
    network: int | None = None
    """Outside of the server. Slightly negative if the two clocks disagree by more than it."""


def outside_model(instants: Instants, server: ServerSide) -> OutsideModel:
    took, model = instants.done - instants.sent, max(server.queue, 0) + max(server.compute, 0)
    rest = took - model if took >= model else None
    return OutsideModel(rest) if server.total < 0 else OutsideModel(rest, server.total - model, took - server.total)
