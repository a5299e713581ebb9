"""KServe v2 with Triton's extensions over HTTP: the paths under /v2.

`_INFERENCE` and `_CONTROL` have a line for each path. Responses come from control.py (shared with gRPC) or from an inference
(responders.py). Errors are `{"error": "..."}` with the HTTP status of their code.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from inferometer.errors import UserError
from inferometer.serve import compression
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.reply import reply
from inferometer.serve.kserve import control, generate, http_codec
from inferometer.serve.kserve.http_codec import Data, InferRequestBody, invalid
from inferometer.serve.kserve.responders import Generate, GenerateStream, Infer, Responder
from inferometer.serve.models.registry import Model, Models
from inferometer.serve.models.types import HTTP_STATUS, NEVER, Refused
from inferometer.serve.offload import LARGE
from inferometer.serve.settings import Settings

_JSON_LENGTH = b"inference-header-content-length"
_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
_KNOWN_PATHS = 1000
"""Paths whose route is remembered."""

Handle = Callable[[Connection, Request], None]


class Declined(Exception):  # noqa: N818  (a response)
    """There is nothing at that path, whatever the models are."""

    def __init__(self, status: int, message: str, extra: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.message, self.extra = status, message, extra


class Kserve:
    """Handles all requests under /v2."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models = models
        self.draining_since = NEVER
        """When the server began to refuse new requests."""
        self.offloaded: set[Responder] = set()
        """Requests whose bodies are being processed in a thread."""
        self._limit = settings.limits.message
        self._control = settings.control
        self._known: dict[bytes, tuple[list[bytes], Handle]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def draining(self) -> bool:
        return self.draining_since < NEVER

    def handle(self, connection: Connection, request: Request) -> None:
        try:
            methods, handle = self._known.get(request.path) or self._find_route(request.path)
            if request.method not in methods and not (request.method == b"HEAD" and b"GET" in methods):
                raise Declined(405, "Method Not Allowed", b"Allow: %b\r\n" % b", ".join(methods))
            handle(connection, request)
        except Refused as refused:
            self.refuse(connection, request, refused)
        except Declined as declined:
            body = http_codec.error(declined.message)
            reply(connection, request, declined.status, body, extra=declined.extra, close=self.draining)

    def _find_route(self, path: bytes) -> tuple[list[bytes], Handle]:
        """Return the methods of a path and what handles it, with the name and the version in the path."""
        words = path.split(b"/")[2:]
        version = b""
        if words[:1] == [b"models"] and len(words) > 3 and words[2] == b"versions" and words[3].isdigit():
            version = words[3]
            del words[2:4]
        if len(self._known) >= _KNOWN_PATHS:
            self._known.clear()
        if found := _match(_INFERENCE, words):
            methods, infer, name = found
            self._known[path] = methods, partial(infer, self, name, _text(version))
        elif found := _match(_CONTROL, words):
            methods, handle, name = found
            self._known[path] = methods, partial(self._respond, handle, name, _text(version))
        else:
            raise Declined(404, "Not Found")
        return self._known[path]

    # --- responses ---------------------------------------------------------------------------------------------------

    def refuse(self, connection: Connection, request: Request, refused: Refused) -> None:
        status = 413 if isinstance(refused, compression.TooLarge) else HTTP_STATUS[refused.code]
        reply(connection, request, status, http_codec.error(refused.message), close=self.draining)

    def refuse_for(self, connection: Connection, request: Request, error: BaseException) -> None:
        """Respond with the error that describes an exception."""
        if isinstance(error, UserError):  # an invalid output
            error = Refused("INTERNAL", error.what)
        self.refuse(connection, request, error if isinstance(error, Refused) else unexpected(error))

    def refuse_rest(self) -> int:
        """Refuse the requests that are in a thread. Return how many there were."""
        rest = list(self.offloaded)
        for one in rest:
            one.refuse(Refused("UNAVAILABLE", "the server stopped before the request was complete"))
        return len(rest)

    # --- metadata and control: each returns what is sent as JSON (None: nothing), a Refused, or work to wait for ---

    def _is_ready(self, name: str, version: str, _request: Request) -> None:
        if self.draining or not (self.models.is_ready(name, version) if name else self.models.ready):
            raise Declined(400, "Model version not ready" if name else "Server not ready")  # Triton's status for this

    def _index(self, _name: str, _version: str, request: Request) -> Any:
        index = control.repository_index(self.models, bool(_fields(request).get("ready", False)))
        return control.tree(index, empty=False).get("models", [])

    def _load(self, name: str, _version: str, request: Request) -> Any:
        given = self._load_parameters(request)
        control.check_load(given)
        config = given.get("config", "")
        if not isinstance(config, str):
            raise invalid("Unable to parse 'config': expected the configuration as a JSON string")
        return self.models.load(name, config)

    def _unload(self, name: str, _version: str, request: Request) -> Any:
        self._load_parameters(request)
        return self.models.unload(name)

    def _load_parameters(self, request: Request) -> dict[str, Any]:
        if not self._control:
            raise Refused("PERMISSION_DENIED", control.NO_CONTROL)
        given = _fields(request).get("parameters") or {}
        if not isinstance(given, dict):
            raise invalid("Unable to parse 'parameters': expected an object")
        return given

    def _logging(self, _name: str, _version: str, request: Request) -> Any:
        settings = control.tree(control.log_settings(_changes(request)))["settings"]
        return {name: next(iter(value.values())) for name, value in settings.items()}

    def _trace(self, name: str, _version: str, request: Request) -> Any:
        settings = control.trace_settings(self.models, name, _changes(request)).settings
        return {
            key: list(one.value) if key == "trace_level" else "".join(one.value)
            for key, one in sorted(settings.items())
        }

    def _memory_status(self, name: str, _version: str, _request: Request) -> Any:
        return _regions(control.shared_memory_status(self.models, name))

    def _register(self, name: str, _version: str, request: Request) -> Any:
        asked = _registration(request)
        return control.change_regions(self.models, "register", name, asked.key, asked.offset, asked.byte_size)

    def _unregister(self, name: str, _version: str, _request: Request) -> Any:
        return control.change_regions(self.models, "unregister", name)

    def _statistics(self, name: str, version: str, _request: Request) -> Any:
        made = control.statistics(self.models, name, version)
        return made if inspect.isawaitable(made) else control.tree(made)

    def _respond(self, handle: "Control", name: str, version: str, connection: Connection, request: Request) -> None:
        made = handle(self, name, version, request)
        if isinstance(made, Refused):
            raise made
        if inspect.isawaitable(made):
            task = asyncio.get_running_loop().create_task(self._later(connection, request, made))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._send_json(connection, request, made)

    def _send_json(self, connection: Connection, request: Request, tree: Any) -> None:
        reply(connection, request, 200, b"" if tree is None else msgspec.json.encode(tree), close=self.draining)

    async def _later(self, connection: Connection, request: Request, work: Awaitable[Any]) -> None:
        """Respond when the work is done, with the message that it returns, if any."""
        try:
            made = await work
        except UserError as error:
            self.refuse(connection, request, Refused("INTERNAL", str(error)))
        except Exception as error:  # keep serving
            self.refuse_for(connection, request, error)
        else:
            self._send_json(connection, request, None if made is None else control.tree(made))

    # --- inference ---------------------------------------------------------------------------------------------------

    def _infer(self, name: str, version: str, connection: Connection, request: Request) -> None:
        model = self._find(request, name, version)
        if model.decoupled:
            raise Refused("UNIMPLEMENTED", _DECOUPLED)
        responder = Infer(self, connection, request, name, version)
        body, headers = request.body, request.headers
        length = headers.get(_JSON_LENGTH, b"")
        if b"content-encoding" in headers or (end := http_codec.json_length(length, len(body))) > LARGE:
            self._read(responder, request, partial(self._parse, name, model, length))
        else:
            asked = http_codec.request(body, end, name, self.models.regions.find, model.facts.inputs)
            responder.submit(asked, was_let_in=True)

    def _parse(self, name: str, model: Model, length: bytes, body: Data) -> InferRequestBody:
        end = http_codec.json_length(length, len(body))
        return http_codec.request(body, end, name, self.models.regions.find, model.facts.inputs)

    def _generate(self, name: str, version: str, connection: Connection, request: Request) -> None:
        self._read_keys(Generate(self, connection, request, name, version), request, name, version)

    def _generate_stream(self, name: str, version: str, connection: Connection, request: Request) -> None:
        if request.http10:
            raise invalid("streaming requires HTTP/1.1")
        self._read_keys(GenerateStream(self, connection, request, name, version), request, name, version)

    def _read_keys(self, responder: Responder, request: Request, name: str, version: str) -> None:
        model = self._find(request, name, version)
        self._read(responder, request, lambda body: generate.request(body, model))

    def _read(self, responder: Responder, request: Request, parse: Callable[[Data], InferRequestBody]) -> None:
        """Submit the inference in the body. A large body is decompressed and parsed in a thread."""
        how = compression.named(request.headers.get(b"content-encoding", b""))
        unpack = partial(compression.decompress, how, limit=self._limit, what="body", invalid="INVALID_ARGUMENT")
        body = request.body
        if how and len(body) * compression.EXPANSION <= LARGE:
            body, how = unpack(data=body), ""
        size = len(body) + (LARGE if how else 0)
        if size > LARGE:
            self.models.check_room(len(self.offloaded))

        def work() -> InferRequestBody:
            return parse(unpack(data=body) if how else body)

        responder.offload(size, work, lambda asked: responder.submit(asked, was_let_in=True))

    def _find(self, request: Request, name: str, version: str) -> Model:
        if request.began >= self.draining_since:
            raise Refused("UNAVAILABLE", "the server is shutting down and does not accept new requests")
        return self.models.find(name, version)


Control = Callable[[Kserve, str, str, Request], Any]
Routes = tuple[tuple[str, str, Callable[..., Any]], ...]

_INFERENCE: Routes = (
    ("POST", "models/*/infer", Kserve._infer),
    ("POST", "models/*/generate", Kserve._generate),
    ("POST", "models/*/generate_stream", Kserve._generate_stream),
)
_CONTROL: Routes = (
    ("GET", "", lambda kserve, *_: control.tree(control.server_metadata(kserve.models))),
    ("GET", "health/live", lambda *_: None),
    ("GET", "health/ready", Kserve._is_ready),
    ("GET", "models/stats", Kserve._statistics),
    ("GET", "models/*", lambda kserve, *which: control.tree(control.model_metadata(kserve.models.find(*which[:2])))),
    ("GET", "models/*/ready", Kserve._is_ready),
    ("GET", "models/*/config", lambda kserve, *which: control.tree(kserve.models.find(*which[:2]).config)),
    ("GET", "models/*/stats", Kserve._statistics),
    ("GET POST", "models/*/trace/setting", Kserve._trace),
    ("GET POST", "trace/setting", Kserve._trace),
    ("GET POST", "logging", Kserve._logging),
    ("POST", "repository/index", Kserve._index),
    ("POST", "repository/models/*/load", Kserve._load),
    ("POST", "repository/models/*/unload", Kserve._unload),
    ("GET", "systemsharedmemory/status", Kserve._memory_status),
    ("GET", "systemsharedmemory/region/*/status", Kserve._memory_status),
    ("POST", "systemsharedmemory/region/*/register", Kserve._register),
    ("POST", "systemsharedmemory/unregister", Kserve._unregister),
    ("POST", "systemsharedmemory/region/*/unregister", Kserve._unregister),
    ("GET", "cudasharedmemory/status", lambda *_: _regions(control.cuda_status())),
    ("GET", "cudasharedmemory/region/*/status", lambda _kserve, name, *_: _regions(control.cuda_status(name))),
    ("POST", "cudasharedmemory/region/*/register", lambda _kserve, name, *_: control.refuse_cuda(name)),
    ("POST", "cudasharedmemory/unregister", lambda *_: None),
    ("POST", "cudasharedmemory/region/*/unregister", lambda *_: None),
)
"""Methods, path below /v2, and what is called with the name at * (and with the version behind a model's name). Nothing
can be registered in CUDA memory, so there is nothing to unregister."""


def _match(routes: Routes, words: list[bytes]) -> tuple[list[bytes], Callable[..., Any], str] | None:
    """Return the methods, the function and the name in the path."""
    for methods, path, handle in routes:
        parts = path.encode().split(b"/") if path else []
        if len(parts) == len(words) and all(part in (b"*", word) for part, word in zip(parts, words, strict=True)):
            return methods.encode().split(), handle, _text(words[parts.index(b"*")]) if b"*" in parts else ""
    return None


# --- bodies ----------------------------------------------------------------------------------------------------------


class _Registration(msgspec.Struct):
    key: str
    byte_size: int
    offset: int = 0


def _registration(request: Request) -> _Registration:
    fields = _fields(request)
    for name in ("key", "byte_size"):
        if name not in fields:
            raise invalid(f"Shared memory register request has no '{name}' field")
    try:
        return msgspec.convert(fields, _Registration)
    except msgspec.ValidationError as error:
        raise invalid(f"Unable to parse the request: {error}") from None


def _regions(status: Any) -> list[Any]:
    return list(control.tree(status)["regions"].values())


def _changes(request: Request) -> list[str]:
    """Return the settings that the client wants to change."""
    return list(_fields(request)) if request.method == b"POST" else []


def _fields(request: Request) -> dict[str, Any]:
    """Return the body of a control request: a JSON object, or empty."""
    if not len(request.body):
        return {}
    tree = http_codec.parse_json(request.body)
    if not isinstance(tree, dict):
        raise invalid("expected a JSON object")
    return tree


def _text(word: bytes) -> str:
    return (unquote_to_bytes(word) if b"%" in word else word).decode("utf-8", "replace")


def unexpected(error: BaseException) -> Refused:
    """Describe an internal error in one line."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return Refused("INTERNAL", f"internal server error: {line:.300}")
