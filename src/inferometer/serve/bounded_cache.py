"""A cache of bounded size for what clients send again and again."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """A dict that is emptied when it has `most` entries: what is still in use is soon back."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> V:
        """Add an entry, and return its value."""
        if len(self) >= self._most:
            self.clear()
        self[key] = value
        return value
