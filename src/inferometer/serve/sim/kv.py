"""The KV cache: room for keys and values in blocks of tokens, with a prefix cache. Pure bookkeeping.

A sequence holds private blocks, and keyed blocks shared with every sequence that has the same prompt up to there. A
block's key identifies its contents and everything before it. Keyed blocks that no sequence holds stay cached until the
room is needed; the least recently used go first, and of one sequence the last ones first, since they are useless
without the earlier ones.

    held + idle <= capacity        held: private blocks, and keyed blocks counted once
"""

from collections.abc import Sequence


def block_keys(ids: Sequence[int], block: int) -> tuple[int, ...]:
    """Return a key for each full block of a prompt."""
    keys, key = [], 0
    for start in range(0, len(ids) - block + 1, block):
        key = hash((key, tuple(ids[start : start + block])))
        keys.append(key)
    return tuple(keys)


class Holding:
    """The blocks of one sequence."""

    __slots__ = ("cached", "keyed", "private", "published")

    def __init__(self, keyed: list[int], private: int, cached: int) -> None:
        self.keyed = keyed
        self.private = private
        self.cached = cached
        """Tokens that were already in the cache."""
        self.published = len(keyed)
        """Blocks of the prompt that were offered to the cache."""


class KvCache:
    """The blocks of all sequences, and the prefix cache."""

    def __init__(self, tokens: int, block: int, prefix_cache: bool = False) -> None:
        self.block = block
        self.capacity = tokens // block
        self.held = 0
        self.queried = 0
        """Prompt tokens that were looked up in the prefix cache, and how many of them were found."""
        self.hit = 0
        self._prefix_cache = prefix_cache
        self._holders: dict[int, int] = {}
        self._idle: dict[int, None] = {}  # least recently used first

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the room that sequences hold."""
        return self.held / self.capacity

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of this length can ever be served."""
        return self._blocks(tokens) <= self.capacity

    def admit(self, keys: Sequence[int], tokens: int) -> Holding | None:
        """Return room for `tokens`, the first of which may be cached, or None if there is not enough room."""
        keyed = self._match(keys, tokens)
        fresh = self._blocks(tokens) - len(keyed)
        woken = sum(key in self._idle for key in keyed)
        if self.held + woken + fresh > self.capacity:
            return None
        for key in keyed:
            self._holders[key] = self._holders.get(key, 0) + 1
            self._idle.pop(key, None)
        cached = len(keyed) * self.block
        if self._prefix_cache:
            self.queried += tokens
            self.hit += cached
        self.held += woken + fresh
        self._evict()
        return Holding(keyed, fresh, cached)

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Make sure that the sequence has room for `tokens` in total; return False if there is not enough."""
        fresh = self._blocks(tokens) - len(holding.keyed) - holding.private
        if fresh > 0:
            if self.held + fresh > self.capacity:
                return False
            self.held += fresh
            holding.private += fresh
            self._evict()
        return True

    def publish(self, holding: Holding, keys: Sequence[int], computed: int) -> None:
        """Note that the first `computed` tokens are computed: others may share their full blocks from now on."""
        if not self._prefix_cache:
            return
        upto = min(computed // self.block, len(keys))
        for key in keys[holding.published : upto]:
            if (
                key not in self._holders and key not in self._idle
            ):  # else another sequence was first; ours stays private
                self._holders[key] = 1
                holding.keyed.append(key)
                holding.private -= 1
        holding.published = max(holding.published, upto)

    def release(self, holding: Holding) -> None:
        self.held -= holding.private
        for key in reversed(holding.keyed):
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self._idle[key] = None
                self.held -= 1

    def _match(self, keys: Sequence[int], tokens: int) -> list[int]:
        """Return the leading blocks that are cached; never the whole prompt, since its last token must be computed."""
        matched: list[int] = []
        if self._prefix_cache:
            for key in keys[: (tokens - 1) // self.block]:
                if key not in self._holders and key not in self._idle:
                    break
                matched.append(key)
        return matched

    def _evict(self) -> None:
        while self.held + len(self._idle) > self.capacity:
            del self._idle[next(iter(self._idle))]

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block)
