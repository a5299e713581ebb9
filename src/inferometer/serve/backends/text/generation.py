"""One text to generate, and its stop texts."""

import random
from collections.abc import Callable
from typing import Any

from inferometer.serve.models.types import Refused, TextPart
from inferometer.serve.openai.requests import TextRequest


class Generation:
    """One text to generate, and how far it is."""

    def __init__(
        self, asked: TextRequest, prompt: list[int], limit: int, received: Callable[[TextPart | Refused], None]
    ) -> None:
        """`received` is called in the event loop with each part of the text, or with why it failed."""
        fields = asked.fields
        stops = [fields.stop] if isinstance(fields.stop, str) else fields.stop or fields.stop_sequences or ()
        self.prompt, self.limit, self.received = prompt, limit, received
        self.temperature = 1.0 if fields.temperature is None else fields.temperature
        self.top_p, self.top_k = fields.top_p or 1.0, max(fields.top_k or 0, 0)
        self.random = random.Random(fields.seed) if self.temperature else None
        """None: always the most likely token."""
        self.stops = StopTexts(tuple(filter(None, stops)))
        self.ignore_eos, self.min_tokens = fields.ignore_eos, fields.min_tokens
        self.is_over = False
        """Set at its end, or to cancel it: its slot is free at the next step."""

        # Set by the engine:
        self.text: Any = None
        """Turns tokens into text."""
        self.slot = self.started = -1
        self.filled = 0
        """Positions in the cache."""
        self.made = 0
        """Tokens that were processed."""

    @property
    def computed(self) -> int:
        """Tokens that were computed; 0 while the prompt is read."""
        return max(0, self.filled - len(self.prompt) + 1)


class StopTexts:
    """Cuts a text that arrives in pieces before the first of its stop texts: holds back as many characters as may be the
    start of one, like vLLM."""

    __slots__ = ("_held", "_kept", "stopped", "stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops, self._kept, self._held = stops, max(map(len, stops), default=1) - 1, ""
        self.stopped: str | None = None
        """The stop text that was found: it and what follows are dropped."""

    def feed(self, piece: str) -> str:
        """Return what is certain to precede any stop text."""
        text = self._held + piece
        found = [(at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            (at, self.stopped), self._held = min(found), ""
            return text[:at]
        at = max(len(text) - self._kept, 0)
        self._held = text[at:]
        return text[:at]

    def rest(self) -> str:
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held
