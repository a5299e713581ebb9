"""Tracks which sequence each user is in and which of its requests comes next. A server reserves a slot for a sequence and keeps its
state from the START to the END (Triton: or until it has been idle for long), so every sequence that was begun must be ended.

- A sequence belongs to one user until the response to its END; then other users may take it. There are more sequences than users.
- It can be closed early: its last request, which has the END, is then sent next.
- If its START did not reach the server, or was refused, the server does not hold the sequence: the user abandons it. If any other
  request failed (or a START timed out), the server may hold the sequence: its END is sent, once.
"""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

import msgspec

User = tuple[int, int]
"""A stage and a user in it."""


class _Position(msgspec.Struct, gc=False):
    """Where a user is in its sequence, whose encoded requests have the indexes from `first` up to but not including `end`."""

    first: int
    end: int
    next: int
    is_shared: bool
    """Another user has the same sequence, and that user returns it."""


class Sequences:
    def __init__(self, lengths: Sequence[int]) -> None:
        ends = list(accumulate(lengths))
        self._free = deque((end - length, end) for end, length in zip(ends, lengths, strict=True))
        self._fallback = self._free[0]
        self._positions: dict[User, _Position] = {}

    @property
    def next_length(self) -> int:
        """The length of the sequence that is begun next."""
        first, end = self._free[0] if self._free else self._fallback
        return end - first

    def begin(self, user: User) -> None:
        # All are in use only if more than three earlier stages are still closing theirs.
        is_shared = not self._free
        first, end = self._fallback if is_shared else self._free.popleft()
        self._positions[user] = _Position(first, end, first, is_shared)

    def is_within(self, user: User) -> bool:
        """Return whether the user has requests of a sequence still to send."""
        return user in self._positions

    def take(self, user: User) -> int:
        """Return the index of the user's next request among all encoded requests."""
        position = self._positions[user]
        position.next += 1
        return position.next - 1

    def close(self, user: User) -> int:
        """Skip to the END, so that the user sends it next; return how many requests are left out."""
        position = self._positions[user]
        left_out = position.end - 1 - position.next
        position.next = position.end - 1
        return left_out

    def ended(self, user: User, failed: bool, accepted: bool) -> int:
        """Note that the user's request ended; return how many requests of its sequence are left out.

        `accepted`: the server may have accepted the request.
        """
        position = self._positions[user]
        if position.next == position.end or (not accepted and position.next == position.first + 1):
            del self._positions[user]
            if not position.is_shared:
                self._free.append((position.first, position.end))
            return position.end - position.next
        return self.close(user) if failed else 0
