"""Requests that are built, encoded and put into a file before t=0."""

import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers import jobs_of
from pyarrow import parquet
from waiting import PATIENCE_S

from inferometer import schedule, workload
from inferometer.config import Config, from_mapping
from inferometer.config.data import Conversation, Data, Jsonl, Mix, Synthetic, TrafficClass
from inferometer.engine.job import Job
from inferometer.engine.requests import NO_USER, Requests
from inferometer.errors import UserError
from inferometer.fleet.runner import requests_of
from inferometer.prepare import builders, choice
from inferometer.prepare import requests as preparing
from inferometer.prepare.choice import ids_to_prepare, prepared_count
from inferometer.prepare.requests import Piece, Pieces, Source
from inferometer.prepare.sizing import Pace
from inferometer.records import Probe
from inferometer.store.request_file import Block, MappedRequests, RequestWriter, block
from inferometer.types import ClosedStage, OpenStage, Plan, TurnResponse
from inferometer.units import NS
from inferometer.wire import calls
from inferometer.wire.context import CallContext
from inferometer.wire.target import parse

NO_PROBE = Probe()
URL = "http://127.0.0.1:1"
CHAT = CallContext(api="chat", model="m", targets=(parse(URL),), tag="ab")


def source(data: Data | None = None) -> Source:
    return Source(data or Synthetic(input=20), 0, CHAT)


def config_of(load: dict[str, Any], **more: Any) -> Config:
    return from_mapping({"server": {"url": URL, "model": "m"}, "load": load} | more)


def prepare(source: Source, ids: Sequence[Sequence[int]], folder: Path, **more: Any) -> MappedRequests:
    """The requests in the files."""
    with contextlib.closing(RequestWriter(folder)) as writer:
        preparing.prepare(source, ids, writer, folder, **more)
        return writer.finish().mapped()


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


def sent(config: Config, folder: Path, shards: int) -> dict[int, bytes]:
    """What is sent for each id that is planned, whichever shard sends it. Any shard may send those that are dealt out."""
    found: dict[int, bytes] = {}
    with jobs_of(config, folder, shards) as jobs:
        for job in jobs:
            requests = Requests(requests_of(job), job.shard, 1)
            for number, stage in enumerate(job.plan.stages):
                known = len(stage.instants) if isinstance(stage, OpenStage) else stage.granted or stage.requests or 8
                ids = range(stage.first_id, stage.first_id + known * stage.id_step, stage.id_step)
                for flight in requests.make(number, ids, [(NO_USER, 0)] * known):
                    assert flight.id not in found
                    found[flight.id] = flight.data
        for shard, job in enumerate(jobs):
            requests = Requests(requests_of(job), shard, 1)
            for stage in schedule.plan(config.load, config.seed).stages:
                first = schedule.dealt_from(stage, shards)
                if first is not None and isinstance(stage, ClosedStage):
                    ids = range(stage.first_id, stage.first_id + stage.requests)[first:]
                    for flight in requests.make(0, ids, [(NO_USER, 0)] * len(ids)):
                        assert found.setdefault(flight.id, flight.data) == flight.data or not shard
    return found


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_is_the_same_in_any_number_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, load: str
) -> None:
    monkeypatch.setattr(choice, "_UNKNOWN", 64)
    config = config_of(LOADS[load], **_workloads(tmp_path)[kind])
    expected = sent(config, tmp_path, 1)
    for shards in (2, 3, 5):
        divided = sent(config, tmp_path, shards)
        assert {id: divided[id] for id in expected if id in divided} == {
            id: expected[id] for id in expected if id in divided
        }
        assert len(divided) >= len(expected)


def test_requests_are_stored_once_whatever_the_number_of_shards(tmp_path: Path) -> None:
    files: set[Any] = set()
    with jobs_of(config_of(LOADS["closed"]), tmp_path, 5) as jobs:
        files = {job.requests.files for job in jobs}
        assert jobs[0].requests.count == 150
    assert len(files) == 1


# --- how many are prepared -------------------------------------------------------------------------------------------


def prepared(load: dict[str, Any], shards: int = 1, probe: Probe = NO_PROBE, **more: Any) -> tuple[int, int]:
    """How many requests are prepared, and the period."""
    config = config_of(load, **more)
    ids, period = ids_to_prepare(config, schedule.plan(config.load, 0, probe.e2e_ns), shards, probe)
    return sum(map(len, ids)), period


def test_every_planned_request_is_prepared() -> None:
    assert prepared({"type": "constant", "rate": 1000, "duration": "100s"}) == (100_000, 0)
    assert prepared({"type": "constant", "rate": 1000, "duration": "100s"}, 4) == (100_000, 0)
    assert prepared({"type": "closed", "concurrency": 2, "requests": 50_000}, 2) == (50_000, 0)


def test_a_closed_loop_by_time_prepares_what_the_probe_suggests() -> None:
    load = {"type": "closed", "concurrency": 10, "duration": "100s"}
    assert prepared(load) == (4096, 0)
    assert prepared(load, probe=Probe(e2e=0.5)) == (3000, 0)  # 20 per second, for 100 s, and half as many again
    assert prepared(load, probe=Probe(e2e=1e-4)) == (100_000, 0)
    assert prepared(load, 4, Probe(e2e=1e-4)) == (400_000, 0)
    assert prepared(load, probe=Probe(e2e=1e-4, request_bytes=1 << 20)) == (1024, 0)


def test_of_a_long_file_only_the_rows_that_are_sent_are_prepared(tmp_path: Path) -> None:
    data = {"type": "jsonl", "path": _file(tmp_path, [{"prompt": f"number {n}"} for n in range(100)])}
    assert prepared({"type": "closed", "concurrency": 1, "requests": 30}, data=data) == (30, 0)
    assert prepared({"type": "closed", "concurrency": 1, "requests": 300}, data=data) == (100, 100)


@pytest.mark.parametrize("shards", [1, 3])
def test_the_manifest_says_how_many_different_requests_there_are(shards: int) -> None:
    for load, expected in (("open", 200), ("closed", 150), ("stages", 100)):
        config = config_of(LOADS[load])
        assert prepared_count(config, schedule.plan(config.load, 0), shards, Probe()) == expected


def test_a_plan_without_requests_prepares_one() -> None:
    nothing = OpenStage(np.zeros(0, np.int64), NS)
    assert ids_to_prepare(config_of(LOADS["open"]), Plan((nothing,)), 1, Probe()) == ((range(1),), 0)


# --- preparing -------------------------------------------------------------------------------------------------------


def test_requests_are_encoded_in_order(tmp_path: Path) -> None:
    made = prepare(source(), [range(0, 3000, 3), range(5000, 5010)], tmp_path)
    ids = [*range(0, 3000, 3), *range(5000, 5010)]
    expected = calls.encode(CHAT, workload.build(source().data, 0, ids))
    assert list(made.tails) == list(expected.tails)
    assert list(made.n_out) == list(expected.n_out)
    assert set(made.n_in) == {-1}


@pytest.fixture
def builds_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks but the first two are built by other processes."""
    monkeypatch.setattr(preparing, "_LONG", 0.0)
    monkeypatch.setattr(preparing, "_PARALLEL", 1e9)
    monkeypatch.setattr(preparing, "_MAX_BLOCK", 64)


@pytest.mark.usefixtures("builds_elsewhere")
@pytest.mark.parametrize("data", [Synthetic(input=20), Conversation(turns=3, input=9)])
def test_other_processes_build_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    built_here = 0

    def slowly(source: Source, piece: Piece) -> Block:
        nonlocal built_here
        built_here += len(piece.ids)
        time.sleep(0.05)
        return preparing.build(source, piece)

    class Started(builders._Builder):
        def __init__(self, task: Any) -> None:
            super().__init__(task)
            assert self._pipe.poll(PATIENCE_S), "the other process has not started"

    monkeypatch.setattr(builders, "build", slowly)
    monkeypatch.setattr(builders, "_Builder", Started)
    ids = [range(500), range(1000, 6000, 7)]
    made = prepare(source(data), ids, tmp_path, builders=2)
    assert 0 < built_here < 1000
    alone = prepare(source(data), ids, tmp_path, builders=1)
    assert list(made.tails) == list(alone.tails)
    assert list(made.sessions) == list(alone.sessions) and bool(made.sessions) == isinstance(data, Conversation)
    assert made.n_out == alone.n_out


def build_elsewhere(data: Data, writer: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another process build something, while this one builds only a block that is known."""
    empty = block((), (), ())
    monkeypatch.setattr(builders, "build", lambda source, piece: empty)
    for _ in builders.build_all(source(data), Pieces([range(10_000_000)], 0), writer, folder, 2):
        pass


def test_an_error_in_another_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(RequestWriter(tmp_path)) as writer, pytest.raises(UserError, match="cannot be read"):
        build_elsewhere(Jsonl(path=str(tmp_path / "none")), writer, tmp_path, monkeypatch)


def test_a_full_disk_in_another_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb") as full:
        writer = SimpleNamespace(descriptors=(full.fileno(),) * 2, reserve=lambda _: (0, 0), append=lambda _: None)
        with pytest.raises(UserError, match="the disk is full"):
            build_elsewhere(Synthetic(input=20), writer, tmp_path, monkeypatch)


def test_a_process_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with contextlib.closing(RequestWriter(tmp_path)) as writer, pytest.raises(RuntimeError, match="with status 1"):
        build_elsewhere(Synthetic(input=20), writer, tmp_path, monkeypatch)


def test_preparation_reports_its_progress_and_can_be_stopped(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        reported.append((done, total))
        if done > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(source(), [range(50_000)], tmp_path, size=100_000, progress=progress)
    assert reported[0] == (0, 50_000)
    assert 100 < reported[-1][0] < 5_000


def test_too_little_space_is_an_error_before_the_work_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing.shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(UserError, match="but only 977 KiB are free"):
        prepare(source(), [range(100_000)], tmp_path)
    assert prepare(source(), [range(100)], tmp_path)


@contextlib.contextmanager
def one_job(data: dict[str, Any], requests: int, folder: Path) -> Iterator[Job]:
    with jobs_of(config_of({"type": "closed", "concurrency": 1, "requests": requests}, data=data), folder) as (job,):
        yield job


def test_sessions_start_from_the_file(tmp_path: Path) -> None:
    rows = [{"turns": [f"hello {n}", "and then?"], "think": 0.5} for n in range(40)]
    with one_job({"type": "jsonl", "path": _file(tmp_path, rows)}, 40, tmp_path) as job:
        made = requests_of(job)
    assert made.session is not None and made.encode is not None
    session = made.session(7)
    assert next(session).payload == "hello 7"
    second = session.send(TurnResponse("fine", 1, 1))
    assert second.think == NS // 2
    assert b"and then?" in made.encode(second)


def test_requests_without_later_turns_are_not_stored_again(tmp_path: Path) -> None:
    """Neither those of classes without sessions, nor sessions of one turn."""
    rows = [{"turns": ["hello", "and then?"]}, {"turns": ["a single turn"]}]
    classes = [
        TrafficClass(name="plain", data=Synthetic(input=2000)),
        TrafficClass(name="talk", data=Jsonl(path=_file(tmp_path, rows))),
    ]
    mix = Mix(classes=classes)
    block = preparing.build(source(mix), Piece(0, range(20)))
    of_class = workload.classes_of(mix, 0, range(20))
    sizes = np.frombuffer(block.session_sizes, np.int32).tolist()
    stored = [(class_, size > 0) for class_, size in zip(of_class, sizes, strict=True)]
    assert (0, True) not in stored
    assert {(0, False), (1, False), (1, True)} == set(stored)
    with one_job({"type": "jsonl", "path": _file(tmp_path, rows)}, 2, tmp_path) as job:
        made = requests_of(job)
    assert made.session is not None
    session = made.session(1)
    assert not next(session).later
    with pytest.raises(StopIteration):
        session.send(TurnResponse("fine", 1, 1))


def test_a_stage_by_time_is_bounded_by_its_users() -> None:
    stage = ClosedStage(concurrency=50, duration=NS)
    assert choice._estimated(stage, Probe(e2e=100.0), Pace()) == 50


@pytest.mark.parametrize(
    ("unit", "sessions"),
    [
        ("sessions", 1.5 * 64 * 60 / (8 * 0.1 + 7 * 2)),
        ("requests", 1.5 * 64 * 60 / (8 * 0.1)),  # users send the turns of other sessions in the meantime
    ],
)
def test_sessions_are_prepared_by_the_time_that_they_take(unit: str, sessions: float) -> None:
    data = {"type": "conversation", "turns": 8, "think": "2s"}
    load = {"type": "closed", "concurrency": 64, "duration": "60s", "unit": unit}
    config = config_of(load, data=data)
    whole = schedule.plan(config.load, 0, NS // 10, turns=8)
    assert prepared_count(config, whole, 1, Probe(e2e=0.1)) == math.ceil(sessions)


def test_the_bytes_of_sessions_bound_how_many_are_prepared() -> None:
    stage = ClosedStage(concurrency=50, duration=600 * NS)
    assert choice._estimated(stage, Probe(e2e=0.1, request_bytes=1 << 20), Pace()) == 1024
    assert choice._estimated(stage, Probe(e2e=0.1, request_bytes=1 << 20), Pace(4, 0, 7 << 20)) == 128


# --- memory ----------------------------------------------------------------------------------------------------------

MANY = """
import resource, sys
from pathlib import Path
from helpers import jobs_of
from inferometer.config import from_mapping
from inferometer.engine.requests import NO_USER, Requests
from inferometer.fleet.runner import requests_of

count = int(sys.argv[2])
load = {"type": "closed", "concurrency": 1, "requests": count}
data = {"type": "synthetic", "input": 512}
config = from_mapping({"server": {"url": "http://127.0.0.1:1", "model": "m"}, "load": load, "data": data})
with jobs_of(config, Path(sys.argv[1])) as (job,):
    calls = requests_of(job)
requests = Requests(calls, 0, 1)
for id in range(count):
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
            [sys.executable, "-c", MANY, tmp_path, str(count)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[1],
        )
        size, used[count] = map(int, result.stdout.split())
    assert size > 120 << 20
    assert used[50_000] - used[1_000] < 80 << 20
