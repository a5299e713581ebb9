"""Cuts a text that arrives in pieces before the first of its stop texts."""


class StopTexts:
    """Holds back the end of the text as long as it may be the start of a stop text."""

    __slots__ = ("_held", "_longest", "_stops", "stopped")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""
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
