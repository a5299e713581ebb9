"""Parses requests of all endpoints into a TextRequest; errors are a Refusal with OpenAI's error shape.

Unknown fields are accepted and ignored. Those that real models would have to respect but do not support are refused by
`check_supported`; the simulator ignores them, with everything else that does not affect timing.
"""

from collections.abc import Callable
from itertools import chain
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, field

from inferometer.serve.models.types import HTTP_STATUS, Refused

_T = TypeVar("_T")
Body = bytes | memoryview
Parts = tuple[str | list[int], ...]
"""Prompts as text or as token ids."""

DEFAULT_TOKENS = 16
"""Length of a completion if the request sets none."""
MAX_DIMENSIONS = 16_384

_UNSUPPORTED = {
    "logprobs": b"false", "top_logprobs": b"0", "prompt_logprobs": b"", "echo": b"false", "suffix": b'""', "best_of": b"1",
    "logit_bias": b"{}", "presence_penalty": b"0 0.0", "frequency_penalty": b"0 0.0", "repetition_penalty": b"1 1.0",
    "tools": b"[]", "response_format": b'{"type":"text"}',
}  # fmt: skip
"""Fields that would change a real model's response, each with the values, as JSON, that do not; null never does."""
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Refusal(Exception):  # noqa: N818  (an error response, not an error of ours)
    """An error response with this status and OpenAI's error body."""

    def __init__(
        self, status: int, message: str, code: str, kind: str = "invalid_request_error", headers: bytes = b""
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.kind, self.headers = status, message, code, kind, headers


def refusal_of(refused: Refused) -> Refusal:
    """Return a model's refusal as an error response."""
    status = HTTP_STATUS[refused.code]
    kind = "invalid_request_error" if status < 429 else "overloaded_error" if status in (429, 503) else "server_error"
    return Refusal(status, refused.message, refused.code.lower(), kind)


class Sampling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How to choose tokens, and when to stop; the limits are vLLM's."""

    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Meta(ge=0)] = 0

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts."""
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        return tuple(stop for stop in stops if stop)


class TextRequest(msgspec.Struct, frozen=True, gc=False):
    """A parsed request of any endpoint."""

    api: Literal["completion", "chat", "message", "embedding", "tokenize"]
    model: str | None
    parts: Parts
    """The prompt, the messages' texts, or the inputs of embeddings, as text or as token ids."""
    n_out: int = 0
    """Tokens to generate; 0: the model's default."""
    stream: bool = False
    usage: bool = False
    """Whether to send a usage chunk at the stream's end."""
    running_usage: bool = False
    """Whether to send usage in every chunk."""
    messages: tuple[dict[str, str], ...] = ()
    """Role and content of each message of a conversation."""
    sampling: Sampling = Sampling()
    dimensions: int | None = None
    """Embeddings: numbers per vector."""
    packed: bool = False
    """Embeddings: vectors are sent as base64 of 32-bit floats."""


def check_supported(body: Body) -> None:
    """Refuse fields that real models do not support."""
    fields = _raw_fields.decode(body)
    for name in fields.keys() & _UNSUPPORTED.keys():
        if bytes(fields[name]).replace(b" ", b"") not in (b"null", *_UNSUPPORTED[name].split()):
            raise Refusal(400, f"{name} is not supported", f"unsupported_{name}")


# --- what clients send -----------------------------------------------------------------------------------------------


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _GenerationJson(Sampling, frozen=True, kw_only=True):
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: int | None = None


class _CompletionJson(_GenerationJson, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]]


class _TextPart(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_TextPart] | None = None


class _ChatJson(_GenerationJson, frozen=True, kw_only=True):
    messages: list[_Message]


class _MessagesJson(Sampling, frozen=True, kw_only=True):
    model: str
    max_tokens: int
    messages: list[_Message]
    system: str | list[_TextPart] | None = None
    stream: bool = False
    stop: list[str] | None = field(name="stop_sequences", default=None)


class _EmbeddingJson(msgspec.Struct, frozen=True):
    input: str | list[int | str | list[int]]
    model: str | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"


class _TokenizeJson(msgspec.Struct, frozen=True):
    prompt: str
    model: str | None = None


def _decoder(kind: type[_T]) -> Callable[[Body], _T]:
    decode = msgspec.json.Decoder(kind).decode

    def decoded(body: Body) -> _T:
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            raise Refusal(400, str(error), "invalid_field") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal(400, f"the request body is not valid JSON: {error}", "invalid_json") from None

    return decoded


_completion, _chat, _messages = _decoder(_CompletionJson), _decoder(_ChatJson), _decoder(_MessagesJson)
_embedding, _tokenize = _decoder(_EmbeddingJson), _decoder(_TokenizeJson)


# --- parsing ---------------------------------------------------------------------------------------------------------


def completion(body: Body) -> TextRequest:
    """Parse the body of POST /v1/completions."""
    given = _completion(body)
    prompts = _split(given.prompt)
    if prompts is None or len(prompts) > 1:
        raise Refusal(400, "prompt must be one string or one list of token ids", "invalid_prompt")
    return _generation(given, "completion", prompts)


def chat(body: Body) -> TextRequest:
    """Parse the body of POST /v1/chat/completions."""
    given = _chat(body)
    return _generation(given, "chat", *_conversation(given.messages))


def message(body: Body) -> TextRequest:
    """Parse the body of POST /v1/messages."""
    given = _messages(body)
    model, n_out = given.model, given.max_tokens
    if n_out < 1:
        raise Refusal(400, f"max_tokens must be at least 1 (got {n_out})", "invalid_max_tokens")
    for number, each in enumerate(given.messages):
        if each.role not in ("user", "assistant"):
            why = f"messages.{number}.role: must be 'user' or 'assistant' (got {each.role!r})"
            raise Refusal(400, why, "invalid_role")
    system = [_Message("system", given.system)] if given.system else []
    parts, messages = _conversation(system + given.messages)
    if not given.messages or not any(parts):
        raise Refusal(400, "messages: the prompt must not be empty", "invalid_prompt")
    return TextRequest("message", model, parts, n_out, given.stream, True, messages=messages, sampling=given)


def embedding(body: Body) -> TextRequest:
    """Parse the body of POST /v1/embeddings: one vector per text or list of token ids."""
    given = _embedding(body)
    if given.dimensions is not None and not 1 <= given.dimensions <= MAX_DIMENSIONS:
        why = f"dimensions is {given.dimensions}: it must be between 1 and {MAX_DIMENSIONS}"
        raise Refusal(400, why, "invalid_dimensions")
    inputs = _split(given.input)
    if not inputs or not all(inputs):
        why = "input must be a string, a list of strings or a list of token ids, and not empty"
        raise Refusal(400, why, "invalid_input")
    packed = given.encoding_format == "base64"
    return TextRequest("embedding", given.model, inputs, 1, dimensions=given.dimensions, packed=packed)


def tokenize(body: Body) -> TextRequest:
    """Parse the body of POST /tokenize: a prompt, whose ids are the response."""
    given = _tokenize(body)
    return TextRequest("tokenize", given.model, (given.prompt,))


def _split(given: str | list[int | str | list[int]]) -> Parts | None:
    """Return one or several texts or lists of token ids; None if they are mixed or not token ids."""
    if isinstance(given, str):
        return (given,)
    if all(isinstance(one, int) for one in given):
        given = [given]  # type: ignore[list-item]
    for one in given:
        if isinstance(one, int) or (isinstance(one, list) and not all(token >= 0 for token in one)):
            return None
    return tuple(given) if len(set(map(type, given))) == 1 else None  # type: ignore[arg-type]


def _texts(content: str | list[_TextPart] | None) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    for part in content:
        if part.type != "text":
            raise Refusal(400, f"content part type {part.type!r} is not supported: only 'text' is", "invalid_content")
    return [part.text for part in content]


def _conversation(messages: list[_Message]) -> tuple[tuple[str, ...], tuple[dict[str, str], ...]]:
    """Return all texts; and role and content of each message, its texts joined as vLLM joins them."""
    texts = [_texts(message.content) for message in messages]
    pairs = zip(messages, texts, strict=True)
    return tuple(chain(*texts)), tuple({"role": each.role, "content": "\n".join(part)} for each, part in pairs)


def _generation(
    given: _GenerationJson, api: Literal["completion", "chat"], parts: Parts, messages: tuple[dict[str, str], ...] = ()
) -> TextRequest:
    if given.n not in (None, 1):
        raise Refusal(400, f"n must be 1 (got {given.n})", "invalid_n")
    if not any(parts):
        raise Refusal(400, "the prompt must not be empty", "invalid_prompt")
    if given.stream_options is not None and not given.stream:
        raise Refusal(400, "stream_options requires stream=true", "invalid_stream_options")
    n_out = given.max_completion_tokens if given.max_completion_tokens is not None else given.max_tokens
    if n_out is None:
        n_out = DEFAULT_TOKENS if api == "completion" else 0
    elif n_out < 1:
        raise Refusal(400, f"max_tokens must be at least 1 (got {n_out})", "invalid_max_tokens")
    if n_out and given.min_tokens > n_out:
        why = f"min_tokens must be at most max_tokens, {n_out} (got {given.min_tokens})"
        raise Refusal(400, why, "invalid_min_tokens")
    options = given.stream_options or _StreamOptions()
    running = options.continuous_usage_stats
    usage = options.include_usage or running
    return TextRequest(api, given.model, parts, n_out, given.stream, usage, running, messages, given)
