"""What an installation costs: its size, the number of packages, and the time of `--help` and of an import, beside other tools.

Each tool gets an environment of its own outside the repository, with pip's latest versions at the time. FOOTPRINT names a folder
in which the environments are kept between runs; otherwise they are deleted. A tool that cannot be installed is reported as such.
"""

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.common import HERE, Line, show

TOOLS = {"inferometer": str(HERE.parent), "guidellm": "guidellm", "aiperf": "aiperf"}
"""The command (and package) of each tool, and what pip installs."""
ROUNDS = 7
HELP_BOUND = 0.15
_PIP = ("pip", "setuptools", "wheel", "_distutils_hack", "distutils-precedence.pth")
"""What belongs to the environment itself."""


class Times(NamedTuple):
    """Seconds that a command takes, and seconds of CPU, which other work on the machine hardly changes."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.3f} s, {self.cpu:.3f} s of CPU"


class Footprint(NamedTuple):
    version: str
    megabytes: float
    packages: int
    help: Times
    importing: Times


def main() -> int:
    lines = []
    with _folder() as folder:
        for tool, source in TOOLS.items():
            environment = folder / tool
            if failure := _install(environment, source):
                lines.append(Line(tool, "not installed", failure))
                continue
            found = _measure(tool, environment)
            is_ours = tool == "inferometer"
            lines += [
                Line(f"{tool} {found.version}: size", f"{found.megabytes:.0f} MB, {found.packages} packages"),
                Line(
                    f"{tool} {found.version}: --help",
                    str(found.help),
                    f"< {HELP_BOUND} s" if is_ours else "",
                    found.help.wall < HELP_BOUND if is_ours else None,
                ),
                Line(f"{tool} {found.version}: import", str(found.importing)),
            ]
    return show("footprint", lines, rounds=ROUNDS, python=sys.version.split()[0])


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    if kept := os.environ.get("FOOTPRINT"):
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept)
        return
    with tempfile.TemporaryDirectory(prefix="inferometer-footprint-") as folder:
        yield Path(folder)


def _install(environment: Path, source: str) -> str:
    """Install into a new environment, unless there is one. Returns why it failed, if it did."""
    if (environment / "bin/pip").exists():
        return ""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PIP_CONSTRAINT")}
    command = [environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check", source]
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1][:120]


def _measure(tool: str, environment: Path) -> Footprint:
    python = environment / "bin/python"
    packages = subprocess.run(
        [environment / "bin/pip", "list", "--format", "freeze", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    versions = dict(package.partition("==")[::2] for package in packages)
    return Footprint(
        versions[tool],
        _size(environment) / 1e6,
        len(versions.keys() - {tool, *_PIP}),
        _times([environment / "bin" / tool, "--help"]),
        _times([python, "-c", f"import {tool}"]),
    )


def _size(environment: Path) -> int:
    """Bytes of all files, without pip and the links to Python itself."""
    files = (path for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if not _is_pip(path, environment))


def _is_pip(path: Path, environment: Path) -> bool:
    """Whether a file is part of pip: lib/python3.N/site-packages/pip/..."""
    name = (path.relative_to(environment).parts + ("",) * 4)[3]
    return name in _PIP or name.startswith(("pip-", "setuptools-", "wheel-"))


def _times(command: list[str | Path]) -> Times:
    """The median times of a command, after a first round that compiles and reads its files."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    wall, cpu = [], []
    for _ in range(ROUNDS + 1):
        used, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, env=plain, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        wall.append(time.perf_counter() - start)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
    return Times(statistics.median(wall[1:]), statistics.median(cpu[1:]))


if __name__ == "__main__":
    sys.exit(main())
