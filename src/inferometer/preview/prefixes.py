"""Which part of the prompts a prefix cache could share: whole blocks of tokens that an earlier prompt started with as well."""

from collections.abc import Sequence

BLOCK = 16
"""Tokens per block, as in vLLM."""


class SharedPrefixes:
    def __init__(self) -> None:
        self.requests = self.tokens = self.shared = 0
        self._seen: set[int] = set()

    def add(self, ids: Sequence[int]) -> None:
        """Look at one prompt, given as the ids of its tokens."""
        self.requests += 1
        self.tokens += len(ids)
        block, is_shared = 0, True
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            block = hash((block, *ids[start : start + BLOCK]))  # of the block and all before it; not random for numbers
            is_shared = is_shared and block in self._seen
            self.shared += BLOCK * is_shared
            self._seen.add(block)
