"""Parses requests of Anthropic's Messages API, as far as they affect the timing."""

from collections.abc import Sequence

import msgspec

from inferometer.serve.sim.openai import (
    CompletionRequest,
    Refusal,
    TextMessage,
    TextPart,
    check_model,
    decode,
    texts_of,
)


class _MessagesJson(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    max_tokens: int
    messages: list[TextMessage]
    system: str | list[TextPart] | None = None
    stream: bool = False


_messages = msgspec.json.Decoder(_MessagesJson)
_ROLES = ("user", "assistant")


def message(body: bytes, models: Sequence[str]) -> CompletionRequest:
    """Parse the body of POST /v1/messages."""
    request = decode(_messages, body)
    check_model(request.model, models)
    if request.max_tokens < 1:
        raise Refusal(400, f"max_tokens must be at least 1 (got {request.max_tokens})", "invalid_max_tokens")
    for number, each in enumerate(request.messages):
        if each.role not in _ROLES:
            raise Refusal(
                400, f"messages.{number}.role: must be 'user' or 'assistant' (got {each.role!r})", "invalid_role"
            )
    system = TextMessage("system", request.system)
    texts = [text for each in (system, *request.messages) for text in texts_of(each)]
    if not request.messages or not any(texts):
        raise Refusal(400, "messages: the prompt must not be empty", "invalid_prompt")
    return CompletionRequest(True, request.stream, True, False, request.max_tokens, tuple(texts), message=True)
