"""Shards on this machine, each in a process of its own or in a thread of this one. They write into the parent's own spool folder."""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing import Pipe
from types import MappingProxyType

from inferometer import processors
from inferometer.engine.job import Job
from inferometer.errors import UserError
from inferometer.fleet.control import Outcome
from inferometer.store.spool import Control
from inferometer.timing.clock import now


class _SharedControl:
    """Sends to a shard that maps the same control file and has the same monotonic clock as the parent."""

    def __init__(self, job: Job) -> None:
        self._control = Control(job.spool / f"{job.shard}.control", create=False)

    def tell(self, **numbers: int) -> None:
        for name, value in numbers.items():
            self._control[name] = value

    def silence(self) -> int:
        return now() - self._control["heartbeat"]


class LocalProcess(_SharedControl):
    """A shard in a process of its own. The pipe to it stays open while the parent lives."""

    def __init__(self, job: Job, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(job)
        self._log = (job.spool / f"{job.shard}.log").open("w+b")
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "inferometer.fleet.worker"],
                stdin=theirs.fileno(),
                stdout=self._log,
                stderr=self._log,
                env={**processors.ONE_BLAS_THREAD, **os.environ, **environment},
                pass_fds=[file for file in job.requests.files if isinstance(file, int)],
                process_group=0,  # only the parent handles the terminal's Ctrl-C, even while this process is still starting
            )
        # The process reads when it has started, and others are to be started in the meantime.
        threading.Thread(target=self._send, args=(pickle.dumps(job),), daemon=True).start()

    def _send(self, job: bytes) -> None:
        with contextlib.suppress(OSError):  # it died immediately: result() says how
            self._pipe.send_bytes(job)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float) -> None:
        if self._pipe.poll(seconds):
            time.sleep(0.001)  # the result is there, and the process is about to end

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def result(self) -> Outcome:
        code = self._process.wait()
        with contextlib.suppress(EOFError, OSError), self._pipe:
            outcome: Outcome = self._pipe.recv()
            return outcome
        self._log.seek(0)
        last = self._log.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        return ": ".join([f"was killed by signal {-code}" if code < 0 else f"ended with status {code}", *last])


class LocalThread(_SharedControl):
    """A shard in a thread of this process."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._result: Outcome = "ended without a result"
        self._thread = threading.Thread(target=self._run, args=(job,), daemon=True)
        self._thread.start()

    def _run(self, job: Job) -> None:
        from inferometer.fleet.runner import run_shard  # noqa: PLC0415 - a parent of processes does without the engine

        try:
            self._result = run_shard(job)
        except UserError as error:
            self._result = error
        except Exception as error:  # the run must end with a clear error, whatever it was
            self._result = f"failed: {type(error).__name__}: {error}"

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)

    def kill(self) -> None:
        """Do nothing: a thread cannot be killed, and it has been signalled to stop."""

    def result(self) -> Outcome:
        self._thread.join()
        return self._result
