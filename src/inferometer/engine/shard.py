"""The run of one shard: from its part of the plan to its spool. The same function runs in this process or in another."""

import asyncio
import contextlib
import gc
import os
import ssl
from collections import deque
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from inferometer.config.schema import Timeouts
from inferometer.engine.connector import Connector
from inferometer.engine.deadlines import Deadlines
from inferometer.engine.drivers import Asking, driver
from inferometer.engine.http1_pool import NEVER, Connection, Http1Pool, Pool, ResponseState
from inferometer.engine.http2_pool import Http2Pool
from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.reader import Reader, StampClock
from inferometer.engine.self_monitor import TICK, SelfMonitor
from inferometer.engine.sequences import Sequences
from inferometer.errors import UserError
from inferometer.records import CANCELLED, DROPPED
from inferometer.store.spool import PEEKS, Spool
from inferometer.timing import clock as timing
from inferometer.timing.clock import now
from inferometer.types import Calls, End, Fail, OpenStage, Plan
from inferometer.units import NS
from inferometer.wire.failures import meaning
from inferometer.wire.target import Target

_LOOK_SHARE = 20
"""Deadlines and timeouts are found by looking for them, never by a timer a request. A look for timeouts goes over all that is in
flight, so that there has to be time between two: at least so many times what one took, however long that is."""
_SWEEP_APART = 5_000_000
"""A look for deadlines goes over the first call of each channel: sweeps for them may be as close as this, whatever is in flight."""
_MARKS = 4
"""Each in a turn of the loop of its own. What came before one is read, decoded and recorded in the turn that follows, or, without
epoll, in the one after that (poller.py): that is certain when this many are made, and not before."""


class Task(msgspec.Struct, frozen=True):
    """What one shard is to do."""

    shard: int
    plan: Plan
    calls: Calls
    targets: tuple[Target, ...]
    addresses: tuple[tuple[int, tuple[object, ...]], ...]
    context: ssl.SSLContext | None
    timeouts: Timeouts
    deadline: float
    """Seconds from a call's sending; gRPC's, 0 is none."""
    connections: int
    """Opened before t=0, over all targets."""
    warm: tuple[bytes, ...]
    """For each target, what to send over each of them before t=0; empty: nothing."""
    grace: float
    kernel_stamps: bool
    spool: Path
    secrets: tuple[str, ...] = ()
    """Words that a server's message is not kept with."""


class Shard:
    """Runs a Task. `texts` are answers whose server gave no usage, by the ids of their requests, to be counted after the run."""

    def __init__(self, task: Task, loop: asyncio.AbstractEventLoop) -> None:
        self._task = task
        self._loop = loop
        self._number = task.shard
        # The spool first: the disk may be full, and nothing else is open yet.
        self._spool = Spool(task.spool, task.shard, *_expected(task.plan, task.calls), task.secrets)
        self._spool.failure(CANCELLED, "")  # written now, so that rows can say it on a full disk too
        self._control = self._spool.control
        calls = task.calls
        self._heads = calls.heads
        self._requests = list(zip(calls.tails, calls.n_in, calls.n_out, strict=True))
        self._distinct = len(self._requests)
        self.sequences = Sequences(calls.sequences) if calls.sequences else None
        self._is_text = calls.is_text
        self._is_numbered = calls.decoder is not None
        self._urls = len(task.targets)
        self._primed = timing.prime() if task.kernel_stamps else None
        self._clock = StampClock(timing.wall_offset(), self._primed is not None)
        self.agenda = Deadlines(loop)
        self._inbox = Reader(loop, self._clock, self._settle, self.agenda.catch_up)
        self._over: list[Ended] = []  # and not yet settled
        self._carriers = [self._lead_to(place) for place in range(len(task.targets))]
        self.stopping = self.is_halted = False
        self.given_up: list[int] = []
        self.unreached_since = 0
        self.texts: list[tuple[int, str]] = []
        self._drivers = [driver(self, index, stage) for index, stage in enumerate(task.plan.stages)]
        self._stage = -1
        self._made = self._sent = self._ok = self._failed = self._in_flight = 0
        self._queue: deque[tuple[Flight, int, int]] = deque()
        self._is_settling = False
        self._finished = loop.create_future()
        self._health: SelfMonitor | None = None
        self._marks = deque([0] * _MARKS, _MARKS)  # instants; what came before the first is recorded
        self._is_marking = False
        self._parent = os.getppid()
        timeouts = task.timeouts
        limits = (timeouts.connect, timeouts.first_token, timeouts.idle, timeouts.total)
        self._limits = tuple(int(limit * NS) or NEVER for limit in limits)
        self._look_at = 0  # for timeouts, again

    def _lead_to(self, place: int) -> Pool:
        """What carries requests to one of the targets."""
        task = self._task
        target = task.targets[place]
        context = task.context if target.tls else None
        dial = Connector(self._loop, target, task.addresses[place], self._inbox, context)
        calls = task.calls
        if calls.answer is not None:
            return Http2Pool(dial, calls.heads[place], calls.answer, self._ended, task.deadline)
        assert calls.decoder is not None
        return Http1Pool(dial, calls.decoder, self._ended)

    # --- the course of it ---

    async def run(self) -> None:
        """Open, say ready, wait for t=0, run the stages, wait for the last answer."""
        self._control["heartbeat"] = now()
        await self._open()
        self._control.state = "ready"
        while not self._control["t0"]:
            if self._control["stop"] or os.getppid() != self._parent:
                return
            self._control["heartbeat"] = now()
            await asyncio.sleep(0.001)
        t0 = self._control["t0"]
        self._control.state = "running"
        self._loop.set_exception_handler(self._broken)
        gc.freeze()  # a collection now would take long where we are part of a large process, and t=0 is near
        gc.disable()
        try:
            self._health = SelfMonitor(self._task.shard, self._clock, t0)
            self.agenda.at(t0, lambda: self._next_stage(t0))
            self._tick(now() + TICK)
            self._sweep()
            await self._finished
        finally:
            gc.enable()
            gc.unfreeze()

    async def _open(self) -> None:
        share, rest = divmod(self._task.connections, self._urls)
        patience = float(self._task.timeouts.connect)
        for place, carriers in enumerate(self._carriers):
            failed = await carriers.open(share + (place < rest), patience)
            if failed is None and self._task.warm:
                failed = await carriers.warm(self._task.warm[place], patience)
            if failed is not None:
                what = failed.message or meaning(failed.code)
                remedy = (
                    "open fewer connections before t=0 (client.connections)"
                    if failed.code == "no_sockets"
                    else "check the URL and that the server takes so many connections"
                )
                raise UserError(f"{self._task.targets[place].url}: {what}", remedy)

    def _next_stage(self, at: int) -> None:
        self._stage += 1
        if self._stage < len(self._drivers) and not self.stopping:
            self._drivers[self._stage].start(at, self._next_stage)
        else:
            self._stage = len(self._drivers)
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        planned = self._stage < len(self._drivers) and not self.stopping
        if not planned and not self._in_flight and not self._queue and not self._finished.done():
            self._finished.set_result(None)

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised, which is a bug of ours: end the run with it rather than hang."""
        if not self._finished.done():
            self._finished.set_exception(context.get("exception") or RuntimeError(context["message"]))

    def close(self) -> None:
        """Everything that was opened; the spool last."""
        if self._health is not None:
            with contextlib.suppress(OSError):  # a full disk; that is known by now
                self._spool.sample(self._health.sample(self._in_flight))
        for carriers in self._carriers:
            carriers.close()
        self._inbox.close()
        self.agenda.close()
        if self._primed is not None:
            self._primed.close()
        self._publish()
        self._control["ended"] = now()

    def save_counts(self, counts: list[int], counted_by: int) -> None:
        """The tokens of `texts`, counted after the run."""
        ids = (id for id, _ in self.texts)
        self._spool.set_tokens(dict(zip(ids, counts, strict=True)), counted_by)

    def close_spool(self) -> None:
        self._spool.close()
        self._control.state = "done"

    @property
    def timer_kind(self) -> str:
        return self.agenda.timer_kind

    @property
    def has_kernel_stamps(self) -> bool:
        return self._clock.kernel_stamps

    # --- requests ---

    def make(self, stage: int, ids: Sequence[int], asking: Sequence[Asking]) -> list[Flight]:
        """The next requests."""
        heads, requests, distinct, urls = self._heads, self._requests, self._distinct, self._urls
        made = []
        for id, (user, intended) in zip(ids, asking, strict=True):
            if self.sequences is not None:
                n, url = self.sequences.take((stage, user)), (self._number + user) % urls
            else:
                n, url = self._made % distinct, id % urls
            self._made += 1
            tail, n_in, n_out = requests[n]
            flight = Flight(
                id=id,
                intended=intended,
                n_in=n_in,
                n_want=n_out,
                stage=stage,
                shard=self._number,
                url=url,
                open_loop=0 if user >= 0 else 1,
                user=user,
                data=b"%b%d%b" % (heads[url], id, tail) if self._is_numbered else tail,
            )
            made.append(flight)
        return made

    def release(self, flight: Flight, cap: int, drop: bool) -> None:
        """Its time has come: send it, unless the cap holds it back."""
        if cap and self._in_flight >= cap:
            if drop:
                self._record([(flight, Fail(DROPPED, ""), None)])
            else:
                self._queue.append((flight, cap, now()))
            return
        self.launch([flight])

    def launch(self, flights: Sequence[Flight]) -> None:
        """Send them."""
        self._in_flight += len(flights)
        self._sent += len(flights)
        for place, carriers in enumerate(self._carriers):
            own = flights if self._urls == 1 else [flight for flight in flights if flight.url == place]
            carriers.carry(own)
            if not self._is_settling:
                carriers.flush()

    def is_awaiting(self) -> bool:
        return any(flight.sent for carriers in self._carriers for _, flight in carriers.flights())

    def _release_queued(self) -> None:
        while self._queue and self._in_flight < self._queue[0][1]:
            flight, cap, since = self._queue.popleft()
            flight.held += now() - since
            self.release(flight, cap, False)

    def _ended(self, flight: Flight, at: int, event: End | Fail, answer: ResponseState) -> None:
        """An answer is complete, or failed: it is settled when all that was read is decoded (see reader.py)."""
        flight.done = at
        text = None
        if event.__class__ is Fail:
            flight.status = answer.status
        else:
            flight.status = 200
            if self._is_text and not flight.counted_by:
                text = answer.text
        if not self._over and not self._inbox.is_decoding:
            self._loop.call_soon(self._settle)
        self._over.append((flight, event, text))

    def _settle(self) -> None:
        """Record all that ended, then let all that may follow go."""
        if self._over:
            over, self._over = self._over, []
            self._record(over)
            self._in_flight -= len(over)
            self._is_settling = True
            self._follow(over)
            self._is_settling = False
        for carriers in self._carriers:
            carriers.flush()
        self.agenda.wait()
        if not self._in_flight:
            self._end_if_idle()

    def _follow(self, over: Sequence[Ended]) -> None:
        """What may go now that these have ended."""
        self._release_queued()
        if len(self._drivers) == 1:
            self._drivers[0].freed(over)
            return
        for stage in {flight.stage for flight, _, _ in over}:
            self._drivers[stage].freed([each for each in over if each[0].stage == stage])

    def _record(self, over: Sequence[Ended]) -> None:
        """Write down what ended. With no space left, what is recorded stays, and little more can be."""
        flights: list[Flight] = []
        is_full = False
        for flight, event, text in over:
            if isinstance(event, Fail):
                self._failed += 1
                try:
                    flight.failure = self._spool.failure(event.code, event.message)
                except OSError:
                    is_full = True
                    continue
            else:
                self._ok += 1
                if text is not None:
                    self.texts.append((flight.id, text))
            flights.append(flight)
        try:
            self._spool.add(flights)
        except OSError:
            is_full = True
        if is_full:
            self._disk_is_full()

    def _disk_is_full(self) -> None:
        if not self._control["disk_full"]:  # ending what is in flight records it, which gets here again
            self._control["disk_full"] = 1
            self._stop_now()

    # --- now and then ---

    def _tick(self, due: int) -> None:
        assert self._health is not None
        sample = self._health.tick(due, self._in_flight)
        if sample is not None:
            self._spool.peek(self._peek())
            try:
                self._spool.sample(sample)
            except OSError:
                self._disk_is_full()
        self._publish()
        self._control["recorded"] = self._marks[0]
        if not self._is_marking:
            self._is_marking = True
            self._loop.call_soon(self._mark)
        stop = self._control["stop"]
        if os.getppid() != self._parent:
            stop = 2
        if stop > 1:
            self._stop_now()
        elif stop and not self.stopping:
            self._stop(now() + int(self._task.grace * NS))
        if 0 <= self._stage < self._control["past"] and not self.stopping:
            self._drivers[self._stage].end()
        if not self._finished.done():
            following = max(due + TICK, now() + TICK // 2)
            self.agenda.at(following, lambda: self._tick(following))

    def _mark(self) -> None:
        """Once a turn of the loop at most, and never in the middle of the inbox's work, where ticks may be: several of them while
        what was read before the first is still to be decoded."""
        self._is_marking = False
        self._marks.append(now())

    def _peek(self) -> list[int]:
        pairs: list[int] = []
        for carriers in self._carriers:
            for _, flight in islice(carriers.flights(), 4 * PEEKS):
                arrivals = flight.arrivals
                if arrivals and len(pairs) < 2 * PEEKS:
                    start = flight.sent if flight.user >= 0 else flight.intended
                    pairs += (max(arrivals[0] - start, 1), arrivals[-1] - arrivals[-2] if len(arrivals) > 1 else 0)
        return pairs

    def _publish(self) -> None:
        self._spool.publish()
        control = self._control
        control["heartbeat"] = now()
        control["sent"] = self._sent
        control["ok"] = self._ok
        control["failed"] = self._failed
        control["in_flight"] = self._in_flight
        control["queued"] = len(self._queue)
        control["stage"] = min(max(self._stage, 0), len(self._drivers) - 1)

    def _sweep(self) -> None:
        """End what has missed its deadline, and what has outstayed a timeout."""
        if self._finished.done():
            return
        at = now()
        following = min(carriers.expire(at) for carriers in self._carriers)
        apart = min(_SWEEP_APART, _LOOK_SHARE * (now() - at))
        if at >= self._look_at:
            self._look_at = self._time_out(at)
        following = min(max(following, at + apart), self._look_at)
        if following < NEVER and not self._finished.done():
            self.agenda.at(following, self._sweep_soon)

    def _time_out(self, at: int) -> int:
        """Fail what has outstayed a timeout; when to look again. Nothing new can before the shortest limit has passed from now."""
        shortest = min(self._limits)
        if shortest == NEVER:
            return NEVER
        begun = now()
        following = at + shortest
        over: list[tuple[Connection, Flight, str]] = []
        for carriers in self._carriers:
            for carrier, flight in carriers.flights():
                expires, code = self._expiry(carrier, flight)
                if expires > at:
                    following = min(following, expires)
                else:
                    over.append((carrier, flight, code))
        apart = _LOOK_SHARE * (now() - begun)
        for carrier, flight, code in over:
            carrier.give_up(flight, code)
        return max(following, at + apart)

    def _sweep_soon(self) -> None:
        """The agenda may be looked at in the middle of the inbox's work; reading has to wait for the end of that."""
        self._loop.call_soon(self._sweep)

    def _expiry(self, carrier: Connection, flight: Flight) -> tuple[int, str]:
        """When the request expires, and by which of its timeouts."""
        connect, first_token, idle, total = self._limits
        if not carrier.link.is_ready:
            return carrier.link.connect_from + connect, "connect_timeout"
        arrivals = flight.arrivals
        if arrivals:
            return min((flight.sent + total, "total_timeout"), (arrivals[-1] + idle, "idle_timeout"))
        return min((flight.sent + total, "total_timeout"), (flight.sent + first_token, "first_token_timeout"))

    def _stop(self, deadline: int) -> None:
        """Send nothing more but what closes sequences; what is in flight has until the deadline."""
        self.stopping = True
        self._control["interrupted"] = 1
        at = now()
        while self._queue:
            flight, _, _ = self._queue.popleft()
            flight.done = at
            self._record([(flight, Fail(CANCELLED, "still waiting for the cap"), None)])
        self.agenda.at(deadline, self._stop_now)
        for each in self._drivers:
            each.close_sequences()
        self._end_if_idle()

    def _stop_now(self) -> None:
        self.is_halted = True
        if not self.stopping:
            self._stop(now())
        for carriers in self._carriers:
            under_way = list(carriers.flights())
            for carrier, flight in reversed(under_way):  # those that wait first: the end of others makes room for them
                carrier.give_up(flight, CANCELLED)
        self._end_if_idle()


def _expected(plan: Plan, calls: Calls) -> tuple[int, int]:
    """Rows and chunks to make room for before t=0; more room is made when needed."""
    rows = sum(len(stage.instants) if isinstance(stage, OpenStage) else stage.requests for stage in plan.stages)
    mean_out = sum(calls.n_out) // len(calls.n_out) + 1
    return min(rows + 64, 1 << 18), min(rows * mean_out, 1 << 22)
