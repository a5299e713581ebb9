"""Traces against the simulator: the files in shared/data run, at their own instants and with their own lengths."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import measure
from workload.trace_files import FILES, ROWS, TRACES

from inferometer import workload
from inferometer.config.data import Trace
from inferometer.errors import UserError
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

pytestmark = pytest.mark.skipif(not TRACES.exists(), reason=f"{TRACES} does not exist")


@pytest.fixture(scope="module")
def fast() -> Iterator[str]:
    """A simulator that sends 64 tokens per chunk, so that long responses are cheap."""
    settings = simulator(timing=Fixed(ttft=0.001, itl=0.0001), tokens_per_chunk=64, max_len=1 << 20)
    with running(settings) as url:
        yield url


def run_trace(folder: Path, url: str, name: str, data: dict[str, Any], load: dict[str, Any] | None) -> Any:
    section = {"type": "trace", "path": str(TRACES / name), "rows": ROWS} | data
    sections = {"load": load} if load else {"load": {"type": "trace"}}
    run, summary = measure(folder, url, server={"model": "sim"}, data=section, **sections)
    return run, summary, Trace(**{key: value for key, value in section.items() if key != "type"})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.relative_to(TRACES).as_posix() for path in TRACES.rglob("*.*")))
def test_every_trace_file_runs_or_gives_its_error(tmp_path: Path, fast: str, name: str) -> None:
    expected = FILES[name]
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            run_trace(tmp_path, fast, name, {}, None)
        return
    run, summary, spec = run_trace(tmp_path, fast, name, expected["data"], expected.get("load"))
    assert summary.counts.ok == len(run.records.rows) > 0
    rows = np.sort(run.records.rows, order="id")
    first = rows[rows["turn"] <= 0]
    requests = workload.build(spec, 0, first["id"].tolist())
    assert first["n_in"].tolist() == [request.n_in for request in requests]
    assert first["n_out"].tolist() == [request.n_out or spec.output for request in requests]
    if "load" not in expected:
        arrivals = workload.arrivals(spec)
        assert arrivals is not None
        assert first["intended"].tolist() == arrivals.tolist()
