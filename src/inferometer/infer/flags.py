"""What the command line says, and the `server` section that it means.

A request by hand is asked as a run would ask it, so the flags become a Config's server section and are checked as one; what
that check and the engine say in the file's terms is said in the command line's (`spoken`).
"""

import json
from typing import Any

import msgspec

from inferometer.apis import APIS, DEFAULT_APIS, scheme_of
from inferometer.config import from_mapping
from inferometer.config.schema import Server
from inferometer.errors import CHECK_VERSION, GIVE_KEY, OTHER_GRPC, OTHER_HTTP, SEND_LESS, TRUST, UserError
from inferometer.units import parse_seconds
from inferometer.wire.target import parse

_CONNECT_S = 10.0
_USUAL_CLASSES = 5


class InferFlags(msgspec.Struct, frozen=True):
    """The flags of `inferometer infer`, as they were given."""

    url: str
    model: str | None = None
    version: str | None = None
    api: str = "auto"
    stream: bool | None = None
    prompt: str | None = None
    max_tokens: int = 0
    inputs: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    fill: str | None = None
    image: str | None = None
    scaling: str | None = None
    classes: int | None = None
    labels: str | None = None
    outputs: tuple[str, ...] = ()
    method: str | None = None
    proto: str | None = None
    data: str | None = None
    parameters: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    api_key_env: str | None = None
    api_key_file: str | None = None
    timeout: str = "60s"
    deadline: str | None = None
    insecure: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    save: str | None = None

    @property
    def best(self) -> int:
        """How many classes to show."""
        return _USUAL_CLASSES if self.classes is None else self.classes


_TENSOR_FLAGS = {
    "inputs": "--input", "shapes": "--shape", "fill": "--fill", "image": "--image", "scaling": "--scaling",
    "classes": "--classes", "labels": "--labels", "outputs": "--output", "save": "--save",
}  # fmt: skip
_TEXT_FLAGS = {"prompt": "--prompt", "max_tokens": "--max-tokens"}
_METHOD_FLAGS = {"method": "--method", "proto": "--proto", "data": "--data"}


def _given(options: InferFlags, flags: dict[str, str]) -> list[str]:
    return [flag for name, flag in flags.items() if getattr(options, name) not in (None, (), 0) or
            (name == "classes" and options.classes == 0)]  # fmt: skip


def api_of(options: InferFlags) -> str:
    """What to speak, where --api does not say: what the other flags call for."""
    if options.api != "auto":
        return options.api
    if options.method:
        return "grpc"
    return "kserve" if _given(options, _TENSOR_FLAGS) else DEFAULT_APIS[scheme_of(options.url)]


def check(options: InferFlags, api: str) -> None:
    """The URL is one, and the flags go together."""
    parse(options.url)
    kinds = {"text": _TEXT_FLAGS, "tensors": _TENSOR_FLAGS, "messages": _METHOD_FLAGS}
    called = {"text": "a prompt", "tensors": "tensors", "messages": "a gRPC method"}
    own = APIS[api].request
    for kind, flags in kinds.items():
        strange = _given(options, flags) if kind != own else []
        if strange and own == "tensors" and kind == "text" and scheme_of(options.url) == "grpc":
            raise UserError(
                f"{strange[0]}: prompts are asked over HTTP", "write http://HOST:PORT, or --input text_input=TEXT"
            )
        if strange:
            raise UserError(
                f"{strange[0]} does not go with api {api}, which asks with {called[own]}", "drop it, or see --api"
            )
    if options.max_tokens and APIS[api].response != "text":
        raise UserError(f"--max-tokens: responses of the API {api} have no tokens", "drop it, or choose another --api")
    if own == "text" and not options.prompt:
        raise UserError(
            "there is nothing to ask",
            "give --prompt TEXT; for tensors --api kserve, with --input, --image or neither; for a gRPC method --method",
        )
    if options.deadline and scheme_of(options.url) != "grpc":
        raise UserError("--deadline is gRPC's, and the URL is not grpc://", "use --timeout")
    if options.scaling is not None and options.image is None:
        raise UserError("--scaling is for --image", "give --image FILE, or drop it")


def server_section(options: InferFlags, api: str) -> Server:
    """Checked as a file's would be."""
    pairs = dict(_pair(text, "--parameter", "=") for text in options.parameters)
    parameters = {name: _value(text) for name, text in pairs.items()}
    timeout = seconds(options.timeout, "--timeout")
    tree: dict[str, Any] = {
        "url": options.url,
        "api": api,
        "model": options.model,
        "version": options.version,
        "stream": options.stream,
        "method": options.method,
        "proto": options.proto,
        "outputs": list(options.outputs),
        "headers": dict(_pair(text, "--header", ":") for text in options.headers),
        "api_key_env": options.api_key_env,
        "api_key_file": options.api_key_file,
        "deadline": seconds(options.deadline, "--deadline") if options.deadline else 0,
        "tls": {"verify": not options.insecure, "ca": options.ca, "cert": options.cert, "key": options.key},
        "timeouts": {"connect": min(_CONNECT_S, timeout or _CONNECT_S)},
        APIS[api].options_key: parameters,
    }
    kept = {name: value for name, value in tree.items() if value is not None}
    data: dict[str, Any] = {"data": {"messages": [{}]}} if APIS[api].has_method else {}
    return from_mapping({"server": kept} | data, source="command line").server


def seconds(text: str, flag: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise UserError(f"{flag}: {error}", "write for example 30s") from None


def _pair(text: str, flag: str, sign: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not found or not name.strip():
        raise UserError(f"{flag} {text!r:.60}: not of the form NAME{sign}VALUE", "see `inferometer infer --help`")
    return name.strip(), value.strip()


def named(texts: tuple[str, ...], flag: str) -> dict[str, str]:
    """NAME=VALUE flags by name; what has no name stands under ""."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if text.startswith("@") or not equals:
            name, value = "", text
        if name in found:
            raise UserError(f"{flag}: {name or 'one without a name'} is given twice", "give each once")
        found[name] = value
    return found


def _value(text: str) -> Any:
    """true, 5, 0.5 or JSON are what they look like; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


_SPOKEN = {
    "command line: ": "",
    TRUST: "give the CA's PEM file with --ca, or --insecure",
    GIVE_KEY: "give --api-key-env or --api-key-file",
    CHECK_VERSION: "check --version",
    OTHER_GRPC: "check the URL; any other gRPC service is asked with --method",
    OTHER_HTTP: "check the URL and its path; OpenAI's endpoints are asked with --prompt",
    SEND_LESS: "send smaller tensors, or take the server's HTTP port",
    "name the model: server.model, or --model on the command line": "name it: --model",
    "name the model: server.model, or --model": "name it: --model",
    "name the .proto file (server.proto)": "name the .proto file: --proto",
    "; for a tensor server --set server.api=kserve": "",
    "check the URL's path, ": "check the URL's path and --api (Triton: generate), ",
    "use a grpc:// URL, or api: generate": "use a grpc:// URL, or --api generate",
    "see docs/config.md": "see `inferometer infer --help`",
    "api: kserve": "--api kserve",
    "server.timeouts.connect": "--timeout",
    "check server.tls: the server may want a certificate": "the server may want a certificate of yours: --cert and --key",
    "server.tls.cert": "--cert",
    "server.tls.key": "--key",
    "server.tls.ca": "--ca",
    "server.api_key_env": "--api-key-env",
    "server.api_key_file": "--api-key-file",
    "server.parameters": "--parameter",
    "server.headers": "--header",
    "server.body": "--parameter",
    "server.outputs": "--output",
    "server.method": "--method",
    "server.stream": "--stream",
    "server.proto": "--proto",
    "server.model": "--model",
    "server.url": "URL",
    "server.api": "--api",
}  # the longer before the shorter


def spoken(error: UserError) -> UserError:
    """The same in the command line's terms."""
    what, remedy = error.what, error.remedy
    for written, flag in _SPOKEN.items():
        what, remedy = what.replace(written, flag), remedy.replace(written, flag)
    return UserError(what, remedy or "see `inferometer infer --help`")
