"""Which sequence each user is in, and what of it is sent next: a server keeps a sequence's state, and a place for it, from the
START to the END (Triton: or until it has been idle for long), so whatever was begun is ended.

- A sequence is one user's alone until its END is answered; then others may have it. There are more than users.
- It can be closed early: what follows then is its last request, which has the END.
- One whose START did not get to the server, or was refused by it, is not the server's either: the user leaves it. Where any
  other request failed (a START that timed out, say), the server holds it, as far as anybody knows: its END is sent, once.
"""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate

import msgspec

User = tuple[int, int]
"""Stage and user."""


class _Place(msgspec.Struct, gc=False):
    first: int
    end: int
    """The tails of the sequence are those from `first` to before `end`."""
    next: int
    is_shared: bool
    """With another user, who gives it back."""


class Sequences:
    def __init__(self, lengths: Sequence[int]) -> None:
        ends = list(accumulate(lengths))
        self._free = deque((end - length, end) for end, length in zip(ends, lengths, strict=True))
        self._some = self._free[0]
        self._places: dict[User, _Place] = {}

    @property
    def next_length(self) -> int:
        """Of the one that is begun next."""
        first, end = self._free[0] if self._free else self._some
        return end - first

    def begin(self, user: User) -> None:
        # All are taken only where more than three stages still close theirs while the next one runs.
        is_shared = not self._free
        first, end = self._some if is_shared else self._free.popleft()
        self._places[user] = _Place(first, end, first, is_shared)

    def is_within(self, user: User) -> bool:
        """The user has something of a sequence still to send."""
        return user in self._places

    def take(self, user: User) -> int:
        """The place, among all tails, of the user's next request."""
        place = self._places[user]
        place.next += 1
        return place.next - 1

    def close(self, user: User) -> int:
        """What the user sends next is the END; how many requests are left out."""
        place = self._places[user]
        left_out = place.end - 1 - place.next
        place.next = place.end - 1
        return left_out

    def answered(self, user: User, failed: bool, taken: bool) -> int:
        """The user's request has ended, and the server may have `taken` it; how many requests of its sequence are left out."""
        place = self._places[user]
        if place.next == place.end or (not taken and place.next == place.first + 1):
            del self._places[user]
            if not place.is_shared:
                self._free.append((place.first, place.end))
            return place.end - place.next
        return self.close(user) if failed else 0
