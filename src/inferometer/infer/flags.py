"""The flags of `inferometer infer`, and the config's `server` section that they amount to.

A single request is made as a run would make it, so the flags become a server section that is checked like that of a file.
Errors carry the config key at fault; NAMES says which flag that is.
"""

import json
from typing import Any

import msgspec

from inferometer.apis import APIS, DEFAULT_APIS, scheme_of
from inferometer.config import from_mapping
from inferometer.config.schema import Server
from inferometer.errors import UserError
from inferometer.units import parse_seconds
from inferometer.wire.target import parse

_CONNECT_S = 10.0
_DEFAULT_CLASSES = 5

NAMES = {
    "server.url": "URL",
    "server.model": "--model",
    "server.version": "--version",
    "server.api": "--api",
    "server.stream": "--stream",
    "server.method": "--method",
    "server.proto": "--proto",
    "server.outputs": "--tensor",
    "server.parameters": "--parameter",
    "server.body": "--parameter",
    "server.headers": "--header",
    "server.timing": "--timing",
    "server.api_key_env": "--api-key-env",
    "server.api_key_file": "--api-key-file",
    "server.deadline": "--deadline",
    "server.timeouts.connect": "--timeout",
    "server.tls.verify": "--insecure",
    "server.tls.ca": "--ca",
    "server.tls.cert": "--cert",
    "server.tls.key": "--key",
    "server.compression": "`inferometer run` with server.compression",
    "server.shared_memory": "`inferometer run` with server.shared_memory",
    "data.path": "--image",
    "data.scaling": "--scaling",
    "data.crop": "--crop",
    "data.shape": "--shape",
    "data.fill": "--input NAME=... or --fill",
}
"""The flag of each config key."""

HELP = "see `inferometer infer --help`"


class InferFlags(msgspec.Struct, frozen=True):
    """The flags as given."""

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
    images: tuple[str, ...] = ()
    scaling: str | None = None
    crop: str | None = None
    classes: int | None = None
    labels: str | None = None
    outputs: tuple[str, ...] = ()
    method: str | None = None
    proto: str | None = None
    data: str | None = None
    parameters: tuple[str, ...] = ()
    header: dict[str, str] = {}
    timing: tuple[str, ...] = ()
    api_key_env: str | None = None
    api_key_file: str | None = None
    timeout: str = "60s"
    deadline: str | None = None
    insecure: bool | None = None
    """False: do not verify the server's certificate, as the config's `verify` says it."""
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    save: str | None = None

    @property
    def top_classes(self) -> int:
        """Number of classes to show."""
        return _DEFAULT_CLASSES if self.classes is None else self.classes


_FLAGS_OF = {
    "text": {"prompt": "--prompt", "max_tokens": "--output-tokens"},
    "tensors": {
        "inputs": "--input", "shapes": "--shape", "fill": "--fill", "images": "--image", "scaling": "--scaling",
        "crop": "--crop", "classes": "--classes", "labels": "--labels", "outputs": "--tensor", "save": "--save",
    },
    "messages": {"method": "--method", "proto": "--proto", "data": "--data"},
}  # fmt: skip
"""The flags that describe each kind of request, by field."""
_KIND_NAMES = {"text": "a prompt", "tensors": "tensors", "messages": "a gRPC method"}


def _given(flags: InferFlags, kind: str) -> list[str]:
    """The flags for this kind of request that were given."""
    default = InferFlags(url="")
    return [flag for name, flag in _FLAGS_OF[kind].items() if getattr(flags, name) != getattr(default, name)]


def api_of(flags: InferFlags) -> str:
    """The API: that of --api, or the one that the other flags are for."""
    if flags.api != "auto":
        return flags.api
    if flags.method:
        return "grpc"
    return "kserve" if _given(flags, "tensors") else DEFAULT_APIS[scheme_of(flags.url)]


def check(flags: InferFlags, api: str) -> None:
    """Raise UserError if the URL is not valid or flags do not go together."""
    parse(flags.url)
    request, is_grpc = APIS[api].request, scheme_of(flags.url) == "grpc"
    for kind in _FLAGS_OF:
        unsuitable = _given(flags, kind) if kind != request else []
        if unsuitable and kind == "text" and request == "tensors" and is_grpc:
            raise UserError(
                f"{unsuitable[0]}: prompts are sent over HTTP", "write http://HOST:PORT, or --input text_input=TEXT"
            )
        if unsuitable:
            raise UserError(
                f"{unsuitable[0]} does not go with the API {api}, whose requests carry {_KIND_NAMES[request]}",
                "drop it, or choose another --api",
            )
    if flags.max_tokens and APIS[api].response != "text":
        raise UserError(
            f"--output-tokens: responses of the API {api} have no tokens", "drop it, or choose another --api"
        )
    if request == "text" and not flags.prompt:
        raise UserError(
            "there is nothing to send",
            "give --prompt TEXT; for tensors --api kserve, with or without --input or --image; for a gRPC method --method",
        )
    if flags.deadline and not is_grpc:
        raise UserError("--deadline needs a grpc:// URL", "use --timeout")
    for flag, given in (("--scaling", flags.scaling), ("--crop", flags.crop)):
        if given is not None and not flags.images:
            raise UserError(f"{flag} needs --image", "give --image FILE, or drop it")


def server_section(flags: InferFlags, api: str) -> Server:
    """The server section of a config, checked like that of a file."""
    pairs = dict(_pair(text, "--parameter", "=") for text in flags.parameters)
    timeout = seconds(flags.timeout, "--timeout")
    tree: dict[str, Any] = {
        "url": flags.url,
        "api": api,
        "model": flags.model,
        "version": flags.version,
        "stream": flags.stream,
        "method": flags.method,
        "proto": flags.proto,
        "outputs": list(flags.outputs),
        "headers": flags.header,
        "timing": dict(_pair(text, "--timing", "=") for text in flags.timing),
        "api_key_env": flags.api_key_env,
        "api_key_file": flags.api_key_file,
        "deadline": seconds(flags.deadline, "--deadline") if flags.deadline else 0,
        "tls": {"verify": flags.insecure is None, "ca": flags.ca, "cert": flags.cert, "key": flags.key},
        "timeouts": {"connect": min(_CONNECT_S, timeout or _CONNECT_S)},
        APIS[api].options_key: {name: _value(text) for name, text in pairs.items()},
    }
    section = {name: value for name, value in tree.items() if value is not None}
    data: dict[str, Any] = {"data": {"messages": [{}]}} if APIS[api].has_method else {}
    return from_mapping({"server": section} | data, source="").server


def seconds(text: str, flag: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise UserError(f"{flag}: {error}", "write for example 30s") from None


def named_values(texts: tuple[str, ...], flag: str) -> dict[str, str]:
    """NAME=VALUE flags by name; a value without a name is stored under ""."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if text.startswith("@") or not equals:
            name, value = "", text
        if name in values:
            raise UserError(f"{flag}: {name or 'a value without a name'} is given twice", "give each once")
        values[name] = value
    return values


def _pair(text: str, flag: str, separator: str) -> tuple[str, str]:
    name, found, value = text.partition(separator)
    if not found or not name.strip():
        raise UserError(f"{flag} {text!r:.60}: not of the form NAME{separator}VALUE", HELP)
    return name.strip(), value.strip()


def _value(text: str) -> Any:
    """The value of a parameter: JSON (true, 5, 0.5, [1]) if it parses, otherwise text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
