"""What holds for a whole run: its configuration, the server that was reached, and the number of shards."""

from pathlib import Path

import msgspec

from inferometer.config.schema import Config
from inferometer.probe.reach import Reached
from inferometer.records import Probe
from inferometer.wire.context import SharedRefs


class Part(msgspec.Struct, frozen=True):
    """One of several parts of a run, each of which is measured by a client that is not in contact with the others."""

    number: int
    """Counted from 0."""
    of: int


class Setup(msgspec.Struct, frozen=True):
    config: Config
    reached: Reached
    shards: int
    spool: Path
    tag: str
    """The run's own word: part of every request's X-Request-Id, and the salt of synthetic prompts (data.salt: run)."""
    shared: tuple[SharedRefs, ...] = ()
    """KServe: where the tensors of each shard's requests are in shared memory, which the parent has set up."""
    probe: Probe = Probe()
    """What the requests before the run showed."""
    turns: float = 0.0
    """Mean number of turns per session; 0: there are no sessions."""
    stages: tuple[str, ...] = ()
    """Name of each stage, as in reports."""
    part: Part | None = None
    """The part of the run that is measured; None: all of it."""
    start_ns: int = 0
    """Wall clock at t=0, nanoseconds since 1970; 0: t=0 is as soon as all shards are ready."""

    stored_at: str = ""
    """URL of the run's folder in a bucket, to which shards on other machines write (shard_store.py); none if the output is local."""

    @property
    def all_shards(self) -> int:
        """The number of shards of all parts, if they have as many as this one."""
        return self.shards * (self.part.of if self.part else 1)

    def number(self, shard: int) -> int:
        """Return the number of one of this run's shards among all of them."""
        return shard if self.part is None else self.part.number + shard * self.part.of
