"""One response in progress: tokens from the timing model become bytes on a connection, timestamped just before each
send().

The common case (a stream without a fault) is `emit`: a timestamp, four pieces of bytes, one send(). Everything else
(non-streamed responses, usage in every chunk, faults halfway) goes through `_careful`. Halfway means that half of the
tokens, and at least one, have been written. The last content and everything after it go out in one send().
"""

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from inferometer.serve.http import answers
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.sim import frames, vectors
from inferometer.serve.sim.faults import Fault
from inferometer.serve.sim.jobs import NEVER, Job
from inferometer.serve.sim.openai import CompletionRequest
from inferometer.serve.sim.shaping import Slow, Split
from inferometer.serve.sim.truth import Row
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.sim.server import Simulator

IN_THE_MIDDLE = frozenset(("abort", "cut", "truncate", "error_frame", "garbage", "stall"))
_FAILED = "injected fault: request failed"


class SimResponse(Job):
    """One response in progress."""

    __slots__ = (
        "_at", "_careful", "_connection", "_done", "_fault", "_finish", "_held", "_http10", "_id", "_keep_alive", "_prefix", "_server",
        "_stamps", "_style", "_trip", "_write", "_written", "ask", "ended",
    )  # fmt: skip

    def __init__(
        self,
        server: "Simulator",
        connection: Connection,
        request: Request,
        ask: CompletionRequest,
        *,
        n: int,
        n_in: int,
        keys: tuple[int, ...] = (),
        fault: Fault | None = None,
    ) -> None:
        super().__init__(n, n_in, ask.n_out, request.arrived, keys)
        self.ask = ask
        self.ended = False
        self._server = server
        self._connection = connection
        self._id = request.headers.get(b"x-request-id")
        self._keep_alive = request.keep_alive
        self._http10 = request.http10
        self._fault = fault
        self._style = server.style(ask)
        self._prefix = self._style.prefix(n, server.created())
        self._at = n * 7  # its position in the words
        self._stamps = array("q")
        self._written = 0
        self._done = 0
        self._held: list[int] | None = None
        kind = fault.kind if fault is not None else ""
        self._trip = max(ask.n_out // 2, 1) if kind in IN_THE_MIDDLE else NEVER
        self._careful = not ask.stream or ask.running_usage or self._trip != NEVER
        self._write: Callable[[bytes], None] = connection.write
        self._finish: Callable[[bool], None] = connection.finish
        if fault is not None and kind in ("slow", "split"):
            shaped = Split(connection, fault.arg) if kind == "split" else Slow(connection, server.clockwork, fault.arg)
            self._write, self._finish = shaped.write, shaped.finish

    def begin(self) -> None:
        """Start the response once it is admitted or queued: a stream's headers are sent at once, with chat's empty role
        chunk."""
        self._connection.gone = self.client_gone
        if self.ask.stream:
            head = answers.stream_head(self._keep_alive, self._promise())
            self._write(head + self._style.opening(self._prefix, self.n, self.n_in))
            if self._write == self._connection.write:  # whole chunks
                self._connection.between = answers.NO_EVENT

    def emit(self, count: int, due: int) -> None:
        if self._careful:
            self._emit_carefully(count)
            return
        server = self._server
        text = server.words.text(self._at + self._written, count)
        self._written += count
        data = self._style.content(self._prefix, text)
        if self._written == self.n_out:
            data += self._style.finish(self._prefix, self._usage() if self.ask.usage else None)
        self._stamps.append(now())
        self._write(data)
        if self._written == self.n_out:
            self._end()

    def client_gone(self) -> None:
        """Stop, because the connection was lost."""
        if not self.ended:
            self._drop_from_model()
            self._end(aborted=True)

    # --- what is not the common case -------------------------------------------------------------------------------

    def _emit_carefully(self, count: int) -> None:
        if self.ended:
            return
        if self._held is not None:
            self._held.append(count)
        elif self.ask.stream:
            self._content(count)
        else:
            self._written += count
            if self._written == self.n_out:
                self._whole()

    def _content(self, count: int) -> None:
        """Send one content chunk and what follows it: a fault halfway, or the end."""
        text = self._server.words.text(self._at + self._written, count)
        self._written += count
        if self.ask.running_usage:
            data = self._style.content_with_usage(self._prefix, text, self._usage())
        else:
            data = self._style.content(self._prefix, text)
        complete, tripped = self._written == self.n_out, self._written >= self._trip
        if complete and not tripped:
            data += self._style.finish(self._prefix, self._usage() if self.ask.usage else None)
        self._stamps.append(now())
        self._write(data)
        if tripped:
            self._strike()
        elif complete:
            self._end()

    def _strike(self) -> None:
        """Carry out the fault halfway through a stream."""
        assert self._fault is not None
        self._trip = NEVER
        kind = self._fault.kind
        if kind == "stall":
            self._held = []
            self._server.clockwork.at(now() + self._fault.arg, self._resume)
        elif kind == "garbage":
            self._write(answers.chunk(b'data: {"id":"garbage","choices":[{"index":0,\n\n'))
            self._end_if_complete()
        elif kind == "truncate":
            self._write(answers.LAST_CHUNK)
            self._break_off(self._keep_alive)
        elif kind == "error_frame":
            self._write(self._style.error(_FAILED))
            self._break_off(self._keep_alive)
        elif kind == "cut":
            self._break_off(keep_alive=False)
        elif kind == "abort":
            self._break_off(keep_alive=False, reset=True)

    def _resume(self) -> None:
        if self.ended:
            return
        held, self._held = self._held or [], None
        if not self.ask.stream:
            self._send_whole(200, self._body())
            return
        for count in held:
            self._content(count)
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        """Send what was held back when a fault struck with the last content."""
        if self._written == self.n_out and not self.ended:
            self._write(self._style.finish(self._prefix, self._usage() if self.ask.usage else None))
            self._end()

    def _whole(self) -> None:
        """Send a non-streamed response, with the fault halfway if it has one."""
        body = self._body()
        kind = self._fault.kind if self._fault is not None and self._trip != NEVER else ""
        if kind == "stall":
            assert self._fault is not None
            self._held = []
            self._server.clockwork.at(now() + self._fault.arg, self._resume)
        elif kind in ("abort", "cut"):
            self._stamps.append(now())
            self._write(answers.response(200, body)[: -len(body) // 2])
            self._break_off(keep_alive=False, reset=kind == "abort")
        elif kind in ("truncate", "garbage"):
            self._send_whole(200, body[: len(body) // 2])
        elif kind == "error_frame":
            self._send_whole(200, frames.error_body(_FAILED, "server_error", "injected"))
        else:
            self._send_whole(200, body)

    def _body(self) -> bytes:
        if self.ask.dimensions:
            inputs = self.ask.texts or (" ".join(map(str, self.ask.ids)),)
            return vectors.body(self._server.settings.model, inputs, self.ask.dimensions, self.ask.packed, self.n_in)
        text = self._server.words.text(self._at, self.n_out)
        return self._style.whole(self._server.settings.model, self.n, self._server.created(), text, self._usage())

    def _send_whole(self, status: int, body: bytes) -> None:
        data = answers.response(status, body, keep_alive=self._keep_alive, promise=self._promise())
        self._stamps.append(now())
        self._write(data)
        self._end()

    def _usage(self) -> bytes:
        return self._style.usage(self.n_in, self._written, self.cached)

    def _promise(self) -> bool:
        """Whether to send an explicit keep-alive header, which HTTP/1.1 does not require."""
        return self._keep_alive and (self._http10 or (self._fault is not None and self._fault.kind == "close"))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _break_off(self, keep_alive: bool, reset: bool = False) -> None:
        """End halfway. The timing model is told in the next iteration of the loop, since it may be our caller."""
        self._careful = True
        self._server.loop.call_soon(self._drop_from_model)
        if reset:
            self._connection.gone = None
            self._server.loop.call_soon(self._connection.reset)
        self._end(aborted=True, keep_alive=keep_alive, finish=not reset)

    def _drop_from_model(self) -> None:
        if self.made < self.n_out and not self.gone:
            self._server.timing.drop(self, now())
            self._server.clockwork.changed()

    def _end(self, aborted: bool = False, keep_alive: bool | None = None, finish: bool = True) -> None:
        self.ended = True
        self._done = self._stamps[-1] if self._stamps and not aborted else now()
        if finish:
            if keep_alive is None:
                keep_alive = self._keep_alive and (self._fault is None or self._fault.kind != "close")
            self._finish(keep_alive)
        self._server.ended(self, self._stamps, aborted)

    def row(self, aborted: bool) -> Row:
        """Return its row of the truth log."""
        stamps = self._stamps
        return Row(
            id=self._id.decode("latin-1") if self._id is not None else None,
            n=self.n,
            arrived=self.arrived,
            first=stamps[0] if stamps else None,
            last=stamps[-1] if stamps else None,
            done=self._done,
            n_in=self.n_in,
            n_out=0 if self.ask.dimensions else self._written,
            cached=self.cached,
            chunks=stamps.tolist(),
            fault=self._fault.kind if self._fault is not None else None,
            aborted=aborted,
        )
