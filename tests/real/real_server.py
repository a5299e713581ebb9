"""Starts a server that we did not write (tools/real_servers), and runs inferometer against it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from needs import INSTALLED

from inferometer import conduct
from inferometer.analysis.summary import Summary
from inferometer.config import from_mapping
from inferometer.records import Columns, Run

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def started(name: str, *options: str) -> Iterator[dict[str, Any]]:
    """Start the server and yield what it prints when it is ready: its `url`, its `model`, and more."""
    python = INSTALLED / name / "bin/python"
    script = ROOT / "tools/real_servers" / name / "serve.py"
    process = subprocess.Popen([python, script, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        try:
            line = process.stdout.readline()
            assert line, f"{name} did not start: status {process.wait()}"
            yield json.loads(line)
        finally:
            process.stdin.close()
            process.wait(30)


def measure(folder: Path, url: str, load: dict[str, Any], **sections: Any) -> tuple[Run, Summary]:
    """Run in this process, with short synthetic prompts unless `data` overrides them. The rows are sorted by id."""
    tree: dict[str, Any] = {
        "server": {"url": url} | sections.pop("server", {}),
        "data": {"type": "synthetic", "input": 16, "output": 12},
        "load": load,
        "client": {"processes": 0, "probe": False} | sections.pop("client", {}),
        "output": str(folder),
    }
    run, summary = conduct.measure(from_mapping(tree | sections))
    rows = Columns.of(np.sort(np.asarray(run.records.rows), order="id"))
    return msgspec.structs.replace(run, records=msgspec.structs.replace(run.records, rows=rows)), summary


def in_a_row(requests: int) -> dict[str, Any]:
    """Return a load that sends one request after the other."""
    return {"type": "closed", "concurrency": 1, "requests": requests}


def inferometer(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, in `folder`."""
    command = [sys.executable, "-m", "inferometer", *words]
    return subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )


def check_times(run: Run, streamed: bool) -> None:
    """Check that the instants of every response are recorded and in order, and that its chunks are between its first and last token."""
    rows = run.records.rows
    order = ("intended", "sent", "first_byte", "first_token", "last_token", "done")
    names = order if streamed else ("intended", "sent", "first_byte", "done")
    for earlier, later in pairwise(names):
        assert (rows[earlier] <= rows[later]).all(), f"{earlier} after {later}"
    arrivals = np.concatenate([piece.arrival for piece in run.chunks()] or [np.zeros(0, np.int64)])
    assert len(arrivals) == rows["chunk_count"].sum()
    for row in rows:
        own = arrivals[row["chunk_start"] : row["chunk_start"] + row["chunk_count"]]
        assert (np.diff(own) >= 0).all()
        if len(own):
            assert (own[0], own[-1]) == (row["first_token"], row["last_token"])


def most_in_flight(run: Run) -> int:
    rows = run.records.rows
    changes = sorted([(at, 1) for at in rows["sent"].tolist()] + [(at, -1) for at in rows["done"].tolist()])
    return int(np.cumsum([change for _, change in changes]).max())
