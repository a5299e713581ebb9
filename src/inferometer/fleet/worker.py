"""A process that runs one shard: `python -m inferometer.fleet.worker`, with its job on standard input.

It answers with one JSON object: its report, or an error that the user can fix. Standard input stays open while the parent lives:
when it ends, so does this process, within a second and at whatever point of its life it is. Ctrl-C is the parent's to handle:
it reaches the shard through its control file.

    python -m inferometer.fleet.worker HOST:PORT    the same for a parent that is reached over TCP (tcp.py)
"""

import os
import queue
import signal
import sys
import threading


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
    """The parent has gone: stop the shard if it runs, and end in any case."""
    from inferometer.fleet.control import PARENT_GONE  # noqa: PLC0415

    if _controls:
        _controls[0]["stop"] = 2
        threading.Event().wait(PARENT_GONE)
    os._exit(1)


_controls: list[dict[str, int]] = []


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if len(sys.argv) > 1:
        from inferometer.fleet import tcp  # noqa: PLC0415

        tcp.work(sys.argv[1], sys.stdin.readline().strip())
        os._exit(0)
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # From the first moment on: what follows imports for a good part of a second.
    threading.Thread(target=_read_job, args=(jobs,), daemon=True).start()

    import pickle  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    from inferometer.errors import UserError  # noqa: PLC0415
    from inferometer.fleet.control import WorkerResult  # noqa: PLC0415
    from inferometer.fleet.job import run_shard  # noqa: PLC0415
    from inferometer.store.spool import Control  # noqa: PLC0415

    job, shard = pickle.loads(jobs.get())
    _controls.append(Control(job.spool / f"{shard}.control", create=False))  # type: ignore[arg-type]
    try:
        result = WorkerResult(report=run_shard(job, shard, job.spool))
    except UserError as error:
        result = WorkerResult(error=(error.what, error.remedy, error.key, error.source))
    sys.stdout.buffer.write(msgspec.json.encode(result))
    sys.stdout.flush()
    os._exit(0)  # everything it had open is closed: taking Python apart would keep the parent waiting for some 70 ms


if __name__ == "__main__":
    main()
