"""A process that runs one shard: `python -m inferometer.fleet.worker`. Standard input is its end of a pipe to the parent.

It receives its job, and sends how the shard ended. The pipe stays open while the parent lives: when it is closed, so does this process
end, within a second, whatever it is doing. The parent handles Ctrl-C and passes it on through the shard's control file.
"""

import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

_PARENT_GONE_S = 0.7
"""Seconds that a shard whose parent has gone may take to end by itself."""
_controls: list[Any] = []
"""The shard's control file, once it is open."""


def _read_job(pipe: "Connection[Any, Any]", jobs: "queue.SimpleQueue[bytes]") -> None:
    """Read the job, then wait for the end of the parent; end the shard, and this process in any case."""
    try:
        jobs.put(pipe.recv_bytes())
        pipe.recv_bytes()
    except (EOFError, OSError):
        if _controls:
            _controls[0]["stop"] = 2
            threading.Event().wait(_PARENT_GONE_S)
    os._exit(1)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe: Connection[Any, Any] = Connection(0)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # Started first, because the imports below take a good part of a second.
    threading.Thread(target=_read_job, args=(pipe, jobs), daemon=True).start()

    import pickle  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    from inferometer.errors import UserError  # noqa: PLC0415
    from inferometer.fleet.runner import run_shard  # noqa: PLC0415
    from inferometer.store.spool import Control  # noqa: PLC0415

    try:
        job = pickle.loads(jobs.get())
        _controls.append(Control(job.spool / f"{job.shard}.control", create=False))
        pipe.send(run_shard(job))
    except UserError as error:
        pipe.send(error)
    except BaseException:  # Python's own exit would abort, because a thread is reading from the pipe
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)  # all files are closed; a normal exit of Python would keep the parent waiting for some 70 ms


if __name__ == "__main__":
    main()
