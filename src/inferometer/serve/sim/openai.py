"""Parses OpenAI requests; errors are a Refusal with OpenAI's error shape.

Fields that do not affect timing (sampling parameters and the like) are accepted and ignored. The response always has
the requested number of tokens, with or without `ignore_eos`. Embeddings take as long as a first token.
"""

from collections.abc import Sequence
from typing import Literal, TypeVar

import msgspec

_T = TypeVar("_T")

DEFAULT_TOKENS = {False: 16, True: 128}
"""Length of a response if the request sets none; True: chat."""


DIMENSIONS = 384
"""Length of an embedding if the request sets none."""
MAX_DIMENSIONS = 16_384


class Refusal(Exception):  # noqa: N818  (not an error of ours: an answer)
    """An error response with this status and OpenAI's error body."""

    def __init__(
        self, status: int, message: str, code: str, kind: str = "invalid_request_error", headers: bytes = b""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.kind = kind
        self.headers = headers


class CompletionRequest(msgspec.Struct, frozen=True, gc=False):
    """A parsed request of either endpoint."""

    chat: bool
    stream: bool
    usage: bool
    """Whether to send a usage chunk at the stream's end."""
    running_usage: bool
    """Whether to send usage in every chunk."""
    n_out: int
    texts: tuple[str, ...] = ()
    """The prompt, or the messages' texts; their tokens add up."""
    ids: tuple[int, ...] = ()
    """The prompt as token ids, if it was sent so."""
    dimensions: int = 0
    """Embeddings: numbers per vector. 0: the request is for text."""
    packed: bool = False
    """Embeddings: vectors are sent as base64 of 32-bit floats."""
    message: bool = False
    """The request is one of Anthropic's Messages API."""


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _CompletionJson(msgspec.Struct, frozen=True):
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: int | None = None
    ignore_eos: bool = False


class _Completion(_CompletionJson, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]]


class TextPart(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


class TextMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[TextPart] | None = None


class _Chat(_CompletionJson, frozen=True, kw_only=True):
    messages: list[TextMessage]


class _Embeddings(msgspec.Struct, frozen=True):
    input: str | list[int | str]
    model: str | None = None
    dimensions: int = DIMENSIONS
    encoding_format: Literal["float", "base64"] = "float"


class _Tokenized(msgspec.Struct, frozen=True):
    prompt: str
    model: str | None = None


_tokenized = msgspec.json.Decoder(_Tokenized)
_completion = msgspec.json.Decoder(_Completion)
_chat = msgspec.json.Decoder(_Chat)
_embeddings = msgspec.json.Decoder(_Embeddings)


def completion(body: bytes, models: Sequence[str]) -> CompletionRequest:
    """Parse the body of POST /v1/completions."""
    asked = decode(_completion, body)
    prompt = asked.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]  # type: ignore[assignment]  # a batch of one
    if isinstance(prompt, str):
        return _ask(asked, models, chat=False, texts=(prompt,))
    if all(isinstance(token, int) and token >= 0 for token in prompt):
        return _ask(asked, models, chat=False, ids=tuple(prompt))  # type: ignore[arg-type]
    raise Refusal(400, "prompt must be one string or one list of token ids", "invalid_prompt")


def chat(body: bytes, models: Sequence[str]) -> CompletionRequest:
    """Parse the body of POST /v1/chat/completions."""
    asked = decode(_chat, body)
    return _ask(asked, models, chat=True, texts=tuple(text for message in asked.messages for text in texts_of(message)))


def embeddings(body: bytes, models: Sequence[str]) -> CompletionRequest:
    """POST /v1/embeddings: one vector per string, or one for a list of token ids. Its timing is that of one token."""
    asked = decode(_embeddings, body)
    check_model(asked.model, models)
    if not 1 <= asked.dimensions <= MAX_DIMENSIONS:
        message = f"dimensions is {asked.dimensions}: it must be between 1 and {MAX_DIMENSIONS}"
        raise Refusal(400, message, "invalid_dimensions")
    inputs = [asked.input] if isinstance(asked.input, str) else asked.input
    texts = tuple(one for one in inputs if isinstance(one, str))
    ids = tuple(one for one in inputs if isinstance(one, int) and one >= 0)
    if not inputs or not all(texts) or len(inputs) not in (len(texts), len(ids)):
        message = "input must be a string, a list of strings or a list of token ids, and not empty"
        raise Refusal(400, message, "invalid_input")
    packed = asked.encoding_format == "base64"
    return CompletionRequest(False, False, False, False, 1, texts, ids, asked.dimensions, packed)


def tokenized(body: bytes, models: Sequence[str]) -> CompletionRequest:
    """Parse the body of POST /tokenize: a prompt, whose ids are the response."""
    request = decode(_tokenized, body)
    check_model(request.model, models)
    return CompletionRequest(False, False, False, False, 1, (request.prompt,))


def check_model(asked: str | None, served: Sequence[str]) -> None:
    if asked is not None and asked not in served:
        names = ", ".join(map(repr, served))
        message = f"the model {asked!r} does not exist; {names} {'is' if len(served) == 1 else 'are'} served"
        raise Refusal(404, message, "model_not_found")


def decode(decoder: "msgspec.json.Decoder[_T]", body: bytes) -> "_T":
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Refusal(400, str(error), "invalid_field") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"the request body is not valid JSON: {error}", "invalid_json") from None


def texts_of(message: TextMessage) -> list[str]:
    if message.content is None:
        return []
    if isinstance(message.content, str):
        return [message.content]
    for part in message.content:
        if part.type != "text":
            raise Refusal(400, f"content part type {part.type!r} is not supported: only 'text' is", "invalid_content")
    return [part.text for part in message.content]


def _ask(
    asked: _CompletionJson, models: Sequence[str], *, chat: bool, texts: tuple[str, ...] = (), ids: tuple[int, ...] = ()
) -> CompletionRequest:
    check_model(asked.model, models)
    if asked.n not in (None, 1):
        raise Refusal(400, f"n must be 1 (got {asked.n})", "invalid_n")
    if not ids and not any(texts):
        raise Refusal(400, "the prompt must not be empty", "invalid_prompt")
    if asked.stream_options is not None and not asked.stream:
        raise Refusal(400, "stream_options requires stream=true", "invalid_stream_options")
    n_out = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
    if n_out is None:
        n_out = DEFAULT_TOKENS[chat]
    if n_out < 1:
        raise Refusal(400, f"max_tokens must be at least 1 (got {n_out})", "invalid_max_tokens")
    options = asked.stream_options or _StreamOptions()
    running = options.continuous_usage_stats
    return CompletionRequest(chat, asked.stream, options.include_usage or running, running, n_out, texts, ids)
