"""The simulator: its routes, and the life of a request from arrival to response."""

import asyncio
import itertools
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial

from inferometer.errors import UserError
from inferometer.serve.http import answers, token
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.sim import frames, message_frames, messages, openai
from inferometer.serve.sim.answer import SimResponse
from inferometer.serve.sim.batch import BatchTiming
from inferometer.serve.sim.clockwork import Clockwork
from inferometer.serve.sim.faults import Fault, Faults, parse_fault
from inferometer.serve.sim.fixed import FixedTiming
from inferometer.serve.sim.kv import block_keys
from inferometer.serve.sim.metrics import Counters
from inferometer.serve.sim.openai import CompletionRequest, Refusal
from inferometer.serve.sim.prompts import Prompts, Words
from inferometer.serve.sim.settings import Batch, Fixed, Sim
from inferometer.serve.sim.truth import Row, TruthLog
from inferometer.timing.clock import now

_FLUSH_NS = 250_000_000
_HTML = b"<!doctype html><title>Welcome</title><h1>It works!</h1>"
_PARSERS: dict[bytes, Callable[[bytes, Sequence[str]], CompletionRequest]] = {
    b"/v1/completions": openai.completion,
    b"/v1/chat/completions": openai.chat,
    b"/v1/embeddings": openai.embeddings,
    message_frames.PATH: messages.message,
}


class Simulator:
    """All state of one simulator."""

    def __init__(self, settings: Sim, loop: asyncio.AbstractEventLoop, number: Callable[[], int] | None = None) -> None:
        """`number` returns the next request's ordinal if several processes count together."""
        self.settings = settings
        self.loop = loop
        self.timing = _timing(settings)
        self.words = Words()
        self._styles = {chat: frames.Style(settings.model, chat) for chat in (False, True)}
        self._message_style = message_frames.MessageStyle(settings.model)
        self.counters = Counters(settings.model, self.timing)
        self._prompts = Prompts()
        self._faults = Faults(settings.faults, settings.seed)
        self._truth = TruthLog(settings.truth, append=number is not None) if settings.truth is not None else None
        self._active: set[SimResponse] = set()
        self._n = 0
        self._next = number or itertools.count(1).__next__
        self.clockwork = Clockwork(loop, self.timing)
        if self._truth is not None:
            self._flush_truth()

    # --- a request ---------------------------------------------------------------------------------------------------

    def route(self, connection: Connection, request: Request) -> None:
        try:
            parse = _PARSERS.get(request.path)
            if request.path == b"/v1/models":
                self._list_models(connection, request)
            elif request.path == b"/tokenize":
                self._tokenize(connection, request)
            elif parse is None:
                raise Refusal(404, f"no such path: {request.path.decode('latin-1')}", "not_found")
            elif request.method != b"POST":
                raise _not_allowed(request, b"POST")
            else:
                self._generate(connection, request, parse(bytes(request.body), self.settings.names))
        except Refusal as refusal:
            self._refuse(connection, request, refusal)

    def _generate(self, connection: Connection, request: Request, ask: CompletionRequest) -> None:
        if ask.stream and request.http10:
            raise Refusal(400, "streaming requires HTTP/1.1", "http_version")
        n_in = self.length(ask)
        self.number()
        if self._n == 1:
            for after, ns in self._faults.freezes():
                self.clockwork.at(request.arrived + after, partial(self._freeze, ns))
        fault = self._fault_of(request)
        if fault is not None and self._fails_at_once(connection, request, ask, fault, n_in):
            return
        timing = self.settings.timing
        keys: tuple[int, ...] = ()
        if isinstance(timing, Batch) and timing.prefix_cache:
            keys = block_keys(self._prompts.ids(ask), timing.block)
        answer = SimResponse(self, connection, request, ask, n=self._n, n_in=n_in, keys=keys, fault=fault)
        if not self.timing.add(answer, request.arrived):
            self._log_unanswered(request, n_in, "queue_full")
            raise Refusal(503, "the queue is full", "queue_full", "overloaded_error")
        self._active.add(answer)
        answer.begin()
        self.clockwork.changed()

    def number(self) -> int:
        """Return the next request's ordinal."""
        self._n = self._next()
        return self._n

    def style(self, ask: CompletionRequest) -> frames.Style | message_frames.MessageStyle:
        """Return what forms the bytes of the response."""
        return self._message_style if ask.message else self._styles[ask.chat]

    def length(self, ask: CompletionRequest) -> int:
        """Return the prompt's tokens; raises Refusal if prompt and response are too long."""
        n_in = self._prompts.count(ask)
        self._check_length(n_in, ask.n_out)
        return n_in

    def _check_length(self, n_in: int, n_out: int) -> None:
        if n_in + n_out > self.settings.max_len:
            message = f"{n_in} prompt tokens plus max_tokens {n_out} exceed the model's maximum of {self.settings.max_len} tokens"
            raise Refusal(400, message, "context_length_exceeded")
        if isinstance(self.timing, BatchTiming) and not self.timing.kv.fits(n_in + n_out):
            message = f"{n_in} prompt tokens plus max_tokens {n_out} exceed the size of the KV cache"
            raise Refusal(400, message, "context_length_exceeded")

    def ended(self, answer: SimResponse, stamps: "array[int]", aborted: bool) -> None:
        """Count a response that has ended, successfully or not, and log its ground truth."""
        self._active.discard(answer)
        counters = self.counters
        counters.prompt_tokens += answer.n_in
        counters.generation_tokens += 0 if answer.ask.dimensions else answer.made
        counters.ended["abort" if aborted else "length"] += 1
        if stamps:
            counters.ttft.observe(stamps[0] - answer.arrived)
            if not aborted:
                counters.e2e.observe(stamps[-1] - answer.arrived)
            if len(stamps) > 1:
                counters.itl.observe_gaps(stamps)
        if answer.started >= 0:
            counters.queue.observe(answer.started - answer.arrived)
        if self._truth is not None:
            self._truth.add(answer.row(aborted))

    # --- faults ------------------------------------------------------------------------------------------------------

    def _fault_of(self, request: Request) -> Fault | None:
        asked = request.headers.get(b"x-sim-fault")
        if asked is not None and self.settings.allow_fault_header:
            try:
                return parse_fault(asked.decode("latin-1"))
            except UserError as error:
                raise Refusal(400, str(error), "invalid_fault") from None
        return self._faults.pick(self._n, request.arrived)

    def _fails_at_once(
        self, connection: Connection, request: Request, ask: CompletionRequest, fault: Fault, n_in: int
    ) -> bool:
        """Carry out a fault that comes before any token; return False for other faults."""
        if fault.kind == "freeze":
            self._freeze(fault.arg)
            return False
        if fault.kind == "reset":
            connection.reset()
        elif fault.kind == "reject":
            self._log_unanswered(request, n_in, fault.kind)
            raise Refusal(fault.arg, "injected fault: request rejected", "injected", "server_error")
        elif fault.kind == "error_body":
            body = frames.error_body("injected fault: request failed", "server_error", "injected")
            self._respond(connection, request, 200, body)
        elif fault.kind == "empty" and not ask.dimensions:
            self._respond_without_tokens(connection, request, ask, n_in)
        elif fault.kind == "html":
            self._respond(connection, request, 200, _HTML, content_type=b"text/html; charset=utf-8")
        else:
            return False
        self._log_unanswered(request, n_in, fault.kind)
        return True

    def _respond_without_tokens(
        self, connection: Connection, request: Request, ask: CompletionRequest, n_in: int
    ) -> None:
        """Send what surrounds the tokens of a response, without any."""
        style = self.style(ask)
        usage = style.usage(n_in, 0, 0)
        if not ask.stream:
            self._respond(
                connection, request, 200, style.whole(self.settings.model, self._n, self.created(), b"", usage)
            )
            return
        prefix = style.prefix(self._n, self.created())
        opening = style.opening(prefix, self._n, n_in)
        head = answers.stream_head(request.keep_alive, False)
        connection.write(head + opening + style.finish(prefix, usage if ask.usage else None))
        connection.finish(request.keep_alive)

    def _freeze(self, ns: int) -> None:
        """Freeze the whole server: no socket is read and no token is written."""
        time.sleep(ns / 1e9)
        self.timing.pause(ns)

    def _log_unanswered(self, request: Request, n_in: int, fault: str) -> None:
        if self._truth is not None:
            name = request.headers.get(b"x-request-id")
            self._truth.add(
                Row(
                    id=name.decode("latin-1") if name is not None else None,
                    n=self._n, arrived=request.arrived, first=None, last=None, done=now(), n_in=n_in, n_out=0, cached=0,
                    chunks=[], fault=fault, aborted=False,
                )
            )  # fmt: skip

    # --- pages -------------------------------------------------------------------------------------------------------

    def metrics(self) -> bytes:
        """Return the page in Prometheus' text format."""
        return self.counters.render(self._active)

    def _list_models(self, connection: Connection, request: Request) -> None:
        if request.method not in (b"GET", b"HEAD"):
            raise _not_allowed(request, b"GET, HEAD")
        models = [
            {
                "id": name,
                "object": "model",
                "created": self.created(),
                "owned_by": "inferometer",
                "max_model_len": self.settings.max_len,
            }
            | ({"parent": self.settings.model} if name != self.settings.model else {})
            for name in self.settings.names
        ]
        self._respond(connection, request, 200, frames.json_bytes({"object": "list", "data": models}))

    def _tokenize(self, connection: Connection, request: Request) -> None:
        if request.method != b"POST":
            raise _not_allowed(request, b"POST")
        tokens = self._prompts.ids(openai.tokenized(bytes(request.body), self.settings.names))
        content = {"count": len(tokens), "max_model_len": self.settings.max_len, "tokens": tokens}
        self._respond(connection, request, 200, frames.json_bytes(content))

    def _refuse(self, connection: Connection, request: Request, refusal: Refusal) -> None:
        body = error_body(request, refusal)
        self._respond(connection, request, refusal.status, body, extra=refusal.headers)

    def _respond(
        self,
        connection: Connection,
        request: Request,
        status: int,
        body: bytes,
        content_type: bytes = b"application/json",
        extra: bytes = b"",
    ) -> None:
        keep = request.keep_alive
        connection.write(
            answers.response(
                status,
                body,
                keep_alive=keep,
                content_type=content_type,
                extra=extra,
                promise=keep and request.http10,
                with_body=request.method != b"HEAD",
            )
        )
        connection.finish(keep)

    # --- the server's own ------------------------------------------------------------------------------------------

    def created(self) -> int:
        return int(time.time())

    def close(self) -> None:
        """End the responses in progress, with their rows in the truth log."""
        for answer in list(self._active):
            answer.client_gone()
        self.clockwork.close()
        if self._truth is not None:
            self._truth.close()

    def _flush_truth(self) -> None:
        assert self._truth is not None
        self._truth.flush()
        self.clockwork.at(now() + _FLUSH_NS, self._flush_truth)


def unauthorised(why: str) -> Refusal:
    headers = token.CHALLENGE
    return Refusal(401, why, "invalid_api_key", "authentication_error", headers)


def error_body(request: Request, refusal: Refusal) -> bytes:
    """Return the body of an error response, in the format of the path's API."""
    if request.path == message_frames.PATH:
        return message_frames.error_body(refusal.message, refusal.status)
    return frames.error_body(refusal.message, refusal.kind, refusal.code)


def _not_allowed(request: Request, allowed: bytes) -> Refusal:
    message = f"method {request.method.decode('latin-1')} is not allowed for {request.path.decode('latin-1')}"
    return Refusal(405, message, "method_not_allowed", headers=b"Allow: %b\r\n" % allowed)


def _timing(settings: Sim) -> FixedTiming | BatchTiming:
    spec, seed, per_chunk, queue = settings.timing, settings.seed, settings.tokens_per_chunk, settings.max_queue
    if isinstance(spec, Fixed):
        return FixedTiming(spec, seed=seed, tokens_per_chunk=per_chunk, max_queue=queue)
    return BatchTiming(spec, seed=seed, tokens_per_chunk=per_chunk, max_queue=queue)
