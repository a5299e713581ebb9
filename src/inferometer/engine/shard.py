"""Runs one shard, from its job to its spool. The same code runs in this process or in another.

The work on a request is divided: requests.py makes it, open_loop.py or closed_loop.py decides when it is due, dispatcher.py sends it, recorder.py
records how it ended, sessions.py makes the next turn from its response. This file connects the parts, and settles requests that
have ended: all that may follow those that ended in one turn of the reader are sent first, then those that ended are recorded.
"""

import asyncio
import contextlib
import gc
from typing import TYPE_CHECKING, Any

from inferometer.engine.awake import Awake
from inferometer.engine.connector import Connector, ResponseState
from inferometer.engine.course import Course
from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.http1 import Http1Pool
from inferometer.engine.inflight import Ended, Flight, finish
from inferometer.engine.job import Job
from inferometer.engine.reader import Reader, StampClock
from inferometer.engine.recorder import Recorder
from inferometer.engine.requests import Requests
from inferometer.engine.resolver import Resolver
from inferometer.engine.retries import Retries
from inferometer.engine.run_state import RunState
from inferometer.engine.sessions import Sessions
from inferometer.engine.telemetry import TICK, SelfMonitor, Telemetry
from inferometer.engine.timeouts import Patience, Timeouts
from inferometer.errors import UserError
from inferometer.records import CANCELLED
from inferometer.store.spool import Spool
from inferometer.timing import clock as timing
from inferometer.timing.clock import now
from inferometer.timing.deadlines import Deadlines
from inferometer.types import Calls, End, Fail, OpenStage, Plan
from inferometer.units import NS
from inferometer.wire.failures import meaning
from inferometer.wire.http1 import ResponseDecoder

if TYPE_CHECKING:
    import ssl

    from inferometer.engine.dispatcher import Pool
    from inferometer.store.body_spool import BodySpool

_RECORDED_AT_ONCE = 8
"""Requests recorded before requests that have come due are sent; recording one takes 2 microseconds, or more if it has many chunks."""


class Shard:
    """Runs a job with its requests: `run`, then `close`, then `close_spool`."""

    def __init__(self, job: Job, calls: Calls, loop: asyncio.AbstractEventLoop) -> None:
        self._job, self._calls = job, calls
        self._loop = loop
        self._tls: ssl.SSLContext | None = None
        if job.tls is not None:
            from inferometer import tls  # noqa: PLC0415 - here and below: few runs need it

            self._tls = tls.context(job.tls)
        # The spool comes first: the disk may be full, and nothing else is open yet.
        self._spool = Spool(job.spool, job.shard, *_expected(job.plan, calls), job.secrets)
        self.state = RunState(given_up=[], unreached_limit=int(job.timeouts.unreached * NS))
        self._bodies: BodySpool | None = None
        if job.keeps_bodies:
            from inferometer.store import body_spool  # noqa: PLC0415

            self._bodies = body_spool.BodySpool(job.spool, job.shard, job.secrets)
        self.recorder = Recorder(self._spool, self.state, self._stop_now, calls.counts_tokens, self._bodies)
        self._primed = timing.prime() if job.kernel_stamps else None
        self.clock = StampClock(timing.wall_offset(), self._primed is not None)
        self.deadlines = Deadlines(loop)
        self._reader = Reader(loop, self.clock, self._settle, self.deadlines)
        self.awake = Awake(loop, job.awake, self.deadlines, self._reader.poll, self.state)
        self._retries: Retries | None = None
        if job.retries:
            self._retries = Retries(job, self.deadlines, self.state, self._on_ended, self._send_again)
        self._requests = requests = Requests(calls, job.shard, len(job.targets))
        self._resolvers: list[Resolver] = []
        pools = [self._pool(index) for index in range(len(job.targets))]
        self._dispatcher = Dispatcher(pools, requests, self.deadlines, self.awake, self.state, self.recorder)
        self._patience = Patience(job.patience, self._dispatcher)
        self._course = Course(job.plan, self._dispatcher, self._spool.control, self._patience, self._end_if_idle)
        self._sessions = Sessions(calls, requests, self.deadlines) if calls.session else None
        self._timeouts = Timeouts(job.timeouts, self._dispatcher, self.deadlines, loop)
        self._telemetry = Telemetry(self._spool, self.recorder, self._dispatcher, len(job.plan.stages), loop)
        self._monitor: SelfMonitor | None = None
        self._ended: list[Ended] = []  # requests that ended and are not yet settled
        self._check = calls.check
        self._unchecked: dict[int, Any] = {}  # responses whose content is to be checked, by the request's id
        self._finished = loop.create_future()

    def _pool(self, index: int) -> "Pool":
        """Return the pool of connections to one of the targets."""
        job, calls = self._job, self._calls
        target = job.targets[index]
        context = self._tls if target.tls else None
        resolver = Resolver(self._loop, target.host, job.addresses[index], self._spool.replica)
        self._resolvers.append(resolver)
        connector = Connector(self._loop, target, resolver, self._reader, context)
        on_ended = self._on_ended if self._retries is None else self._retries.ended
        if calls.response is not None:
            from inferometer.engine.http2_pool import Http2Pool  # noqa: PLC0415 - HTTP/1.1 does without

            return Http2Pool(connector, calls, index, on_ended, job.deadline, job.reuse)
        assert calls.decoder is not None
        return Http1Pool(connector, calls.decoder, on_ended, job.reuse)

    # --- the run ---

    async def run(self) -> None:
        """Open connections, report ready, wait for t=0, run the stages, and wait for the last response."""
        control = self._spool.control
        control["heartbeat"] = now()
        await self._open()
        control.state = "ready"
        while not control["t0"]:
            if control["stop"]:
                return
            control["heartbeat"] = now()
            await asyncio.sleep(0.001)
        t0 = control["t0"]
        control.state = "running"
        self._loop.set_exception_handler(self._callback_failed)
        gc.freeze()  # t=0 is near, and a collection takes long in a large process
        gc.disable()
        try:
            self._monitor = SelfMonitor(self._job.shard, self.clock, self.state, t0)
            self.deadlines.at(t0, lambda: self._course.start(t0))
            self._tick(now() + TICK)
            self._timeouts.sweep()
            await self._finished
        finally:
            gc.enable()
            gc.unfreeze()

    async def _open(self) -> None:
        share, rest = divmod(self._job.connections, len(self._job.targets))
        timeout = float(self._job.timeouts.connect)
        await asyncio.gather(*(each.leave_out_dead(timeout) for each in self._resolvers))
        for index, pool in enumerate(self._dispatcher.pools):
            failed = await pool.open(share + (index < rest), timeout)
            if failed is None and self._job.warm:
                failed = await pool.warm(self._job.warm[index], timeout)
            if failed is not None:
                reason = failed.message or meaning(failed.code)
                remedy = (
                    "open fewer connections before t=0 (client.connections)"
                    if failed.code == "no_sockets"
                    else "check the URL, and that the server accepts this many connections"
                )
                raise UserError(f"{self._job.targets[index].url}: {reason}", remedy)

    def _tick(self, due: int) -> None:
        """Do everything that is not part of a request, every few milliseconds."""
        assert self._monitor is not None
        self._telemetry.tick(self._monitor, due)
        stop = self._spool.control["stop"]
        if stop > 1:
            self._stop_now()
        elif stop and not self.state.stopping:
            self._stop(now() + int(self._job.grace * NS))
        if self._course.is_abandoned and not self._is_idle:
            self._cancel_rest()
        elif self._patience.is_over(due):
            self._cancel_rest("unfinished")
        self._course.obey(self._is_idle)
        self._requests.prefault()
        if not self._finished.done():
            following = max(due + TICK, now() + TICK // 2)
            self.deadlines.at(following, lambda: self._tick(following))

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the run with the exception that a callback raised, which is a bug of ours, rather than hang."""
        if not self._finished.done():
            self._finished.set_exception(context.get("exception") or RuntimeError(context["message"]))

    def close(self) -> None:
        """Close everything that was opened, except the spool."""
        self._timeouts.stop()
        if self._monitor is not None:
            with contextlib.suppress(OSError):  # the disk is full, which has been reported already
                self._spool.sample(self._monitor.sample())
        self._dispatcher.close()
        self.awake.close()
        self.deadlines.close()
        if self._primed is not None:
            self._primed.close()
        self._telemetry.publish()
        self._spool.control["ended"] = now()

    def close_spool(self) -> None:
        if self._bodies is not None:
            self.recorder.flush()
            self._bodies.close()
        self._spool.close()
        self._spool.control.state = "done"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the run, although nothing failed."""
        failed = ((each.host, each.failure) for each in self._resolvers if each.failure)
        found = [
            f"{each.host}: {address[0]} was left out ({why}), its other addresses were used"
            for each in self._resolvers
            for address, why in each.dead.items()
        ]
        found += [
            f"{host} could not be looked up again ({why}): its last known addresses were used" for host, why in failed
        ]
        pools = [pool for pool in self._dispatcher.pools if isinstance(pool, Http1Pool)]
        closed = sum(pool.closed_by_server for pool in pools)
        if not self._job.reuse and closed > self.state.ok / 2 > 4:
            found.append(
                "the server, or a proxy, closes the connection after nearly every response: turn on keep-alive there"
            )
        if encodings := sorted({pool.encoding for pool in pools} - {""}):
            found.append(f"responses came compressed ({', '.join(encodings)}), for which a proxy may hold chunks back")
        return tuple(found)

    # --- requests that ended ---

    def _on_ended(self, flight: Flight, at: int, event: End | Fail, response: ResponseState) -> None:
        """Note that a response is complete, or failed. It is settled once everything that was read is decoded (reader.py)."""
        finish(flight, at)
        text = None
        if event.__class__ is Fail:
            flight.status = response.status
        else:
            flight.status = 200
            if self._calls.counts_tokens and not flight.counted_by:
                text = response.text
            if flight.session >= 0 and isinstance(response, ResponseDecoder):
                flight.content = response.received.content
                if name := self._calls.token_header:
                    flight.token = response.header(name).encode("latin-1") or flight.token
            if self._check is not None:
                self._unchecked[flight.id] = self._check.keep(response)
        if self._bodies is not None and isinstance(response, ResponseDecoder):
            self.recorder.responses[flight.id] = response.text, response.finish_reason
        if not self._ended and not self._reader.is_decoding:
            self._loop.call_soon(self._settle)
        self._ended.append((flight, event, text))

    def _settle(self) -> None:
        """Send all requests that may follow those that ended, then record these. Requests that come due are sent in between."""
        ended, self._ended = self._ended, []
        if ended:
            self._send_followers(ended)
        self._dispatcher.flush()
        if ended:
            flight = ended[-1][0]
            if flight.user >= 0 and self.state.in_flight:
                self.awake.expect_response(flight.done - flight.sent)
            for first in range(0, len(ended), _RECORDED_AT_ONCE):
                self.deadlines.catch_up()
                some = ended[first : first + _RECORDED_AT_ONCE]
                self.recorder.record(some if self._check is None else [self._checked(each) for each in some])
        self.deadlines.resume()
        if not self.state.in_flight:
            self._end_if_idle()

    def _checked(self, ended: Ended) -> Ended:
        """Return a request that ended as a failure if the content of its response is wrong."""
        flight, event, text = ended
        kept = self._unchecked.pop(flight.id, None)
        self.deadlines.catch_up()
        assert self._check is not None
        fail = self._check.failure(flight.index, kept) if kept is not None else None
        return flight, fail or event, text

    def _send_followers(self, ended: list[Ended]) -> None:
        dispatcher = self._dispatcher
        self.state.in_flight -= len(ended)
        dispatcher.holds_sends = True
        dispatcher.release_queued(ended)
        if self._sessions is not None:
            dispatcher.holds_sends = False  # making turns takes long: requests that come due are sent in between
            dispatcher.flush()
            free = self._sessions.follow(ended, self._course, self._send_turn)
            if len(free) < len(ended):  # a session goes on, so the server can be reached
                self.state.unreached_since = 0
            ended = free
            dispatcher.holds_sends = True
        self._course.freed(ended)
        dispatcher.holds_sends = False

    def _send_again(self, flight: Flight) -> None:
        self._dispatcher.send([flight])

    def _send_turn(self, flight: Flight) -> None:
        """Send a session's next turn, unless its stage has ended while the user was thinking."""
        if self._course.may_continue(flight):
            self._course.driver(flight).send_turn(flight)
        else:
            self._end_if_idle()

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is in flight, queued, or waiting for a user to think."""
        is_thinking = self._sessions is not None and self._sessions.is_pending(self._course.may_continue)
        return not self.state.in_flight and not self._dispatcher.queued and not is_thinking

    # --- the end ---

    def _end_if_idle(self) -> None:
        if not self._course.is_planned and self._is_idle and not self._finished.done():
            self._timeouts.stop()
            self._finished.set_result(None)

    def _cancel_rest(self, code: str = CANCELLED) -> None:
        """Cancel what is left of stages that have ended, so that the next stage, or the end of the run, does not wait for it."""
        self._cancel_unsent()
        self._dispatcher.cancel_all(code)
        self._end_if_idle()

    def _cancel_unsent(self) -> None:
        """Cancel the requests that wait for the cap, to be repeated, or for their users to think."""
        self._dispatcher.cancel_queued()
        if self._retries is not None:
            self._retries.cancel()
        if self._sessions is not None:
            self._sessions.cancel()

    def _stop(self, deadline: int) -> None:
        """Send nothing more except what closes sequences; requests in flight have until the deadline."""
        self.state.stopping = True
        self._spool.control["interrupted"] = 1
        self._cancel_unsent()
        self.deadlines.at(deadline, self._stop_now)
        self._course.close_sequences()
        self._end_if_idle()

    def _stop_now(self) -> None:
        self.state.halted = True
        if not self.state.stopping:
            self._stop(now())
        self._dispatcher.cancel_all()
        self._end_if_idle()


def _expected(plan: Plan, calls: Calls) -> tuple[int, int]:
    """Return how many rows and chunks to allocate before t=0; the files grow when needed."""
    rows = sum(len(stage.instants) if isinstance(stage, OpenStage) else stage.requests for stage in plan.stages)
    sample = calls.n_out[:4_096]
    mean_out = sum(sample) // len(sample) + 1
    return min(rows + 64, 1 << 18), min(rows * mean_out, 1 << 22)
