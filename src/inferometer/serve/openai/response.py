"""One response in progress: pieces of text become bytes on a connection, stamped just before each send().

A Stream sends each piece at once, a Whole collects them into one body. Both have the same methods: `begin` once the
request is accepted, `text` for each piece, then `end` or `fail`. Texts are JSON-escaped.
"""

import time
from array import array
from collections.abc import Callable

from inferometer.serve.http import answers
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.reply import reply
from inferometer.serve.openai.frames import MESSAGES, Frames, error_body, message_error_body
from inferometer.serve.openai.requests import Refusal, TextRequest
from inferometer.timing.clock import now


class Response:
    """What streams and whole responses have in common."""

    __slots__ = (
        "_frames", "_pieces", "_prefix", "_running_usage", "_sizes", "_stamp", "_tail", "_usage", "cached", "connection", "finish",
        "keep_alive", "n", "n_in", "promise", "request", "stamps", "started", "stopped", "write", "written",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, request: Request, asked: TextRequest, frames: Frames, n: int, n_in: int
    ) -> None:
        self.connection, self.request, self.n, self.n_in = connection, request, n, n_in
        self.cached = 0
        """Prompt tokens found in a prefix cache."""
        self.written = 0
        """Tokens of the text so far."""
        self.started = -1
        """When the model began to compute, in monotonic ns; -1: not known."""
        self.stopped: str | None = None
        """The stop text that ended it."""
        self.stamps = array("q")
        """When each content chunk, or the body, was sent, in monotonic ns."""
        self._stamp = self.stamps.append
        self.keep_alive = request.keep_alive
        """Whether the connection stays open after the response."""
        self.promise = request.keep_alive and request.http10
        """Whether to send an explicit keep-alive header, which HTTP/1.1 does not require."""
        self.write: Callable[[bytes], None] = connection.write
        self.finish: Callable[[bool], None] = connection.finish
        self._frames, self._prefix = frames, b""
        self._usage, self._running_usage = asked.usage, asked.running_usage

    def usage(self) -> bytes:
        return self._frames.usage(self.n_in, self.written, self.cached)


class Stream(Response):
    """A response as server-sent events."""

    __slots__ = ()

    def begin(self) -> None:
        """Send the headers, with what precedes the text."""
        frames = self._frames
        self._prefix = frames.prefix(self.n, int(time.time()))
        self._sizes, self._tail = () if self._running_usage else frames.sizes, frames.tail
        head = answers.stream_head(self.request.keep_alive, self.promise)
        self.write(head + frames.opening(self._prefix, self.n, self.n_in))

    def text(self, text: bytes, count: int) -> None:
        """Send the text of `count` tokens."""
        self.written += count
        try:
            data = self._sizes[len(text)] + self._prefix + text + self._tail
        except IndexError:  # usage in every chunk, or a long text
            data = self._content(text)
        self._stamp(now())
        self.write(data)

    def end(self, reason: str, text: bytes = b"", count: int = 0) -> None:
        """Complete the response, with the text of the last `count` tokens, if there is some, in the same send()."""
        self.written += count
        data = self._content(text) if text else b""
        data += self._frames.finish(self._prefix, reason, self.usage() if self._usage else None, self.stopped)
        if text:
            self._stamp(now())
        self.write(data)
        self.finish(self.keep_alive)

    def fail(self, refusal: Refusal) -> None:
        """End the response with an error event, or send an error response if it has not begun."""
        if not self._prefix:
            refuse(self.connection, self.request, refusal)
            return
        self.write(self._frames.error(refusal.message, refusal.kind, refusal.code, refusal.status))
        self.finish(self.keep_alive)

    def _content(self, text: bytes) -> bytes:
        if self._running_usage:
            return self._frames.content_with_usage(self._prefix, text, self.usage())
        return answers.chunk(self._prefix + text + self._tail[:-2])


class Whole(Response):
    """A response as one body."""

    __slots__ = ()

    def begin(self) -> None:
        """Send nothing yet."""
        self._pieces: list[bytes] = []

    def text(self, text: bytes, count: int) -> None:
        """Add the text of `count` tokens."""
        self.written += count
        self._pieces.append(text)

    def body(self, reason: str) -> bytes:
        """Return the body with the text so far."""
        text = b"".join(self._pieces)
        return self._frames.whole(self.n, int(time.time()), text, reason, self.usage(), self.stopped)

    def end(self, reason: str, text: bytes = b"", count: int = 0) -> None:
        """Send the body, with the text of the last `count` tokens."""
        self.text(text, count)
        self.send(self.body(reason))

    def send(self, body: bytes) -> None:
        """Send a body with status 200."""
        sent = now()
        self._stamp(sent)
        timing = server_timing(self.request.arrived, self.started, sent)
        keep = self.request.keep_alive
        self.write(answers.head(200, len(body), keep_alive=keep, extra=timing, promise=self.promise) + body)
        self.finish(self.keep_alive)

    def fail(self, refusal: Refusal) -> None:
        """Send an error response instead."""
        refuse(self.connection, self.request, refusal)


def server_timing(arrived: int, started: int, sent: int) -> bytes:
    """Return the header Server-Timing. All times are monotonic ns; `started` is -1 if it is not known."""
    total = (sent - arrived) / 1e6
    if started < 0:
        return b"Server-Timing: total;dur=%.6f\r\n" % total
    queue, compute = (started - arrived) / 1e6, (sent - started) / 1e6
    return b"Server-Timing: queue;dur=%.6f, compute;dur=%.6f, total;dur=%.6f\r\n" % (max(queue, 0), compute, total)


def refuse(connection: Connection, request: Request, refusal: Refusal) -> None:
    """Send an error response in the format of the path's API."""
    reply(connection, request, refusal.status, refusal_body(request, refusal), extra=refusal.headers)


def refusal_body(request: Request, refusal: Refusal) -> bytes:
    """Return the body of an error response, in the format of the path's API."""
    if request.path == MESSAGES:
        return message_error_body(refusal.message, refusal.status)
    return error_body(refusal.message, refusal.kind, refusal.code)
