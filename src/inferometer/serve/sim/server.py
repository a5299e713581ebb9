"""The simulator: a text model of the OpenAI endpoints, from a request's arrival to its response."""

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from inferometer.errors import UserError
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.responses import reply
from inferometer.serve.openai.frames import tokenize_body
from inferometer.serve.openai.requests import Parts, Refusal, TextRequest, too_long
from inferometer.serve.openai.response import Stream, Whole, refusal_body
from inferometer.serve.sim.batch import BatchTiming
from inferometer.serve.sim.clockwork import Clockwork
from inferometer.serve.sim.faults import Fault, Faults, parse_fault
from inferometer.serve.sim.fixed import FixedTiming
from inferometer.serve.sim.kv import block_keys
from inferometer.serve.sim.metrics import Counters
from inferometer.serve.sim.prompts import Prompts, Words
from inferometer.serve.sim.response import FAILED, IN_THE_MIDDLE, FaultyResponse, SimResponse
from inferometer.serve.sim.settings import Batch, Fixed, Sim
from inferometer.serve.sim.truth import TruthLog, row_of
from inferometer.timing.clock import now

CHAT_TOKENS = 128
"""Length of a chat response if the request sets none."""
_FLUSH_NS = 250_000_000
_HTML = b"<!doctype html><title>Welcome</title><h1>It works!</h1>"


class Simulator:
    """All state of one simulator."""

    def __init__(
        self,
        settings: Sim,
        loop: asyncio.AbstractEventLoop,
        number: Callable[[], int] | None = None,
        freeze_all: Callable[[int], None] | None = None,
    ) -> None:
        """With several processes, `number` returns the next request's ordinal and `freeze_all` calls `freeze` in each."""
        self.name, self.names, self.max_len = settings.model, settings.names, settings.max_len
        self.settings, self.loop = settings, loop
        self.timing = _timing(settings)
        self.words, self._prompts = Words(), Prompts()
        self._counters = Counters()
        self._faults = Faults(settings.faults, settings.seed)
        self._truth = TruthLog(settings.truth, append=number is not None) if settings.truth is not None else None
        self._active: set[SimResponse] = set()
        self.number = number or itertools.count(1).__next__
        self._freeze_all = freeze_all or self.freeze
        self.clockwork = Clockwork(loop, self.timing)
        if self._truth is not None:
            self._flush(self._truth)

    # --- a request ---------------------------------------------------------------------------------------------------

    def respond(self, connection: Connection, request: Request, asked: TextRequest) -> None:
        """Respond to a request now or later; raises Refusal if it cannot be served."""
        if asked.api == "tokenize":
            reply(connection, request, 200, tokenize_body(self._prompts.ids(asked.parts), self.max_len))
            return
        n_out = asked.n_out or CHAT_TOKENS
        n_in = self.length(asked.parts, n_out)
        n = self.number()
        if n == 1:
            for after, ns in self._faults.freezes():
                self.clockwork.at(request.arrived + after, partial(self._freeze_all, ns))
        fault = self._fault_of(request, n)
        out = (Stream if asked.stream else Whole)(connection, request, asked, self.name, n, n_in)
        if fault is not None and self._fails_at_once(out, fault):
            return
        timing = self.settings.timing
        keys: tuple[int, ...] = ()
        if isinstance(timing, Batch) and timing.prefix_cache:
            keys = block_keys(self._prompts.ids(asked.parts), timing.block)
        kind = FaultyResponse if fault is not None and fault.kind in IN_THE_MIDDLE else SimResponse
        response = kind(self, out, n_out, keys, fault)
        if not self.timing.add(response, request.arrived):
            self._log_unanswered(out, Fault("queue_full"))
            raise Refusal(503, "the queue is full", "queue_full", "overloaded_error")
        self._active.add(response)
        response.begin()
        self.clockwork.changed()

    def length(self, parts: Parts, n_out: int) -> int:
        """Return the prompt's tokens; raises Refusal if prompt and response are too long."""
        n_in = self._prompts.count(parts)
        if n_in + n_out > self.max_len:
            raise too_long(n_in, n_out, f"the model's maximum of {self.max_len} tokens")
        if isinstance(self.timing, BatchTiming) and not self.timing.kv.fits(n_in + n_out):
            raise too_long(n_in, n_out, "the size of the KV cache")
        return n_in

    def ended(self, response: SimResponse, aborted: bool) -> None:
        """Count a response that has ended, successfully or not, and log its ground truth."""
        self._active.discard(response)
        counters, stamps = self._counters, response.out.stamps
        counters.prompt_tokens += response.n_in
        counters.generation_tokens += 0 if response.is_embedding else response.made
        counters.ended["abort" if aborted else "length"] += 1
        if stamps:
            counters.ttft.observe(stamps[0] - response.arrived)
            if not aborted:
                counters.e2e.observe(stamps[-1] - response.arrived)
            if len(stamps) > 1:
                counters.itl.observe_gaps(stamps)
        if response.started >= 0:
            counters.queue.observe(response.started - response.arrived)
        if self._truth is not None:
            done = stamps[-1] if stamps and not aborted else now()
            self._truth.add(row_of(response.out, done, response.fault, aborted))

    # --- faults ------------------------------------------------------------------------------------------------------

    def _fault_of(self, request: Request, n: int) -> Fault | None:
        wanted = request.headers.get(b"x-sim-fault")
        if wanted is None or not self.settings.allow_fault_header:
            return self._faults.pick(n)
        try:
            return parse_fault(wanted.decode("latin-1"))
        except UserError as error:
            raise Refusal(400, str(error), "invalid_fault") from None

    def _fails_at_once(self, out: Stream | Whole, fault: Fault) -> bool:
        """Carry out a fault that comes before any token; return False for other faults."""
        connection, request = out.connection, out.request
        if fault.kind == "freeze":
            self._freeze_all(fault.arg)
            return False
        if fault.kind == "reset":
            connection.reset()
        elif fault.kind == "reject":
            self._log_unanswered(out, fault)
            raise Refusal(fault.arg, "injected fault: request rejected", "injected", "server_error")
        elif fault.kind == "error_body":
            reply(connection, request, 200, refusal_body(request, FAILED))
        elif fault.kind == "empty" and out.asked.api != "embedding":
            out.begin()
            out.end("length")
        elif fault.kind == "html":
            reply(connection, request, 200, _HTML, content_type=b"text/html; charset=utf-8")
        else:
            return False
        self._log_unanswered(out, fault)
        return True

    def freeze(self, ns: int) -> None:
        """Freeze this process: no socket is read and no token is written."""
        time.sleep(ns / 1e9)
        self.timing.pause(ns)

    def _log_unanswered(self, out: Stream | Whole, fault: Fault) -> None:
        if self._truth is not None:
            out.stamps = out.stamps[:0]  # an empty body is no content
            self._truth.add(row_of(out, now(), fault))

    # --- the server's own ------------------------------------------------------------------------------------------

    def metrics(self) -> bytes:
        """Return the page in Prometheus' text format."""
        return self._counters.page(self.name, self.timing, self._active)

    def close(self) -> None:
        """End the responses in progress, with their rows in the truth log."""
        for response in list(self._active):
            response.client_gone()
        self.clockwork.close()
        if self._truth is not None:
            self._truth.close()

    def _flush(self, truth: TruthLog) -> None:
        truth.flush()
        self.clockwork.at(now() + _FLUSH_NS, partial(self._flush, truth))


def _timing(settings: Sim) -> FixedTiming | BatchTiming:
    spec, chunk, queue = settings.timing, settings.tokens_per_chunk, settings.max_queue
    more: Any = {"seed": settings.seed, "tokens_per_chunk": chunk, "max_queue": queue}
    return FixedTiming(spec, **more) if isinstance(spec, Fixed) else BatchTiming(spec, **more)
