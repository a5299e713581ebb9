"""`make demo`: runs the simulator, measures it, finds its capacity, and prints the commands that do the same manually. Takes a minute."""

import subprocess
import sys
from pathlib import Path

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

DATA = ["--input-tokens", "128", "--output-tokens", "16"]
RUN = [*DATA, "--concurrency", "8", "--duration", "8s"]
CAPACITY = [*DATA, "--slo", "interactive", "--budget", "40s", "--start", "20", "--precision", "15%"]
REPORT = "runs/capacity.html"


def main() -> int:
    inferometer = Path(sys.executable).with_name("inferometer")
    _step(
        "1. A simulated language model, in the background",
        "inferometer serve --ttft 50ms --itl 10ms --jitter 5% --max-batch 8",
    )
    with running(simulator(timing=Fixed(ttft=0.05, itl=0.01, jitter=0.05, max_batch=8))) as url:
        for title, command in (
            ("2. Measure it at one load, for 8 s", ["run", url, *RUN]),
            ("3. How much load does it hold? In at most 40 s", ["capacity", url, *CAPACITY, "--html", REPORT]),
        ):
            _step(title, f"inferometer {' '.join(command)}")
            status = subprocess.run([inferometer, *command], check=False).returncode
            if status not in (0, 1):  # INVALID is a result too, and likely on a busy machine
                return status
    print(f"\nThe report of the search, with charts:  {Path(REPORT).resolve()}")
    print("Find the capacity of your own server:   .venv/bin/inferometer capacity http://HOST:PORT")
    print("Measure it at one load:                 .venv/bin/inferometer run http://HOST:PORT")
    return 0


def _step(title: str, command: str) -> None:
    print(f"\n{title}\n$ {command}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
