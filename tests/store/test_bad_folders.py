"""Folders that are no runs, damaged ones, and disks that refuse: one line that says what, and one what next."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic_run as made

from inferometer import store
from inferometer.errors import UserError
from inferometer.records import Chunks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows, chunks = made.closed_rows()
    run = made.run(rows, chunks)
    store.write(tmp_path, run.manifest, run.records, [chunks])
    return tmp_path


def refused(folder: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        for _ in store.read(folder).chunks():
            pass
    assert caught.value.remedy
    return caught.value


def test_no_such_folder(tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "none").what


def test_latest_that_names_nothing_any_more(tmp_path: Path) -> None:
    (tmp_path / "LATEST").symlink_to("gone")
    assert "no such folder" in refused(tmp_path / "LATEST").what


def test_a_file(folder: Path) -> None:
    assert "not a folder" in refused(folder / "manifest.json").what


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    assert "no manifest.json" in refused(tmp_path).what


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "x"}', "\x00"])
def test_a_manifest_that_is_none(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    assert "not a run's manifest" in refused(folder).what


def test_a_newer_layout(folder: Path) -> None:
    tree = msgspec.json.decode((folder / "manifest.json").read_bytes()) | {"schema": 2, "inferometer": "9.0"}
    (folder / "manifest.json").write_bytes(msgspec.json.encode(tree))
    error = refused(folder)
    assert "newer inferometer (9.0" in error.what and "upgrade" in error.remedy


PARQUET = ["requests.parquet", "chunks.parquet", "samples.parquet"]


@pytest.mark.parametrize("name", PARQUET)
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert refused(folder).what.endswith(f"{name}: missing")


@pytest.mark.parametrize("name", PARQUET)
@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.99])
def test_a_file_cut_short(folder: Path, name: str, keep: float) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(keep if keep > 1 else keep * len(data))])
    assert f"{name}: damaged" in refused(folder).what


@pytest.mark.parametrize("name", PARQUET)
def test_a_file_of_other_columns(folder: Path, name: str) -> None:
    pq.write_table(pa.table({"x": [1]}), folder / name)
    assert "lacks the columns" in refused(folder).what


def test_words_that_are_not_known(folder: Path) -> None:
    table = pq.read_table(folder / "requests.parquet")
    place = table.schema.get_field_index("phase")
    table = table.set_column(place, "phase", pa.array(["lunch"] * len(table)))
    pq.write_table(table, folder / "requests.parquet")
    assert "damaged" in refused(folder).what


@pytest.mark.parametrize("name", ["phase", "counted_by", "id", "status"])
def test_a_hole_in_a_column_that_has_none(folder: Path, name: str) -> None:
    table = pq.read_table(folder / "requests.parquet")
    place, kind = table.schema.get_field_index(name), table.schema.field(name).type
    holes = pa.array([None, *table[name].to_pylist()[1:]], kind)
    pq.write_table(table.set_column(place, name, holes), folder / "requests.parquet")
    assert "requests.parquet: damaged" in refused(folder).what


# --- disks that refuse -----------------------------------------------------------------------------------------------


def failing(number: int) -> Iterator[Chunks]:
    yield Chunks(np.arange(10, dtype=np.int64), np.ones(10, np.uint16))
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "no permission"), (errno.EIO, "error")]
)
def test_a_disk_that_refuses_leaves_no_file_that_looks_whole(tmp_path: Path, number: int, words: str) -> None:
    run = made.run(made.blank(3))
    with pytest.raises(UserError, match=words) as caught:
        store.write(tmp_path, run.manifest, run.records, failing(number))
    assert "another folder: output" in caught.value.next_step and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_as_arrow_reports_it(tmp_path: Path) -> None:
    (tmp_path / ".chunks.parquet.partial").symlink_to("/dev/full")
    rows, chunks = made.closed_rows()
    run = made.run(rows, chunks)
    with pytest.raises(UserError, match="disk is full"):
        store.write(tmp_path, run.manifest, run.records, [chunks])
    assert list(tmp_path.iterdir()) == []


def test_a_base_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match="not a folder"):
        store.new_folder(tmp_path / "runs")
    with pytest.raises(UserError, match="not a folder"):
        store.new_folder(tmp_path / "runs" / "deeper")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_base(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="no permission"):
        store.new_folder(tmp_path)


def test_a_read_only_base_as_root_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match="no permission"):
        store.new_folder(tmp_path)
