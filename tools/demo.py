"""`make demo`: runs the simulator and measures it, and prints the commands that do the same manually."""

import subprocess
import sys
from pathlib import Path

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

LOAD = ["--concurrency", "32", "--duration", "12s", "--input", "128", "--output", "64"]


def main() -> int:
    print("$ inferometer serve --ttft 50ms --itl 10ms --jitter 5%   (in the background)")
    with running(simulator(timing=Fixed(ttft=0.05, itl=0.01, jitter=0.05))) as url:
        print(f"$ inferometer run {url} {' '.join(LOAD)}\n", flush=True)
        inferometer = Path(sys.executable).with_name("inferometer")
        status = subprocess.run([inferometer, "run", url, *LOAD], check=False).returncode
    print("\nShow this report again:   .venv/bin/inferometer report runs/LATEST --explain")
    print("Measure your own server:  .venv/bin/inferometer run http://HOST:PORT")
    return 0 if status in (0, 1) else status  # INVALID is a result too, and likely on a busy machine


if __name__ == "__main__":
    sys.exit(main())
