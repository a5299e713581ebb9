"""KServe v2 with Triton's extensions over HTTP: the paths under /v2.

`_ROUTES` has a line for each path. Responses come from a method that HTTP and gRPC share (control.py) or
from an inference (responders.py, generate.py). Errors are `{"error": "..."}` with the HTTP status of their code.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from inferometer.serve import compression
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Problem, Request
from inferometer.serve.http.responses import reply
from inferometer.serve.kserve import control, generate, http_codec
from inferometer.serve.kserve.http_codec import Data
from inferometer.serve.kserve.messages import Message
from inferometer.serve.kserve.parameters import invalid
from inferometer.serve.kserve.responders import Infer, Responder
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import HTTP_STATUS, Inference, Refused, reason
from inferometer.serve.offload import LARGE, run_to_end
from inferometer.serve.settings import Settings

_JSON_LENGTH = b"inference-header-content-length"
_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"
_KNOWN_PATHS = 1000
"""Paths whose route is remembered."""

Handle = Callable[[Connection, Request], None]
Shape = Callable[[Message], Any]
"""Returns the JSON types of a response message; None for an empty body."""


class Kserve:
    """Handles all requests under /v2."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models = models
        self.offloaded: set[Responder] = set()
        """Requests whose bodies are being processed in a thread."""
        self._limit = settings.limits.message
        self._methods = control.methods(models, settings)
        self._known: dict[bytes, tuple[bytes, Handle]] = {}

    def handle(self, connection: Connection, request: Request) -> None:
        try:
            method, handle = self._known.get(request.path) or self._find_route(request.path)
            if request.method != method and (request.method, method) != (b"HEAD", b"GET"):
                raise Problem(405, "Method Not Allowed", b"Allow: %b\r\n" % method)
            handle(connection, request)
        except (Refused, Problem) as error:
            self.refuse(connection, request, error)

    def refuse(self, connection: Connection, request: Request, error: BaseException) -> None:
        """Respond with the error that describes an exception."""
        if isinstance(error, Problem):
            status, message, extra = error.status, error.message, error.headers
        else:
            refused = reason(error)
            status, message, extra = HTTP_STATUS[refused.code], refused.message, b""
            if isinstance(error, compression.TooLarge):
                status = 413
        reply(connection, request, status, http_codec.error(message), extra=extra, close=self.models.refuses)

    def refuse_rest(self) -> int:
        """Refuse the requests that are in a thread. Return how many there were."""
        rest = list(self.offloaded)
        for one in rest:
            one.leave()
            one.refuse(Refused("UNAVAILABLE", "the server stopped before the request was complete"))
        return len(rest)

    def _find_route(self, path: bytes) -> tuple[bytes, Handle]:
        """Return the method of a path and what handles it, with the name and the version in the path."""
        words = path.split(b"/")[2:]
        version = ""
        if words[:1] == [b"models"] and len(words) > 3 and words[2] == b"versions" and words[3].isdigit():
            version = words[3].decode()
            del words[2:4]
        for method, pattern, handle, shape in _ROUTES:
            parts = pattern.encode().split(b"/") if pattern else []
            if len(parts) == len(words) and all(part in (b"*", word) for part, word in zip(parts, words, strict=True)):
                name = unquote_to_bytes(words[parts.index(b"*")]).decode("utf-8", "replace") if b"*" in parts else ""
                call = partial(Kserve.control, method=handle, shape=shape) if isinstance(handle, str) else handle
                if len(self._known) >= _KNOWN_PATHS:
                    self._known.clear()
                self._known[path] = method, partial(call, self, name, version)
                return self._known[path]
        raise Problem(404, "Not Found")

    def control(
        self, name: str, version: str, connection: Connection, request: Request, method: str, shape: Shape
    ) -> None:
        """Respond with what a method of control.py returns."""
        kind, run = self._methods[method]
        work = run(_message(kind, name, version, request))
        run_to_end(self._respond(connection, request, work, shape))

    async def _respond(self, connection: Connection, request: Request, work: Awaitable[Message], shape: Shape) -> None:
        try:
            tree = shape(await work)
        except Exception as error:  # keep serving
            self.refuse(connection, request, error)
        else:
            body = b"" if tree is None else msgspec.json.encode(tree)
            reply(connection, request, 200, body, close=self.models.refuses)

    # --- inference ---------------------------------------------------------------------------------------------------

    def infer(self, name: str, version: str, connection: Connection, request: Request) -> None:
        models, body, headers = self.models, request.body, request.headers
        model = self._find(request, name, version) if models.refuses else models.find(name, version)
        if model.decoupled:
            raise Refused("UNIMPLEMENTED", _DECOUPLED)
        responder = Infer(self, connection, request)
        length = headers.get(_JSON_LENGTH, b"")
        if b"content-encoding" in headers or (end := http_codec.json_length(length, len(body))) > LARGE:
            self._read(responder, request, partial(self._parse, length, name, version))
        else:
            responder.submit(http_codec.request(body, end, name, version, models.regions.find), model)

    def _parse(self, length: bytes, name: str, version: str, body: Data) -> Inference:
        end = http_codec.json_length(length, len(body))
        return http_codec.request(body, end, name, version, self.models.regions.find)

    def generate(self, name: str, version: str, connection: Connection, request: Request) -> None:
        self._generate(generate.Generate, name, version, connection, request)

    def generate_stream(self, name: str, version: str, connection: Connection, request: Request) -> None:
        if request.http10:
            raise invalid("streaming requires HTTP/1.1")
        self._generate(generate.GenerateStream, name, version, connection, request)

    def _generate(
        self, kind: type[Responder], name: str, version: str, connection: Connection, request: Request
    ) -> None:
        model = self._find(request, name, version)
        self._read(kind(self, connection, request), request, lambda body: generate.request(body, model, version))

    def _read(self, responder: Responder, request: Request, parse: Callable[[Data], Inference]) -> None:
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
        if request.began >= self.models.refused_from:
            raise Refused("UNAVAILABLE", "the server is shutting down and does not accept new requests")
        return self.models.find(name, version)


# --- what is at each path --------------------------------------------------------------------------------------------


def _nothing(_: Message) -> None:
    """Return an empty body."""


def _ready(made: Message) -> None:
    if not made.ready:  # Triton's status and words for this
        what = "Model version" if made.DESCRIPTOR.name.startswith("Model") else "Server"
        raise Problem(400, f"{what} not ready")


def _regions(made: Message) -> Any:
    return list(control.tree(made)["regions"].values())


_ROUTES: tuple[tuple[bytes, str, str | Callable[..., None], Shape], ...] = (
    (b"POST", "models/*/infer", Kserve.infer, _nothing),
    (b"POST", "models/*/generate", Kserve.generate, _nothing),
    (b"POST", "models/*/generate_stream", Kserve.generate_stream, _nothing),
    (b"GET", "", "ServerMetadata", control.tree),
    (b"GET", "health/live", "ServerLive", _nothing),
    (b"GET", "health/ready", "ServerReady", _ready),
    (b"GET", "models/stats", "ModelStatistics", control.tree),
    (b"GET", "models/*", "ModelMetadata", control.tree),
    (b"GET", "models/*/ready", "ModelReady", _ready),
    (b"GET", "models/*/config", "ModelConfig", lambda made: control.tree(made.config)),
    (b"GET", "models/*/stats", "ModelStatistics", control.tree),
    (b"POST", "repository/index", "RepositoryIndex", lambda made: control.tree(made, empty=False).get("models", [])),
    (b"POST", "repository/models/*/load", "RepositoryModelLoad", _nothing),
    (b"POST", "repository/models/*/unload", "RepositoryModelUnload", _nothing),
    *(
        (method, f"{kind.lower()}sharedmemory/{path}", f"{kind}SharedMemory{operation}", shape)
        for kind in ("System", "Cuda")
        for method, path, operation, shape in (
            (b"GET", "status", "Status", _regions),
            (b"GET", "region/*/status", "Status", _regions),
            (b"POST", "region/*/register", "Register", _nothing),
            (b"POST", "unregister", "Unregister", _nothing),
            (b"POST", "region/*/unregister", "Unregister", _nothing),
        )
    ),
)
"""HTTP method, path below /v2, and the method of control.py with the shape of its response, or what is called instead;
both with the name at * and the version behind a model's name."""


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
