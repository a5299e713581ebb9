"""KServe v2 with Triton's extensions over HTTP: the paths under /v2.

`_ROUTES` has a line for each path. Responses come from a method that HTTP and gRPC share (control.py) or
from an inference (responders.py). Errors are `{"error": "..."}` with the HTTP status of their code.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from inferometer.serve import compression
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.reply import reply
from inferometer.serve.kserve import control, generate, http_codec
from inferometer.serve.kserve.http_codec import Data, InferRequestBody
from inferometer.serve.kserve.messages import Message
from inferometer.serve.kserve.parameters import invalid
from inferometer.serve.kserve.responders import Generate, GenerateStream, Infer, Responder
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import HTTP_STATUS, NEVER, Refused, reason
from inferometer.serve.offload import LARGE
from inferometer.serve.settings import Settings

_JSON_LENGTH = b"inference-header-content-length"
_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
_KNOWN_PATHS = 1000
"""Paths whose route is remembered."""

Handle = Callable[[Connection, Request], None]
Shape = Callable[[Message], Any]
"""Returns the JSON types of a response message; None for an empty body."""


class Declined(Exception):  # noqa: N818  (a response)
    """There is nothing at that path, whatever the models are; or it is not ready."""

    def __init__(self, status: int, message: str, extra: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.message, self.extra = status, message, extra


class Kserve:
    """Handles all requests under /v2."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models = models
        self.is_draining = False
        self.offloaded: set[Responder] = set()
        """Requests whose bodies are being processed in a thread."""
        self._limit = settings.limits.message
        self._methods = control.methods(models, settings)
        self._known: dict[bytes, tuple[list[bytes], Handle]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused_from = NEVER  # requests that begin after this time are refused

    def refuse_new(self, at: int) -> None:
        """Refuse inferences whose headers arrive after `at`."""
        self.is_draining, self._refused_from = True, at

    def handle(self, connection: Connection, request: Request) -> None:
        try:
            methods, handle = self._known.get(request.path) or self._find_route(request.path)
            if request.method not in methods and not (request.method == b"HEAD" and b"GET" in methods):
                raise Declined(405, "Method Not Allowed", b"Allow: %b\r\n" % b", ".join(methods))
            handle(connection, request)
        except (Refused, Declined) as error:
            self.refuse(connection, request, error)

    def refuse(self, connection: Connection, request: Request, error: BaseException) -> None:
        """Respond with the error that describes an exception."""
        if isinstance(error, Declined):
            status, message, extra = error.status, error.message, error.extra
        else:
            refused = reason(error)
            status, message, extra = HTTP_STATUS[refused.code], refused.message, b""
            if isinstance(error, compression.TooLarge):
                status = 413
        reply(connection, request, status, http_codec.error(message), extra=extra, close=self.is_draining)

    def refuse_rest(self) -> int:
        """Refuse the requests that are in a thread. Return how many there were."""
        rest = list(self.offloaded)
        for one in rest:
            one.leave()
            one.refuse(Refused("UNAVAILABLE", "the server stopped before the request was complete"))
        return len(rest)

    def _find_route(self, path: bytes) -> tuple[list[bytes], Handle]:
        """Return the methods of a path and what handles it, with the name and the version in the path."""
        words = path.split(b"/")[2:]
        version = ""
        if words[:1] == [b"models"] and len(words) > 3 and words[2] == b"versions" and words[3].isdigit():
            version = words[3].decode()
            del words[2:4]
        methods, handle, name = _match(words)
        if len(self._known) >= _KNOWN_PATHS:
            self._known.clear()
        self._known[path] = methods, partial(handle, self, name, version)
        return self._known[path]

    # --- metadata and control ----------------------------------------------------------------------------------------

    def respond(
        self, name: str, version: str, connection: Connection, request: Request, method: str, shape: Shape
    ) -> None:
        """Respond with what a method of control.py returns."""
        run = self._methods[method]
        made = run(_message(run.input, name, version, request))
        if inspect.isawaitable(made):
            task = asyncio.get_running_loop().create_task(self._later(connection, request, made, shape))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._send(connection, request, shape(made))

    async def _later(self, connection: Connection, request: Request, work: Awaitable[Message], shape: Shape) -> None:
        try:
            made = shape(await work)
        except Exception as error:  # keep serving
            self.refuse(connection, request, error)
        else:
            self._send(connection, request, made)

    def _send(self, connection: Connection, request: Request, tree: Any) -> None:
        reply(connection, request, 200, b"" if tree is None else msgspec.json.encode(tree), close=self.is_draining)

    # --- inference ---------------------------------------------------------------------------------------------------

    def infer(self, name: str, version: str, connection: Connection, request: Request) -> None:
        model = self._find(request, name, version)
        if model.decoupled:
            raise Refused("UNIMPLEMENTED", _DECOUPLED)
        responder = Infer(self, connection, request, name, version)
        body, headers = request.body, request.headers
        length = headers.get(_JSON_LENGTH, b"")
        if b"content-encoding" in headers or (end := http_codec.json_length(length, len(body))) > LARGE:
            self._read(responder, request, partial(self._parse, name, length))
        else:
            responder.submit(http_codec.request(body, end, name, self.models.regions.find))

    def _parse(self, name: str, length: bytes, body: Data) -> InferRequestBody:
        return http_codec.request(body, http_codec.json_length(length, len(body)), name, self.models.regions.find)

    def generate(self, name: str, version: str, connection: Connection, request: Request) -> None:
        model = self._find(request, name, version)
        responder = Generate(self, connection, request, name, version)
        self._read(responder, request, lambda body: generate.request(body, model))

    def generate_stream(self, name: str, version: str, connection: Connection, request: Request) -> None:
        if request.http10:
            raise invalid("streaming requires HTTP/1.1")
        model = self._find(request, name, version)
        responder = GenerateStream(self, connection, request, name, version)
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
        responder.offload(size, lambda: parse(unpack(data=body) if how else body), responder.submit)

    def _find(self, request: Request, name: str, version: str) -> Model:
        if request.began >= self._refused_from:
            raise Refused("UNAVAILABLE", "the server is shutting down and does not accept new requests")
        return self.models.find(name, version)


# --- what is at each path --------------------------------------------------------------------------------------------


def _control(method: str, shape: Shape) -> Callable[..., None]:
    return partial(Kserve.respond, method=method, shape=shape)


def _nothing(_: Message) -> None:
    """Return an empty body."""


def _ready(made: Message) -> None:
    if not made.ready:  # Triton's status and words for this
        what = "Model version" if made.DESCRIPTOR.name.startswith("Model") else "Server"
        raise Declined(400, f"{what} not ready")


def _config(made: Message) -> Any:
    return control.tree(made.config)


def _index(made: Message) -> Any:
    return control.tree(made, empty=False).get("models", [])


def _regions(made: Message) -> Any:
    return list(control.tree(made)["regions"].values())


def _shared_memory(kind: str) -> tuple[tuple[str, str, Callable[..., None]], ...]:
    path = f"{kind.lower()}sharedmemory"
    return (
        ("GET", f"{path}/status", _control(f"{kind}SharedMemoryStatus", _regions)),
        ("GET", f"{path}/region/*/status", _control(f"{kind}SharedMemoryStatus", _regions)),
        ("POST", f"{path}/region/*/register", _control(f"{kind}SharedMemoryRegister", _nothing)),
        ("POST", f"{path}/unregister", _control(f"{kind}SharedMemoryUnregister", _nothing)),
        ("POST", f"{path}/region/*/unregister", _control(f"{kind}SharedMemoryUnregister", _nothing)),
    )


_ROUTES = (
    ("POST", "models/*/infer", Kserve.infer),
    ("POST", "models/*/generate", Kserve.generate),
    ("POST", "models/*/generate_stream", Kserve.generate_stream),
    ("GET", "", _control("ServerMetadata", control.tree)),
    ("GET", "health/live", _control("ServerLive", _nothing)),
    ("GET", "health/ready", _control("ServerReady", _ready)),
    ("GET", "models/stats", _control("ModelStatistics", control.tree)),
    ("GET", "models/*", _control("ModelMetadata", control.tree)),
    ("GET", "models/*/ready", _control("ModelReady", _ready)),
    ("GET", "models/*/config", _control("ModelConfig", _config)),
    ("GET", "models/*/stats", _control("ModelStatistics", control.tree)),
    ("POST", "repository/index", _control("RepositoryIndex", _index)),
    ("POST", "repository/models/*/load", _control("RepositoryModelLoad", _nothing)),
    ("POST", "repository/models/*/unload", _control("RepositoryModelUnload", _nothing)),
    *_shared_memory("System"),
    *_shared_memory("Cuda"),
)
"""HTTP method, path below /v2, and what is called with the name at * and with the version behind a model's name."""


def _match(words: list[bytes]) -> tuple[list[bytes], Callable[..., None], str]:
    """Return the methods of a path, what handles it, and the name in it; raises Declined."""
    for methods, path, handle in _ROUTES:
        parts = path.encode().split(b"/") if path else []
        if len(parts) == len(words) and all(part in (b"*", word) for part, word in zip(parts, words, strict=True)):
            return methods.encode().split(), handle, _text(words[parts.index(b"*")]) if b"*" in parts else ""
    raise Declined(404, "Not Found")


_IN_BODIES = ("ready", "key", "offset", "byte_size", "parameters")
_KINDS = {bool: "bool_param", int: "int64_param", str: "string_param"}


def _message(kind: Any, name: str, version: str, request: Request) -> Message:
    """Return the request message with the fields in the path and in the JSON body."""
    body = http_codec.parse_json(request.body) if len(request.body) else {}
    given = {"name": name, "model_name": name, "version": version} | {
        key: body[key] for key in _IN_BODIES if key in body
    }
    if isinstance(parameters := given.get("parameters"), dict):
        given["parameters"] = {key: {_KINDS.get(type(value), ""): value} for key, value in parameters.items()}
    try:
        return kind(**{key: value for key, value in given.items() if key in kind.DESCRIPTOR.fields_by_name})
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid(f"Unable to parse the request: {error}") from None


def _text(word: bytes) -> str:
    return (unquote_to_bytes(word) if b"%" in word else word).decode("utf-8", "replace")
