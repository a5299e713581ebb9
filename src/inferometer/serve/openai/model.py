"""What the endpoints expect of a text model, one generation by it, and its stop texts.

Everything here is called in the event loop's thread, and nothing may block. A text model that computes in threads calls
back through the loop. `Refused` (models.types) is an error response.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np

from inferometer.serve.models.types import Refused

FinishReason = Literal["stop", "length", "abort"]
Vectors = Callable[[list[np.ndarray] | None, Refused | None], None]
"""Called with one float32 vector per input, or with why there are none."""


class Generation(msgspec.Struct, eq=False):
    """One text to generate. The creator sets what to generate and the callbacks; the model fills in the rest."""

    prompt: list[int]
    tokens: Callable[[str, int], None]
    """Called with the text of the next tokens, and how many they are. The text may be "" while a character or a stop
    text is incomplete. Never called after `ended`, nor from within `generate`."""
    ended: Callable[[FinishReason, Refused | None], None]
    """Called once, after the last tokens: "stop" (end of sequence, or a stop text), "length", or "abort" with the
    reason. Not called after `cancel`."""
    max_tokens: int
    temperature: float = 1.0
    """0: always the most likely token."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """The generation ends before the first of these texts; it is not part of the result."""
    ignore_eos: bool = False
    min_tokens: int = 0
    """Neither an end of sequence nor a stop text ends the generation before."""

    # Set by the model:
    started: int = -1
    """When it began to compute, in monotonic ns; -1 while it is queued."""
    cached: int = 0
    """Prompt tokens found in a prefix cache."""
    stopped: str | None = None
    """The stop text that ended it, if one did; set before `ended` is called."""
    state: object = None
    """For the model's own use."""


class TextModel(Protocol):
    """A model that generates text, computes embeddings, or both."""

    name: str
    max_len: int
    """Maximum tokens of prompt and generated text together."""
    can_generate: bool
    can_embed: bool

    def encode(self, texts: Sequence[str | list[int]]) -> list[list[int]] | Awaitable[list[list[int]]]:
        """Return the tokens of texts; what is tokens already stays as it is. May be called in a thread."""

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[list[int]] | Awaitable[list[list[int]]]:
        """Return the tokens of a conversation in the tokenizer's chat template, in a list of one. May be called in a
        thread. Raises Refused if there is no template or it does not accept these messages."""

    def generate(self, request: Generation) -> None:
        """Accept the request, or raise Refused."""

    def cancel(self, request: Generation) -> None:
        """Stop generating and free the request's slot; there are no further callbacks."""

    def embed(self, inputs: list[list[int]], then: Vectors) -> None:
        """Compute one vector per input."""


class StopTexts:
    """Cuts a text that arrives in pieces before the first of its stop texts: holds back its end as long as that may be
    the start of a stop text."""

    __slots__ = ("_held", "_longest", "_stops", "stopped")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops, self._longest, self._held = stops, max(map(len, stops), default=0), ""
        self.stopped: str | None = None
        """The stop text that was found: it and what follows are dropped."""

    def feed(self, piece: str) -> str:
        """Return what is certain to precede any stop text."""
        if not self._stops:
            return piece
        if self.stopped is not None:
            return ""
        text = self._held + piece
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            (at, self.stopped), self._held = min(found), ""
            return text[:at]
        sizes = range(min(self._longest - 1, len(text)), 0, -1)
        kept = next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in self._stops)), 0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held
