""".ci/run lists tests that failed once in its last lines, and fails if a test fails twice."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKE = """#!/bin/sh
case "$*" in
    test-extra*PYTEST=*) echo "PASSED tests/test_a.py::test_slow[a b]" ;;
    test*PYTEST=*) echo "PASSED tests/test_a.py::test_one"; echo "{failed} tests/test_a.py::test_two"; exit {status} ;;
    test\\ * | test | test-extra) exit 2 ;;
esac
"""


def run(folder: Path, failed: str, status: int) -> "subprocess.CompletedProcess[str]":
    """Run the script where the tests fail at first, with stand-ins for make and all that would be installed."""
    commands = folder / "bin"
    installer = folder / "tools" / "real_servers" / "install.sh"
    for path in (commands, folder / ".ci", installer.parent):
        path.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (commands / "make").write_text(MAKE.format(failed=failed, status=status))
    stand_ins = [commands / name for name in ("prometheus", "chromium", "buildah", "debootstrap", "npm")]
    for path in (installer, *stand_ins):
        path.write_text("#!/bin/sh\n")
    for path in (commands / "make", installer, *stand_ins):
        path.chmod(0o755)
    environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "TMPDIR": str(folder)}
    return subprocess.run(
        [folder / ".ci" / "run"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_tests_that_failed_once_are_in_the_last_lines(tmp_path: Path) -> None:
    done = run(tmp_path, "PASSED", 0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "These tests failed once and then passed alone. Make them robust:",
        "  make test: tests/test_a.py::test_one",
        "  make test: tests/test_a.py::test_two",
        "  make test-extra: tests/test_a.py::test_slow[a b]",
    ]


@pytest.mark.parametrize("failed", ["FAILED", "ERROR"])
def test_a_test_that_fails_twice_fails_the_script(tmp_path: Path, failed: str) -> None:
    done = run(tmp_path, failed, 2)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-2:] == [
        "These tests failed once and then passed alone. Make them robust:",
        "  make test: tests/test_a.py::test_one",
    ]
