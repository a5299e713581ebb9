"""A small OpenAI-style HTTP server in front of an engine that is a library and batches continuously. Standard library only.

The main thread owns the engine: it adds new requests, takes a step, and hands out the tokens of that step. Every connection has a
thread, which decodes tokens and writes them. Endpoints: /health, /v1/models, /v1/completions and /v1/chat/completions, streamed or not.
"""

import contextlib
import itertools
import json
import os
import queue
import signal
import socketserver
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol

UNSUPPORTED = ("stop", "logprobs", "top_logprobs", "best_of", "tools", "response_format", "logit_bias", "suffix")
COMPLETION_TOKENS = 16
"""What OpenAI's completions generate without max_tokens."""


class Sampling(NamedTuple):
    """How the tokens of one request are chosen."""

    max_tokens: int
    ignore_eos: bool
    temperature: float
    top_p: float
    seed: int | None


class Event(NamedTuple):
    """A token of a request, or its end, or both."""

    key: Any
    token: int | None
    finish: str = ""
    """`stop`, `length`, or `error` when the request has ended."""


class Engine(Protocol):
    """What a script provides. `encode`, `decode` and `render` are called by connections, the rest by the main thread."""

    context: int

    def encode(self, text: str, is_chat: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def render(self, messages: list[dict[str, Any]]) -> str:
        """The prompt for a chat, by the model's template."""

    def add(self, ids: Sequence[int], sampling: Sampling) -> Any:
        """Start a request, and return its key."""

    def cancel(self, key: Any) -> None: ...

    def step(self) -> list[Event]:
        """Compute one step of all requests."""


class BadRequestError(Exception):
    """A request that cannot be served; the message goes to the client."""


class _Pending:
    """A request on its way from a connection to the engine, and its tokens on their way back."""

    def __init__(self, ids: list[int], sampling: Sampling) -> None:
        self.ids, self.sampling = ids, sampling
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.is_abandoned = False


class _Loop:
    """Takes the steps of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._new: queue.SimpleQueue[_Pending] = queue.SimpleQueue()
        self._running: dict[Any, _Pending] = {}

    def submit(self, pending: _Pending) -> None:
        self._new.put(pending)

    def run(self) -> None:
        while True:
            self._take(wait=not self._running)
            try:
                events = self._engine.step()
            except Exception as error:
                traceback.print_exc()
                for pending in self._running.values():
                    pending.events.put(Event(None, None, f"error: {error}"))
                self._running.clear()
                continue
            for event in events:
                pending = self._running[event.key]
                pending.events.put(event)
                if event.finish:
                    del self._running[event.key]
                elif pending.is_abandoned:
                    del self._running[event.key]
                    self._engine.cancel(event.key)

    def _take(self, wait: bool) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                pending = self._new.get(block=wait)
                wait = False
                try:
                    self._running[self._engine.add(pending.ids, pending.sampling)] = pending
                except Exception as error:
                    pending.events.put(Event(None, None, f"error: {error}"))
                    wait = not self._running


class Detokenizer:
    """Turns tokens into text as they come. A token that is only a part of a character gives text together with those after it."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._start = self._shown = 0

    def add(self, token: int, is_last: bool = False) -> str:
        self._ids.append(token)
        before = self._decode(self._ids[self._start : self._shown]) if self._shown > self._start else ""
        now = self._decode(self._ids[self._start :])
        if len(now) <= len(before) or (now.endswith("\ufffd") and not is_last):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return now[len(before) :]


def serve(engine: Engine, model: str, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT. To be called by the main thread, which made the engine: some belong to one thread."""
    loop, numbers = _Loop(engine), itertools.count(1)

    class Handler(_Handler):
        def respond(self, body: dict[str, Any], is_chat: bool) -> None:
            _respond(self, body, is_chat, engine, loop, model, next(numbers))

        def models(self) -> dict[str, Any]:
            entry = {"id": model, "object": "model", "owned_by": "local", "max_model_len": engine.context}
            return {"object": "list", "data": [entry]}

    try:
        server = _Server((host, port), Handler)
    except OSError as error:
        raise SystemExit(f"{host}:{port}: {error}") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    print(f"Listening on http://{host}:{port}", flush=True)
    loop.run()


def _end(number: int, frame: object) -> None:
    os._exit(0)  # without destructors: other threads still use the engine


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # without looking up the name of the host


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one segment; flushed after each chunk

    def respond(self, body: dict[str, Any], is_chat: bool) -> None:
        raise NotImplementedError

    def models(self) -> dict[str, Any]:
        raise NotImplementedError

    def do_GET(self) -> None:
        if self.path == "/health":
            self.send_json({"status": "ok"})
        elif self.path == "/v1/models":
            self.send_json(self.models())
        else:
            self.send_failure(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            self.send_failure(404, f"there is no {self.path}")
            return
        try:
            body = json.loads(content)
            if not isinstance(body, dict):
                raise BadRequestError("the body is not an object")
            self.respond(body, self.path == "/v1/chat/completions")
        except (BadRequestError, ValueError) as error:
            self.send_failure(400, str(error))

    def send_json(self, value: dict[str, Any], status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response_only(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def send_failure(self, status: int, message: str) -> None:
        self.send_json({"error": {"message": message, "type": "invalid_request_error", "code": status}}, status)

    def start_stream(self) -> None:
        self.send_response_only(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def send_event(self, text: str) -> None:
        content = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
        self.wfile.flush()

    def end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


def _respond(
    handler: _Handler, body: dict[str, Any], is_chat: bool, engine: Engine, loop: _Loop, model: str, number: int
) -> None:
    if body.get("model") not in (None, model):
        raise BadRequestError(f"there is no model {body['model']!r}, only {model!r}")
    pending = _pending(body, is_chat, engine)
    loop.submit(pending)
    kind = ("chat.completion" if is_chat else "text_completion") + (".chunk" if is_chat and body.get("stream") else "")
    head = {"id": f"cmpl-{number}", "object": kind, "created": int(time.time()), "model": model}
    try:
        if body.get("stream"):
            _stream(handler, body, is_chat, engine, pending, head)
        else:
            _whole(handler, is_chat, engine, pending, head)
    except OSError:
        handler.close_connection = True  # the client has left
    finally:
        pending.is_abandoned = True


def _pending(body: dict[str, Any], is_chat: bool, engine: Engine) -> _Pending:
    if refused := [name for name in UNSUPPORTED if body.get(name)]:
        raise BadRequestError(f"{refused[0]} is not supported")
    if body.get("n", 1) != 1:
        raise BadRequestError("n is not supported")
    if is_chat:
        ids = engine.encode(engine.render(body["messages"]), True)
    elif isinstance(body.get("prompt"), list):
        ids = [int(token) for token in body["prompt"]]
    else:
        ids = engine.encode(str(body.get("prompt", "")), False)
    room = engine.context - len(ids)
    limit = body.get("max_completion_tokens", body.get("max_tokens", room if is_chat else COMPLETION_TOKENS))
    if not ids or limit < 1 or limit > room:
        raise BadRequestError(f"{len(ids)} prompt tokens and {limit} more do not fit into {engine.context}")
    seed = body.get("seed")
    temperature, top_p = float(body.get("temperature", 1.0)), float(body.get("top_p", 1.0))
    return _Pending(ids, Sampling(int(limit), bool(body.get("ignore_eos")), temperature, top_p, seed))


def _pieces(engine: Engine, pending: _Pending) -> Iterator[tuple[str, int, str]]:
    """The text that each token adds, the number of tokens so far, and at the end why it ended."""
    detokenizer, count = Detokenizer(engine.decode), 0
    while True:
        event = pending.events.get()
        text = ""
        if event.token is not None:
            count += 1
            text = detokenizer.add(event.token, is_last=bool(event.finish))
        yield text, count, event.finish
        if event.finish:
            return


def _usage(pending: _Pending, count: int) -> dict[str, int]:
    prompt = len(pending.ids)
    return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}


def _stream(
    handler: _Handler, body: dict[str, Any], is_chat: bool, engine: Engine, pending: _Pending, head: dict[str, Any]
) -> None:
    handler.start_stream()
    count = 0
    for text, tokens, finish in _pieces(engine, pending):
        count = tokens
        if finish.startswith("error"):
            handler.send_event(json.dumps({"error": {"message": finish, "code": 500}}))
            break
        if text or finish:
            content = {"delta": {"content": text}} if is_chat else {"text": text}
            choice = {"index": 0, **content, "finish_reason": finish or None}
            handler.send_event(json.dumps(head | {"choices": [choice]}))
    else:
        if (body.get("stream_options") or {}).get("include_usage"):
            handler.send_event(json.dumps(head | {"choices": [], "usage": _usage(pending, count)}))
        handler.send_event("[DONE]")
    handler.end_stream()


def _whole(handler: _Handler, is_chat: bool, engine: Engine, pending: _Pending, head: dict[str, Any]) -> None:
    pieces = list(_pieces(engine, pending))
    text, (_, count, finish) = "".join(piece for piece, _, _ in pieces), pieces[-1]
    if finish.startswith("error"):
        handler.send_failure(500, finish)
        return
    content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    choice = {"index": 0, **content, "finish_reason": finish}
    handler.send_json(head | {"choices": [choice], "usage": _usage(pending, count)})
