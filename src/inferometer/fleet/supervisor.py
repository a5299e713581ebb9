"""The parent: starts the shards, gives them one common start, watches them, stops them.

Nothing passes between processes while requests run but the numbers of the spool's control files: the parent writes the
start and the stop, the shards write what they have done so far.
"""

import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

import msgspec
import numpy as np

from inferometer.errors import UserError
from inferometer.fleet.job import Job, ShardReport, run_shard
from inferometer.fleet.worker import WorkerResult
from inferometer.open_files import RESERVED_FILES, file_limit
from inferometer.records import ROW
from inferometer.store.spool import Control, peeks_of, rows_of
from inferometer.timing.clock import now
from inferometer.units import NS

_START_IN = NS // 10
"""From the last shard's `ready` to t=0."""
_HUNG = 10 * NS
"""A shard without a sign of life for so long is ended."""
_FILES = 3
"""That this process has open for each of the others: its log, its answer, its numbers."""
_OWN_FILES = 16 + RESERVED_FILES
_MAX_NEW = 20_000
"""Rows that a snapshot reads at the most: the latest."""


class Snapshot(msgspec.Struct, frozen=True):
    """The run as it stands."""

    started: bool
    elapsed: float
    """Seconds since t=0."""
    sent: int
    ok: int
    failed: int
    in_flight: int
    queued: int
    stage: int
    stopping: bool
    t0: int
    rows: Callable[[], np.ndarray[tuple[int], np.dtype[np.void]]]
    """What ended since this was last asked (at most the latest of it), times by the monotonic clock. Reading it takes a while."""
    peeks: Callable[[], np.ndarray[tuple[int, int], np.dtype[np.int64]]]
    """Of some requests in flight: time to first token and latest gap, ns."""


class _Member(Protocol):
    def is_alive(self) -> bool: ...

    def wait(self, seconds: float) -> None:
        """Until it has ended, but not longer than this."""

    def end(self) -> None:
        """Kill it."""

    def answer(self) -> WorkerResult | str:
        """After its end: what it said, or how it died."""


class _Process:
    def __init__(self, job: Job, shard: int) -> None:
        self._log = (job.spool / f"{shard}.log").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inferometer.fleet.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            process_group=0,  # the terminal's Ctrl-C is the parent's to handle, even while this one still starts
        )
        assert self._process.stdin is not None
        try:
            pickle.dump((job, shard), self._process.stdin)
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it died at once: answer() says how

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float) -> None:
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], seconds)[0]:
            time.sleep(0.001)  # it has answered, and is about to end

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def answer(self) -> WorkerResult | str:
        assert self._process.stdout is not None
        said = self._process.stdout.read()
        self._process.stdout.close()
        code = self._process.wait()
        if code == 0 and said:
            return msgspec.json.decode(said, type=WorkerResult)
        self._log.seek(0)
        last = self._log.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        return f"{how}: {last[0]}" if last else how


class _Thread:
    def __init__(self, job: Job, shard: int) -> None:
        self._answer: WorkerResult | str = "ended without a word"
        self._thread = threading.Thread(target=self._run, args=(job, shard), daemon=True)
        self._thread.start()

    def _run(self, job: Job, shard: int) -> None:
        try:
            self._answer = WorkerResult(facts=run_shard(job, shard))
        except UserError as error:
            self._answer = WorkerResult(error=(error.what, error.remedy, error.key, error.source))
        except Exception as error:  # the run must end with a clear error, whatever it was
            self._answer = f"failed: {type(error).__name__}: {error}"

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def end(self) -> None:
        """A thread cannot be killed; it was told to stop."""

    def answer(self) -> WorkerResult | str:
        self._thread.join()
        return self._answer


class Supervisor:
    """The shards of a job. `errors` are what went wrong with them; `facts` what they found out."""

    def __init__(self, job: Job, in_process: bool) -> None:
        if not in_process:
            _check_files(job.shards)
        self._job = job
        self._controls = [Control(job.spool / f"{shard}.control", create=True) for shard in range(job.shards)]
        self._seen = [0] * job.shards
        self._t0 = 0
        self._stop = 0
        self._open: dict[int, _Member] = {}
        self.errors: list[str] = []
        self.facts: list[ShardReport] = []
        try:
            for shard in range(job.shards):
                self._open[shard] = _Thread(job, shard) if in_process else _Process(job, shard)
        except BaseException:  # Ctrl-C: nobody watches them yet
            self._end_all()
            raise

    def stop(self) -> None:
        """Ctrl-C: the first time wait for what is in flight, the second time end now."""
        self._stop = min(self._stop + 1, 2)
        self._tell("stop", self._stop)

    def end_stage(self, stage: int) -> None:
        """Have all shards that are still in this stage go on to the next one, within a tick."""
        self._tell("past", stage + 1)

    @property
    def t0(self) -> int:
        return self._t0

    @property
    def interrupted(self) -> bool:
        return self._stop > 0

    @property
    def disk_full(self) -> bool:
        return any(control["disk_full"] for control in self._controls)

    def watch(self, interval: float = 0.25) -> Iterator[Snapshot]:
        """Snapshots until all shards are done. Gives the start when all are ready."""
        try:
            while self._open:
                yield self._snapshot()
                self._wait(interval)
            yield self._snapshot()
        finally:
            self._end_all()

    def _end_all(self) -> None:
        for member in self._open.values():
            member.end()

    def _wait(self, interval: float) -> None:
        """Until the interval is over or something changes."""
        end = time.monotonic() + interval
        while self._open and time.monotonic() < end:
            self._collect()
            if not self._t0 and not self.errors and all(control.state != "starting" for control in self._controls):
                self._t0 = now() + _START_IN
                self._tell("t0", self._t0)
            for member in islice(self._open.values(), 1):
                member.wait(0.005 if not self._t0 else 0.05)

    def _collect(self) -> None:
        for shard, member in list(self._open.items()):
            control = self._controls[shard]
            if not member.is_alive():
                del self._open[shard]
                self._heard(shard, member.answer())
            elif control.state == "running" and now() - control["heartbeat"] > _HUNG:
                del self._open[shard]
                member.end()
                self._lost(shard, f"gave no sign of life for {_HUNG // NS} s and was ended")

    def _heard(self, shard: int, answer: WorkerResult | str) -> None:
        if isinstance(answer, str):
            self._lost(shard, answer)
        elif answer.error is not None:
            self._tell("stop", 2)
            raise UserError(*answer.error)
        elif answer.facts is not None:
            self.facts.append(answer.facts)

    def _lost(self, shard: int, how: str) -> None:
        """A shard is gone: the run cannot be what was asked for, so the others end too, with what they have."""
        lost = self._controls[shard]["in_flight"]
        self.errors.append(f"client process {shard} {how}" + (f"; {lost} requests in flight were lost" if lost else ""))
        self._tell("stop", 1)

    def _tell(self, name: str, value: int) -> None:
        for control in self._controls:
            control[name] = value

    def _snapshot(self) -> Snapshot:
        started = bool(self._t0) and now() >= self._t0

        def total(name: str) -> int:
            return sum(control[name] for control in self._controls)

        return Snapshot(
            started=started,
            elapsed=(now() - self._t0) / NS if started else 0.0,
            sent=total("sent"),
            ok=total("ok"),
            failed=total("failed"),
            in_flight=total("in_flight"),
            queued=total("queued"),
            stage=min(control["stage"] for control in self._controls),
            stopping=self._stop > 0,
            t0=self._t0,
            rows=self._new_rows,
            peeks=self._peeks,
        )

    def _peeks(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        return np.concatenate([peeks_of(self._job.spool, shard) for shard in range(self._job.shards)])

    def _new_rows(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        parts = []
        for shard, control in enumerate(self._controls):
            count = control["rows"]
            first = max(self._seen[shard], count - _MAX_NEW)
            if count > first:
                parts.append(rows_of(self._job.spool, shard, count, first))
            self._seen[shard] = count
        return np.concatenate(parts) if parts else np.zeros(0, ROW)


def _check_files(shards: int) -> None:
    limit = file_limit()
    if shards * _FILES + _OWN_FILES > limit:
        raise UserError(
            f"{shards} client processes need more open files than the limit of {limit} (RLIMIT_NOFILE)",
            "raise it (ulimit -n), or lower client.processes",
        )
