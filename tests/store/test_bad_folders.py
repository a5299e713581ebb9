"""Folders that are not runs, damaged runs, and disk errors: one line says what happened, one what to do next."""

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
from inferometer.store import draft


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows, chunks = made.closed_rows()
    run = made.run(rows, chunks)
    store.write(tmp_path, run.manifest, run.records, [chunks])
    return tmp_path


def error_of(folder: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        for _ in store.read(folder).chunks():
            pass
    assert caught.value.remedy
    return caught.value


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert "no such folder" in error_of(tmp_path / "none").what


def test_a_dangling_latest(tmp_path: Path) -> None:
    (tmp_path / "LATEST").symlink_to("gone")
    assert "no such folder" in error_of(tmp_path / "LATEST").what


def test_a_file_instead_of_a_folder(folder: Path) -> None:
    assert "not a folder" in error_of(folder / "manifest.json").what


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    assert "there is no manifest.json" in error_of(tmp_path).what
    (tmp_path / "draft.json").write_text("")
    with pytest.raises(UserError, match="killed before its first request"):
        draft.read(tmp_path / "draft.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "x"}', "\x00"])
def test_a_damaged_manifest(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    assert "not the manifest of a run" in error_of(folder).what


def test_a_run_of_a_newer_version(folder: Path) -> None:
    tree = msgspec.json.decode((folder / "manifest.json").read_bytes()) | {"schema": 2, "inferometer": "9.0"}
    (folder / "manifest.json").write_bytes(msgspec.json.encode(tree))
    error = error_of(folder)
    assert "newer inferometer (9.0" in error.what and "upgrade" in error.remedy


PARQUET = ["requests.parquet", "chunks.parquet", "samples.parquet"]


@pytest.mark.parametrize("name", PARQUET)
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert error_of(folder).what.endswith(f"{name}: the file is missing")


@pytest.mark.parametrize("name", PARQUET)
@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.99])
def test_a_truncated_file(folder: Path, name: str, keep: float) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(keep if keep > 1 else keep * len(data))])
    assert f"{name}: the file is damaged" in error_of(folder).what


@pytest.mark.parametrize("name", PARQUET)
def test_a_file_with_other_columns(folder: Path, name: str) -> None:
    pq.write_table(pa.table({"x": [1]}), folder / name)
    assert "are missing" in error_of(folder).what


def test_an_unknown_phase(folder: Path) -> None:
    table = pq.read_table(folder / "requests.parquet")
    column = table.schema.get_field_index("phase")
    table = table.set_column(column, "phase", pa.array(["lunch"] * len(table)))
    pq.write_table(table, folder / "requests.parquet")
    assert "damaged" in error_of(folder).what


@pytest.mark.parametrize("name", ["phase", "counted_by", "id", "status"])
def test_a_null_in_a_column_that_has_none(folder: Path, name: str) -> None:
    table = pq.read_table(folder / "requests.parquet")
    column, kind = table.schema.get_field_index(name), table.schema.field(name).type
    values = pa.array([None, *table[name].to_pylist()[1:]], kind)
    pq.write_table(table.set_column(column, name, values), folder / "requests.parquet")
    assert "requests.parquet: the file is damaged" in error_of(folder).what


# --- disk errors -----------------------------------------------------------------------------------------------------


def failing(number: int) -> Iterator[Chunks]:
    yield Chunks(np.arange(10, dtype=np.int64), np.ones(10, np.uint16))
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "no permission"), (errno.EIO, "error")]
)
def test_a_disk_error_leaves_no_file_behind(tmp_path: Path, number: int, words: str) -> None:
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
