"""Logs when the stages of a run start and end, as inference-perf does."""

from datetime import datetime, timedelta

from inferometer.compat.inference_perf.logging import Log
from inferometer.conduct import Show
from inferometer.records import Outcome, Snapshot


class StageLog(Show):
    """Logs `Stage N - run started|completed|failed`, with the time at which it happened.

    The end of a stage is the end of its last request: it is known when the next stage, after a pause, or the end of the run shows that
    there are no more. The last stage is logged by `finish`, which knows how the run ended.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._stage = -1
        self._busy = self._seen = datetime.now()
        """When the stage in progress last had requests, and when the run was last looked at."""
        self._is_busy = False
        self._ended = 0
        self._failed: set[int] = set()

    def warn(self, line: str) -> None:
        self._log.warning(line)

    def progress(self, snapshot: Snapshot) -> None:
        """Follow the run. The times are such that all requests of a stage lie between its start and its end."""
        if not snapshot.started:
            return
        now, ended = datetime.now(), snapshot.ok + snapshot.failed
        if self._stage < 0:
            self._start(0, now - timedelta(seconds=snapshot.elapsed))
        if snapshot.stage > self._stage:
            if self._is_busy:
                self._busy = self._seen = now
            self._end(self._stage in self._failed)
            for skipped in range(self._stage + 1, snapshot.stage):  # shorter than the time between two snapshots
                self._start(skipped, self._seen)
                self._end(skipped in self._failed)
            self._start(snapshot.stage, self._seen)
        self._is_busy = bool(snapshot.in_flight or snapshot.queued)
        if self._is_busy or ended != self._ended:
            self._busy = now
        self._seen, self._ended = now, ended

    def finish(self, outcome: Outcome, stages: int) -> None:
        """Log the end of the last stage, and stages that were never reached."""
        failed = {trip.stage for trip in outcome.trips} | set(outcome.given_up)
        is_cut = outcome.interrupted or bool(outcome.errors)
        if self._stage < 0:
            self._start(0, datetime.now())
        self._end(self._stage in failed or is_cut)
        for stage in range(self._stage + 1, stages):
            self._start(stage, self._busy)
            self._end(is_cut or stage in failed)

    def ended_early(self, stage: int) -> None:
        """Note that a stage was ended before its time: it counts as failed."""
        self._failed.add(stage)

    def _start(self, stage: int, at: datetime) -> None:
        self._stage, self._busy = stage, at
        self._log.info(f"Stage {stage} - run started", at)

    def _end(self, is_failed: bool) -> None:
        if is_failed:
            self._log.error(f"Stage {self._stage} - run failed", self._busy)
        else:
            self._log.info(f"Stage {self._stage} - run completed", self._busy)
