"""What a parent and a shard say to each other, whatever carries it.

The parent says: start at t=0, release a stage that waits at a barrier, end a stage early, stop. The shard says: ready, how far it
is, which barrier it waits at; and it hands over its rows and chunks. A shard reads and writes all of that in a folder of its own
(store/spool.py), so nothing but a few numbers in memory is on its hot path. How it crosses over to the parent is the transport's
business: local.py shares the folder, tcp.py copies it over a socket. A transport converts instants from the parent's monotonic
clock to the shard's; no shard needs to know where its parent is.
"""

from typing import Protocol

import msgspec

from inferometer.fleet.job import Job, ShardReport

PARENT_GONE = 0.7
"""Seconds that a shard whose parent has gone is given to end by itself."""


class WorkerResult(msgspec.Struct):
    """How a shard ended: its report, or an error that the user can fix."""

    report: ShardReport | None = None
    error: tuple[str, str, str, str] | None = None
    """The arguments of the UserError."""


class ShardHandle(Protocol):
    """The parent's end of one shard. Instants are of the parent's monotonic clock.

    What the shard has said and recorded so far is in the parent's own spool folder (`Job.spool`), where every reader finds it.
    """

    def start(self, t0: int) -> None:
        """Start the first stage at t0."""

    def release(self, stage: int, at: int) -> None:
        """Start this stage, which waits at a barrier, at an instant."""

    def end_stage(self, stage: int) -> None:
        """End this stage now, if it is still in progress."""

    def stop(self, level: int) -> None:
        """1: send nothing more, and wait for what is in flight; 2: end now."""

    def is_alive(self) -> bool: ...

    def silence(self) -> int:
        """Nanoseconds since the last sign of life."""

    def wait(self, seconds: float) -> None:
        """Return when the shard has ended, or after this time."""

    def kill(self) -> None:
        """End it at once."""

    def result(self) -> WorkerResult | str:
        """After its end: how it ended, or what it died of. Everything it recorded is in the parent's spool folder then."""


class StartShard(Protocol):
    """A transport: starts one shard of a job. The control file must be in the job's spool folder."""

    def __call__(self, job: Job, shard: int, /) -> ShardHandle: ...
