"""Shards on this machine, each in a process of its own or in a thread of this one. They write into the parent's own spool folder."""

import contextlib
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from inferometer import processors
from inferometer.engine.job import Job
from inferometer.errors import UserError
from inferometer.fleet.control import Grant, WorkerResult
from inferometer.store.spool import Control
from inferometer.timing.clock import now


class _SharedControl:
    """Sends to a shard that maps the same control file and has the same monotonic clock as the parent."""

    def __init__(self, job: Job) -> None:
        self._control = Control(job.spool / f"{job.shard}.control", create=False)

    def start(self, t0: int) -> None:
        self._control["t0"] = t0

    def release(self, stage: int, at: int) -> None:
        self._control["release_at"] = at
        self._control["released"] = stage

    def grant(self, grant: Grant) -> None:
        """Write the number last: the shard looks at the others when it has changed."""
        self._control["grant_stage"] = grant.stage
        self._control["grant_from"], self._control["grant_to"] = grant.first, grant.end
        self._control["grant_is_last"] = int(grant.is_last)
        self._control["grants"] = grant.number

    def end_stage(self, stage: int) -> None:
        self._control["past"] = stage + 1

    def abandon(self, stage: int) -> None:
        self._control["abandoned"] = stage + 1

    def stop(self, level: int) -> None:
        self._control["stop"] = level

    def silence(self) -> int:
        return now() - self._control["heartbeat"]


class LocalProcess(_SharedControl):
    """A shard in a process of its own. Its standard input stays open while the parent lives."""

    def __init__(self, job: Job, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(job)
        self._log = (job.spool / f"{job.shard}.log").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inferometer.fleet.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**processors.ONE_BLAS_THREAD, **os.environ, **environment},
            pass_fds=[file for file in job.requests.files if isinstance(file, int)],
            process_group=0,  # only the parent handles the terminal's Ctrl-C, even while this process is still starting
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._output = select.poll()  # unlike select(), it takes file descriptors above 1023
        self._output.register(self._process.stdout)
        # The process reads when it has started, and others are to be started in the meantime.
        threading.Thread(target=self._send, args=(pickle.dumps(job),), daemon=True).start()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it died immediately: result() says how
            self._process.stdin.write(len(data).to_bytes(8, "little") + data)
            self._process.stdin.flush()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float) -> None:
        if self._output.poll(1000 * seconds):
            time.sleep(0.001)  # the result is there, and the process is about to end

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def result(self) -> WorkerResult | str:
        assert self._process.stdout is not None and self._process.stdin is not None
        data = self._process.stdout.read()
        self._process.stdout.close()
        code = self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if code == 0 and data:
            return msgspec.json.decode(data, type=WorkerResult)
        self._log.seek(0)
        return _died(code, self._log.read())


def _died(code: int, log: bytes) -> str:
    """Describe how a process without a result ended, with the last line of its log."""
    last = log.decode("utf-8", "replace").strip().splitlines()[-1:]
    how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
    return f"{how}: {last[0]}" if last else how


class LocalThread(_SharedControl):
    """A shard in a thread of this process."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._result: WorkerResult | str = "ended without a result"
        self._thread = threading.Thread(target=self._run, args=(job,), daemon=True)
        self._thread.start()

    def _run(self, job: Job) -> None:
        from inferometer.fleet.runner import run_shard  # noqa: PLC0415 - a parent of processes does without the engine

        try:
            self._result = WorkerResult(report=run_shard(job))
        except UserError as error:
            self._result = WorkerResult(error=(error.what, error.remedy, error.key, error.source))
        except Exception as error:  # the run must end with a clear error, whatever it was
            self._result = f"failed: {type(error).__name__}: {error}"

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def kill(self) -> None:
        """Do nothing: a thread cannot be killed, and it has been signalled to stop."""

    def result(self) -> WorkerResult | str:
        self._thread.join()
        return self._result
