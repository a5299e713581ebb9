"""The probe before a run: a few real requests, one after the other, that show what the start of the run needs to know.

How long a request takes decides how many connections are opened and over which time the users of a closed loop start; the CPU time
that it takes the client decides how many processes share the load. There are at most REQUESTS requests and they take at most
SECONDS together: a response that is not complete by then is cut off. A probe fails the run only if its first request shows that all
others would fail (refusal.py). Anything else that goes wrong is recorded, and the run, which starts with defaults, reports it by itself.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence

import msgspec

from inferometer.config.data import class_headers
from inferometer.config.schema import Config, Server
from inferometer.config.secret import hidden, words
from inferometer.errors import UserError
from inferometer.printable import hide
from inferometer.probe import reach, refusal, roundtrip
from inferometer.probe.connect import Peer
from inferometer.probe.reach import Reached
from inferometer.probe.roundtrip import Instants
from inferometer.records import Probe
from inferometer.timing.clock import now
from inferometer.types import Calls, Event, Fail, Request, Tokens
from inferometer.units import NS
from inferometer.wire import calls
from inferometer.wire.context import CallContext, SharedRefs
from inferometer.wire.failures import meaning
from inferometer.wire.http1 import ID

REQUESTS = 3
SECONDS = 2.0


class _Trial(msgspec.Struct, frozen=True):
    """One request of the probe."""

    instants: Instants
    arrivals: tuple[int, ...]
    """When its chunks with tokens arrived."""
    tokens: int
    """How many tokens they carried."""
    wanted: int
    """Tokens that were requested; 0: left to the server."""
    fail: Fail | None = None
    is_cut: bool = False
    """It was given up because the probe's time was over."""

    @property
    def e2e(self) -> float:
        return (self.instants.done - self.instants.sent) / NS

    @property
    def ttft(self) -> float | None:
        return (self.arrivals[0] - self.instants.sent) / NS if self.arrivals else None

    @property
    def chunks_per_second(self) -> float | None:
        if len(self.arrivals) < 2 or self.arrivals[-1] == self.arrivals[0]:
            return None
        return (len(self.arrivals) - 1) * NS / (self.arrivals[-1] - self.arrivals[0])

    @property
    def projected(self) -> float:
        """How long the whole request takes. For one that was cut off: with its missing tokens at the pace so far, if that is known."""
        pace = self.chunks_per_second
        if not self.is_cut or pace is None or self.tokens >= self.wanted:
            return self.e2e
        missing = (self.wanted - self.tokens) * len(self.arrivals) / max(self.tokens, 1)
        return self.e2e + missing / pace


def estimate(
    config: Config,
    reached: Reached,
    requests: Sequence[Request],
    tag: str,
    shared: SharedRefs | None = None,
    *,
    seconds: float | None = None,
    may_refuse: bool = False,
) -> Probe:
    """Send the requests one after the other, for at most `seconds` (default: SECONDS) in total.

    their X-Request-Ids are made from `tag`; `shared`: where their tensors are. `may_refuse`: raise
    UserError if all other requests would fail as the first one did.
    """
    secrets = words(config.server, reached.secrets, config.data)
    context = msgspec.structs.replace(
        reach.call_context(config.server, reached, tag), shared=shared, class_headers=class_headers(config.data)
    )
    trials: list[_Trial] = []
    try:
        for trial in _trials(config.server, reached, requests, context, seconds or SECONDS):
            trials.append(trial)
    except UserError as error:
        return _summary(trials, len(trials) + 1, hide(error.what, secrets))
    fail = trials[-1].fail
    if fail is not None and len(trials) == 1 and may_refuse:
        with hidden(secrets):
            refusal.check(fail, config.server, reached, requests[0].options.model or reached.model)
    failure = f"{fail.code}: {fail.message or meaning(fail.code)}" if fail is not None else ""
    return _summary(trials, len(trials), hide(failure, secrets))


def _trials(
    server: Server, reached: Reached, requests: Sequence[Request], context: CallContext, seconds: float
) -> Iterable[_Trial]:
    context = msgspec.structs.replace(context, persistent=False)
    encoded = calls.encode(context, requests)
    connecting = min(float(server.timeouts.connect) or seconds, seconds)
    peers = [
        msgspec.structs.replace(peer, timeout=0.0, connect_timeout=connecting, max_size=encoded.max_response // 8)
        for peer in reach.peers_of(server, reached)[0]
    ]
    end = now() + int(seconds * NS)
    for number in range(len(requests)):
        trial = _send(peers[number % len(peers)], number, encoded, number % len(peers), (end - now()) / NS, server)
        yield trial
        if trial.fail is not None or trial.is_cut or now() + trial.e2e * NS >= end:  # the next one would be cut off
            return


def _send(peer: Peer, number: int, encoded: Calls, url: int, seconds: float, server: Server) -> _Trial:
    arrivals: list[int] = []
    counts: list[int] = []

    def on_events(at: int, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Tokens):
                arrivals.append(at)
                counts.append(event.n)

    head = encoded.head(url, encoded.classes[number] if encoded.classes else -1)
    tail = encoded.tails[number]
    if encoded.response is not None:
        limit = min(seconds, float(server.deadline) or seconds)
        instants, fail = roundtrip.over_grpc(peer, head, tail, encoded.response(), on_events, limit)
    else:
        assert encoded.decoder is not None
        data = head + ID % number + tail
        decoder = encoded.decoder()
        instants, fail = roundtrip.over_http(peer, data, decoder, on_events, seconds)
        arrivals, counts = decoder.received.arrivals, decoder.received.counts
    is_cut = fail is not None and instants.done - instants.sent >= seconds * NS
    return _Trial(instants, tuple(arrivals), sum(counts), encoded.n_out[number], None if is_cut else fail, is_cut)


def _summary(trials: Sequence[_Trial], requests: int, failure: str) -> Probe:
    good = [trial for trial in trials if trial.fail is None]
    used = [trial for trial in good if not trial.is_cut] or good
    is_cut = any(trial.is_cut for trial in used)

    def median(value: Callable[[_Trial], float | None]) -> float | None:
        known = [one for one in map(value, used) if one is not None]
        return statistics.median(known) if known else None

    def whole(value: Callable[[_Trial], int]) -> int | None:
        return statistics.median_low([value(trial) for trial in used]) if used else None

    return Probe(
        requests=requests,
        e2e=median(lambda trial: trial.projected),
        is_cut=is_cut,
        ttft=median(lambda trial: trial.ttft),
        request_bytes=whole(lambda trial: trial.instants.bytes_out),
        response_bytes=None if is_cut else whole(lambda trial: trial.instants.bytes_in),
        chunks=None if is_cut else whole(lambda trial: len(trial.arrivals)),
        chunks_per_second=median(lambda trial: trial.chunks_per_second),
        # The first request runs code for the first time, so the least is closest to what a request takes during the run.
        cpu=None if is_cut else min((trial.instants.cpu / NS for trial in used), default=None),
        failure=failure,
    )
