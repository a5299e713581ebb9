"""The messages between a parent and a shard, whatever carries them.

All of them are numbers in the shard's control file (store/spool.py). The parent writes when to start, which stage behind a barrier to
release, more requests of a closed stage, stages to end early, when to stop. The shard writes that it is ready, its progress, and the
barrier it waits at; and its rows and chunks are in the same folder. So its hot path touches only a few numbers in memory. How they get
across is up to the transport: local.py shares the folder, ray_fleet.py copies it. The transport also converts instants from the parent's
monotonic clock to the shard's. A shard does not need to know where its parent is.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from inferometer.engine.job import Job
from inferometer.errors import UserError

INSTANTS = frozenset({"t0", "release_at"})
"""The numbers from the parent that are instants."""


class ShardReport(msgspec.Struct, frozen=True):
    """A shard's report about itself, for the manifest."""

    stamps: str
    timer: str
    loop: str
    awake: str
    given_up: tuple[int, ...] = ()
    """Stages that the shard gave up."""
    notes: tuple[str, ...] = ()
    """What the user should know about the run, although nothing failed."""


Outcome = ShardReport | UserError | str
"""How a shard ended: its report, an error that the user can fix, or what it died of."""


class ShardHandle(Protocol):
    """The parent's handle on one shard. Instants are those of the parent's monotonic clock.

    What the shard has reported and recorded so far is in the parent's own spool folder (`Job.spool`), where every reader finds it.
    """

    def tell(self, **numbers: int) -> None:
        """Write these numbers into the shard's control file (store/spool.py), in this order. Those in INSTANTS are instants."""

    def is_alive(self) -> bool: ...

    def silence(self) -> int:
        """Return the nanoseconds since the shard's last sign of life."""

    def wait(self, seconds: float) -> None:
        """Wait until the shard has ended, but no longer than this."""

    def kill(self) -> None:
        """End it at once."""

    def result(self) -> Outcome:
        """Return how the shard ended. Call this after its end. Everything it recorded is then in the parent's spool folder."""


StartShards = Callable[[Sequence[Job]], Iterable[ShardHandle]]
"""A transport: starts the shards of a run, one after the other. Their control files must be in the spool folder."""
