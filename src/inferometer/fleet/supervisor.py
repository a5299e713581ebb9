"""The parent: starts the shards together, watches them, releases barriers, deals out requests, stops them, handles the loss of one.

How shards are started and reached is up to the transport (control.py); this file holds the policy.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inferometer.engine.job import Job
from inferometer.errors import UserError
from inferometer.fleet.control import Outcome, ShardHandle, ShardReport, StartShards
from inferometer.fleet.dealing import Dealing
from inferometer.open_files import RESERVED_FILES, file_limit
from inferometer.records import ROW, Snapshot
from inferometer.store.spool import Control, ages_of, peeks_of, rows_of
from inferometer.timing.clock import now, wall_offset
from inferometer.types import Plan
from inferometer.units import NS, format_seconds

_START_IN = NS // 10
"""Nanoseconds from the last shard's `ready` to t=0."""
_HUNG = 10 * NS
"""A shard that gives no sign of life for this long is killed."""
_FILES = 3
"""Files that this process has open for each shard: its log, the pipe to it, its control file."""
_OWN_FILES = 16 + RESERVED_FILES


class Supervisor:
    """Runs the shards of a run. `errors` says what went wrong with them; `reports` are their reports about themselves."""

    def __init__(
        self,
        jobs: Sequence[Job],
        start: StartShards,
        plan: Plan,
        *,
        unit: int = 0,
        start_in: int = 0,
        begin: Callable[[int], None] | None = None,
    ) -> None:
        """`plan` is that of all shards together, of which `unit` requests stay together (schedule.shard). `start_in`: nanoseconds from the last shard's `ready` to t=0, if the transport needs more than usual. `begin` is called with
        t=0 once that is known."""
        self._begin = begin
        self._spool, self._start_ns = jobs[0].spool, jobs[0].start_ns
        self._start_in = start_in or _START_IN
        self._controls = [Control(job.spool / f"{job.shard}.control", create=True) for job in jobs]
        self._seen = [0] * len(jobs)
        self.t0 = 0
        self._stop = self._stop_sent = 0
        self.stop_level = 0
        """How often `stop` was called before all shards had ended, up to 2."""
        self._barriers = [number for number, stage in enumerate(plan.stages) if stage.barrier]
        self._pauses = [stage.pause for stage in plan.stages]
        self.dealing = Dealing(plan, len(jobs), self._controls, unit)
        self._running: dict[int, ShardHandle] = {}
        self.errors: list[str] = []
        self.reports: list[ShardReport] = []
        self.ended_early: set[int] = set()
        """Stages that ended before all of their requests were sent."""
        self.lost: list[int] = []
        """Shards that died or hung after the start."""
        try:
            for number, shard in enumerate(start(jobs)):
                self._running[number] = shard
        except BaseException:  # such as Ctrl-C: nothing watches the shards yet
            self._kill_all()
            raise

    def stop(self) -> None:
        """Stop the run on Ctrl-C: the first call waits for the requests in flight, the second ends it now. Once all shards have ended,
        the outcome of the run is decided: they still count tokens or store their chunks, and the run does not count as interrupted.
        Safe in a signal handler: `watch` passes it on to the shards."""
        if self._running:
            self._stop = min(self._stop + 1, 2)
        own = [self._controls[shard] for shard in self._running]
        if not all(control["ended"] and not control["interrupted"] for control in own):
            self.stop_level = self._stop

    def end_stage(self, stage: int) -> None:
        """Make all shards that are still in this stage continue with the next one, within a tick."""
        self.ended_early.add(stage)
        self._tell(past=stage + 1)

    def abandon(self, stage: int) -> None:
        """Cancel the requests that are left of a stage that was ended, if the next stage, or the end of the run, waits for them."""
        self._tell(abandoned=stage + 1)

    @property
    def interrupted(self) -> bool:
        return self.stop_level > 0

    @property
    def disk_full(self) -> bool:
        return any(control["disk_full"] for control in self._controls)

    def watch(self, interval: float = 0.25) -> Iterator[Snapshot]:
        """Yield snapshots until all shards are done. Starts the run when all shards are ready."""
        try:
            while self._running:
                yield self._snapshot()
                self._wait(interval)
            yield self._snapshot()
        finally:
            self._kill_all()

    def _kill_all(self) -> None:
        for shard in self._running.values():
            shard.kill()

    def _tell(self, **numbers: int) -> None:
        for shard in list(self._running.values()):
            shard.tell(**numbers)

    def _wait(self, interval: float) -> None:
        """Look after the shards until the interval is over or all have ended."""
        end = time.monotonic() + interval
        while self._running and time.monotonic() < end:
            if self._stop > self._stop_sent:
                self._stop_sent = self._stop
                self._tell(stop=self._stop)
            self._collect()
            self._start_when_ready()
            self._release_barrier()
            self.dealing.deal(self._running, now())
            for shard in islice(self._running.values(), 1):
                shard.wait(0.005 if not self.t0 or self._barriers or self.dealing.is_pending else 0.05)

    def _start_when_ready(self) -> None:
        is_ready = all(control.state != "starting" for control in self._controls)
        if not self.t0 and not self.errors and not self._stop and is_ready:
            self.t0 = self._planned_start() if self._start_ns else now() + self._start_in
            self._tell(t0=self.t0)
            if self._begin is not None:
                self._begin(self.t0)

    def _planned_start(self) -> int:
        """Return the instant of the start that is set. Raises UserError when it has passed."""
        start = self._start_ns - wall_offset()
        if (late := now() + _START_IN - start) > 0:
            self._tell(stop=2)
            raise UserError(
                f"the client was ready {format_seconds(late / NS)} too late for the start that is set: nothing was sent",
                "set a later start: requests are built and connections are opened before it",
            )
        return start

    def _release_barrier(self) -> None:
        """Start the stage behind the next barrier once all shards that are still running wait there."""
        if not self._barriers or not self._running:
            return
        stage = self._barriers[0]
        if all(self._controls[shard]["waiting"] >= stage for shard in self._running):
            self._barriers.pop(0)
            self._tell(release_at=now() + max(self._start_in, self._pauses[stage]), released=stage)

    def _collect(self) -> None:
        for number, shard in list(self._running.items()):
            control = self._controls[number]  # "ended": it counts tokens after its run, and gives no sign of life
            if not shard.is_alive():
                del self._running[number]
                self._ended(number, shard.result())
            elif control.state == "running" and not control["ended"] and shard.silence() > _HUNG:
                del self._running[number]
                shard.kill()
                self._lose(number, f"gave no sign of life for {_HUNG // NS} s and was ended")

    def _ended(self, shard: int, outcome: Outcome) -> None:
        if isinstance(outcome, str):
            self._lose(shard, outcome)
        elif isinstance(outcome, ShardReport):
            self.reports.append(outcome)
        else:
            self._tell(stop=2)
            raise outcome

    def _lose(self, shard: int, how: str) -> None:
        """Handle the loss of a shard: before the start, it ends the run; after that, the others finish their part of the plan."""
        lost = self._controls[shard]["in_flight"]
        self.errors.append(f"client process {shard} {how}" + (f"; {lost} requests in flight were lost" if lost else ""))
        if self.t0:
            self.lost.append(shard)
        else:
            self._tell(stop=1)

    def _snapshot(self) -> Snapshot:
        started = bool(self.t0) and now() >= self.t0

        def total(name: str) -> int:
            return sum(control[name] for control in self._controls)

        return Snapshot(
            started=started,
            elapsed=(now() - self.t0) / NS if started else 0.0,
            sent=total("sent"),
            ok=total("ok"),
            failed=total("failed"),
            in_flight=total("in_flight"),
            queued=total("queued"),
            stage=self._stage(),
            stopping=self._stop > 0,
            starts_in=0.0 if started else max((self._start_ns - time.time_ns()) / NS, 0.0),
            draining=self._is_draining(),
            pausing=self._is_pausing(),
            t0=self.t0,
            rows=functools.cache(self._new_rows),
            peeks=partial(self._looks, peeks_of),
            ages=partial(self._looks, ages_of),
        )

    def _is_draining(self) -> bool:
        """Return whether a shard has stopped sending and waits, for its own responses or for the other shards, at a barrier."""
        return bool(self._barriers) and any(
            self._controls[shard]["reached"] >= self._barriers[0] for shard in self._running
        )

    def _is_pausing(self) -> bool:
        """Return whether all shards that are still running wait for the end of the pause before the next stage."""
        if not any(self._pauses) or not self._running or self._is_draining():
            return False
        controls = [self._controls[shard] for shard in self._running]
        return all(control["reached"] > control["stage"] for control in controls)

    def _stage(self) -> int:
        """Return the stage that the slowest shard is in, not counting lost ones."""
        stages = [control["stage"] for shard, control in enumerate(self._controls) if shard not in self.lost]
        return min(stages or [control["stage"] for control in self._controls])

    def _looks(self, read: Callable[[Path, int], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return what all shards show of their requests in flight."""
        return np.concatenate([read(self._spool, shard) for shard in range(len(self._controls))])

    def _new_rows(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        parts = []
        for shard, control in enumerate(self._controls):
            count = control["rows"]
            if count > self._seen[shard]:
                parts.append(rows_of(self._spool, shard, count, self._seen[shard]))
            self._seen[shard] = count
        return np.concatenate(parts) if parts else np.zeros(0, ROW)


def check_files(shards: int) -> None:
    limit = file_limit()
    if shards * _FILES + _OWN_FILES > limit:
        raise UserError(
            f"{shards} client processes need more open files than the limit of {limit} (RLIMIT_NOFILE)",
            "raise it (ulimit -n), or lower client.processes",
        )
