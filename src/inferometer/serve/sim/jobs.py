"""The interface between requests and timing models.

A timing model is pure: no IO and no clock of its own. Times are passed in (`add`, `drop`, `advance`), and it emits
tokens through `Job.emit` with the time at which they were due. `emit` must not call back into the model.

    due       the next time at which it has something to do, NEVER if there is nothing
    add       a request arrived; returns False if the queue is full
    drop      the client disconnected
    advance   do everything that was due until `now`, in order of due time
    pause     the whole server was frozen for this many ns
"""

from typing import Protocol

NEVER = 1 << 62

_MASK = (1 << 64) - 1


class Job:
    """One request. Subclasses override `emit` to receive its tokens."""

    __slots__ = (
        "arrived", "base", "cached", "gone", "holding", "itl", "keys", "left", "made", "n", "n_in", "n_out", "started",
    )  # fmt: skip

    def __init__(self, n: int, n_in: int, n_out: int, arrived: int, keys: tuple[int, ...] = ()) -> None:
        self.n = n
        """The request's ordinal, from 1."""
        self.n_in = n_in
        self.n_out = n_out
        self.arrived = arrived
        self.keys = keys
        """Keys of the prompt's full KV blocks, for the prefix cache (kv.block_keys)."""
        self.made = 0
        """Tokens generated so far."""
        self.cached = 0
        """Prompt tokens found in the prefix cache."""
        self.started = -1
        """When it was first admitted; -1 while it is queued."""
        self.gone = False
        self.base = 0  # fixed: when its first token is due
        self.itl = 0  # fixed: ns between its tokens
        self.left = 0  # batch: tokens still to be prefilled
        self.holding: object = None  # batch: its KV blocks

    def emit(self, count: int, due: int) -> None:
        """Called when `count` more tokens are generated, which were due at `due`."""


class Timing(Protocol):
    """A timing model (see above)."""

    due: int

    def add(self, job: Job, at: int) -> bool: ...
    def drop(self, job: Job, at: int) -> None: ...
    def advance(self, now: int) -> None: ...
    def pause(self, ns: int) -> None: ...
    @property
    def n_running(self) -> int: ...
    @property
    def n_waiting(self) -> int: ...


def noise(seed: int, n: int, k: int) -> float:
    """Return a number in [-1, 1) that depends only on seed, request and token (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + n * 0xD1342543DE82EF95 + k * 0x2545F4914F6CDD1D + 0x632BE59BD9B4E019) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) / 9223372036854775808.0 - 1.0
