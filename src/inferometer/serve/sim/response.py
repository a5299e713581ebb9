"""One response of the simulator: tokens from the timing model become the text of a response of the OpenAI endpoints.

The common case (a stream without a fault) is `emit`: a word, and one send() by the Stream. The last content and
everything after it go out in one send().
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from inferometer.serve.http import responses
from inferometer.serve.models.types import Refused
from inferometer.serve.openai.response import Stream, Whole, embeddings_body
from inferometer.serve.sim.faults import Fault
from inferometer.serve.sim.prompts import text, vector
from inferometer.serve.sim.timing import Job
from inferometer.timing.clock import now
from inferometer.units import NS

if TYPE_CHECKING:
    from inferometer.serve.sim.server import Simulator

_ENDING = ("abort", "cut", "truncate", "error_frame")
_GARBAGE = responses.chunk(b'data: {"id":"garbage","choices":[{"index":0,\n\n')


class SimResponse(Job):
    """One response in progress."""

    fault: Fault | None = None

    def __init__(self, server: "Simulator", out: Stream | Whole, n_out: int, keys: tuple[int, ...]) -> None:
        super().__init__(out.n, out.n_in, n_out, out.request.arrived, keys)
        self.out, self.ended = out, False
        self.is_embedding = out.asked.api == "embedding"
        self._server, self._words = server, server.words
        self._at = out.n * 7  # its position in the words
        self._text = out.text

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
        self._server.drop(self)
        self.out.finish()
        self._end(aborted=True)

    def _next(self, count: int) -> bytes:
        at = self._at
        self._at = at + count
        return text(self._words, at, count)

    def _complete(self, count: int) -> None:
        """Send the last `count` tokens and everything after them."""
        out, asked = self.out, self.out.asked
        out.started, out.cached = self.started, self.cached
        if self.is_embedding:
            vectors = [vector(part, asked.fields.dimensions) for part in asked.parts]
            out.send(embeddings_body(self._server.name, vectors, asked.fields.encoding_format, self.n_in))
        else:
            out.end("length", self._next(count), count)
        self._end()

    def _end(self, aborted: bool = False) -> None:
        if not self.ended:  # a fault may have ended it
            self.ended = True
            self._server.ended(self, aborted)


class FaultyResponse(SimResponse):
    """One response in progress, with a fault: halfway through a stream, or with the body of another response."""

    _has_struck = False
    _held: list[int] | None = None
    """Tokens that were due during a stall."""

    def __init__(self, fault: Fault, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fault, self._kind, self._arg, out = fault, fault.kind, fault.arg, self.out
        if fault.kind == "close":
            out.keep_alive = False
        elif fault.kind == "split":
            out.write = partial(self._write_split, out.connection.write)
        elif isinstance(out, Whole) and fault.kind in (*_ENDING, "garbage"):
            self._has_struck, out.send = True, partial(self._spoil, out.send)  # type: ignore[method-assign]

    def emit(self, count: int, due: int) -> None:
        if self._held is not None:
            self._held.append(count)
        elif self._has_struck or self.made <= self.n_out // 2:
            super().emit(count, due)
        else:
            self._has_struck = True
            self._strike(count)

    def _strike(self, count: int) -> None:
        """Carry out the fault, before the next `count` tokens of a stream."""
        if self._kind == "stall":
            self._held = [count]
            self._server.loop.call_later(self._arg / NS, self._resume)
        elif self._kind in _ENDING:
            if self._kind == "error_frame":
                self.out.fail(failed())
            elif self._kind == "truncate":
                self.out.write(responses.LAST_CHUNK)
                self.out.finish()
            self._break_off()
        else:
            if self._kind == "garbage":
                self.out.write(_GARBAGE)
            super().emit(count, 0)

    def _resume(self) -> None:
        """Send what was due during a stall."""
        held, self._held = self._held or [], None
        if not self.ended:
            for count in held[:-1]:
                self._text(self._next(count), count)
            super().emit(held[-1], 0)

    def _spoil(self, send: Any, body: bytes) -> None:
        """Carry out the fault with the body of a response that is not streamed."""
        if self._kind in ("abort", "cut"):
            self.out.stamps.append(now())
            self.out.write((responses.head(200, len(body)) + body)[: -len(body) // 2])
            self._break_off()
        else:
            send(error_body(self.out) if self._kind == "error_frame" else body[: len(body) // 2])

    def _break_off(self) -> None:
        """End halfway. The timing model learns it in the next iteration of the loop, since it may be our caller."""
        connection, loop = self.out.connection, self._server.loop
        if self._kind == "cut":
            connection.finish(False)
        elif self._kind == "abort":
            connection.gone = None
            loop.call_soon(connection.reset)
        self._held = []  # for what is emitted until then
        loop.call_soon(self._server.drop, self)
        self._end(aborted=True)

    def _write_split(self, write: Any, data: bytes) -> None:
        """Send in segments."""
        for at in range(0, len(data), self._arg):
            write(data[at : at + self._arg])


def failed() -> Refused:
    return Refused("INTERNAL", "injected fault: request failed", label="injected")


def error_body(out: Stream | Whole) -> bytes:
    return msgspec.json.encode(responses.error(out.request.path, failed()))
