"""Parses requests of all endpoints into a TextRequest; errors are a Refusal with OpenAI's error shape.

Unknown fields are accepted and ignored. Those that real models would have to respect but do not support are refused by
`check_supported`; the simulator ignores them, with everything else that does not affect timing.
"""

from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from inferometer.serve.models.types import HTTP_STATUS, Refused

AtLeastOne = Annotated[int, Meta(ge=1)]
Body = bytes | memoryview
Parts = tuple[str | list[int], ...]
"""Prompts as text or as token ids."""
Messages = tuple[dict[str, str], ...]
"""Role and content of each message of a conversation."""

MESSAGES = b"/v1/messages"
DEFAULT_TOKENS = 16
"""Length of a completion if the request sets none."""
_MOST_DIMENSIONS = 16_384


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
    messages: Messages = ()
    sampling: Sampling = Sampling()
    dimensions: int | None = None
    """Embeddings: numbers per vector."""
    packed: bool = False
    """Embeddings: vectors are sent as base64 of 32-bit floats."""


def parse(path: bytes, body: Body) -> TextRequest:
    """Parse the body of a POST request; raises Refusal, also if there is no such path."""
    decode = DECODERS.get(path)
    if decode is None:
        raise Refusal(404, f"no such path: {path.decode('latin-1')}", "not_found")
    try:
        return decode(body).parsed()  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise Refusal(400, str(error), "invalid_field") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"the request body is not valid JSON: {error}", "invalid_json") from None


def too_long(n_in: int, n_out: int, limit: str) -> Refusal:
    """Return the refusal of a prompt and a response that are longer than `limit`."""
    what = f"{n_in} prompt tokens plus max_tokens {n_out} exceed {limit}"
    return Refusal(400, what, "context_length_exceeded")


# --- what clients send -----------------------------------------------------------------------------------------------


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _TextPart(msgspec.Struct, frozen=True):
    type: str
    text: str = ""


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_TextPart] | None = None


class _OpenAi(Sampling, frozen=True, kw_only=True):
    model: str | None = None
    max_tokens: AtLeastOne | None = None
    max_completion_tokens: AtLeastOne | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=1)] | None = None

    def generation(self, api: Literal["completion", "chat"], parts: Parts, messages: Messages = ()) -> TextRequest:
        _check(any(parts), "the prompt must not be empty", "invalid_prompt")
        options = self.stream_options or _StreamOptions()
        has_stream = self.stream or self.stream_options is None
        _check(has_stream, "stream_options requires stream=true", "invalid_stream_options")
        default = DEFAULT_TOKENS if api == "completion" else 0
        n_out = self.max_completion_tokens or self.max_tokens or default
        too_many = f"min_tokens must be at most max_tokens, {n_out} (got {self.min_tokens})"
        _check(not n_out or self.min_tokens <= n_out, too_many, "invalid_min_tokens")
        running = options.continuous_usage_stats
        usage = options.include_usage or running
        return TextRequest(api, self.model, parts, n_out, self.stream, usage, running, messages, self)


class _Completion(_OpenAi, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]]

    def parsed(self) -> TextRequest:
        prompts = _split(self.prompt) or ()
        _check(len(prompts) == 1, "prompt must be one string or one list of token ids", "invalid_prompt")
        return self.generation("completion", prompts)


class _Chat(_OpenAi, frozen=True, kw_only=True):
    messages: list[_Message]

    def parsed(self) -> TextRequest:
        return self.generation("chat", *_conversation(self.messages))


class _Messages(Sampling, frozen=True, kw_only=True):
    model: str
    max_tokens: AtLeastOne
    messages: list[_Message]
    system: str | list[_TextPart] | None = None
    stream: bool = False
    stop: list[str] | None = field(name="stop_sequences", default=None)

    def parsed(self) -> TextRequest:
        for number, each in enumerate(self.messages):
            why = f"messages.{number}.role: must be 'user' or 'assistant' (got {each.role!r})"
            _check(each.role in ("user", "assistant"), why, "invalid_role")
        system = [_Message("system", self.system)] if self.system else []
        parts, messages = _conversation(system + self.messages)
        _check(any(parts) and bool(self.messages), "messages: the prompt must not be empty", "invalid_prompt")
        return TextRequest(
            "message", self.model, parts, self.max_tokens, self.stream, True, messages=messages, sampling=self
        )


class _Embedding(msgspec.Struct, frozen=True):
    input: str | list[int | str | list[int]]
    model: str | None = None
    dimensions: Annotated[int, Meta(ge=1, le=_MOST_DIMENSIONS)] | None = None
    encoding_format: Literal["float", "base64"] = "float"

    def parsed(self) -> TextRequest:
        inputs = _split(self.input) or ("",)
        why = "input must be a string, a list of strings or a list of token ids, and not empty"
        _check(all(inputs), why, "invalid_input")
        packed = self.encoding_format == "base64"
        return TextRequest("embedding", self.model, inputs, 1, dimensions=self.dimensions, packed=packed)


class _Tokenize(msgspec.Struct, frozen=True):
    prompt: str
    model: str | None = None

    def parsed(self) -> TextRequest:
        return TextRequest("tokenize", self.model, (self.prompt,))


DECODERS: dict[bytes, Any] = {
    b"/v1/completions": msgspec.json.Decoder(_Completion).decode,
    b"/v1/chat/completions": msgspec.json.Decoder(_Chat).decode,
    b"/v1/embeddings": msgspec.json.Decoder(_Embedding).decode,
    MESSAGES: msgspec.json.Decoder(_Messages).decode,
    b"/tokenize": msgspec.json.Decoder(_Tokenize).decode,
}


def _check(is_valid: bool, message: str, code: str) -> None:
    if not is_valid:
        raise Refusal(400, message, code)


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


def _conversation(messages: list[_Message]) -> tuple[tuple[str, ...], Messages]:
    """Return all texts; and role and content of each message, its texts joined as vLLM joins them."""
    texts: list[list[str]] = []
    for content in [message.content for message in messages]:
        parts = [_TextPart("text", content)] if isinstance(content, str) else content or []
        for part in parts:
            why = f"content part type {part.type!r} is not supported: only 'text' is"
            _check(part.type == "text", why, "invalid_content")
        texts.append([part.text for part in parts])
    pairs = zip(messages, texts, strict=True)
    return tuple(chain(*texts)), tuple({"role": each.role, "content": "\n".join(part)} for each, part in pairs)


# --- what real models do not support ---------------------------------------------------------------------------------

_UNSUPPORTED = {
    "logprobs": b"false", "top_logprobs": b"0", "prompt_logprobs": b"", "echo": b"false", "suffix": b'""', "best_of": b"1",
    "logit_bias": b"{}", "presence_penalty": b"0 0.0", "frequency_penalty": b"0 0.0", "repetition_penalty": b"1 1.0",
    "tools": b"[]", "response_format": b'{"type":"text"}',
}  # fmt: skip
"""Fields that would change a real model's response, each with the values, as JSON, that do not; null never does."""
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_supported(body: Body) -> None:
    """Refuse fields that real models do not support."""
    fields = _raw_fields.decode(body)
    for name in fields.keys() & _UNSUPPORTED.keys():
        is_harmless = bytes(fields[name]).replace(b" ", b"") in (b"null", *_UNSUPPORTED[name].split())
        _check(is_harmless, f"{name} is not supported", f"unsupported_{name}")
