"""A run in parts: two or three clients that are not in contact measure one simulator, and their runs are merged."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from command import assert_one_line, cli

from inferometer import conduct, store
from inferometer.analysis.summary import Summary
from inferometer.conduct.merging import merge
from inferometer.conduct.parts import parse_start
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.prepare.setup import Part
from inferometer.records import Manifest, Run, Snapshot
from inferometer.report.console import render
from inferometer.report.live import Outline
from inferometer.store.folder import BODIES, MANIFEST
from inferometer.units import NS

NOON = 1_794_916_800 * NS  # 2026-11-17T12:00:00Z
OPEN = {"type": "poisson", "rate": 120, "duration": "1s"}


def config_of(url: str, folder: Path, **sections: Any) -> Any:
    tree = {
        "server": {"url": url},
        "data": {"type": "synthetic", "input": 16, "output": 8, "salt": "none"},
        "load": OPEN,
        "client": {"processes": 0, "probe": False},
        "observe": {"prometheus": []},
        "seed": 7,
        "output": str(folder),
    }
    return from_mapping(tree | sections)


def measure_parts(
    url: str, folder: Path, of: int, shows: Sequence[conduct.Show | None] = (), **sections: Any
) -> list[Run]:
    """Measure all parts at the same time, in threads of this process. On a busy machine they may not be ready in time: then again, later."""
    config = config_of(url, folder, **sections)
    for lead in ("+1s", "+5s", "+20s"):
        start = parse_start(lead, time.time_ns())
        try:
            with ThreadPoolExecutor(of) as pool:
                parts = [
                    pool.submit(conduct.measure, config, show, part=Part(number, of), start_ns=start)
                    for number, show in enumerate(shows or (None,) * of)
                ]
                return [part.result()[0] for part in parts]
        except UserError as error:
            if "too late" not in str(error):
                raise
            shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("the parts were never ready in time")


@pytest.fixture(scope="module")
def parts(sim: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parts of a run, in one folder. Tests that change them make a copy."""
    folder = tmp_path_factory.mktemp("parts")
    measure_parts(sim, folder, 3)
    return folder


@pytest.fixture(scope="module")
def merged(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Summary]:
    return merge([str(parts)], str(tmp_path_factory.mktemp("merged")))


def folders_in(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if not path.is_symlink()), key=lambda path: path.name)


def change(folder: Path, edit: Callable[[Manifest], Manifest]) -> None:
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    (folder / MANIFEST).write_bytes(msgspec.json.encode(edit(manifest)))


def check(summary: Summary, name: str) -> Any:
    return next(each for each in summary.checks if each.name == name)


# --- what the merged run is ------------------------------------------------------------------------------------------


def test_a_merged_run_has_what_a_local_run_has(sim: str, merged: tuple[Run, Summary], tmp_path: Path) -> None:
    run, summary = merged
    local, expected = conduct.measure(config_of(sim, tmp_path))
    assert summary.counts == expected.counts
    assert run.manifest.workload == local.manifest.workload
    assert run.manifest.plan == local.manifest.plan
    order, local_order = np.argsort(run.records.rows["id"]), np.argsort(local.records.rows["id"])
    for name in ("id", "n_in", "n_want", "n_out", "bytes_out", "stage", "open_loop", "failure", "chunk_count"):
        assert run.records.rows[name][order].tolist() == local.records.rows[name][local_order].tolist(), name
    apart = run.records.rows["intended"][order] - local.records.rows["intended"][local_order]
    assert np.abs(apart).max() < NS // 100  # by the parts' own clocks, which here are one
    assert summary.metrics["ttft_service"].p50 == pytest.approx(expected.metrics["ttft_service"].p50, rel=0.5)
    assert summary.metrics["tpot"].p50 == pytest.approx(expected.metrics["tpot"].p50, rel=0.5)


def test_a_merged_run_is_read_back_as_any_other(merged: tuple[Run, Summary]) -> None:
    run, summary = merged
    again, second = conduct.open_run(str(run.folder))
    assert second == summary
    assert again.chunk_total == int(run.records.rows["chunk_count"].sum()) == 120 * 8


def test_every_row_has_its_own_chunks(parts: Path, merged: tuple[Run, Summary]) -> None:
    run, _ = merged
    own = {id: arrivals for folder in folders_in(parts) for id, arrivals in arrivals_of(store.read(folder)).items()}
    found = arrivals_of(run)
    assert found.keys() == own.keys()
    for id, arrivals in found.items():
        assert np.diff(arrivals).tolist() == np.diff(own[id]).tolist()
    rows = run.records.rows
    firsts = [found[id][0] for id in rows["id"].tolist()]
    assert firsts == rows["first_token"].tolist()


def arrivals_of(run: Run) -> dict[int, Any]:
    chunks = np.concatenate([piece.arrival for piece in run.chunks()])
    rows = run.records.rows
    columns = (rows[name].tolist() for name in ("id", "chunk_start", "chunk_count"))
    return {id: chunks[start : start + count] for id, start, count in zip(*columns, strict=True)}


def test_the_manifest_says_where_the_parts_ran_and_that_clocks_were_not_compared(
    parts: Path, merged: tuple[Run, Summary]
) -> None:
    run, summary = merged
    record = run.manifest.merged
    assert record is not None and run.manifest.part is None
    assert [part.number for part in record.parts] == [0, 1, 2]
    assert [part.requests for part in record.parts] == [40, 40, 40]
    assert {part.run for part in record.parts} == {folder.name for folder in folders_in(parts)}
    assert all(part.host["name"] and part.clock["source"] for part in record.parts)
    assert set(run.records.rows["shard"].tolist()) == {sample.shard for sample in run.records.samples} == {0, 1, 2}
    assert "clocks of different parts were not compared" in render(run, summary)
    assert "3 of 3 parts" in render(run, summary)
    assert check(summary, "parts").status == "pass"
    assert run.manifest.t0_wall_ns == min(part.t0_wall_ns for part in record.parts)


def test_the_report_of_a_part_says_which_part_it_is(parts: Path) -> None:
    run, summary = conduct.open_run(str(folders_in(parts)[1]))
    assert run.manifest.part is not None and run.manifest.part.number == 1
    assert "part 1 of 3, counted from 0" in render(run, summary)
    assert (run.manifest.plan[0].rate, run.manifest.plan[0].requests) == (40, 40)
    assert not [each for each in summary.checks if each.name == "parts"]


def test_parts_start_at_the_instant_that_is_set(parts: Path) -> None:
    for folder in folders_in(parts):
        run = store.read(folder)
        assert run.manifest.part is not None
        assert abs(run.manifest.t0_wall_ns - run.manifest.part.start_ns) < NS // 100


def test_times_of_a_part_that_started_later_are_moved(parts: Path, merged: tuple[Run, Summary], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(parts, tmp_path / "parts", symlinks=True))
    late = folders_in(copy)[2]
    change(late, lambda old: msgspec.structs.replace(old, t0_wall_ns=old.t0_wall_ns + NS // 2))
    run, summary = merge([str(copy)], str(tmp_path / "merged"))
    rows, before = run.records.rows, merged[0].records.rows
    is_late = rows["shard"] == 2
    moved = rows["intended"] - before["intended"]  # the common start may be that of another part now
    assert (moved[is_late] - moved[0]).tolist() == [NS // 2] * 40
    assert (moved[~is_late] == moved[0]).all() and abs(moved[0]) < NS // 100
    assert check(summary, "parts").status == "warn"
    assert "started within 500 ms" in check(summary, "parts").message


# --- what cannot be merged -------------------------------------------------------------------------------------------


def test_a_missing_part_is_named_and_makes_the_run_invalid(parts: Path, tmp_path: Path) -> None:
    first, _, last = folders_in(parts)
    run, summary = merge([str(first), str(last)], str(tmp_path))
    assert summary.verdict == "INVALID"
    assert check(summary, "parts").message.startswith("Part 1 of 3, counted from 0, is missing")
    assert run.manifest.plan[0].requests == 120 and len(run.records.rows) == 80


def test_the_same_part_twice_is_an_error(parts: Path, tmp_path: Path) -> None:
    first = folders_in(parts)[0]
    twin = shutil.copytree(first, tmp_path / "twin")
    with pytest.raises(UserError, match=f"part 0 is there twice: ({first.name} and twin|twin and {first.name})"):
        merge([str(parts), str(twin)], str(tmp_path / "merged"))
    with pytest.raises(UserError, match="named twice"):
        merge([str(parts), str(first)], str(tmp_path / "merged"))
    assert not (tmp_path / "merged").exists()


def edited_part(**changes: Any) -> Callable[[Manifest], Manifest]:
    return lambda old: msgspec.structs.replace(old, part=msgspec.structs.replace(old.part, **changes))


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        (edited_part(of=4), r"the number of parts differs \(3 against 4\)"),
        (edited_part(start_ns=NOON), "was to start at .*2026-11-17T12:00:00"),
        (lambda old: msgspec.structs.replace(old, seeds={"seed": 8}), r"the seed differs \(7 against 8\)"),
        (
            lambda old: msgspec.structs.replace(old, workload=old.workload | {"digest": "0"}),
            "the workload's digest differs",
        ),
        (
            lambda old: msgspec.structs.replace(
                old, config=old.config | {"server": old.config["server"] | {"model": "other"}}
            ),
            r"the config differs in server.model \(sim against other\)",
        ),
        (edited_part(plan=()), "the plan differs"),
    ],
    ids=["number of parts", "start", "seed", "digest", "config", "plan"],
)
def test_parts_of_different_runs_are_an_error(
    parts: Path, tmp_path: Path, edit: Callable[[Manifest], Manifest], error: str
) -> None:
    copy = Path(shutil.copytree(parts, tmp_path / "parts", symlinks=True))
    change(folders_in(copy)[1], edit)
    with pytest.raises(UserError, match=error):
        merge([str(copy)], str(tmp_path / "merged"))


def test_where_parts_are_stored_may_differ(parts: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(parts, tmp_path / "parts", symlinks=True))
    change(folders_in(copy)[1], lambda old: msgspec.structs.replace(old, config=old.config | {"output": "elsewhere"}))
    _, summary = merge([f"{copy}/2*"], str(tmp_path / "merged"))
    assert check(summary, "parts").status == "pass"


def test_observations_of_the_machine_are_left_out_if_there_were_several(
    parts: Path, merged: tuple[Run, Summary], tmp_path: Path
) -> None:
    assert "host" in {series.source for series in merged[0].series()}
    assert "measured on one machine" in merged[0].manifest.outcome.notes[0]
    copy = Path(shutil.copytree(parts, tmp_path / "parts", symlinks=True))
    change(folders_in(copy)[1], lambda old: msgspec.structs.replace(old, host=old.host | {"name": "elsewhere"}))
    run, _ = merge([str(copy)], str(tmp_path / "merged"))
    assert {series.source for series in run.series()} == {"client"}
    assert "measured on 2 machines" in run.manifest.outcome.notes[0]
    assert str(run.manifest.host["name"]).endswith(", elsewhere") and run.manifest.host["processes"] == 3


def test_a_run_that_is_not_a_part_is_an_error_and_is_left_out_of_a_folder(
    parts: Path, merged: tuple[Run, Summary], tmp_path: Path
) -> None:
    whole = merged[0].folder
    with pytest.raises(UserError, match="this is not a part of a run: it was merged already"):
        merge([str(whole)], str(tmp_path / "merged"))
    copy = Path(shutil.copytree(parts, tmp_path / "parts", symlinks=True))
    shutil.copytree(whole, copy / whole.name)
    _, summary = merge([str(copy)], str(tmp_path / "merged"))
    assert summary.counts == merged[1].counts
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there is no manifest"):
        merge([str(tmp_path / "empty")], str(tmp_path / "merged"))


def test_a_damaged_part_is_named_and_leaves_no_folder_behind(parts: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(parts, tmp_path / "parts", symlinks=True))
    broken = folders_in(copy)[2] / "chunks.parquet"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(UserError, match=r"part2-.*chunks.parquet: the file is damaged"):
        merge([str(copy)], str(tmp_path / "merged"))
    assert folders_in(tmp_path / "merged") == []


def test_the_command_prints_the_report_and_its_verdict_is_the_exit_status(parts: Path, tmp_path: Path) -> None:
    exports = ("--json", tmp_path / "summary.json", "--html", tmp_path / "page.html")
    done = cli("merge", parts, "--output", tmp_path / "merged", *exports)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert done.status == (0 if summary["verdict"] == "VALID" else 1), done.err
    assert "3 of 3 parts" in done.out and summary["counts"]["ok"] == 120
    assert "started at" in (tmp_path / "page.html").read_text()  # of each part, by its own clock
    incomplete = cli("merge", folders_in(parts)[0], "--output", tmp_path / "merged")
    assert incomplete.status == 1 and "Parts 1, 2 of 3, counted from 0, are missing" in " ".join(incomplete.out.split())
    assert_one_line(cli("merge", tmp_path / "none"), "there is no such folder")
    assert_one_line(cli("merge", parts, folders_in(parts)[0]), "named twice")


# --- parts that did not go as planned --------------------------------------------------------------------------------


def test_an_interrupted_part_stays_visible(parts: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(parts, tmp_path / "parts", symlinks=True))
    outcome = msgspec.structs.replace
    change(folders_in(copy)[1], lambda old: outcome(old, outcome=outcome(old.outcome, interrupted=True)))
    run, summary = merge([str(copy)], str(tmp_path / "merged"))
    assert summary.verdict == "INVALID"
    assert check(summary, "interrupted").status == "fail"
    assert check(summary, "parts").message.startswith("Part 1 of 3 did not run to the end")
    assert run.manifest.merged is not None
    assert [part.interrupted for part in run.manifest.merged.parts] == [False, True, False]


class CopiedWhileRunning(conduct.Show):
    """Copies the folder of a run when some of its requests have ended: what a client that is killed then leaves behind."""

    def __init__(self, to: Path) -> None:
        self._to, self._folder = to, Path()

    def planned(self, outline: Outline) -> None:
        self._folder = outline.spool.parent

    def progress(self, snapshot: Snapshot) -> None:
        if snapshot.ok >= 5 and not self._to.exists():
            shutil.copytree(self._folder, self._to)


@pytest.mark.slow
def test_a_part_that_was_killed_is_put_together_and_named(sim: str, tmp_path: Path) -> None:
    killed = CopiedWhileRunning(tmp_path / "killed")
    whole, _ = measure_parts(sim, tmp_path / "parts", 2, shows=(None, killed))
    run, summary = merge([str(whole.folder), str(tmp_path / "killed")], str(tmp_path / "merged"))
    assert summary.verdict == "INVALID"
    assert check(summary, "parts").message.startswith("Part 1 of 2 did not run to the end")
    assert "the run did not end" in check(summary, "parts").message
    rows = run.records.rows
    assert int((rows["shard"] == 0).sum()) == 60 and 5 <= int((rows["shard"] == 1).sum()) < 60
    assert run.manifest.merged is not None and run.manifest.merged.parts[1].interrupted


def test_a_part_that_is_not_ready_in_time_sends_nothing(sim: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"too late for the start that is set: nothing was sent.*set a later start"):
        conduct.measure(config_of(sim, tmp_path), part=Part(0, 2), start_ns=time.time_ns())
    assert folders_in(tmp_path) == []


# --- loads and data --------------------------------------------------------------------------------------------------


def test_a_closed_loop_that_counts_requests_is_divided_into_fixed_shares(sim: str, tmp_path: Path) -> None:
    load = {"type": "closed", "concurrency": 4, "requests": 45, "ramp_up": "0"}
    measure_parts(sim, tmp_path / "parts", 2, load=load)
    run, summary = merge([str(tmp_path / "parts")], str(tmp_path / "merged"))
    rows = run.records.rows
    assert sorted(rows["id"].tolist()) == list(range(45))
    assert [sorted(rows["id"][rows["shard"] == part].tolist()) for part in (0, 1)] == [
        list(range(0, 45, 2)),
        list(range(1, 45, 2)),
    ]
    assert run.manifest.plan[0].concurrency == 4 and summary.counts.ok == 45


@pytest.mark.slow
def test_the_processes_of_a_part_share_its_requests(sim: str, tmp_path: Path) -> None:
    load = {"type": "closed", "concurrency": 8, "requests": 401}
    measure_parts(sim, tmp_path / "parts", 2, load=load, client={"processes": 2, "probe": False})
    run, _ = merge([str(tmp_path / "parts")], str(tmp_path / "merged"))
    rows = run.records.rows
    assert sorted(rows["id"].tolist()) == list(range(401))
    assert set(rows["shard"].tolist()) == {0, 1, 2, 3}
    assert set(rows["id"][rows["shard"] < 2] % 2) == {0}
    assert run.manifest.host["processes"] == 4


@pytest.mark.slow
def test_texts_classes_failures_series_and_salted_prompts_survive(sim: str, tmp_path: Path) -> None:
    kind = {"type": "synthetic", "input": 16, "output": 4}
    classes = [
        {"name": "short", "weight": 1, "data": kind},
        {"name": "broken", "weight": 1, "data": kind, "headers": {"X-Sim-Fault": "reject"}},
    ]
    sections = {"data": {"type": "mix", "classes": classes}, "keep": "text", "observe": {"prometheus": "auto"}}
    runs = measure_parts(sim, tmp_path / "parts", 2, **sections)
    sources = [{series.source for series in run.series()} for run in runs]
    assert "prometheus" in sources[0] and "prometheus" not in sources[1] and "host" in sources[1]
    assert runs[0].manifest.workload["salt"] == runs[1].manifest.workload["salt"]
    run, summary = merge([str(tmp_path / "parts")], str(tmp_path / "merged"))
    assert run.manifest.workload["salt"] == runs[0].manifest.workload["salt"]
    assert {series.source for series in run.series()} == sources[0]
    assert {series.labels["shard"] for series in run.series() if series.source == "client"} == {"0", "1"}
    assert summary.server is not None
    rows = run.records.rows
    bodies = store.bodies_of(run.folder, rows["id"].tolist())
    assert bodies.keys() == set(rows["id"].tolist())
    is_broken = rows["failure"] > 0
    assert len(run.records.failures) == 1 and run.records.failures[0].code == "http_503"
    assert (rows["class"][is_broken] == 1).all() and (rows["class"][~is_broken] == 0).all()
    assert len(run.records.replicas) == 1 and (rows["replica"] == 0).all()
    assert [each.name for each in summary.classes] == ["short", "broken"]
    stored = pq.read_table(run.folder / BODIES, columns=["id", "class"]).to_pydict()
    names = dict(zip(stored["id"], stored["class"], strict=True))
    assert all(names[id] == run.records.classes[class_] for id, class_ in zip(rows["id"], rows["class"], strict=True))
