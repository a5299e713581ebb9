"""One response of the simulator: tokens from the timing model become the text of a response of the OpenAI endpoints.

The common case (a stream without a fault) is `emit`: a word, and one send() by the Stream. Faults in the middle of a
response are in FaultyResponse: half of the tokens, and at least one, have been written then. The last content and
everything after it go out in one send().
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from inferometer.serve.http import responses
from inferometer.serve.openai.requests import Refusal
from inferometer.serve.openai.response import Stream, Whole, embeddings_body, refusal_body
from inferometer.serve.sim.faults import Fault
from inferometer.serve.sim.prompts import vector
from inferometer.serve.sim.timing import NEVER, Job
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.sim.server import Simulator

IN_THE_MIDDLE = frozenset(("abort", "cut", "truncate", "error_frame", "garbage", "stall"))
FAILED = Refusal(500, "injected fault: request failed", "injected", "server_error")
_GARBAGE = responses.chunk(b'data: {"id":"garbage","choices":[{"index":0,\n\n')


class SimResponse(Job):
    """One response in progress."""

    stopped = None  # simulated texts have no stop texts

    def __init__(
        self, server: "Simulator", out: Stream | Whole, n_out: int, keys: tuple[int, ...], fault: Fault | None
    ) -> None:
        super().__init__(out.n, out.n_in, n_out, out.request.arrived, keys)
        self.out, self.fault, self.ended = out, fault, False
        self.is_embedding = out.asked.api == "embedding"
        self._server, self._words = server, server.words.words
        self._at = out.n * 7  # its position in the words
        self._text = out.text
        if fault is not None and fault.kind == "close":
            out.promise, out.keep_alive = out.keep_alive, False
        elif fault is not None and fault.kind == "split":
            out.write = partial(_write_split, out.connection.write, fault.arg)

    def begin(self) -> None:
        """Start the response once it is admitted or queued: a stream's headers are sent at once."""
        self.out.source, self.out.connection.gone = self, self.client_gone
        self.out.begin()

    def emit(self, count: int, due: int) -> None:
        if self.made == self.n_out:
            self._complete(count)
        elif count == 1:
            at, words = self._at, self._words
            self._at = at + 1
            self._text(words[at % len(words)], 1)
        else:
            self._text(self._next(count), count)

    def client_gone(self) -> None:
        """Stop, because the connection was lost or the server is being stopped."""
        if not self.ended:
            self._server.drop(self)
            self.out.finish()
            self._end(aborted=True)

    def _next(self, count: int) -> bytes:
        at = self._at
        self._at = at + count
        return self._server.words.text(at, count)

    def _complete(self, count: int = 0) -> None:
        """Send the last `count` tokens and everything after them."""
        out = self.out
        if self.is_embedding and isinstance(out, Whole):
            out.send(self._body(out))
        else:
            out.end("length", self._next(count) if count else b"", count)
        self._end()

    def _body(self, out: Whole) -> bytes:
        """Return the body of a non-streamed response."""
        if not self.is_embedding:
            return out.body("length")
        made = [vector(part, out.asked.dimensions) for part in out.asked.parts]
        return embeddings_body(self._server.name, made, out.asked.packed, self.n_in)

    def _end(self, aborted: bool = False) -> None:
        self.ended = True
        self._server.ended(self, aborted)
        self.out.source = None  # a cycle would be garbage until the next collection, which delays tokens


class FaultyResponse(SimResponse):
    """One response in progress, with a fault in the middle."""

    _trip = 1
    """Tokens written when the fault strikes."""
    _held: list[int] | None = None
    """Tokens that were due during a stall."""

    def begin(self) -> None:
        self._trip = max(self.n_out // 2, 1)
        super().begin()

    def emit(self, count: int, due: int) -> None:
        if self.ended:
            return
        if self._held is not None:
            self._held.append(count)
        elif isinstance(self.out, Stream):
            self._send(count)
        else:
            if not self.is_embedding:
                self._text(self._next(count), count)
            if self.made == self.n_out:
                self._strike()

    def _send(self, count: int) -> None:
        """Send one content chunk and what follows it: the fault, or the end."""
        written = self.out.written + count
        if self._trip > written == self.n_out:
            self._complete(count)
            return
        self._text(self._next(count), count)
        if written >= self._trip:
            self._trip = NEVER
            self._strike()

    def _strike(self) -> None:
        """Carry out the fault: halfway through a stream, or with the body of another response."""
        assert self.fault is not None
        kind, out = self.fault.kind, self.out
        body = self._body(out) if isinstance(out, Whole) else b""
        if kind == "stall":
            self._held = []
            self._server.alarms.at(now() + self.fault.arg, self._resume)
        elif kind in ("abort", "cut"):
            if body:
                out.stamps.append(now())
                out.write((responses.head(200, len(body)) + body)[: -len(body) // 2])
            if kind == "cut":
                out.connection.finish(False)
            else:
                out.connection.gone = None
                self._server.loop.call_soon(out.connection.reset)
            self._break_off()
        elif isinstance(out, Whole):
            out.send(refusal_body(out.request, FAILED) if kind == "error_frame" else body[: len(body) // 2])
            self._end()
        elif kind == "garbage":
            out.write(_GARBAGE)
            self._end_if_complete()
        elif kind == "error_frame":
            out.fail(FAILED)
            self._break_off()
        else:
            out.write(responses.LAST_CHUNK)
            out.finish()
            self._break_off()

    def _resume(self) -> None:
        if self.ended:
            return
        held, self._held = self._held or [], None
        for count in held:
            self._send(count)
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        """Send what was held back when a fault struck with the last content."""
        if not self.ended and (self.out.written == self.n_out or self.is_embedding):
            self._complete()

    def _break_off(self) -> None:
        """End halfway. The timing model learns it in the next iteration of the loop, since it may be our caller."""
        self._server.loop.call_soon(self._server.drop, self)
        self._end(aborted=True)


def _write_split(write: Callable[[bytes], None], size: int, data: bytes) -> None:
    """Send in segments of at most `size` bytes."""
    for at in range(0, len(data), size):
        write(data[at : at + size])
