"""Shards that store their chunks in the run's bucket: which credentials they get, when they store them, and what happens if they cannot."""

import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.conduct import stored_shards
from inferometer.config import from_mapping
from inferometer.config.data import Data
from inferometer.config.storage import Storage
from inferometer.engine.inflight import Flight
from inferometer.errors import UserError
from inferometer.fleet import shard_store
from inferometer.fleet.control import ShardReport
from inferometer.fleet.shard_store import Destination, ShardStoring, destination
from inferometer.records import Chunks
from inferometer.store import reading
from inferometer.store.folder import CHUNKS, files_of, shard_file
from inferometer.store.spool import Control, Spool
from inferometer.store.upload import Upload, write_upload
from inferometer.store.writing import write_chunks

DATA: Data = from_mapping({"server": {"url": "http://127.0.0.1:1", "model": "m"}}).data
TO = Destination("s3://bench/run", Storage(), {"AWS_SECRET_ACCESS_KEY": "hidden"}, {"AWS_CONFIG_FILE": b"hidden"})
DONE = ShardReport("kernel", "", "", "", notes=("first",))


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """The spool of a shard that has recorded a response of three chunks."""
    Control(tmp_path / "0.control", create=True)
    made = Spool(tmp_path, 0, 0, 0)
    made.control["t0"] = 4
    made.add([Flight(id=0, intended=1, done=9, arrivals=[5, 6, 7], counts=[1, 1, 1])])
    made.close()
    return tmp_path


class FakeStore:
    """An object store that keeps copies, or refuses."""

    def __init__(self, folder: Path, refuses: bool = False, may_go_on: threading.Event | None = None) -> None:
        self.folder, self.refuses, self.may_go_on = folder, refuses, may_go_on
        self.environment: dict[str, str] = {}
        self.credentials = b""
        self.files: list[Path] = []

    def connect(self, url: str, storage: Storage, environment: Mapping[str, str]) -> "FakeStore":
        self.environment = dict(environment)
        self.files = [Path(environment[name]) for name in TO.files]
        self.credentials = self.files[0].read_bytes()
        return self

    def __enter__(self) -> "FakeStore":
        return self

    def __exit__(self, *error: object) -> None: ...

    def put(self, name: str, path: Path) -> None:
        if self.may_go_on is not None:
            self.may_go_on.wait(10)
        if self.refuses:
            raise UserError("s3://bench/run: access is denied", "check the credentials")
        self.folder.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(path.read_bytes())


def storing(
    spool: Path, monkeypatch: pytest.MonkeyPatch, to: Destination = TO, **options: Any
) -> tuple[ShardStoring, FakeStore]:
    fake = FakeStore(spool / "bucket", **options)
    monkeypatch.setattr(shard_store, "connect", fake.connect)
    return ShardStoring(spool, 0, to), fake


def test_chunks_are_stored_when_all_shards_have_ended(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, fake = storing(spool, monkeypatch)
    assert not made.has_ended(0.05, 0) and not made.has_ended(0.0, 1)
    assert not fake.environment
    made.allowed.set()
    assert made.has_ended(10, 0) and made.is_stored
    (chunks,) = reading.chunks_of(fake.folder)
    assert chunks.arrival.tolist() == [1, 2, 3] and chunks.tokens.tolist() == [1, 1, 1]
    assert fake.environment["AWS_SECRET_ACCESS_KEY"] == "hidden" and fake.credentials == b"hidden"
    assert not any(path.exists() for path in fake.files)
    assert made.noted(DONE) == DONE


@pytest.mark.parametrize("is_known", [True, False])
def test_the_identity_of_a_node_is_not_mixed_with_that_of_the_parent(
    spool: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the node")
    monkeypatch.setenv("AWS_REGION", "of the node")
    to = TO if is_known else Destination(TO.url, TO.storage, {"AWS_ENDPOINT_URL": "x"}, TO.files)
    made, fake = storing(spool, monkeypatch, to)
    made.allowed.set()
    assert made.has_ended(10, 0) and made.is_stored
    assert ("AWS_SESSION_TOKEN" in fake.environment) is not is_known
    assert fake.environment["AWS_REGION"] == "of the node"


def test_a_store_that_refuses_is_noted(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = storing(spool, monkeypatch, refuses=True)
    made.allowed.set()
    assert made.has_ended(10, 0) and not made.is_stored
    noted = made.noted(DONE)
    assert isinstance(noted, ShardReport) and noted.notes[0] == "first" and "access is denied" in noted.notes[1]
    assert made.noted("was killed") == "was killed"


@pytest.mark.parametrize("is_allowed", [True, False])
def test_stopping_the_run_for_the_second_time_does_not_wait(
    spool: Path, monkeypatch: pytest.MonkeyPatch, is_allowed: bool
) -> None:
    may_go_on = threading.Event()
    made, _ = storing(spool, monkeypatch, may_go_on=may_go_on)
    if is_allowed:
        made.allowed.set()
    assert not made.has_ended(0.05, 1)
    assert made.has_ended(0.05, 2) and not made.is_stored
    noted = made.noted(DONE)
    assert isinstance(noted, ShardReport) and "interrupted" in noted.notes[1]
    may_go_on.set()


# --- credentials -----------------------------------------------------------------------------------------------------


def test_a_shard_gets_only_what_its_kind_of_store_reads(tmp_path: Path) -> None:
    key = tmp_path / "key.json"
    key.write_text('{"private": "key"}')
    environment = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_CONFIG_FILE": str(key),
        "GOOGLE_APPLICATION_CREDENTIALS": str(key),
        "HF_TOKEN": "other",
    }
    amazon = destination("s3://bench/run", Storage(), (), environment)
    assert set(amazon.environment) == {"AWS_ACCESS_KEY_ID", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"}
    assert amazon.files == {"AWS_CONFIG_FILE": key.read_bytes()}
    google = destination("gs://bench/run", Storage(), (), environment)
    assert google.files == {"GOOGLE_APPLICATION_CREDENTIALS": key.read_bytes()}
    assert pickle.loads(pickle.dumps(google)) == google
    assert "private" not in repr(google) and repr(TO) == "Destination('s3://bench/run')"


# --- the parent ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), UserError("/x: the disk is full", "free some space")])
def test_a_parent_that_cannot_collect_the_chunks_says_how_to_go_on(
    spool: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    """Shard 0 has stored its chunks, and those of shard 1 are in the spool."""

    def fail(*_: object) -> None:
        raise failure

    folder = tmp_path_factory.mktemp("run")
    write_upload(folder, Upload("s3://bench"))
    Control(spool / "0.control", create=False)["stored"] = 1
    Control(spool / "1.control", create=True)
    monkeypatch.setattr(stored_shards, "_fetch", lambda *_: None)
    monkeypatch.setattr(stored_shards, "write_shard_files", fail)
    with pytest.raises(UserError, match=r"interrupted|the disk is full") as caught:
        stored_shards.complete(folder, spool, 2, ())
    assert f"inferometer report {folder}" in caught.value.next_step
    assert f"inferometer runs push {folder}" in caught.value.next_step


# --- files of shards -------------------------------------------------------------------------------------------------


def test_the_files_of_shards_are_read_in_the_order_of_the_shards(tmp_path: Path) -> None:
    for shard in range(12):
        write_chunks(tmp_path / shard_file(CHUNKS, shard), [Chunks(np.array([shard]), np.array([1], np.uint16))])
    assert sorted(files_of(tmp_path, CHUNKS)) == files_of(tmp_path, CHUNKS), "so are those of a glob"
    (tmp_path / "chunks-old.parquet").touch()
    assert [int(piece.arrival[0]) for piece in reading.chunks_of(tmp_path)] == list(range(12))
    write_chunks(tmp_path / CHUNKS, [])
    assert files_of(tmp_path, CHUNKS) == [tmp_path / CHUNKS]
