"""Parses requests of all endpoints into a TextRequest; raises Refused for what is missing or invalid.

Unknown fields are accepted and ignored. Those that real models would have to respect but do not support are refused by
`check_supported`; the simulator ignores them, with everything else that does not affect timing.
"""

from typing import Annotated, Literal
from zlib import crc32

import msgspec
from msgspec import Meta

from inferometer.serve.http.responses import MESSAGES
from inferometer.serve.json_limits import check_values
from inferometer.serve.models.types import Refused
from inferometer.serve.sim.settings import AtLeastOne, AtLeastZero

Api = Literal["completion", "chat", "message", "embedding", "tokenize"]
APIS: dict[bytes, tuple[Api, str]] = {
    b"/v1/completions": ("completion", "prompt"),
    b"/v1/chat/completions": ("chat", "messages"),
    MESSAGES: ("message", "messages"),
    b"/v1/embeddings": ("embedding", "input"),
    b"/tokenize": ("tokenize", "prompt"),
}
"""The API at each path, and the field that has its texts."""
DEFAULT_TOKENS = 16  # of a completion if the request sets no length
MOST_BYTES = 64 << 20
"""Maximum size of a body, which is parsed in the event loop."""
_MOST = 128  # choices, and images, of a request
IMAGE_TOKENS = 576
"""Tokens of an image, whatever its size."""
_DEFAULT_LENGTH = {"completion": DEFAULT_TOKENS, "embedding": 1}
_UNSUPPORTED = {
    "logprobs": b"false", "top_logprobs": b"0", "prompt_logprobs": b"", "echo": b"false", "suffix": b'""', "best_of": b"1",
    "logit_bias": b"{}", "presence_penalty": b"0 0.0", "frequency_penalty": b"0 0.0", "repetition_penalty": b"1 1.0",
    "tools": b"[]", "response_format": b'{"type":"text"}',
}  # fmt: skip
"""Fields that would change a real model's response, each with the values, as JSON, that do not; null never does."""

Part = str | list[int]  # a text, or its token ids
Texts = str | list[AtLeastZero | str | list[AtLeastZero]]


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str = ""
    image_url: msgspec.Raw = msgspec.Raw()
    source: msgspec.Raw = msgspec.Raw()  # of an image, in Anthropic's API


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_ContentPart] | None = None


class Fields(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fields of all endpoints, as clients send them. The limits of sampling parameters are vLLM's."""

    model: str | None = None
    prompt: Texts | None = None
    messages: list[_Message] | None = None
    system: str | list[_ContentPart] | None = None
    max_tokens: AtLeastOne | None = None
    max_completion_tokens: AtLeastOne | None = None
    min_tokens: AtLeastZero = 0
    n: Annotated[int, Meta(ge=1, le=_MOST)] | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_sequences: list[str] | None = None
    ignore_eos: bool = False
    input: Texts | None = None
    dimensions: Annotated[int, Meta(ge=1, le=16_384)] | None = None
    encoding_format: Literal["float", "base64"] = "float"


class TextRequest(msgspec.Struct, frozen=True, gc=False):
    """A parsed request of any endpoint."""

    api: Api
    fields: Fields
    parts: list[Part]
    """The prompts, the texts and images of the messages, or the inputs of embeddings."""
    messages: list[dict[str, str]] = []
    """Role and content of each message of a conversation."""
    n_out: int = 0
    """Tokens to generate; 0: the model's default."""
    stream: bool = False
    usage: bool = False
    """Whether to send a usage chunk at the stream's end."""
    running_usage: bool = False
    """Whether to send usage in every chunk."""
    choices: int = 1
    """Texts to generate: `n` for each prompt."""
    only_simulated: str = ""
    """What the request has that real models do not support."""


_decode = msgspec.json.Decoder(Fields).decode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def parse(path: bytes, body: bytes | memoryview) -> TextRequest:
    """Parse the body of a request to one of the APIs."""
    api, name = APIS[path]
    if len(body) > MOST_BYTES:
        raise Refused("RESOURCE_EXHAUSTED", f"the request body is larger than {MOST_BYTES} bytes", status=413)
    check_values(body)
    try:
        fields = _decode(body)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the request body is not valid JSON: {error}") from None
    given, is_message = getattr(fields, name), api == "message"
    if given is None:
        raise invalid(f"the field {name} is missing")
    if is_message and fields.max_tokens is None:
        raise invalid("the field max_tokens is missing")
    n, images = 1 if is_message else fields.n or 1, list[Part]()
    if name != "messages":
        messages, parts = [], _parts(name, given, api != "tokenize")
        n *= len(parts)
    else:
        system = [_Message("system", fields.system)] if is_message and fields.system else []
        messages = [{"role": each.role, "content": _joined(each.content, images)} for each in (*system, *given)]
        parts = [message["content"] for message in messages] + images
    if not any(parts) and api != "tokenize":
        raise invalid(f"{name} must not be empty")
    choices = n if api in ("completion", "chat") else 1
    if choices > _MOST:
        raise invalid(f"n times the number of prompts must be at most {_MOST} (got {choices})")
    only_simulated = "n > 1 or a list of prompts" if choices > 1 else "a content part with an image" if images else ""
    n_out = fields.max_completion_tokens or fields.max_tokens or _DEFAULT_LENGTH.get(api, 0)
    options = fields.stream_options or _StreamOptions()
    usage = is_message or options.include_usage or options.continuous_usage_stats
    stream = fields.stream and name != "input"  # vectors come in one piece
    running = options.continuous_usage_stats
    return TextRequest(api, fields, parts, messages, n_out, stream, usage, running, choices, only_simulated)


def invalid(message: str) -> Refused:
    return Refused("INVALID_ARGUMENT", message)


def too_long(n_in: int, n_out: int, limit: str) -> Refused:
    """Return the error for a prompt (of at least `n_in` tokens) and a response that are longer than `limit`."""
    what = f"{n_in} prompt tokens plus max_tokens {n_out} exceed {limit}"
    return Refused("INVALID_ARGUMENT", what, label="context_length_exceeded")


def _parts(name: str, given: Texts, several: bool) -> list[Part]:
    """Return one or several texts or lists of token ids."""
    if isinstance(given, str):
        return [given]
    parts = [given] if all(isinstance(one, int) for one in given) else given
    if not all(parts) or any(isinstance(one, int) for one in parts) or (len(parts) > 1 and not several):
        lists = " or a list of these" if several else ""
        raise invalid(f"{name} must be a string or a list of token ids{lists}, and not empty")
    return parts  # type: ignore[return-value]


def _joined(content: str | list[_ContentPart] | None, images: list[Part]) -> str:
    """Return the texts of a message, joined as vLLM joins them, and add tokens to `images` for each of its images."""
    if isinstance(content, str):
        return content
    for part in content or ():
        if part.type in ("image_url", "image") and (image := bytes(part.image_url) or bytes(part.source)):
            images.append([crc32(image)] * IMAGE_TOKENS)
        elif part.type != "text":
            raise invalid(f"content part type {part.type!r:.60} is not supported, or has no image")
        if len(images) > _MOST:
            raise invalid(f"there must be at most {_MOST} images")
    return "\n".join(part.text for part in content or () if part.type == "text")


def check_supported(body: bytes | memoryview) -> None:
    """Refuse fields that real models do not support."""
    fields = _decode_raw(body)
    for name in fields.keys() & _UNSUPPORTED.keys():
        if bytes(fields[name]).replace(b" ", b"") not in (b"null", *_UNSUPPORTED[name].split()):
            raise invalid(f"{name} is not supported")
