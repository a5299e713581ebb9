"""One response of the simulator: tokens from the timing model become the text of a response of the OpenAI endpoints.

The common case (a stream without a fault) is `emit`: a word, and one send() by the Stream. The last content and
everything after it go out in one send().
"""

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from inferometer.serve.http import responses
from inferometer.serve.models.types import Refused
from inferometer.serve.openai.response import Response, embeddings_body
from inferometer.serve.sim.faults import Fault
from inferometer.serve.sim.prompts import text, vector
from inferometer.serve.sim.timing import Job
from inferometer.timing.clock import now
from inferometer.units import NS

if TYPE_CHECKING:
    from inferometer.serve.sim.server import Simulator

_ENDING = ("abort", "cut", "truncate", "error_frame")
_FAILED = Refused("INTERNAL", "injected fault: request failed", label="injected")
_GARBAGE = responses.chunk(b'data: {"id":"garbage","choices":[{"index":0,\n\n')
_HTML = b"<!doctype html><title>Welcome</title><h1>It works!</h1>"


class SimResponse(Job):
    """One response in progress."""

    fault: str | None = None  # its kind

    def __init__(self, server: "Simulator", out: Response, n_out: int, keys: tuple[int, ...]) -> None:
        super().__init__(out.n, out.n_in, n_out, out.request.arrived, keys)
        self.out, self._text, self._server, self._words = out, out.text, server, server.words
        self._first = out.n * 7  # the position of its first word

    def emit(self, count: int, due: int) -> None:
        if self.made == self.n_out:
            self._complete(count)
        elif count == 1:
            words = self._words
            self._text(words[(self._first + self.out.written) % len(words)], 1)
        else:
            self._text(self._next(count), count)

    def client_gone(self) -> None:
        """Stop, because the connection was lost or the server is being stopped."""
        self._server.drop(self)
        self.out.finish()
        self._server.ended(self, aborted=True)

    def _next(self, count: int) -> bytes:
        return text(self._words, self._first + self.out.written, count)

    def _complete(self, count: int) -> None:
        """Send the last `count` tokens and everything after them."""
        out, asked = self.out, self.out.asked
        out.started, out.cached = self.started, self.cached
        if asked.api == "embedding":
            vectors = [vector(part, asked.fields.dimensions) for part in asked.parts]
            out.send(embeddings_body(self._server.name, vectors, asked.fields.encoding_format, self.n_in))
        else:
            out.end("length", self._next(count), count)
        self._server.ended(self)


class FaultyResponse(SimResponse):
    """One response in progress, with a fault: instead of it, halfway through a stream, or in the body."""

    _has_struck = False
    _held: list[int] | None = None  # tokens that were due during a stall

    def __init__(self, fault: Fault, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fault, self._arg, out = fault.kind, fault.arg, self.out
        if fault.kind == "close":
            out.keep_alive = False
        elif fault.kind == "split":
            out.write = self._write_split
        elif not out.asked.stream and fault.kind in (*_ENDING, "garbage"):
            self._has_struck, out.send = True, partial(self._spoil, out.send)  # type: ignore[method-assign]

    def fails_at_once(self) -> bool:
        """Carry out a fault that comes before any token; return False for other faults."""
        out, kind = self.out, self.fault
        reply = partial(responses.reply, out.connection, out.request, 200)
        if kind == "reset":
            out.connection.reset()
        elif kind == "reject":
            why = Refused("INTERNAL", "injected fault: request rejected", status=self._arg, label="injected")
            responses.refuse(out.connection, out.request, why)
        elif kind == "error_body":
            reply(self._error_body())
        elif kind == "html":
            reply(_HTML, content_type=b"text/html; charset=utf-8")
        elif kind == "empty" and out.asked.api != "embedding":
            out.begin()
            out.end("length")
            del out.stamps[:]  # an empty body is no content
        else:
            if kind == "freeze":  # no socket is read and no token is written
                time.sleep(self._arg / NS)
            return False
        return True

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
        kind, out = self.fault, self.out
        if kind == "stall":
            self._held = [count]
            self._server.loop.call_later(self._arg / NS, self._resume)
            return
        if kind == "error_frame":
            out.fail(_FAILED)
        elif kind == "truncate":
            out.write(responses.LAST_CHUNK)
            out.finish()
        elif kind == "garbage":
            out.write(_GARBAGE)
        if kind in _ENDING:
            self._break_off()
        else:
            super().emit(count, 0)

    def _resume(self) -> None:
        """Send what was due during a stall."""
        held, self._held = self._held or [], None
        if self in self._server.active:
            for count in held[:-1]:
                self._text(self._next(count), count)
            super().emit(held[-1], 0)

    def _spoil(self, send: Any, body: bytes) -> None:
        """Carry out the fault with the body of a response that is not streamed."""
        if self.fault in ("abort", "cut"):
            self.out.stamps.append(now())
            self.out.write((responses.head(200, len(body)) + body)[: -len(body) // 2])
            self._break_off()
        else:
            send(self._error_body() if self.fault == "error_frame" else body[: len(body) // 2])

    def _break_off(self) -> None:
        """End halfway. The timing model learns it in the next iteration of the loop, since it may be our caller."""
        connection, server = self.out.connection, self._server
        if self.fault == "cut":
            connection.finish(False)
        elif self.fault == "abort":
            connection.gone = None
            server.loop.call_soon(connection.reset)
        self._held = []  # for what is emitted until then
        server.loop.call_soon(server.drop, self)
        server.ended(self, aborted=True)

    def _write_split(self, data: bytes) -> None:
        """Send in segments."""
        for at in range(0, len(data), self._arg):
            self.out.connection.write(data[at : at + self._arg])

    def _error_body(self) -> bytes:
        return msgspec.json.encode(responses.error(self.out.request.path, _FAILED))
