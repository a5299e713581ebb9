"""The simulator: a text model of the OpenAI endpoints and of KServe, from a request's arrival to its response.

Over KServe, `text_input` is the prompt and `max_tokens` the length of the response; each response of the decoupled model
has the words of one step in `text_output`. Both protocols share timing, queue and batch, so that they can be compared.
/metrics has vLLM's names, so that a vLLM dashboard works with this server.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from inferometer.errors import UserError
from inferometer.serve import prometheus
from inferometer.serve.backends.text.model import INPUTS, declare, piece, request_of
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.responses import refuse, reply
from inferometer.serve.models.types import Emit, Finish, Inference, Loaded, Loading, Refused, Tensors, ignore, reason
from inferometer.serve.offload import Threads
from inferometer.serve.openai.requests import DEFAULT_TOKENS, TextRequest, invalid, too_long
from inferometer.serve.openai.response import Response, Stream, tokens_body
from inferometer.serve.prometheus import Family, Histogram
from inferometer.serve.sim.batch import BatchTiming, block_keys
from inferometer.serve.sim.faults import Fault, parse_fault, pick
from inferometer.serve.sim.prompts import DIMENSIONS, LONGEST_TOKEN, Prompts, Slow, response_words, text
from inferometer.serve.sim.response import FaultyResponse, SimResponse
from inferometer.serve.sim.settings import Batch, Fixed, Sim
from inferometer.serve.sim.timing import Clockwork, FixedTiming, Job, Timing
from inferometer.serve.sim.truth import TruthLog
from inferometer.timing.clock import now
from inferometer.units import NS
from inferometer.wire.http1_requests import Request

CHAT_TOKENS = 128  # of a chat response if the request sets no length
_MOST_NUMBERS = 4_000_000  # of the embeddings in a response
_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 2.5, 5, 7.5, 10,
    20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_EARLY_S = 0.002
"""By how much the loop's timers may be early: they count whole milliseconds from the start of its last turn."""
Tokenized = Callable[[int, list[int]], None]
"""Called with the number of tokens of a prompt, and with the tokens if they are needed."""
KSERVE_CONFIG = 'backend: "simulator"'


class Simulator:
    """All state of one simulator."""

    def __init__(self, settings: Sim, loop: asyncio.AbstractEventLoop, is_shared: bool = False) -> None:
        """If other processes have simulators, too, all of them append to the truth log (`is_shared`)."""
        self.name, self.names, self.max_len = settings.model, (settings.model, *settings.lora), settings.max_len
        self.settings, self.loop, spec = settings, loop, settings.timing
        self.timing: Timing = FixedTiming(spec, settings) if isinstance(spec, Fixed) else BatchTiming(spec, settings)
        self._block = spec.block if isinstance(spec, Batch) and spec.prefix_cache else 0
        self.words, self._prompts, self._threads = response_words(), Prompts(), Threads(loop, 1, "tokenizer")
        self._prompt_tokens = self._generation_tokens = 0
        self._ended = {"stop": 0, "length": 0, "abort": 0}
        self._ttft, self._itl, self._e2e, self._queue = (Histogram(_SECONDS) for _ in range(4))
        self._faults = list(map(parse_fault, settings.faults))
        self._truth = TruthLog(settings.truth, append=is_shared) if settings.truth is not None else None
        self._log = ignore if self._truth is None else self._truth.add
        self.active: set[SimResponse] = set()
        self.number = itertools.count(1).__next__
        self._clockwork = Clockwork(loop, self.timing)

    def respond(self, connection: Connection, request: Request, asked: TextRequest) -> None:
        """Respond to a request now or later; raises Refused if it cannot be served."""

        is_gone, fail = lambda: connection.transport.closed, partial(refuse, connection, request)
        self._tokenize(asked, partial(self._accept, connection, request, asked), is_gone, fail)

    def _tokenize(
        self, asked: TextRequest, then: Tokenized, is_gone: Callable[[], bool], fail: Callable[[Refused], None]
    ) -> None:
        """Call `then` with the tokens of the prompt: at once, or later if a thread has to count them. In that case, errors
        are passed to `fail`, unless the client is gone. Raises Refused if the prompt is certainly too long."""
        least = [-(-len(part) // LONGEST_TOKEN) if isinstance(part, str) else len(part) for part in asked.parts]
        self._check_length(asked, sum(least))

        def counted(ids: list[int], error: BaseException | None) -> None:
            if is_gone():
                return
            try:
                if error is not None:
                    raise error
                then(len(ids), ids)
            except Exception as why:
                fail(reason(why))

        try:
            ids = self._prompts.ids(asked.parts) if self._block or asked.api == "tokenize" else []
            n_in = len(ids) or self._prompts.count(asked.parts)
        except Slow:
            self._threads.do(partial(self._prompts.slow_ids, asked.parts), counted)
        else:
            then(n_in, ids)

    def _accept(self, connection: Connection, request: Request, asked: TextRequest, n_in: int, ids: list[int]) -> None:
        if asked.api == "tokenize":
            reply(connection, request, 200, tokens_body(ids, self.max_len))
            return
        self._check_length(asked, n_in)
        numbers = len(asked.parts) * (asked.fields.dimensions or DIMENSIONS)
        if asked.api == "embedding" and numbers > _MOST_NUMBERS:
            raise invalid(f"the embeddings would have {numbers} numbers; the simulator sends at most {_MOST_NUMBERS}")
        n_out = asked.n_out or CHAT_TOKENS
        n = self.number()
        if n == 1:
            for freeze in [rule for rule in self._faults if rule.after >= 0]:
                self.loop.call_later(freeze.after / NS + _EARLY_S, time.sleep, freeze.arg / NS)
        fault = self._fault_of(request, n)
        out = (Stream if asked.stream else Response)(connection, request, asked, self.name, n, n_in)
        keys = block_keys(ids, self._block) if self._block else ()
        given = self, out, n_out, keys
        response = SimResponse(*given) if fault is None else FaultyResponse(fault, *given)
        if isinstance(response, FaultyResponse) and response.fails_at_once():
            self._log(out, response.fault)
            return
        if not self.timing.add(response, request.arrived):
            self._log(out, "queue_full")
            raise Refused("UNAVAILABLE", "the queue is full", label="queue_full")
        self.active.add(response)
        connection.gone = response.client_gone
        out.begin()  # a stream's headers are sent at once
        self._clockwork.changed()

    def ended(self, response: SimResponse, aborted: bool = False) -> None:
        """Count a response that has ended, successfully or not, and log its ground truth."""
        if response not in self.active:  # a fault has ended it before
            return
        self.active.remove(response)
        stamps = response.out.stamps
        self._prompt_tokens += response.n_in
        self._generation_tokens += (
            0 if response.out.asked.api == "embedding" else response.made * response.out.asked.choices
        )
        self._ended["abort" if aborted else "length"] += 1
        if stamps:
            self._ttft.observe(stamps[0] - response.arrived)
            if not aborted:
                self._e2e.observe(stamps[-1] - response.arrived)
            if len(stamps) > 1:
                self._itl.observe_all(np.diff(np.frombuffer(stamps, np.int64)))
        if response.started >= 0:
            self._queue.observe(response.started - response.arrived)
        self._log(response.out, response.fault, response.cached, aborted)

    def loaded(self, loading: Loading) -> Loaded:
        """Return the simulator as a model of the KServe protocol."""
        declare(loading, INPUTS[:2])
        return Loaded(begin=self._begin, slots=0)

    def _begin(self, inputs: Tensors, first: Inference, emit: Emit, finish: Finish) -> Callable[[], None]:
        asked, jobs = request_of(inputs, DEFAULT_TOKENS), list[Job]()

        def begin(n_in: int, _: list[int]) -> None:
            self._check_length(asked, n_in)
            job = _KserveText(self, n_in, asked.n_out, emit, finish)
            if not self.timing.add(job, job.arrived):
                raise Refused("RESOURCE_EXHAUSTED", "the simulator's queue is full")
            jobs.append(job)
            self._clockwork.changed()

        def cancel() -> None:
            for job in jobs:
                self.loop.call_soon(self.drop, job)  # `emit` must not call back into the timing model
            finish(None)

        self._tokenize(asked, begin, lambda: first.is_over, finish)
        return cancel

    def _check_length(self, asked: TextRequest, n_in: int) -> None:
        """Raise Refused if a prompt of at least `n_in` tokens is empty, or too long with its response."""
        if not n_in and asked.api != "tokenize":
            raise invalid("the text must not be empty")
        kv, n_out = self.timing.kv, 0 if asked.api == "tokenize" else asked.n_out or CHAT_TOKENS
        if n_in + n_out > self.max_len:
            raise too_long(n_in, n_out, f"the model's maximum of {self.max_len} tokens")
        if kv is not None and n_in + n_out > kv.capacity * kv.block:
            raise too_long(n_in, n_out, "the size of the KV cache")

    def drop(self, job: Job) -> None:
        """Remove a request that ended early from the timing model."""
        if job.made < job.n_out and not job.gone:
            self.timing.drop(job, now())
            self._clockwork.changed()

    def _fault_of(self, request: Request, n: int) -> Fault | None:
        wanted = request.headers.get(b"x-sim-fault")
        if wanted is None or not self.settings.allow_fault_header:
            return pick(self._faults, n, self.settings.seed)
        try:
            return parse_fault(wanted.decode("latin-1"))
        except UserError as error:
            raise invalid(str(error)) from None

    def metrics(self) -> bytes:
        """Return the page in Prometheus' text format."""
        timing, kv = self.timing, self.timing.kv
        generated = self._generation_tokens + sum(job.made for job in self.active)
        usage = kv.held / kv.capacity if kv else 0
        gauge, counter, histogram, labels = "gauge", "counter", "histogram", {"model_name": self.name}
        table = (
            ("num_requests_running", gauge, "Number of requests in the running batch.", timing.n_running),
            ("num_requests_waiting", gauge, "Number of requests waiting in the queue.", len(timing.waiting)),
            ("kv_cache_usage_perc", gauge, "KV cache usage, from 0 (empty) to 1 (full).", usage),
            ("num_preemptions_total", counter, "Preemptions.", timing.preemptions),
            ("prompt_tokens_total", counter, "Number of prefill tokens processed.", self._prompt_tokens),
            ("generation_tokens_total", counter, "Number of generation tokens processed.", generated),
            ("prefix_cache_queries_total", counter, "Prefix cache queries, in tokens.", kv.queried if kv else 0),
            ("prefix_cache_hits_total", counter, "Prefix cache hits, in tokens.", kv.hit if kv else 0),
            ("time_to_first_token_seconds", histogram, "Time to first token in seconds.", self._ttft),
            ("inter_token_latency_seconds", histogram, "Time between chunks in seconds.", self._itl),
            ("e2e_request_latency_seconds", histogram, "End-to-end latency in seconds.", self._e2e),
            ("request_queue_time_seconds", histogram, "Time in the queue in seconds.", self._queue),
        )
        families: list[Family] = [(f"vllm:{name}", kind, text, [(labels, value)]) for name, kind, text, value in table]
        ended = [({**labels, "finished_reason": reason}, count) for reason, count in self._ended.items()]
        families.append(("vllm:request_success_total", counter, "Number of requests that ended.", ended))
        return prometheus.page(families)

    def close(self) -> None:
        """End the responses in progress, with their rows in the truth log."""
        for response in list(self.active):
            response.client_gone()
        self._clockwork.timer.close()
        self._threads.close()
        if self._truth is not None:
            self._truth.close()


class _KserveText(Job):
    """A response over KServe in progress."""

    def __init__(self, server: Simulator, n_in: int, n_out: int, emit: Emit, finish: Finish) -> None:
        super().__init__(server.number(), n_in, n_out, now())
        self._words, self._emit, self._finish = server.words, emit, finish

    def emit(self, count: int, due: int) -> None:
        self._emit(piece(text(self._words, self.n * 7 + self.made - count, count)))
        if self.made == self.n_out:
            self._finish(None)
