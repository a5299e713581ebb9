"""The messages between a parent and a shard, whatever carries them.

The parent sends: start at t=0, release a stage that waits at a barrier, more requests of a closed stage, end a stage early, stop. The
shard reports that it is ready, its progress, and the barrier it waits at; and it hands over its rows and chunks. A shard reads and writes all of that in its own
folder (store/spool.py), so its hot path touches only a few numbers in memory. How they get to the parent is up to the transport:
local.py shares the folder, ray_fleet.py copies it. The transport also converts instants from the parent's monotonic clock
to the shard's. A shard does not need to know where its parent is.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from inferometer.engine.job import Job


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


class WorkerResult(msgspec.Struct):
    """How a shard ended: its report, or an error that the user can fix."""

    report: ShardReport | None = None
    error: tuple[str, str, str, str] | None = None
    """The arguments of the UserError."""


class Grant(NamedTuple):
    """Requests of a closed stage that the parent deals out to a shard (dealing.py)."""

    number: int
    """1 for the shard's first grant, 2 for the next ..."""
    stage: int
    first: int
    end: int
    """Their ids are first ... end - 1, or every `ClosedStage.dealt_step`th of these."""
    is_last: bool
    """Nothing more will be dealt out in this stage."""


class ShardHandle(Protocol):
    """The parent's handle on one shard. Instants are those of the parent's monotonic clock.

    What the shard has reported and recorded so far is in the parent's own spool folder (`Job.spool`), where every reader finds it.
    """

    def start(self, t0: int) -> None:
        """Start the first stage at t0."""

    def release(self, stage: int, at: int) -> None:
        """Start a stage that waits at a barrier, at this instant."""

    def grant(self, grant: Grant) -> None:
        """Let the shard send these requests. It must have taken the grant before."""

    def end_stage(self, stage: int) -> None:
        """End this stage now, if it is still in progress."""

    def abandon(self, stage: int) -> None:
        """Cancel what is left of this stage and those before, if the next stage waits for it or there is no next stage."""

    def stop(self, level: int) -> None:
        """Stop the shard. Level 1: send nothing more, and wait for the requests in flight; 2: end now."""

    def is_alive(self) -> bool: ...

    def silence(self) -> int:
        """Return the nanoseconds since the shard's last sign of life."""

    def wait(self, seconds: float) -> None:
        """Wait until the shard has ended, but no longer than this."""

    def kill(self) -> None:
        """End it at once."""

    def result(self) -> WorkerResult | str:
        """Return how the shard ended, or what it died of.

        Call this after its end. Everything it recorded is then in the parent's spool folder.
        """


StartShards = Callable[[Sequence[Job]], Iterable[ShardHandle]]
"""A transport: starts the shards of a run, one after the other. Their control files must be in the spool folder."""
