"""A process that runs one shard: `python -m inferometer.fleet.worker`, with its job on standard input.

It writes one JSON object to standard output: its report, or an error that the user can fix. Standard input stays open while the
parent lives: when it ends, so does this process, within a second, whatever it is doing. The parent handles Ctrl-C and passes it on
through the shard's control file.
"""

import os
import queue
import signal
import sys
import threading
from typing import Any

_PARENT_GONE_S = 0.7
"""Seconds that a shard whose parent has gone may take to end by itself."""


def _read_job(jobs: "queue.SimpleQueue[bytes]") -> None:
    """Read the job, then wait for the end of standard input."""
    stdin = sys.stdin.buffer
    size = stdin.read(8)
    data = stdin.read(int.from_bytes(size, "little")) if len(size) == 8 else b""
    if not data:
        os._exit(1)
    jobs.put(data)
    stdin.read()
    _end_soon()


def _end_soon() -> None:
    """Stop the shard if it is running, and end this process in any case: the parent has gone."""
    if _controls:
        _controls[0]["stop"] = 2
        threading.Event().wait(_PARENT_GONE_S)
    os._exit(1)


_controls: list[Any] = []
"""The shard's control file, once it is open."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # Started first, because the imports below take a good part of a second.
    threading.Thread(target=_read_job, args=(jobs,), daemon=True).start()

    import pickle  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    from inferometer.errors import UserError  # noqa: PLC0415
    from inferometer.fleet.control import WorkerResult  # noqa: PLC0415
    from inferometer.fleet.runner import run_shard  # noqa: PLC0415
    from inferometer.store.spool import Control  # noqa: PLC0415

    try:
        job = pickle.loads(jobs.get())
        _controls.append(Control(job.spool / f"{job.shard}.control", create=False))
        result = WorkerResult(report=run_shard(job))
    except UserError as error:
        result = WorkerResult(error=(error.what, error.remedy, error.key, error.source))
    except BaseException:  # Python's own exit would abort, because a thread is reading standard input
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.buffer.write(msgspec.json.encode(result))
    sys.stdout.flush()
    os._exit(0)  # all files are closed; a normal exit of Python would keep the parent waiting for some 70 ms


if __name__ == "__main__":
    main()
