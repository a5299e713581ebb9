"""What a timing model knows of a request, and what it promises.

A model is pure: no IO and no clock of its own. It is told the instants (`add`, `drop`, `advance`), and hands out tokens
through `Job.emit` with the instant at which they were due. Nobody calls back into a model from within `emit`.

    due       the next instant at which it has something to do, NEVER when there is nothing
    add       a request that arrived; False when the queue is full
    drop      the client went away
    advance   do all that was due until `now`, in order of due time
    pause     the whole server stood still for so many ns
"""

from typing import Protocol

NEVER = 1 << 62

_MASK = (1 << 64) - 1


class Job:
    """One request. Who wants its tokens overrides `emit`."""

    __slots__ = (
        "arrived",
        "base",
        "cached",
        "gone",
        "holding",
        "keys",
        "left",
        "made",
        "n",
        "n_in",
        "n_out",
        "started",
    )

    def __init__(self, n: int, n_in: int, n_out: int, arrived: int, keys: tuple[int, ...] = ()) -> None:
        self.n = n
        """The request's ordinal, from 1."""
        self.n_in = n_in
        self.n_out = n_out
        self.arrived = arrived
        self.keys = keys
        """Of the prompt's full KV blocks, for the prefix cache (kv.block_keys)."""
        self.made = 0
        """Tokens made so far."""
        self.cached = 0
        """Prompt tokens that the prefix cache had."""
        self.started = -1
        """When it was first let in; -1 while it waits."""
        self.gone = False
        self.base = 0  # fixed: when its first token is due
        self.left = 0  # batch: tokens still to be prefilled
        self.holding: object = None  # batch: its KV blocks

    def emit(self, count: int, due: int) -> None:
        """`count` more tokens are there; they were due at `due`."""


class Timing(Protocol):
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
    """A number in [-1, 1) that depends on nothing else: the same for the same seed, request and token (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + n * 0xD1342543DE82EF95 + k * 0x2545F4914F6CDD1D + 0x632BE59BD9B4E019) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) / 9223372036854775808.0 - 1.0
