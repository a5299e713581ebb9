"""An engine for tests, run by the child process: its times are known, and its prompts say what goes wrong.

A token takes 10 ms and the first one 30 ms, by a clock of its own that starts with the level: nothing sleeps.
"""

import os
import subprocess
import sys
import time
from typing import Any

from inferometer.engines.inprocess.child.errors import Unusable
from inferometer.engines.inprocess.child.jobs import Row, now

FIRST, TOKEN = 30_000_000, 10_000_000


def load(options: Any, phase: Any) -> Any:
    match options.args.get("at-load"):
        case "missing package":
            import a_package_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401, PLC0415
        case "memory":
            raise MemoryError("no room for the weights")
        case "hang":
            print("loading for ever", flush=True)
            time.sleep(600)
        case "crash":
            print("cannot go on", flush=True)
            os._exit(3)
    phase("imported")
    phase("weights loaded")
    return Scripted(options)


class Scripted:
    def __init__(self, options: Any) -> None:
        self.facts = {"dtype": "float32", "max length": "", "mode": options.mode, "batch": str(options.max_batch)}
        self.versions = {"transformers": "1.2.3"}
        self.facts["dtype"] = options.dtype or "float32"
        self.args = options.args
        self.is_static = options.mode == "batched"
        self.freed = 0

    def generate(self, job: Any, recording: Any) -> None:
        clock = recording.began
        for batch in job.batches(job.level):
            end = clock
            for number, index, request in batch:
                row = Row(number, index, clock, n_want=request.n_out, n_in=len(str(request.prompt).split()))
                self._act(request.prompt, row, recording, job)
                stamps = [clock + FIRST + TOKEN * each for each in range(request.n_out)]
                row.n_out, row.done = request.n_out, stamps[-1]
                if not self.is_static and not row.failure:
                    row.arrivals, row.tokens = stamps, [1] * len(stamps)
                    row.first, row.last = stamps[0], stamps[-1]
                end = max(end, stamps[-1])
                recording.add(row)
            if self.is_static:
                for row in recording.rows[-len(batch) :]:
                    row.done = end
                recording.useful += sum(row.n_in + row.n_out for row in recording.rows[-len(batch) :])
                recording.processed += len(batch) * 100
            clock = end

    def _act(self, prompt: str, row: Any, recording: Any, job: Any) -> None:
        word = prompt.split(maxsplit=1)[0] if isinstance(prompt, str) else ""
        if word == "memory" and job.level > 1:
            raise MemoryError("no room for the batch")
        if word == "crash":
            os._exit(9)
        if word == "hang":
            time.sleep(600)
        if word == "child":  # a process that would outlive this one
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            time.sleep(600)
        if word == "wait":  # until progress was reported
            recording.in_flight = 1
            begin = now()
            while now() - begin < 600_000_000:
                time.sleep(0.05)
        if word == "fail":
            row.failure, row.message = "engine_error", "this one cannot be done"

    def complete(self, requests: Any, tokens: int, chat: bool) -> list[dict[str, Any]]:
        return [{"text": f"{each.prompt} {chat}", "ids": [1] * tokens} for each in requests]

    def encode(self, command: dict[str, Any]) -> dict[str, Any]:
        """Calls take as many ms as the batch has sequences. The outputs are all 1, and one is off by `off`."""
        import numpy as np  # noqa: PLC0415

        if command["batch"] >= self.args.get("memory-at", 1000):
            raise MemoryError("no room for the batch")
        if command["batch"] >= self.args.get("crash-at", 1000):
            os._exit(5)
        made = np.ones((command["batch"], self.args.get("width", 2)), np.float32)
        made[0, 0] += self.args.get("off", 0.0)
        np.save(command["outputs"], made)
        seconds = [command["batch"] / 1000] * command["measurements"]
        return {"seconds": seconds, "began": now(), "ended": now() + 1, "memory": 1 << 20}

    def start_profile(self) -> None:
        raise Unusable("there is no profiler")

    def free_memory(self) -> None:
        self.freed += 1

    def close(self) -> None:
        print("closed politely", flush=True)
