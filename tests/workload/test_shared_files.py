"""Real files of other projects run against the simulator, or give the error that the table names."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import measure
from workload.shared_files import DATA, FILES, FOLDERS, Fails, Runs

from inferometer import workload
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} does not exist")

ROWS = 200
RUNS = {name: row for name, row in FILES.items() if isinstance(row, Runs)}
FAILS = {name: row for name, row in FILES.items() if isinstance(row, Fails)}


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.0, itl=0.0), tokens_per_chunk=64)) as url:
        yield url


def test_every_file_is_in_the_table() -> None:
    files = {file.relative_to(DATA) for folder in FOLDERS for file in (DATA / folder).rglob("*") if file.is_file()}
    named = {Path(name) for name in FILES}
    assert not [file for file in files if not named & {file, *file.parents}]
    assert not [name for name in FILES if not (DATA / name).exists()]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_file_runs(name: str, sim: str, tmp_path: Path) -> None:
    row = RUNS[name]
    data = {"type": row.type, "path": str(DATA / name), "rows": ROWS} | dict(row.more)
    if row.type != "openai-batch":
        data.setdefault("output", 4)
    server = {"url": sim, "model": "sim", "api": row.api}
    count = workload.distinct(from_mapping({"server": server, "data": data}).data)
    assert count
    load = {"type": "closed", "concurrency": min(32, count), "requests": count, "ramp_up": 0}
    run, summary = measure(tmp_path, sim, server=server, data=data, load=load)
    if row.refused:
        assert summary.counts.failed == count
        assert row.refused in summary.failures[0].message
        return
    assert summary.counts.failed == 0, summary.failures
    sent = run.records.rows
    assert len({id for id, turn in zip(sent["id"].tolist(), sent["turn"].tolist(), strict=True) if turn <= 0}) == count
    skipped = run.manifest.workload.get("skipped", {})
    assert isinstance(skipped, dict)
    assert skipped.get("rows", 0) == row.skipped


@pytest.mark.parametrize("name", FAILS)
def test_a_file_gives_the_error_in_the_table(name: str) -> None:
    row = FAILS[name]
    config = from_mapping(
        {"server": {"url": "http://127.0.0.1:1"}, "data": {"type": row.type, "path": str(DATA / name)} | dict(row.more)}
    )
    with pytest.raises(UserError, match=row.error) as error:
        workload.build(config.data, 0, range(4))
    assert error.value.next_step
