"""KServe v2 with Triton's extensions over HTTP: the paths under /v2.

`_ROUTES` has a line for each path. Responses come from a method that HTTP and gRPC share (control.py) or from an
inference (responders.py). Errors are `{"error": "..."}` with the HTTP status of their code.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.responses import check_method, refuse, reply
from inferometer.serve.kserve import control, http_codec
from inferometer.serve.kserve.messages import Message
from inferometer.serve.kserve.requests import invalid
from inferometer.serve.kserve.responders import Generate, GenerateStream, Infer
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Refused, reason
from inferometer.serve.settings import Settings
from inferometer.wire.http1_requests import Request

Handle = Callable[[Connection, Request], object]
Shape = Callable[[Message], Any]
"""Returns the JSON types of a response message; None for an empty body."""


class Kserve:
    """Handles all requests under /v2."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self._models = models
        self._limit = settings.limits.message
        self._methods = control.methods(models, settings)
        self._known: BoundedCache[bytes, tuple[tuple[bytes, ...], Handle]] = BoundedCache(1000)

    def handle(self, connection: Connection, request: Request) -> None:
        methods, handle = self._known.get(request.path) or self._find_route(request.path)
        if request.method not in methods:
            check_method(request, *methods)
        handle(connection, request)

    def _find_route(self, path: bytes) -> tuple[tuple[bytes, ...], Handle]:
        """Return the methods of a path and what handles it, with the name and the version in the path."""
        words = path.split(b"/")[2:]
        version = ""
        if words[:1] == [b"models"] and len(words) > 3 and words[2] == b"versions" and words[3].isdigit():
            version = words[3].decode()
            del words[2:4]
        for methods, pattern, target, shape in _ROUTES:
            parts = pattern.encode().split(b"/") if pattern else []
            if len(parts) == len(words) and all(part in (b"*", word) for part, word in zip(parts, words, strict=True)):
                name = unquote_to_bytes(words[parts.index(b"*")]).decode("utf-8", "replace") if b"*" in parts else ""
                if isinstance(target, str):
                    return self._known.keep(path, (methods, partial(self._control, target, shape, name, version)))
                return self._known.keep(path, (methods, partial(target, self._models, self._limit, name, version)))
        raise Refused("NOT_FOUND", "Not Found")

    def _control(
        self, method: str, shape: Shape, name: str, version: str, connection: Connection, request: Request
    ) -> None:
        """Respond with what a method of control.py returns."""

        def respond(made: Message) -> None:
            tree = shape(made)
            body = b"" if tree is None else msgspec.json.encode(tree)
            reply(connection, request, 200, body, close=self._models.refuses)

        def fail(error: BaseException) -> None:
            refuse(connection, request, reason(error), close=self._models.refuses)

        kind, start = self._methods[method]
        start(_message(kind, name, version, request), respond, fail)


# --- what is at each path --------------------------------------------------------------------------------------------


def _nothing(_: Message) -> None:
    """Return an empty body."""


def _ready(made: Message) -> None:
    if not made.ready:  # Triton's status and words for this
        what = "Model version" if made.DESCRIPTOR.name.startswith("Model") else "Server"
        raise Refused("INVALID_ARGUMENT", f"{what} not ready")


def _index(made: Message) -> Any:
    """Return the index without empty values, like Triton."""
    return [{key: value for key, value in one.items() if value} for one in control.tree(made)["models"]]


def _regions(made: Message) -> Any:
    return list(control.tree(made)["regions"].values())


_GET, _POST = (b"GET", b"HEAD"), (b"POST",)
_ROUTES: tuple[tuple[tuple[bytes, ...], str, str | type[Infer], Shape], ...] = (
    (_POST, "models/*/infer", Infer, _nothing),
    (_POST, "models/*/generate", Generate, _nothing),
    (_POST, "models/*/generate_stream", GenerateStream, _nothing),
    (_GET, "", "ServerMetadata", control.tree),
    (_GET, "health/live", "ServerLive", _nothing),
    (_GET, "health/ready", "ServerReady", _ready),
    (_GET, "models/stats", "ModelStatistics", control.tree),
    (_GET, "models/*", "ModelMetadata", control.tree),
    (_GET, "models/*/ready", "ModelReady", _ready),
    (_GET, "models/*/config", "ModelConfig", lambda made: control.tree(made.config)),
    (_GET, "models/*/stats", "ModelStatistics", control.tree),
    (_POST, "repository/index", "RepositoryIndex", _index),
    (_POST, "repository/models/*/load", "RepositoryModelLoad", _nothing),
    (_POST, "repository/models/*/unload", "RepositoryModelUnload", _nothing),
    *(
        (methods, f"{kind.lower()}sharedmemory/{path}", f"{kind}SharedMemory{operation}", shape)
        for kind in ("System", "Cuda")
        for methods, path, operation, shape in (
            (_GET, "status", "Status", _regions),
            (_GET, "region/*/status", "Status", _regions),
            (_POST, "region/*/register", "Register", _nothing),
            (_POST, "unregister", "Unregister", _nothing),
            (_POST, "region/*/unregister", "Unregister", _nothing),
        )
    ),
)
"""HTTP methods, path below /v2, and the method of control.py with the shape of its response, or what is called instead;
both with the name at * and the version behind a model's name."""


_IN_BODIES = ("ready", "key", "offset", "byte_size", "parameters")
_KINDS = {bool: "bool_param", int: "int64_param", str: "string_param"}


def _message(kind: Any, name: str, version: str, request: Request) -> Message:
    """Return the request message with the fields in the path and in the JSON body."""
    body = http_codec.parse_json(request.body, http_codec.OBJECT) if len(request.body) else {}
    given = {"name": name, "model_name": name, "version": version} | {
        key: body[key] for key in _IN_BODIES if key in body
    }
    if isinstance(parameters := given.get("parameters"), dict):
        given["parameters"] = {key: {_KINDS.get(type(value), ""): value} for key, value in parameters.items()}
    try:
        return kind(**{key: value for key, value in given.items() if key in kind.DESCRIPTOR.fields_by_name})
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid(f"Unable to parse the request: {error}") from None
