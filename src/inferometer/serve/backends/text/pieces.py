"""Makes text of tokens as they come; characters are sent when they are complete."""

from collections.abc import Callable, Sequence
from typing import Any

_INCOMPLETE = "\ufffd"  # what an incomplete character is decoded to
_MOST_INCOMPLETE = 8  # tokens; a character has at most 4 bytes, so more are not a character


def decoding(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Return the function that decodes tokens; without transformers' own layer if the tokenizer allows it (5 x faster)."""
    if getattr(tokenizer, "is_fast", False) and not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        backend = tokenizer.backend_tokenizer
        return lambda tokens: str(backend.decode(tokens, skip_special_tokens=True))
    more = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return lambda tokens: str(tokenizer.decode(tokens, **more))


class Text:
    """Converts tokens to text incrementally. A token is decoded together with earlier ones, since its text may depend
    on them."""

    __slots__ = ("_decode", "_known", "_tokens")

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._tokens = list(prompt[-8:])
        """Tokens whose text is not complete yet, after a few for context."""
        self._known = len(self._tokens)

    def add(self, token: int) -> str:
        """Return the new text; "" while a character is incomplete."""
        self._tokens.append(token)
        before, after = self._decode(self._tokens[: self._known]), self._decode(self._tokens)
        is_incomplete = after.endswith(_INCOMPLETE) and len(self._tokens) - self._known < _MOST_INCOMPLETE
        if is_incomplete or len(after) <= len(before):
            return ""
        self._tokens, self._known = self._tokens[self._known :], len(self._tokens) - self._known
        return after[len(before) :]

    def rest(self) -> str:
        """Return the remaining text at the end, including an incomplete character."""
        return self._decode(self._tokens)[len(self._decode(self._tokens[: self._known])) :]
