"""Requests that are built, encoded and put into a file before t=0."""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from inferometer import schedule, workload
from inferometer.config import from_mapping
from inferometer.config.data import Data, Jsonl, Mix, Synthetic, TrafficClass
from inferometer.engine.requests import NO_USER, Requests
from inferometer.errors import UserError
from inferometer.fleet import job as jobs
from inferometer.fleet import preparing
from inferometer.fleet.builders import build_blocks
from inferometer.fleet.job import Job, dealt_ids, ids_to_prepare, prepared_count, shard_plan
from inferometer.fleet.preparing import Source, Stopped, prepare
from inferometer.fleet.runner import make_task
from inferometer.fleet.sizing import Pace
from inferometer.probe import reach
from inferometer.records import Probe
from inferometer.types import ClosedStage, OpenStage, Plan, TurnResponse
from inferometer.units import NS
from inferometer.wire.context import CallContext
from inferometer.wire.target import parse

NO_PROBE = Probe()
URL = "http://127.0.0.1:1"
CHAT = CallContext(api="chat", model="m", targets=(parse(URL),), tag="ab")


def source(data: Data | None = None) -> Source:
    return Source(data or Synthetic(input=20), 0, CHAT)


def make_job(folder: Path, shards: int, load: dict[str, Any], probe: Probe = NO_PROBE, **more: Any) -> Job:
    config = from_mapping({"server": {"url": URL, "model": "m"}, "load": load} | more)
    targets = tuple(map(parse, config.server.urls))
    return Job(config, reach.Reached(targets, ((2, ("127.0.0.1", 1)),), "m", {}), shards, folder, "0a", probe=probe)


# --- the same bytes for the same id, in any number of shards ---------------------------------------------------------

LOADS: dict[str, dict[str, Any]] = {
    "open": {"type": "poisson", "rate": 200, "duration": "1s"},
    "closed": {"type": "closed", "concurrency": 8, "requests": 150},
    "by time": {"type": "closed", "concurrency": 8, "duration": "1s"},
    "stages": {
        "stages": [
            {"type": "closed", "concurrency": 8, "requests": 60},
            {"type": "constant", "rate": 40, "duration": "1s"},
        ]
    },
}
ONE_INPUT = [{"name": "A", "datatype": "INT32", "shape": [1, 3]}]
TENSORS = {"server": {"url": URL, "model": "m", "api": "kserve"}}


def _file(folder: Path, rows: Sequence[dict[str, Any]]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _workloads(folder: Path) -> dict[str, dict[str, Any]]:
    """Each kind of data, as sections of the config."""
    rows = [{"prompt": f"number {n}", "output": n} for n in range(30)]
    (folder / "trace.csv").write_text("time,input,output\n" + "".join(f"{n},{5 + n},{1 + n}\n" for n in range(40)))
    (folder / "rows.csv").write_text("prompt,output\n" + "".join(f"number {n},{n}\n" for n in range(1, 31)))
    parquet.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return {
        "synthetic": {"data": {"type": "synthetic", "input": 12}},
        "random words": {"data": {"type": "random", "input": 12}},
        "shared_prefix": {"data": {"type": "shared_prefix", "groups": 3, "prompts": 4, "prefix": 16, "question": 6}},
        "conversation": {"data": {"type": "conversation", "turns": 2, "system": 4, "input": 6, "output": 3}},
        "trace": {"data": {"type": "trace", "path": str(folder / "trace.csv")}},
        "csv": {"data": {"type": "csv", "path": str(folder / "rows.csv"), "shuffle": True}},
        "parquet": {"data": {"type": "parquet", "path": str(folder / "rows.parquet")}},
        "mix": {
            "data": {
                "type": "mix",
                "classes": [
                    {"name": "made", "weight": 2, "data": {"type": "synthetic", "input": 12}},
                    {"name": "rows", "data": {"type": "csv", "path": str(folder / "rows.csv")}},
                ],
            }
        },
        "prompts": {"data": {"type": "prompts", "prompts": ["a", "b", "c"]}},
        "jsonl": {"data": {"type": "jsonl", "path": _file(folder, rows)}},
        "zeros": TENSORS | {"data": {"type": "tensors", "fill": "zeros", "inputs": ONE_INPUT}},
        "random": TENSORS | {"data": {"type": "tensors", "fill": "random", "inputs": ONE_INPUT}},
    }


with tempfile.TemporaryDirectory() as _folder:
    KINDS = list(_workloads(Path(_folder)))


def sent(job: Job) -> dict[int, bytes]:
    """What is sent for each id that is planned, whichever shard sends it. Ids that are dealt out are prepared by each shard."""
    config = job.config
    whole = schedule.plan(config.load, config.seed, job.probe.e2e_ns)
    found: dict[int, bytes] = {}
    for shard in range(job.shards):
        requests = Requests(make_task(job, shard).calls, shard, 1)
        for number, stage in enumerate(shard_plan(job, whole, shard).stages):
            known = len(stage.instants) if isinstance(stage, OpenStage) else stage.granted or stage.requests or 8
            ids = range(stage.first_id, stage.first_id + known * stage.id_step, stage.id_step)
            for flight in requests.make(number, ids, [(NO_USER, 0)] * known):
                assert flight.id not in found
                found[flight.id] = flight.data
        for ids in dealt_ids(whole, job.shards):
            for flight in requests.make(0, ids, [(NO_USER, 0)] * len(ids)):
                assert found.setdefault(flight.id, flight.data) == flight.data or shard == 0
    return found


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_is_the_same_in_any_number_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, load: str
) -> None:
    monkeypatch.setattr(jobs, "_UNKNOWN", 64)
    sections = _workloads(tmp_path)[kind]
    alone = make_job(tmp_path, 1, LOADS[load], **sections)
    expected = sent(alone)
    for shards in (2, 3, 5):
        job = make_job(tmp_path, shards, LOADS[load], **sections)
        divided = sent(job)
        assert {id: divided[id] for id in expected if id in divided} == {
            id: expected[id] for id in expected if id in divided
        }
        assert len(divided) >= len(expected)
        assert workload.digest(job.config.data, 0) == workload.digest(alone.config.data, 0)


# --- how many are prepared -------------------------------------------------------------------------------------------


def prepared(load: dict[str, Any], shards: int = 1, probe: Probe = NO_PROBE, **more: Any) -> list[tuple[int, int]]:
    """The number of requests that each shard prepares, and the period."""
    job = make_job(Path("/nowhere"), shards, load, probe, **more)
    whole = schedule.plan(job.config.load, 0, probe.e2e_ns)
    parts = (shard_plan(job, whole, shard) for shard in range(shards))
    found = [ids_to_prepare(job.config, whole, part, shards, probe) for part in parts]
    return [(sum(map(len, ids)), period) for ids, period in found]


def test_every_planned_request_is_prepared() -> None:
    assert prepared({"type": "constant", "rate": 1000, "duration": "100s"}) == [(100_000, 0)]
    assert prepared({"type": "constant", "rate": 1000, "duration": "100s"}, 4) == [(25_000, 0)] * 4
    assert prepared({"type": "closed", "concurrency": 2, "requests": 50_000}) == [(50_000, 0)]


def test_a_closed_loop_by_time_prepares_what_the_probe_suggests() -> None:
    load = {"type": "closed", "concurrency": 10, "duration": "100s"}
    assert prepared(load) == [(4096, 0)]
    assert prepared(load, probe=Probe(e2e=0.5)) == [(3000, 0)]  # 20 per second, for 100 s, and half as many again
    assert prepared(load, probe=Probe(e2e=1e-4)) == [(100_000, 0)]
    assert prepared(load, probe=Probe(e2e=1e-4, request_bytes=1 << 20)) == [(1024, 0)]


def test_of_a_long_file_only_the_rows_that_are_sent_are_prepared(tmp_path: Path) -> None:
    data = {"type": "jsonl", "path": _file(tmp_path, [{"prompt": f"number {n}"} for n in range(100)])}
    assert prepared({"type": "closed", "concurrency": 1, "requests": 30}, data=data) == [(30, 0)]
    assert prepared({"type": "closed", "concurrency": 1, "requests": 300}, data=data) == [(100, 100)]


@pytest.mark.parametrize("shards", [1, 3])
def test_the_manifest_says_how_many_different_requests_there_are(shards: int) -> None:
    for load, expected in (("open", 200), ("closed", 150), ("stages", 100)):
        job = make_job(Path("/nowhere"), shards, LOADS[load])
        whole = schedule.plan(job.config.load, 0)
        assert prepared_count(job.config, whole, shards, Probe()) == expected


def test_a_shard_without_requests_prepares_one() -> None:
    job = make_job(Path("/nowhere"), 1, LOADS["open"])
    nothing = OpenStage(np.zeros(0, np.int64), NS)
    assert ids_to_prepare(job.config, Plan((nothing,)), Plan((nothing,)), 1, Probe()) == (
        (range(1),),
        0,
    )


# --- preparing -------------------------------------------------------------------------------------------------------


def test_requests_are_encoded_in_order(tmp_path: Path) -> None:
    calls = prepare(source(), [range(0, 3000, 3), range(5000, 5010)], tmp_path)
    ids = [*range(0, 3000, 3), *range(5000, 5010)]
    expected, _ = preparing.build(source(), preparing.Part(0, ids))
    assert list(calls.tails) == list(expected.tails)
    assert list(calls.n_out) == list(expected.n_out)
    assert set(calls.n_in) == {-1}
    assert not calls.counts_tokens


def test_other_processes_build_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_LONG", 0.0)
    monkeypatch.setattr(preparing, "_PARALLEL", 1e9)
    monkeypatch.setattr(preparing, "_MAX_BLOCK", 64)
    used: list[int] = []

    def counted(*arguments: Any) -> Any:
        for block in build_blocks(*arguments):
            used.append(len(block.n_in))
            yield block

    monkeypatch.setattr("inferometer.fleet.builders.build_blocks", counted)
    ids = [range(500), range(1000, 2000, 7)]
    calls = prepare(source(), ids, tmp_path, builders=2)
    assert sum(used) > 400
    alone = prepare(source(), ids, tmp_path, builders=1)
    assert list(calls.tails) == list(alone.tails)
    assert calls.n_out == alone.n_out


def test_an_error_in_another_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_LONG", 0.0)
    monkeypatch.setattr(preparing, "_PARALLEL", 1e9)
    path = Path(_file(tmp_path, [{"prompt": str(n)} for n in range(100)]))
    parts = preparing._Parts([range(100)], 0)
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        list(build_blocks(source(Jsonl(path=str(path))), parts, 2))


def test_a_process_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="ended with status 1"):
        list(build_blocks(source(), preparing._Parts([range(10)], 0), 2))


def test_preparation_reports_its_progress_and_can_be_stopped(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        reported.append((done, total))
        if done > 100:
            raise Stopped

    with pytest.raises(Stopped):
        prepare(source(), [range(50_000)], tmp_path, size=100_000, progress=progress)
    assert reported[0] == (0, 50_000)
    assert 100 < reported[-1][0] < 5_000


def test_too_little_space_is_an_error_before_the_work_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(UserError, match="but only 977 KiB are free"):
        prepare(source(), [range(100_000)], tmp_path)
    assert prepare(source(), [range(100)], tmp_path)


def test_sessions_start_from_the_file(tmp_path: Path) -> None:
    rows = [{"turns": [f"hello {n}", "and then?"], "think": 0.5} for n in range(40)]
    data = Jsonl(path=_file(tmp_path, rows))
    calls = prepare(source(data), [range(40)], tmp_path)
    assert calls.session is not None and calls.encode is not None
    session = calls.session(7)
    assert next(session).payload == "hello 7"
    second = session.send(TurnResponse("fine", 1, 1))
    assert second.think == NS // 2
    assert b"and then?" in calls.encode(second)


def test_requests_without_later_turns_are_not_stored_again(tmp_path: Path) -> None:
    """Neither those of classes without sessions, nor sessions of one turn."""
    rows = [{"turns": ["hello", "and then?"]}, {"turns": ["a single turn"]}]
    classes = [
        TrafficClass(name="plain", data=Synthetic(input=2000)),
        TrafficClass(name="talk", data=Jsonl(path=_file(tmp_path, rows))),
    ]
    mix = Mix(classes=classes)
    _, block = preparing.build(source(mix), preparing.Part(0, range(20)))
    of_class = workload.classes_of(mix, 0, range(20))
    stored = [(class_, size > 0) for class_, size in zip(of_class, block.sessions.sizes, strict=True)]
    assert (0, True) not in stored
    assert {(0, False), (1, False), (1, True)} == set(stored)
    calls = prepare(source(Jsonl(path=_file(tmp_path, rows))), [range(2)], tmp_path)
    assert calls.session is not None
    session = calls.session(1)
    assert not next(session).later
    with pytest.raises(StopIteration):
        session.send(TurnResponse("fine", 1, 1))


def test_a_stage_by_time_is_bounded_by_its_users() -> None:
    stage = ClosedStage(concurrency=50, duration=NS)
    assert jobs._estimated(stage, Probe(e2e=100.0), Pace()) == 50


@pytest.mark.parametrize(
    ("unit", "sessions"),
    [
        ("sessions", 1.5 * 64 * 60 / (8 * 0.1 + 7 * 2)),
        ("requests", 1.5 * 64 * 60 / (8 * 0.1)),  # users send the turns of other sessions in the meantime
    ],
)
def test_sessions_are_prepared_by_the_time_that_they_take(tmp_path: Path, unit: str, sessions: float) -> None:
    data = {"type": "conversation", "turns": 8, "think": "2s"}
    load = {"type": "closed", "concurrency": 64, "duration": "60s", "unit": unit}
    job = make_job(tmp_path, 1, load, data=data)
    whole = schedule.plan(job.config.load, 0, NS // 10, turns=8)
    assert prepared_count(job.config, whole, 1, Probe(e2e=0.1)) == math.ceil(sessions)


def test_the_bytes_of_sessions_bound_how_many_are_prepared() -> None:
    stage = ClosedStage(concurrency=50, duration=600 * NS)
    assert jobs._estimated(stage, Probe(e2e=0.1, request_bytes=1 << 20), Pace()) == 1024
    assert jobs._estimated(stage, Probe(e2e=0.1, request_bytes=1 << 20), Pace(4, 0, 7 << 20)) == 128


# --- memory ----------------------------------------------------------------------------------------------------------

MANY = """
import resource, sys
from pathlib import Path
from inferometer.config.data import Synthetic
from inferometer.engine.requests import NO_USER, Requests
from inferometer.fleet.preparing import Source, prepare
from inferometer.wire.context import CallContext
from inferometer.wire.target import parse
import msgspec

context = CallContext(api="chat", model="m", targets=(parse("http://127.0.0.1:1"),), tag="ab")
ids = range(int(sys.argv[2]))
calls = prepare(Source(Synthetic(input=512), 0, context), [ids], Path(sys.argv[1]))
requests = Requests(msgspec.structs.replace(calls, ids=(ids,)), 0, 1)
for id in ids:
    requests.make(0, [id], [(NO_USER, 0)])
    if id % 50 == 0:
        requests.prefault()
print(calls.tails.offsets[-1], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_requests(tmp_path: Path) -> None:
    """50,000 requests have 128 MB, of which a process holds a part."""
    used = {}
    for count in (1_000, 50_000):
        result = subprocess.run(
            [sys.executable, "-c", MANY, tmp_path, str(count)], capture_output=True, text=True, check=True
        )
        size, used[count] = map(int, result.stdout.split())
    assert size > 120 << 20
    assert used[50_000] - used[1_000] < 80 << 20
