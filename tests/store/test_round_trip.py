"""What is written is what is read, in pieces of any size, and other tools can read the files."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic_run as made
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import store
from inferometer.analysis.summary import summarise
from inferometer.records import COUNTED_BY, MISSING, NAMES, PHASES, ROW, TIMES, UNKNOWN, Chunks, Failure, Run
from inferometer.report import json
from inferometer.store import writing

FAILURES = (Failure("http_503", "busy"), Failure("dropped", ""), Failure("http_503", "very busy"))


def some_run() -> tuple[Run, Chunks]:
    rows, chunks = made.open_rows()
    made.fail(rows, slice(0, 5), 1)
    made.never_sent(rows, [20, 21], 2)
    made.fail(rows, [30], 3)
    rows["counted_by"][40] = 2
    rows["cached"][50], rows["shard"][51], rows["url"][52], rows["held"][53] = 7, 1, 1, 99
    phase = np.ones(len(rows), np.int8)
    phase[:10], phase[-5:] = 0, 2
    return made.run(rows, chunks, failures=FAILURES, phase=phase), chunks


@pytest.mark.parametrize(("group", "piece"), [(1 << 20, 1 << 20), (100, 7), (7, 1000)])
def test_a_run_comes_back_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int, piece: int
) -> None:
    monkeypatch.setattr(writing, "GROUP", group)
    run, chunks = some_run()
    store.write(tmp_path, run.manifest, run.records, made.pieces(chunks, piece))
    again = store.read(tmp_path)
    assert again.manifest == run.manifest and again.folder == tmp_path
    assert (np.asarray(again.records.rows) == np.asarray(run.records.rows)).all()
    assert [again.records.rows[name].dtype for name in NAMES] == [ROW[name] for name in NAMES]
    assert (again.records.phase == run.records.phase).all() and again.records.phase.dtype == np.int8
    assert again.records.failures == FAILURES and again.records.samples == run.records.samples
    read = list(again.chunks())
    assert again.chunk_total == len(chunks.arrival) and max(len(each.arrival) for each in read) <= group
    assert (np.concatenate([each.arrival for each in read]) == chunks.arrival).all()
    assert (np.concatenate([each.tokens for each in read]) == chunks.tokens).all()
    assert json.encode(summarise(again)) == json.encode(summarise(run))


def test_a_run_is_read_and_written_without_pandas_which_takes_long_to_import(tmp_path: Path) -> None:
    run, chunks = some_run()
    (tmp_path / "run").mkdir()
    store.write(tmp_path / "run", run.manifest, run.records, made.pieces(chunks, 1 << 20))
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas is imported')")
    code = (
        "import pathlib; from inferometer import store\n"
        "run = store.read(pathlib.Path('run')); pathlib.Path('again').mkdir()\n"
        "store.write(pathlib.Path('again'), run.manifest, run.records, run.chunks())"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_samples_of_older_runs_lack_the_columns_that_were_added_later(tmp_path: Path) -> None:
    run, chunks = some_run()
    store.write(tmp_path, run.manifest, run.records, made.pieces(chunks, 1 << 20))
    path = tmp_path / "samples.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["reads", "unstamped", "spinning"]), path)
    samples = store.read(tmp_path).records.samples
    assert samples and samples == run.records.samples
    assert {(sample.reads, sample.unstamped, sample.spinning) for sample in samples} == {(0, 0, 0.0)}


def test_rows_of_older_runs_have_no_value_in_columns_that_were_added_later(tmp_path: Path) -> None:
    run, chunks = some_run()
    store.write(tmp_path, run.manifest, run.records, made.pieces(chunks, 1 << 20))
    path = tmp_path / "requests.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["server_total", "rtt"]), path)
    again = store.read(tmp_path)
    assert {*again.records.rows["server_total"].tolist(), *again.records.rows["rtt"].tolist()} == {-1}
    assert not any(summarise(again).metrics[name].count for name in ("network", "protocol", "rtt"))


CLASSES, REPLICAS = ("chat", "batch"), ("127.0.0.1:80", "[::1]:80", "127.0.0.1:81")
WITH_CLASSES = {"data": {"type": "mix", "classes": [{"name": name} for name in CLASSES]}}
FEW = {
    "failure": st.integers(0, len(FAILURES)),
    "counted_by": st.integers(0, len(COUNTED_BY) - 1),
    "in_counted_by": st.integers(0, len(COUNTED_BY) - 1),
    "open_loop": st.integers(0, 1),
    "class": st.integers(-1, len(CLASSES) - 1),
    "replica": st.integers(-1, len(REPLICAS) - 1),
}


def any_number(name: str) -> st.SearchStrategy[int]:
    """What a column may hold: -1 for what is not known, MISSING for a time that did not happen."""
    if name in FEW:
        return FEW[name]
    edges = np.iinfo(ROW[name])
    least = -1 if name in UNKNOWN else int(edges.min) + (name in TIMES)
    numbers = st.sampled_from([least, -1, 0, int(edges.max)]) | st.integers(least, int(edges.max))
    return numbers | st.just(MISSING) if name in TIMES else numbers


ANY_ROWS = st.lists(st.tuples(*map(any_number, NAMES), st.integers(0, len(PHASES) - 1)), max_size=20)


@given(ANY_ROWS, st.integers(1, 25))
@settings(deadline=None)
def test_any_rows_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[tuple[int, ...]], group: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    rows, phase = np.array([each[:-1] for each in numbers], ROW), np.array([each[-1] for each in numbers], np.int8)
    run = made.run(rows, failures=FAILURES, phase=phase, classes=CLASSES, replicas=REPLICAS, config=WITH_CLASSES)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing, "GROUP", group)
        store.write(folder, run.manifest, run.records, [])
    again = store.read(folder).records
    for name in NAMES:
        if name not in ("failure", "replica"):
            assert again.rows[name].dtype == ROW[name] and again.rows[name].tolist() == rows[name].tolist()
    assert again.phase.tolist() == phase.tolist()
    assert again.classes == CLASSES
    addresses = [again.replicas[number] if number >= 0 else None for number in again.rows["replica"]]
    assert addresses == [REPLICAS[number] if number >= 0 else None for number in rows["replica"]]
    found = [again.failures[number - 1] if number else None for number in again.rows["failure"]]
    assert found == [FAILURES[number - 1] if number else None for number in rows["failure"]]


@pytest.mark.slow
@given(st.data())
@settings(deadline=None, max_examples=50)
def test_the_summary_of_a_stored_run_is_that_of_the_run(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Some requests fail, are never sent, or lack what the server did not report: the summary is the same to the byte."""
    folder = tmp_path_factory.mktemp("run")
    rows, chunks = (made.open_rows if data.draw(st.booleans()) else made.closed_rows)(60)
    which = st.lists(st.integers(0, len(rows) - 1), unique=True, max_size=20)
    made.fail(rows, data.draw(which), 1)
    made.fail(rows, data.draw(which), 3)
    made.fail(rows, data.draw(which), 4)
    made.never_sent(rows, data.draw(which), 2)
    for name in UNKNOWN:
        rows[name][data.draw(which)] = -1
    phase = np.ones(len(rows), np.int8)
    phase[data.draw(which)] = 0
    run = made.run(rows, chunks, failures=(*FAILURES, FAILURES[0]), phase=phase)  # the last is another shard's
    store.write(folder, run.manifest, run.records, [chunks])
    expected = json.encode(summarise(run))
    assert json.encode(summarise(store.read(folder))) == expected
    assert json.encode(summarise(store.written(folder, run.records))) == expected


def test_a_folder_may_have_a_colon_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, chunks = some_run()
    folder = Path("s3:x")
    folder.mkdir()
    store.write(folder, run.manifest, run.records, made.pieces(chunks, 1 << 20))
    store.series.write(folder / "again.parquet", ())
    assert store.read(folder).manifest == run.manifest


def test_an_empty_run(tmp_path: Path) -> None:
    run = made.run(made.blank(0), sampled=())
    store.write(tmp_path, run.manifest, run.records, [])
    again = store.read(tmp_path)
    assert len(again.records.rows) == 0 and again.chunk_total == 0 and list(again.chunks()) == []


def test_other_tools_find_names_nulls_and_words_in_the_parquet_files(tmp_path: Path) -> None:
    run, chunks = some_run()
    store.write(tmp_path, run.manifest, run.records, [chunks])
    table = pq.read_table(tmp_path / "requests.parquet")
    assert set(table.column_names) == {*(ROW.names or ()), "message", "phase"}
    row = table.slice(20, 1).to_pylist()[0]
    assert row["sent"] is None and row["n_out"] is None and row["failure"] == "dropped" and row["message"] == ""
    row = table.slice(599, 1).to_pylist()[0]
    assert row["failure"] is None and row["message"] is None and row["phase"] == PHASES[2]
    assert row["counted_by"] == "server" and row["open_loop"] is True
    assert MISSING not in table["sent"].to_pylist()
    assert pq.read_schema(tmp_path / "chunks.parquet").names == ["arrival", "tokens"]


def test_a_file_rewritten_with_plain_strings_is_read_alike(tmp_path: Path) -> None:
    run, chunks = some_run()
    store.write(tmp_path, run.manifest, run.records, [chunks])
    table = pq.read_table(tmp_path / "requests.parquet")
    plain = [pa.string() if pa.types.is_dictionary(field.type) else field.type for field in table.schema]
    table = table.cast(pa.schema(list(zip(table.column_names, plain, strict=True))))
    pq.write_table(table.replace_schema_metadata(None), tmp_path / "requests.parquet", row_group_size=50)
    again = store.read(tmp_path).records
    assert (np.asarray(again.rows) == np.asarray(run.records.rows)).all() and again.failures == FAILURES
    assert again.phase.tolist() == run.records.phase.tolist()


def test_only_the_files_of_the_run_are_left(tmp_path: Path) -> None:
    run, chunks = some_run()
    store.write(tmp_path, run.manifest, run.records, [chunks])
    store.write_summary(tmp_path, b"{}\n")
    parquet = [f"{name}.parquet" for name in ("chunks", "requests", "samples", "series")]
    assert {path.name for path in tmp_path.iterdir()} == {*parquet, "manifest.json", "summary.json"}


def test_a_new_folder_is_unique_and_latest_points_to_the_last(tmp_path: Path) -> None:
    base = tmp_path / "runs"
    first, second = store.new_folder(base), store.new_folder(str(base))
    assert first != second and first.is_dir() and first.parent == base
    run, chunks = some_run()
    store.write(second, run.manifest, run.records, [chunks])
    for folder in (first, second):
        store.point_latest(folder)
    assert (base / "LATEST").is_symlink() and store.read(base / "LATEST").folder == second.resolve()
    assert sorted(path.name for path in base.iterdir()) == sorted([first.name, second.name, "LATEST"])


def test_a_folder_called_latest_is_left_alone(tmp_path: Path) -> None:
    folder = store.new_folder(tmp_path)
    (tmp_path / "LATEST").mkdir()
    store.point_latest(folder)
    assert not (tmp_path / "LATEST").is_symlink()


def test_a_run_without_the_newer_columns_is_read_with_unknown_values(tmp_path: Path) -> None:
    run, chunks = some_run()
    store.write(tmp_path, run.manifest, run.records, [chunks])
    newer = ["session", "turn", "first_content", "first_tokens", "streamed_tokens", "class", "replica"]
    path = tmp_path / "requests.parquet"
    pq.write_table(pq.read_table(path).drop_columns(newer), path)
    rows = store.read(tmp_path).records.rows
    assert set(rows["first_content"]) == {MISSING}
    assert {value for name in newer if name != "first_content" for value in rows[name]} == {-1}
    assert (rows["first_token"] == run.records.rows["first_token"]).all()
