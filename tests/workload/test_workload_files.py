"""Files in the formats of other projects run against the simulator, or give the error that the table names."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import measure
from shared_data import needs_shared
from workload.file_table import FILES, OTHERS, OWN, Fails, Runs

from inferometer import workload
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

ROWS = 200


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.0, itl=0.0), tokens_per_chunk=64)) as url:
        yield url


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(file, expected, marks=[pytest.mark.slow] if isinstance(expected, Runs) else [])
        for file, expected, _ in FILES
    ],
)
def test_a_file_runs_or_gives_its_error(name: str, expected: Runs | Fails, sim: str, tmp_path: Path) -> None:
    check(OWN / name, expected, sim, tmp_path)


@needs_shared
@pytest.mark.slow
def test_files_of_other_projects_do_the_same(sim: str, tmp_path: Path) -> None:
    for _, expected, others in FILES:
        for name in others:
            check(OTHERS / name, expected, sim, tmp_path / name)


def check(path: Path, expected: Runs | Fails, sim: str, folder: Path) -> None:
    if isinstance(expected, Fails):
        section = {"type": expected.type, "path": str(path)} | dict(expected.more)
        config = from_mapping({"server": {"url": "http://127.0.0.1:1"}, "data": section})
        with pytest.raises(UserError, match=expected.error) as error:
            workload.build(config.data, 0, range(4))
        assert error.value.next_step
        return
    data = {"type": expected.type, "path": str(path), "rows": ROWS} | dict(expected.more)
    if expected.type != "openai-batch":
        data.setdefault("output", 4)
    server = {"url": sim, "model": "sim", "api": expected.api}
    count = workload.distinct(from_mapping({"server": server, "data": data}).data)
    assert count
    load = {"type": "closed", "concurrency": min(32, count), "requests": count, "ramp_up": 0}
    run, summary = measure(folder, sim, server=server, data=data, load=load)
    assert summary.counts.failed == 0, summary.failures
    sent = run.records.rows
    assert len({id for id, turn in zip(sent["id"].tolist(), sent["turn"].tolist(), strict=True) if turn <= 0}) == count
    skipped = run.manifest.workload.get("skipped", {})
    assert isinstance(skipped, dict)
    assert skipped.get("rows", 0) == expected.skipped
