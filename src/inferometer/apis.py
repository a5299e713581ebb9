"""The APIs that Inferometer speaks: one row per value of `server.api`.

Everything that differs per API and is a fact rather than code is here; config checking, discovery, `infer`, reports and checks
read the row. The code of an API, which turns requests into bytes and bytes into events, is its codec in wire/calls.py. Adding an
API means adding a row here, a codec there, and the name to the schema's list of values (a test compares the three).
"""

import re
from pathlib import Path
from typing import Literal, NamedTuple

Scheme = Literal["http", "grpc"]
"""What a URL speaks; https and grpcs are the same over TLS."""

DATA_TYPES = {
    "text": (
        *(
            "synthetic",
            "random",
            "shared_prefix",
            "conversation",
            "prompts",
            "jsonl",
            "sharegpt",
            "csv",
            "parquet",
            "hub",
        ),
        *("openai-batch", "python", "trace", "mix"),
    ),
    "tensors": ("tensors", "images", "mix"),
    "messages": ("messages", "mix"),
}
"""Values of `data.type` that provide each kind of request; the first is the default."""


class Api(NamedTuple):
    name: str
    """The value of `server.api`."""
    label: str
    """How `infer` names it."""
    schemes: tuple[Scheme, ...]
    """The URL schemes that it supports."""
    request: Literal["text", "tensors", "messages"]
    """What a request carries, which decides the accepted types of data."""
    response: Literal["text", "embeddings", "tensors", "messages"]
    """What a response carries. Only text has output tokens."""
    discovery: Literal["openai", "kserve", "reflection"]
    """How the model, or the method, is found before a run (probe/reach.py)."""
    path: str = ""
    """Path of the endpoint; empty if it depends on the model or the method."""
    warm_path: str = ""
    """Path of a cheap GET that warms up a connection; empty over gRPC, which exchanges settings anyway."""
    is_streamed: bool = False
    """Default of `server.stream`."""
    stream_schemes: tuple[Scheme, ...] = ()
    """The schemes over which responses may be streamed."""
    reports_usage: bool = False
    """The server can report token counts."""
    has_json_tensors: bool = False
    """Tensors are sent as JSON numbers rather than as raw bytes."""
    has_method: bool = False
    """`server.method` names what is called, and stands for the API in reports."""
    history: Literal["", "messages", "text"] = ""
    """How a prompt contains the earlier turns of a session: as messages, or as one text. Empty: it cannot."""
    has_system_field: bool = False
    """The system prompt is a field of the request, not one of its messages."""
    key_header: str = "Authorization"
    """The header that carries the API key; in `Authorization`, it is a bearer token."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers that every request needs."""
    takes_ids: bool = False
    """A prompt may be a list of token ids."""
    has_chat_template: bool = False
    """The server puts messages into the model's chat template."""
    options_key: Literal["body", "parameters"] = "parameters"
    """The key of the server section that takes `infer --parameter`."""

    @property
    def data_types(self) -> tuple[str, ...]:
        """The accepted values of `data.type`; the first is the default."""
        return DATA_TYPES[self.request]

    @property
    def history_form(self) -> str:
        """The form of a session's prompt (wire/history.py)."""
        return "system_field" if self.has_system_field else self.history


OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")
"""Fields of OpenAI's APIs that limit the response."""

_OPENAI_MODELS = "/v1/models"
_KSERVE_LIVE = "/v2/health/live"

APIS: dict[str, Api] = {
    row.name: row
    for row in (
        Api(
            name="chat",
            history="messages",
            has_chat_template=True,
            label="chat completions",
            schemes=("http",),
            request="text",
            response="text",
            discovery="openai",
            path="/v1/chat/completions",
            warm_path=_OPENAI_MODELS,
            is_streamed=True,
            stream_schemes=("http",),
            reports_usage=True,
            options_key="body",
        ),
        Api(
            name="completions",
            history="text",
            label="completions",
            takes_ids=True,
            schemes=("http",),
            request="text",
            response="text",
            discovery="openai",
            path="/v1/completions",
            warm_path=_OPENAI_MODELS,
            is_streamed=True,
            stream_schemes=("http",),
            reports_usage=True,
            options_key="body",
        ),
        Api(
            name="messages",
            history="messages",
            has_system_field=True,
            has_chat_template=True,
            label="Anthropic's messages",
            schemes=("http",),
            request="text",
            response="text",
            discovery="openai",
            path="/v1/messages",
            warm_path=_OPENAI_MODELS,
            is_streamed=True,
            stream_schemes=("http",),
            reports_usage=True,
            options_key="body",
            key_header="x-api-key",
            headers=(("anthropic-version", "2023-06-01"),),
        ),
        Api(
            name="embeddings",
            label="embeddings",
            takes_ids=True,
            schemes=("http",),
            request="text",
            response="embeddings",
            discovery="openai",
            path="/v1/embeddings",
            warm_path=_OPENAI_MODELS,
            reports_usage=True,
            options_key="body",
        ),
        Api(
            name="kserve",
            label="KServe v2",
            schemes=("http", "grpc"),
            request="tensors",
            response="tensors",
            discovery="kserve",
            warm_path=_KSERVE_LIVE,
            stream_schemes=("grpc",),
        ),
        Api(
            name="kserve-json",
            label="KServe v2 with JSON tensors",
            schemes=("http",),
            request="tensors",
            response="tensors",
            discovery="kserve",
            warm_path=_KSERVE_LIVE,
            has_json_tensors=True,
        ),
        Api(
            name="generate",
            label="Triton's generate",
            schemes=("http",),
            request="text",
            response="text",
            discovery="kserve",
            warm_path=_KSERVE_LIVE,
            is_streamed=True,
            stream_schemes=("http",),
        ),
        Api(
            name="grpc",
            label="gRPC",
            schemes=("grpc",),
            request="messages",
            response="messages",
            discovery="reflection",
            stream_schemes=("grpc",),
            has_method=True,
        ),
    )
}

DEFAULT_APIS: dict[Scheme, str] = {"http": "chat", "grpc": "kserve"}
"""What `server.api: auto` means, by the URL's scheme, unless the data are tensors."""


def scheme_of(url: str) -> Scheme:
    """The protocol of a URL, whether or not it uses TLS."""
    return "grpc" if url.startswith("grpc") else "http"


_HOST = re.compile(r"(localhost|\[[0-9a-fA-F:]+\]|[\w.-]+(?=:\d)|[\w.-]+(?=/v1/?$))(:\d+)?(/[^?#]*)?")
"""A URL without a scheme: `localhost`, `host:8000`, `[::1]:8000/prefix`, `host/v1`."""


def is_url(source: str) -> bool:
    """Whether the text is a URL, with or without a scheme, rather than the path of a file."""
    return "://" in source or (_HOST.fullmatch(source) is not None and not Path(source).exists())


def names(**facts: object) -> list[str]:
    """The APIs whose rows have these values: `names(request="text")`."""
    return [name for name, row in APIS.items() if all(getattr(row, field) == value for field, value in facts.items())]
