"""The prompt of a session as JSON, which grows turn by turn.

For APIs whose system prompt is a field of its own, the JSON is an object with `messages` and `system`.

Each turn is encoded once and kept as bytes, so the next prompt costs one copy of the history, and the encoding of what is new. Chat
requests have a list of messages. For completions, the texts follow one another in one string: a text starts on a new line unless it
starts with a space itself, and the server's own response continues the prompt as it is.
"""

from collections.abc import Callable, Sequence

import msgspec

from inferometer.types import Messages

SYSTEM_ROLES = ("system", "developer")

_encode = msgspec.json.Encoder().encode


def history(form: str) -> "JsonHistory":
    """An empty history; `form` is that of the API (apis.Api.history_form)."""
    return JsonHistory(_as_text if form == "text" else _as_messages, *_ENDS[form], form == "system_field")


_ENDS = {"messages": (b"[", b",", b"]"), "text": (b'"', b"", b'"'), "system_field": (b'{"messages":[', b",", b"]}")}


class JsonHistory:
    """Implements types.History."""

    __slots__ = ("_close", "_encoded", "_has_system_field", "_open", "_separator", "_system", "_turns")

    def __init__(
        self,
        encoded: Callable[[Messages, bool], bytes],
        opening: bytes,
        separator: bytes,
        closing: bytes,
        has_system_field: bool,
    ) -> None:
        self._encoded = encoded
        self._open, self._separator, self._close = opening, separator, closing
        self._has_system_field = has_system_field
        self._system: list[bytes] = []  # this and all others with a separator before it
        self._turns: list[list[bytes]] = []  # each with its messages and, except for the latest, the response to them

    def begin(self, payload: str | Messages) -> None:
        messages: Messages = [{"role": "user", "content": payload}] if isinstance(payload, str) else payload
        first = next(
            (i for i, message in enumerate(messages) if message.get("role") not in SYSTEM_ROLES), len(messages)
        )
        if self._has_system_field:
            system = joined(messages[:first])
            self._close = b'],"system":' + _encode(system) + b"}" if system else b"]}"
            self._system = []
        else:
            self._system = [self._part(messages[:first], True)] if first else []
        self._turns = []
        self.add(messages[first:])

    def add(self, messages: Messages) -> None:
        is_start = not self._system and not self._turns
        self._turns.append([self._part(messages, is_start)] if messages else [])

    def respond(self, text: str, is_live: bool) -> None:
        self._turns[-1].append(self._part([{"role": "assistant", "content": text}], is_live))

    def _part(self, messages: Messages, continues: bool) -> bytes:
        return self._separator + self._encoded(messages, continues)

    def withdraw(self) -> None:
        self._turns.pop()

    def drop_oldest(self) -> None:
        del self._turns[0]

    def json(self) -> msgspec.Raw:
        parts = [self._open, *self._system]
        for turn in self._turns:
            parts += turn
        if len(parts) > 1:
            parts[1] = parts[1][len(self._separator) :]
        parts.append(self._close)
        return msgspec.Raw(b"".join(parts))


def joined(messages: Sequence[object]) -> str:
    """The contents of messages as one text."""
    texts = [text_of(message.get("content")) for message in messages if isinstance(message, dict)]
    return "".join(text if not i or text[:1].isspace() else f"\n{text}" for i, text in enumerate(texts))


def text_of(content: object) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _as_messages(messages: Messages, continues: bool) -> bytes:
    return _encode(messages)[1:-1]


def _as_text(messages: Messages, continues: bool) -> bytes:
    """`continues`: the text follows directly, because it is the first one or the server's own response."""
    text = joined(messages)
    return _encode(text if continues or text[:1].isspace() else f"\n{text}")[1:-1]
