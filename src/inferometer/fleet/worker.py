"""A process that runs one shard: `python -m inferometer.fleet.worker`, the job on standard input.

It answers with one JSON line: what it found out about itself, or the error that a user can mend. Ctrl-C is the parent's
to handle: it reaches the shard through the spool's control file.
"""

import os
import pickle
import signal
import sys

import msgspec

from inferometer.errors import UserError
from inferometer.fleet.job import Job, ShardReport, run_shard


class WorkerResult(msgspec.Struct):
    facts: ShardReport | None = None
    error: tuple[str, str, str, str] | None = None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job: Job
    job, shard = pickle.load(sys.stdin.buffer)
    try:
        answer = WorkerResult(facts=run_shard(job, shard))
    except UserError as error:
        answer = WorkerResult(error=(error.what, error.remedy, error.key, error.source))
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.flush()
    os._exit(0)  # all that it had open is closed: to take Python apart would keep the parent waiting for some 70 ms


if __name__ == "__main__":
    main()
