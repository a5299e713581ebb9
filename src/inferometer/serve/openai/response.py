"""One response in progress: pieces of text become bytes on a connection, stamped just before each send().

A Stream sends each piece at once, a Whole collects them into one body. Both have the same methods: `begin` once the
request is accepted, `text` for each piece, then `end` or `fail`. Texts are JSON-escaped.
"""

from array import array

from inferometer.serve.http import responses
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.responses import reply
from inferometer.serve.openai.frames import (
    FORMATS,
    MESSAGES,
    Completion,
    Json,
    around,
    events,
    json_bytes,
    quoted,
)  # fmt: skip
from inferometer.serve.openai.requests import Refusal, TextRequest
from inferometer.timing.clock import now

_ERROR_TYPES = {
    401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error", 529: "overloaded_error",
}  # fmt: skip
"""Error types of the Messages API by status."""


class Response:
    """What streams and whole responses have in common."""

    def __init__(
        self, connection: Connection, request: Request, asked: TextRequest, model: str, n: int, n_in: int = 0
    ) -> None:
        self.connection, self.request, self.asked, self.n, self.n_in = connection, request, asked, n, n_in
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
        self.keep_alive = request.keep_alive
        """Whether the connection stays open after the response."""
        self.promise = False
        """Whether to send an explicit keep-alive header, which HTTP/1.1 does not require."""
        self.write = connection.write
        self._format = FORMATS.get(asked.api, Completion)(model, n)
        self._has_begun = False

    def begin(self) -> None:
        self._has_begun = True

    def usage(self) -> Json:
        return self._format.usage(self.n_in, self.written, self.cached)

    def finish(self) -> None:
        """Continue with the next request of the connection, or close it."""
        self.connection.finish(self.keep_alive)


class Stream(Response):
    """A response as server-sent events."""

    def begin(self) -> None:
        """Send the headers, with what precedes the text."""
        super().begin()
        self._before, self._after, self._sizes = around(self._format)
        if self.asked.running_usage:
            self._sizes = []  # no chunk is like the others
        head = responses.stream_head(self.request.keep_alive, self.promise)
        self.write(head + events(*self._format.opening(self.n_in)))

    def text(self, text: bytes, count: int) -> None:
        """Send the text of `count` tokens."""
        self.written += count
        try:
            data = self._sizes[len(text)] + self._before + text + self._after
        except IndexError:  # usage in every chunk, or a long text
            data = self._content(text)
        self.stamps.append(now())
        self.write(data)

    def end(self, reason: str, text: bytes = b"", count: int = 0) -> None:
        """Complete the response, with the text of the last `count` tokens, if there is some, in the same send()."""
        self.written += count
        data = self._content(text) if text else b""
        closing = self._format.closing(reason, self.usage() if self.asked.usage else None, self.stopped)
        data += events(*closing) + self._format.done
        if text:
            self.stamps.append(now())
        self.write(data)
        self.finish()

    def fail(self, refusal: Refusal) -> None:
        """End the response with an error event, or send an error response if it has not begun."""
        if self._has_begun:
            self.write(events(error(self.request, refusal)) + self._format.done)
            self.finish()
        else:
            refuse(self.connection, self.request, refusal)

    def _content(self, text: bytes) -> bytes:
        return events(self._format.content(quoted(text), self.usage() if self.asked.running_usage else None))


class Whole(Response):
    """A response as one body."""

    def begin(self) -> None:
        super().begin()
        self._pieces: list[bytes] = []

    def text(self, text: bytes, count: int) -> None:
        """Add the text of `count` tokens."""
        self.written += count
        self._pieces.append(text)

    def body(self, reason: str) -> bytes:
        """Return the body with the text so far."""
        return json_bytes(self._format.body(quoted(b"".join(self._pieces)), reason, self.usage(), self.stopped))

    def end(self, reason: str, text: bytes = b"", count: int = 0) -> None:
        """Send the body, with the text of the last `count` tokens."""
        self.text(text, count)
        self.send(self.body(reason))

    def send(self, body: bytes) -> None:
        """Send a body with status 200."""
        sent = now()
        self.stamps.append(sent)
        timing = server_timing(self.request.arrived, self.started, sent)
        keep = self.request.keep_alive
        self.write(responses.head(200, len(body), keep_alive=keep, extra=timing, promise=self.promise) + body)
        self.finish()

    def fail(self, refusal: Refusal) -> None:
        """Send an error response instead."""
        refuse(self.connection, self.request, refusal)


def server_timing(arrived: int, started: int, sent: int) -> bytes:
    """Return the header Server-Timing. All times are monotonic ns; `started` is -1 if it is not known."""
    if started < 0:
        return b"Server-Timing: total;dur=%.6f\r\n" % ((sent - arrived) / 1e6)
    return responses.timing(max(started - arrived, 0), sent - started, sent - arrived)


def refuse(connection: Connection, request: Request, refusal: Refusal) -> None:
    """Send an error response in the format of the path's API."""
    reply(connection, request, refusal.status, refusal_body(request, refusal), extra=refusal.headers)


def refusal_body(request: Request, refusal: Refusal) -> bytes:
    """Return the body of an error response in the format of the path's API."""
    return json_bytes(error(request, refusal))


def error(request: Request, refusal: Refusal) -> Json:
    """Return an error in the format of the path's API."""
    if request.path == MESSAGES:
        kind = "invalid_request_error" if refusal.status < 500 else "api_error"
        kind = _ERROR_TYPES.get(refusal.status, kind)
        return {"type": "error", "error": {"type": kind, "message": refusal.message}}
    return {"error": {"message": refusal.message, "type": refusal.kind, "code": refusal.code}}
