"""What the endpoints expect of a text model, and one generation by it.

Everything here is called in the event loop's thread, and nothing may block. A text model that computes in threads calls
back through the loop. `Refused` (models.types) is an error response.
"""

from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np

from inferometer.serve.models.types import Refused

FinishReason = Literal["stop", "length", "abort"]
Vectors = Callable[[list[np.ndarray] | None, Refused | None], None]
"""Called with one float32 vector per input, or with why there are none."""


class Generation:
    """One text to generate. The creator sets what to generate and the callbacks; the model fills in the rest."""

    __slots__ = (
        "arrived", "ended", "ignore_eos", "max_tokens", "min_tokens", "prompt", "queue_ns", "seed", "started", "state",
        "stop", "stopped", "temperature", "tokens", "top_k", "top_p",
    )  # fmt: skip

    def __init__(
        self, prompt: list[int], *, tokens: Callable[[str, int], None], ended: Callable[[FinishReason, Refused | None], None],
        max_tokens: int, arrived: int = 0, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, seed: int | None = None,
        stop: tuple[str, ...] = (), ignore_eos: bool = False, min_tokens: int = 0,
    ) -> None:  # fmt: skip
        self.prompt = prompt
        self.tokens = tokens
        """Called with the text of the next tokens, and how many they are. The text may be "" while a character or a stop
        text is incomplete. Never called after `ended`, nor from within `generate`."""
        self.ended = ended
        """Called once, after the last tokens: "stop" (end of sequence, or a stop text), "length", or "abort" with the
        reason. Not called after `cancel`."""
        self.max_tokens = max_tokens
        self.arrived = arrived
        """When the request arrived, in monotonic ns."""
        self.temperature = temperature
        """0: always the most likely token."""
        self.top_p = top_p
        self.top_k = top_k
        """0: all tokens."""
        self.seed = seed
        self.stop = stop
        """The generation ends before the first of these texts; it is not part of the result."""
        self.ignore_eos = ignore_eos
        self.min_tokens = min_tokens
        """Neither an end of sequence nor a stop text ends the generation before."""
        self.queue_ns = 0
        """Set by the model: time from `arrived` to `started`."""
        self.started = -1
        """Set by the model: when it began to compute, in monotonic ns; -1 while it is queued."""
        self.stopped: str | None = None
        """Set by the model before `ended`: the stop text that ended it, if one did."""
        self.state: object = None
        """For the model's own use."""


class TextModel(Protocol):
    """A model that generates text, computes embeddings, or both."""

    name: str
    max_len: int
    """Maximum tokens of prompt and generated text together."""
    can_generate: bool
    can_embed: bool

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; may be called in a thread."""

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Return the tokens of a conversation in the tokenizer's chat template; may be called in a thread. Raises Refused
        if there is no template or it does not accept these messages."""

    def generate(self, request: Generation) -> None:
        """Accept the request, or raise Refused."""

    def cancel(self, request: Generation) -> None:
        """Stop generating and free the request's slot; there are no further callbacks."""

    def embed(self, inputs: list[list[int]], then: Vectors) -> None:
        """Compute one vector per input."""
