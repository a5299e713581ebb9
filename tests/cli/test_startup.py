"""Commands that measure start no threads for linear algebra, and leave the environment as it was."""

import json
import os
import subprocess
import sys

_SCRIPT = """
import json, os
from inferometer.cli import startup
startup.prepare()
import numpy
print(json.dumps([len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS")]))
"""


def started(**environment: str) -> list[object]:
    clean = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=clean | environment, capture_output=True, check=True, timeout=60
    )
    found: list[object] = json.loads(done.stdout)
    return found


def test_numpy_is_imported_without_threads_and_programs_started_later_do_not_inherit_that() -> None:
    assert started() == [1, None]


def test_setting_of_the_user_is_kept() -> None:
    assert started(OPENBLAS_NUM_THREADS="1")[1] == "1"
