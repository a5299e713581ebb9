"""Traces against the simulator: files in the formats of others run, at their own instants and with their own lengths."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import measure
from shared_data import needs_shared
from workload.trace_files import FILES, OTHERS, ROWS, TRACES, Case

from inferometer import workload
from inferometer.config.data import Trace
from inferometer.errors import UserError
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed


@pytest.fixture(scope="module")
def fast() -> Iterator[str]:
    """A simulator that sends 64 tokens per chunk, so that long responses are cheap."""
    settings = simulator(timing=Fixed(ttft=0.001, itl=0.0001), tokens_per_chunk=64, max_len=1 << 20)
    with running(settings) as url:
        yield url


def check(folder: Path, url: str, path: Path, case: Case) -> None:
    """Run the first rows of the trace, or see that it gives its error."""
    section = {"type": "trace", "path": str(path), "rows": ROWS} | dict(case.data)
    if case.error:
        with pytest.raises(UserError, match=case.error):
            measure(folder, url, server={"model": "sim"}, data=section, load=dict(case.load))
        return
    run, summary = measure(folder, url, server={"model": "sim"}, data=section, load=dict(case.load))
    spec = Trace(**{key: value for key, value in section.items() if key != "type"})
    assert summary.counts.ok == len(run.records.rows) > 0
    rows = np.sort(run.records.rows, order="id")
    first = rows[rows["turn"] <= 0]
    requests = workload.build(spec, 0, first["id"].tolist())
    assert first["n_in"].tolist() == [request.n_in for request in requests]
    assert first["n_out"].tolist() == [request.n_out or spec.output for request in requests]
    if case.load["type"] == "trace":
        arrivals = workload.arrivals(spec)
        assert arrivals is not None
        assert first["intended"].tolist() == arrivals.tolist()


@pytest.mark.parametrize(
    "name", [name if case.error else pytest.param(name, marks=pytest.mark.slow) for name, case in FILES.items()]
)
def test_a_trace_file_runs_or_gives_its_error(tmp_path: Path, fast: str, name: str) -> None:
    check(tmp_path, fast, TRACES / name, FILES[name])


@needs_shared
@pytest.mark.slow
def test_traces_of_other_projects_do_the_same(tmp_path: Path, fast: str) -> None:
    named = {name: case for case in FILES.values() for name in case.others}
    assert named.keys() == {path.relative_to(OTHERS).as_posix() for path in OTHERS.rglob("*.*")}
    for name, case in named.items():
        check(tmp_path / name, fast, OTHERS / name, case)
