"""KServe v2 with Triton's extensions over HTTP: the paths under /v2, inference and the generate extension.

`_ROUTES` has a line for each path. Responses come from a method that HTTP and gRPC share (control.py) or from an
inference. Errors are `{"error": "..."}` with the HTTP status of their code.

A client that disconnects cancels its inference. Large bodies are processed in a thread, so that other requests are served
meanwhile. The connection stays busy, so that responses keep their order and the server's shutdown waits for it. If it is
closed before the thread is done, the result is dropped.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from inferometer.serve import compression
from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.http import responses
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.responses import refuse, reply
from inferometer.serve.kserve import control, http_codec
from inferometer.serve.kserve.messages import Message
from inferometer.serve.kserve.requests import Data, invalid
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Refused, reason
from inferometer.serve.offload import LARGE, UNREAD, not_read
from inferometer.serve.settings import Settings
from inferometer.tensors import Tensor
from inferometer.timing.clock import now
from inferometer.wire.http1_requests import Request

Handle = Callable[[Connection, Request], object]
Shape = Callable[[Message], Any] | None
"""Returns the JSON types of a response message; None for an empty body."""

_JSON_LENGTH = b"inference-header-content-length"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of "
    "responses"
)


class Kserve:
    """Handles all requests under /v2."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self._models, self._limit, self._methods = models, settings.limits.message, control.methods(models, settings)
        self._known: BoundedCache[bytes, tuple[tuple[bytes, ...], Handle]] = BoundedCache(1000)

    def handle(self, connection: Connection, request: Request) -> None:
        methods, handle = self._known.get(request.path) or self._find_route(request.path)
        if request.method not in methods:
            allow = b"Allow: %b\r\n" % b", ".join(methods)
            raise Refused("UNIMPLEMENTED", "Method Not Allowed", status=405, headers=allow)  # Triton's words
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
            tree = None if shape is None else shape(made)
            body = b"" if tree is None else msgspec.json.encode(tree)
            reply(connection, request, 200, body, close=self._models.refuses)

        def fail(error: BaseException) -> None:
            refuse(connection, request, reason(error), close=self._models.refuses)

        kind, start = self._methods[method]
        start(_message(kind, name, version, request), respond, fail)


class Infer:
    """A request to /infer, from its arrival to its response: the tensors of one response."""

    __slots__ = ("connection", "model", "models", "request", "version")

    def __init__(
        self, models: Models, limit: int, name: str, version: str, connection: Connection, request: Request
    ) -> None:
        if models.refuses:
            models.check_open(request.began < models.refused_from)
        self.models, self.connection, self.request = models, connection, request
        self.model, self.version = models.find(name, version), version
        body, encoding = request.body, request.headers.get(b"content-encoding")
        if encoding and (how := compression.named(encoding)):
            work = partial(compression.decompress, how, body, limit, "body", "INVALID_ARGUMENT")
            self.offload(compression.EXPANSION * len(body), work, self.read)
        else:
            self.read(body)

    def read(self, body: Data) -> None:
        """Submit the inference in the body. After a thread has parsed it, the model may be another one."""
        model, find = self.model, self.models.regions.find
        if model.decoupled:
            raise Refused("UNIMPLEMENTED", "HTTP end point doesn't support models with decoupled transaction policy")
        end = http_codec.json_length(self.request.headers.get(_JSON_LENGTH, b""), len(body))
        if end > LARGE:
            self.offload(end, partial(http_codec.request, body, end, model.name, self.version, find), self.submit)
        else:
            self.submit(http_codec.request(body, end, model.name, self.version, find), model)

    def submit(self, inference: Inference, model: Model | None = None) -> None:
        inference.ended, inference.arrived = partial(self.done, self.respond, inference), self.request.arrived
        self.models.submit(inference, True, model)
        if not inference.is_over:
            self.connection.gone = partial(self.models.cancel, inference)

    def respond(self, inference: Inference) -> None:
        """Send the response of an inference that succeeded."""
        accepted = self.request.headers.get(b"accept-encoding")
        how = compression.choose(accepted) if accepted else ""
        made = http_codec.response(inference, how, LARGE)
        if made is None:
            self.offload(LARGE + 1, partial(http_codec.response, inference, how), partial(self.send, inference))
        else:
            self.send(inference, made)

    def send(self, inference: Inference, made: Any) -> None:
        start, body, size = made
        keep = self.request.keep_alive and not self.models.refuses
        timing = responses.timing(inference.queue_ns, inference.compute_ns, now() - inference.arrived)
        responses.send(self.connection, (start, timing, responses.END[keep], *body), size, keep)

    def offload(self, size: int, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Continue with the result of work on `size` bytes."""
        self.models.offload.run(size, work, partial(self.done, then))

    def done(self, then: Callable[[Any], None], result: Any, error: BaseException | None) -> None:
        """Continue with a result, or refuse the request, unless the client is gone by now."""
        if self.connection.transport.closed:
            return
        try:
            if error is None:
                then(result)
            else:
                self.refuse(error)
        except Exception as why:
            self.refuse(why)

    def refuse(self, error: BaseException) -> None:
        refuse(self.connection, self.request, reason(error), close=self.models.refuses)


class Generate(Infer):
    """/generate: one response as JSON. A second one is an error, reported at once: the model may never end."""

    def read(self, body: Data) -> None:
        self.offload(len(body), partial(http_codec.generate_request, body, self.model, self.version), self.submit)

    def submit(self, inference: Inference, model: Model | None = None) -> None:
        inference.responded = partial(self.responded, inference)
        super().submit(inference, model)

    def responded(self, inference: Inference, outputs: tuple[Tensor, ...]) -> None:
        if inference.outputs:
            self.models.cancel(inference, invalid(_NOT_ONE))
        inference.outputs = outputs

    def respond(self, inference: Inference) -> None:
        if not inference.outputs:
            raise invalid(_NOT_ONE)
        size = http_codec.GROWTH * sum(len(tensor.data) for tensor in inference.outputs)
        self.offload(size, partial(self._whole, inference), partial(self.send, inference))

    def _whole(self, inference: Inference) -> tuple[bytes, list[Data], int]:
        body = http_codec.generate_response(inference, inference.outputs)
        return responses.start(200, len(body)), [body], len(body)


class GenerateStream(Generate):
    """/generate_stream: an event per response, and for an error after the first one."""

    _has_begun = False

    def responded(self, inference: Inference, outputs: tuple[Tensor, ...]) -> None:
        try:
            body = http_codec.generate_response(inference, outputs)
            self._begin(inference)
            self._event(body)
            if self.connection.transport.unsent > UNREAD:
                raise not_read()
        except Exception as error:
            self.models.cancel(inference, reason(error))

    def respond(self, inference: Inference) -> None:
        self._begin(inference)
        self._end()

    def refuse(self, error: BaseException) -> None:
        if self._has_begun:
            self._event(msgspec.json.encode({"error": reason(error).message}))
            self._end()
        else:
            super().refuse(error)

    def _begin(self, inference: Inference) -> None:
        """Send the headers; of the server's times, only the queue time is known by now."""
        if not self._has_begun:
            self._has_begun = True
            timing = b"Server-Timing: queue;dur=%.6f\r\n" % (inference.queue_ns / 1e6)
            self._write = responses.start_stream(self.connection.write, self.request, timing)

    def _event(self, body: bytes) -> None:
        self._write(responses.chunk(b"data: %b\n\n" % body))

    def _end(self) -> None:
        self._write(responses.LAST_CHUNK)
        self.connection.finish(self.request.keep_alive and not self.models.refuses)


def _ready(made: Message) -> Any:
    """Return the body of KServe's specification, which Triton leaves out."""
    if not made.ready:  # Triton's status and words for this
        what = "Model version" if made.DESCRIPTOR.name.startswith("Model") else "Server"
        raise Refused("INVALID_ARGUMENT", f"{what} not ready")
    return control.tree(made)


def _index(made: Message) -> Any:
    """Return the index without empty values, like Triton."""
    return [{key: value for key, value in one.items() if value} for one in control.tree(made)["models"]]


def _regions(made: Message) -> Any:
    return list(control.tree(made)["regions"].values())


_GET, _POST = (b"GET", b"HEAD"), (b"POST",)
_ROUTES: tuple[tuple[tuple[bytes, ...], str, str | type[Infer], Shape], ...] = (
    (_POST, "models/*/infer", Infer, None),
    (_POST, "models/*/generate", Generate, None),
    (_POST, "models/*/generate_stream", GenerateStream, None),
    (_GET, "", "ServerMetadata", control.tree),
    (_GET, "health/live", "ServerLive", control.tree),
    (_GET, "health/ready", "ServerReady", _ready),
    (_GET, "models/stats", "ModelStatistics", control.tree),
    (_GET, "models/*", "ModelMetadata", control.tree),
    (_GET, "models/*/ready", "ModelReady", _ready),
    (_GET, "models/*/config", "ModelConfig", lambda made: control.tree(made.config)),
    (_GET, "models/*/stats", "ModelStatistics", control.tree),
    (_POST, "repository/index", "RepositoryIndex", _index),
    (_POST, "repository/models/*/load", "RepositoryModelLoad", None),
    (_POST, "repository/models/*/unload", "RepositoryModelUnload", None),
    *(
        (methods, f"{kind.lower()}sharedmemory/{path}", f"{kind}SharedMemory{operation}", shape)
        for kind in ("System", "Cuda")
        for methods, path, operation, shape in (
            (_GET, "status", "Status", _regions),
            (_GET, "region/*/status", "Status", _regions),
            (_POST, "region/*/register", "Register", None),
            (_POST, "unregister", "Unregister", None),
            (_POST, "region/*/unregister", "Unregister", None),
        )
    ),
)
"""HTTP methods, path below /v2, and the method of control.py with the shape of its response, or what is called instead;
both with the name at * and the version behind a model's name."""
_MOST_CONTROL = 4 << 20
"""Maximum size of a body that is neither an inference nor its tensors: it is parsed in the event loop."""
_IN_BODIES = ("ready", "key", "offset", "byte_size", "parameters")
_KINDS = {bool: "bool_param", int: "int64_param", str: "string_param"}


def _message(kind: Any, name: str, version: str, request: Request) -> Message:
    """Return the request message with the fields in the JSON body and in the path."""
    if len(request.body) > _MOST_CONTROL:
        raise Refused("RESOURCE_EXHAUSTED", f"the request body is larger than {_MOST_CONTROL} bytes", status=413)
    body = http_codec.parse_json(request.body, http_codec.OBJECT) if len(request.body) else {}
    given = {key: body[key] for key in _IN_BODIES if key in body}
    given |= {"name": name, "model_name": name, "version": version}
    if isinstance(parameters := given.get("parameters"), dict):
        given["parameters"] = {key: {_KINDS.get(type(value), ""): value} for key, value in parameters.items()}
    try:
        return kind(**{key: value for key, value in given.items() if key in kind.DESCRIPTOR.fields_by_name})
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise invalid(f"Unable to parse the request: {error}") from None
