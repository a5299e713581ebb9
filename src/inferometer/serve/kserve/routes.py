"""KServe v2 with Triton's extensions over HTTP: the paths under /v2.

`handle` looks up path and method. Responses come from control.py (shared with gRPC) or from an inference, whose
response is written when it ends (responders.py). A client that disconnects cancels its inference. Errors are `{"error":
"..."}` with the HTTP status of their code.
"""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from inferometer.errors import UserError
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.reply import reply
from inferometer.serve.kserve import control, generate, http_codec
from inferometer.serve.kserve.http_codec import Data, InferRequestBody
from inferometer.serve.kserve.offload import LARGE, THREADS, Aside
from inferometer.serve.kserve.responders import Generate, GenerateStream, Infer, UnderWay, unexpected
from inferometer.serve.models.registry import Model, Models
from inferometer.serve.models.types import HTTP_STATUS, Inference, Refused
from inferometer.serve.settings import Settings
from inferometer.serve.threads import Threads

_JSON_LENGTH = b"inference-header-content-length"
_DECOUPLED = "HTTP end point doesn't support models with decoupled transaction policy"

_encode = msgspec.json.encode


class Declined(Exception):  # noqa: N818  (an answer)
    """There is nothing at that path, whatever the models are."""

    def __init__(self, status: int, message: str, extra: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.extra = extra


class Kserve:
    """Handles all requests under /v2."""

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models = models
        self.draining = False
        self._limit = settings.limits.message
        self._control = settings.control
        self.threads = Threads(asyncio.get_running_loop(), THREADS, "bodies")
        self.aside: set[Aside] = set()
        """Requests whose bodies are being processed in a thread."""
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, connection: Connection, request: Request) -> None:
        try:
            words = request.path.split(b"/")[2:]
            if len(words) > 2 and words[0] == b"models":
                self._of_model(connection, request, words[1:])
            else:
                self._of_server(connection, request, words)
        except Refused as refused:
            self.refuse(connection, request, refused)
        except Declined as declined:
            self._reply(connection, request, declined.status, http_codec.error(declined.message), declined.extra)

    def refuse(self, connection: Connection, request: Request, refused: Refused) -> None:
        status = 413 if isinstance(refused, http_codec.TooLarge) else HTTP_STATUS[refused.code]
        self._reply(connection, request, status, http_codec.error(refused.message))

    def refuse_for(self, connection: Connection, request: Request, error: BaseException) -> None:
        """Respond with the error that describes an exception."""
        if isinstance(error, Refused):
            self.refuse(connection, request, error)
        elif isinstance(error, UserError):  # an invalid output
            self.refuse(connection, request, Refused("INTERNAL", error.what))
        else:  # keep serving
            self.refuse(connection, request, unexpected(error))

    def refuse_rest(self) -> int:
        rest = list(self.aside)
        for one in rest:
            one.refuse(Refused("UNAVAILABLE", "the server stopped before the request was complete"))
        return len(rest)

    def close(self) -> None:
        self.threads.close()

    def _reply(
        self, connection: Connection, request: Request, status: int, body: bytes = b"", extra: bytes = b""
    ) -> None:
        reply(connection, request, status, body, extra=extra, close=self.draining)

    def _say(self, connection: Connection, request: Request, tree: Any) -> None:
        self._reply(connection, request, 200, _encode(tree))

    # --- the server --------------------------------------------------------------------------------------------------

    def _of_server(self, connection: Connection, request: Request, words: list[bytes]) -> None:
        match words:
            case []:
                _only(request, b"GET")
                self._say(connection, request, control.tree(control.server_metadata(self.models)))
            case [b"health", b"live"]:
                _only(request, b"GET")
                self._reply(connection, request, 200)
            case [b"health", b"ready"]:
                _only(request, b"GET")
                self._ready(connection, request, self.models.ready, "Server not ready")
            case [b"models", b"stats"]:
                _only(request, b"GET")
                self._later(connection, request, control.statistics(self.models))
            case [b"models", name] if name:
                _only(request, b"GET")
                self._metadata(connection, request, _text(name), "")
            case [b"repository", b"index"]:
                _only(request, b"POST")
                index = control.repository_index(self.models, bool(_fields(request).get("ready", False)))
                self._say(connection, request, control.tree(index, empty=False).get("models", []))
            case [b"repository", b"models", name, b"load" | b"unload" as what]:
                _only(request, b"POST")
                self._load(connection, request, _text(name), what)
            case [b"systemsharedmemory", *rest]:
                self._shared_memory(connection, request, rest)
            case [b"cudasharedmemory", *rest]:
                self._cuda_memory(connection, request, rest)
            case [b"logging"]:
                self._logging(connection, request)
            case [b"trace", b"setting"]:
                self._trace(connection, request, "")
            case _:
                raise _not_found()

    def _ready(self, connection: Connection, request: Request, is_ready: bool, why_not: str) -> None:
        if is_ready and not self.draining:
            self._reply(connection, request, 200)
        else:
            self._reply(connection, request, 400, http_codec.error(why_not))  # Triton's status for this

    def _load(self, connection: Connection, request: Request, name: str, what: bytes) -> None:
        if not self._control:
            raise Refused("PERMISSION_DENIED", control.NO_CONTROL)
        given = _fields(request).get("parameters") or {}
        if not isinstance(given, dict):
            raise Refused("INVALID_ARGUMENT", "Unable to parse 'parameters': expected an object")
        if what == b"unload":
            self._later(connection, request, self.models.unload(name))
            return
        control.check_load(given)
        config = given.get("config", "")
        if not isinstance(config, str):
            raise Refused("INVALID_ARGUMENT", "Unable to parse 'config': expected the configuration as a JSON string")
        self._later(connection, request, self.models.load(name, config))

    def _later(self, connection: Connection, request: Request, work: Any) -> None:
        """Respond when the work is done, with the message that it returns, if any. (`work` may be the message itself.)"""

        async def run() -> None:
            try:
                made = await work if inspect.isawaitable(work) else work
            except Refused as refused:
                self.refuse(connection, request, refused)
            except UserError as error:
                self.refuse(connection, request, Refused("INTERNAL", str(error)))
            except Exception as error:  # keep serving
                self.refuse(connection, request, unexpected(error))
            else:
                self._reply(connection, request, 200, b"" if made is None else _encode(control.tree(made)))

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _logging(self, connection: Connection, request: Request) -> None:
        asked = list(_fields(request)) if _either(request) == b"POST" else []
        settings = control.tree(control.log_settings(asked))["settings"]
        self._say(connection, request, {name: next(iter(value.values())) for name, value in settings.items()})

    def _trace(self, connection: Connection, request: Request, model: str) -> None:
        asked = list(_fields(request)) if _either(request) == b"POST" else []
        settings = control.tree(control.trace_settings(self.models, model, asked))["settings"]
        shown = {name: value["value"] for name, value in settings.items()}
        self._say(
            connection,
            request,
            {name: values if name == "trace_level" else "".join(values) for name, values in shown.items()},
        )

    # --- shared memory -----------------------------------------------------------------------------------------------

    def _shared_memory(self, connection: Connection, request: Request, words: list[bytes]) -> None:
        match words:
            case [b"status"] | [b"region", _, b"status"]:
                _only(request, b"GET")
                status = control.shared_memory_status(self.models, _text(words[1]) if len(words) > 1 else "")
                self._say(connection, request, list(control.tree(status)["regions"].values()))
            case [b"unregister"] | [b"region", _, b"unregister"]:
                _only(request, b"POST")
                name = words[1] if len(words) > 1 else b""
                self._later(connection, request, control.change_regions(self.models, "unregister", _text(name)))
            case [b"region", name, b"register"]:
                _only(request, b"POST")
                asked = _registration(request)
                region = (_text(name), asked.key, asked.offset, asked.byte_size)
                self._later(connection, request, control.change_regions(self.models, "register", *region))
            case _:
                raise _not_found()

    def _cuda_memory(self, connection: Connection, request: Request, words: list[bytes]) -> None:
        match words:
            case [b"status"] | [b"region", _, b"status"]:
                _only(request, b"GET")
                status = control.cuda_status(_text(words[1]) if len(words) > 1 else "")
                self._say(connection, request, list(control.tree(status)["regions"].values()))
            case [b"unregister"] | [b"region", _, b"unregister"]:
                _only(request, b"POST")
                self._reply(connection, request, 200)
            case [b"region", name, b"register"]:
                _only(request, b"POST")
                raise control.refuse_cuda(_text(name))
            case _:
                raise _not_found()

    # --- a model -----------------------------------------------------------------------------------------------------

    def _of_model(self, connection: Connection, request: Request, words: list[bytes]) -> None:
        name, version = _text(words[0]), ""
        if len(words) > 2 and words[1] == b"versions" and words[2].isdigit():
            version, words = _text(words[2]), words[2:]
        match words[1:]:
            case [b"infer"]:
                _only(request, b"POST")
                self._infer(connection, request, name, version)
            case [b"generate"]:
                _only(request, b"POST")
                self._generate(connection, request, name, version, Generate)
            case [b"generate_stream"]:
                _only(request, b"POST")
                if request.http10:
                    raise Refused("INVALID_ARGUMENT", "streaming requires HTTP/1.1")
                self._generate(connection, request, name, version, GenerateStream)
            case []:
                _only(request, b"GET")
                self._metadata(connection, request, name, version)
            case [b"ready"]:
                _only(request, b"GET")
                self._ready(connection, request, self.models.is_ready(name, version), "Model version not ready")
            case [b"config"]:
                _only(request, b"GET")
                config = control.model_config(self.models.find(name, version))
                self._say(connection, request, control.tree(config))
            case [b"stats"]:
                _only(request, b"GET")
                self._later(connection, request, control.statistics(self.models, name, version))
            case [b"trace", b"setting"]:
                self._trace(connection, request, name)
            case _:
                raise _not_found()

    def _metadata(self, connection: Connection, request: Request, name: str, version: str) -> None:
        self._say(connection, request, control.tree(control.model_metadata(self.models.find(name, version))))

    # --- inference ---------------------------------------------------------------------------------------------------

    def _infer(self, connection: Connection, request: Request, name: str, version: str) -> None:
        model = self._find(request, name, version)
        if model.decoupled:
            raise Refused("UNIMPLEMENTED", _DECOUPLED)
        json_length, find, facts = request.headers.get(_JSON_LENGTH, b""), self.models.regions.find, model.facts

        def parse(body: Data) -> InferRequestBody:
            return http_codec.request(body, json_length, name, find, facts)

        self._read(
            connection, request, json_length, parse, partial(self._submit, connection, request, name, version, Infer)
        )

    def _generate(
        self, connection: Connection, request: Request, name: str, version: str, kind: type[Generate | GenerateStream]
    ) -> None:
        model = self._find(request, name, version)
        submit = partial(self._submit, connection, request, name, version, kind)
        self._read(connection, request, b"", lambda body: generate.request(body, model), submit)

    def _read(
        self,
        connection: Connection,
        request: Request,
        json_length: bytes,
        parse: Callable[[Data], InferRequestBody],
        submit: Callable[[InferRequestBody, bool], None],
    ) -> None:
        """Submit the inference in the body. A large body is decompressed and parsed in a thread."""
        encoding, limit = request.headers.get(b"content-encoding", b""), self._limit
        body = _small(request.body, encoding, json_length, limit)
        if body is not None:
            submit(parse(body), request.was_let_in)
            return
        self.models.check_room(len(self.aside))
        aside = Aside(self, connection, request, lambda asked: submit(asked, True))
        aside.begin(lambda: parse(http_codec.unpacked(request.body, encoding, limit)))

    def _find(self, request: Request, name: str, version: str) -> Model:
        if self.draining and not request.was_let_in:
            raise Refused("UNAVAILABLE", "the server is shutting down and does not accept new requests")
        return self.models.find(name, version)

    def _submit(
        self,
        connection: Connection,
        request: Request,
        name: str,
        version: str,
        kind: type[UnderWay],
        asked: InferRequestBody,
        was_let_in: bool,
    ) -> None:
        under_way = kind(self, connection, request, asked)
        inference = Inference(
            name,
            asked.inputs,
            answer=under_way.answer,
            ended=under_way.ended,
            arrived=request.arrived,
            version=version,
            id=asked.id,
            wanted=asked.wanted,
            parameters=asked.parameters,
            unread=asked.unread,
        )
        under_way.inference = inference
        connection.gone = partial(self.models.cancel, inference)
        try:
            self.models.submit(inference, was_let_in)
        except BaseException:
            connection.gone = None
            under_way.let_go()
            raise


# --- paths, methods, bodies ------------------------------------------------------------------------------------------


class _Registration(msgspec.Struct):
    key: str
    byte_size: int
    offset: int = 0


def _registration(request: Request) -> _Registration:
    fields = _fields(request)
    for name in ("key", "byte_size"):
        if name not in fields:
            raise Refused("INVALID_ARGUMENT", f"Shared memory register request has no '{name}' field")
    try:
        return msgspec.convert(fields, _Registration)
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", f"Unable to parse the request: {error}") from None


def _fields(request: Request) -> dict[str, Any]:
    """Return the body of a control request: a JSON object, or empty."""
    if not len(request.body):
        return {}
    try:
        tree = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused("INVALID_ARGUMENT", f"failed to parse the request JSON buffer: {error}") from None
    if not isinstance(tree, dict):
        raise Refused("INVALID_ARGUMENT", "expected a JSON object")
    return tree


def _small(body: Data, encoding: bytes, json_length: bytes, limit: int) -> Data | None:
    """Return the decompressed body, or None if it or its JSON is large enough to block other requests."""
    if not encoding:
        return body if http_codec.json_length(json_length, len(body)) <= LARGE else None
    if len(body) > LARGE:
        return None
    try:
        plain = http_codec.unpacked(body, encoding, min(LARGE, limit))
    except http_codec.TooLarge:
        return None
    return plain if len(plain) <= LARGE else None


def _text(word: bytes) -> str:
    return (unquote_to_bytes(word) if b"%" in word else word).decode("utf-8", "replace")


def _only(request: Request, method: bytes) -> None:
    if request.method != method and not (method == b"GET" and request.method == b"HEAD"):
        raise Declined(405, "Method Not Allowed", b"Allow: %b\r\n" % method)


def _either(request: Request) -> bytes:
    if request.method not in (b"GET", b"POST"):
        raise Declined(405, "Method Not Allowed", b"Allow: GET, POST\r\n")
    return request.method


def _not_found() -> Declined:
    return Declined(404, "Not Found")
