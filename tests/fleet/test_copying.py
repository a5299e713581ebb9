"""The copy of a shard's folder, as its parent reads it: consistent at all times, complete at the end, in bounded pieces of Arrow columns."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.engine.inflight import Flight
from inferometer.fleet.copying import BULKY, FolderCopy, FolderReader, Numbers
from inferometer.records import ROW, Sample
from inferometer.store.body_spool import BodySpool, read_bodies
from inferometer.store.spool import Control, Spool, merge, pieces
from inferometer.store.spool_columns import SCHEMAS, Piece

PIECE = 256
FILES = ("rows", "arrivals", "tokens", "failures", "replicas", "samples", "bodies", "peek")


class Folders:
    """A shard that records, and the copy of its folder."""

    def __init__(self, base: Path) -> None:
        self.own, self.copied = base / "own", base / "copied"
        for folder in (self.own, self.copied):
            folder.mkdir(parents=True)
            Control(folder / "0.control", create=True)
        self.spool, self.bodies = Spool(self.own, 0, 0, 0), BodySpool(self.own, 0)
        self.spool.control["t0"] = 1_000
        self.reader = FolderReader(self.own, 0, self.spool.control, PIECE)
        self.copy = FolderCopy(self.copied, 0)
        self.sent = 0

    def record(self, count: int, text: str = "hello") -> None:
        flights = [
            Flight(id=self.sent + each, intended=1_000, done=1_500, arrivals=[1_100, 1_200 + each], counts=[1, 2])
            for each in range(count)
        ]
        flights[0].failure, flights[0].replica = self.spool.failure("http", text), self.spool.replica(text)
        self.sent += count
        self.spool.add(flights)
        self.spool.sample(Sample(0, self.sent, 0.1 * count, 1, 0.5, 2, 3, 4, 5))
        self.spool.peek([count, 1], [count, 0])
        for flight in flights:
            flight.data = b"head\r\n\r\n" + text.encode("utf-8", "replace")
            self.bodies.add(flight, text, "stop")
        self.bodies.flush()
        self.spool.publish()

    def close(self) -> None:
        self.bodies.close()
        self.spool.close()

    def take(self, change: Piece | Numbers) -> None:
        if isinstance(change, Numbers):
            self.copy.put_numbers(change)
        else:
            self.copy.put(change)

    def check(self) -> None:
        """The copy has whole rows and their chunks, and no number is ahead of its file."""
        records, _ = merge(self.copied, 1)
        rows = records.rows
        assert rows["id"].tolist() == list(range(len(rows)))
        arrivals = np.concatenate([part.arrival for part in pieces(self.copied, [0])] or [np.zeros(0)])
        assert len(arrivals) == rows["chunk_count"].sum() == 2 * len(rows)
        assert arrivals[::2].tolist() == [100] * len(rows)

    def check_equal(self) -> None:
        """The copy is the same, byte for byte."""
        for name in FILES:
            assert (self.copied / f"0.{name}").read_bytes() == (self.own / f"0.{name}").read_bytes(), name


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ACTION = st.one_of(st.tuples(st.integers(1, 40), TEXT), st.just("look"), st.just("step"))


@given(st.lists(ACTION, max_size=30))
def test_the_copy_is_consistent_after_every_step_and_equal_at_the_end(
    base: Path, actions: list[tuple[int, str] | str]
) -> None:
    """Rows are recorded, and pieces copied, in any order."""
    folders = Folders(base / str(len(list(base.iterdir()))))
    current: Iterator[Piece | Numbers] = iter(())
    for action in actions:
        if isinstance(action, tuple):
            folders.record(*action)
        for change in [next(current, None)] if action == "step" else list(current) if action == "look" else []:
            if change is None:
                current = folders.reader.round()
            else:
                folders.take(change)
        folders.check()
    folders.close()
    for change in [*current, *folders.reader.round(is_last=True)]:
        folders.take(change)
    if folders.sent:
        folders.check()
        folders.check_equal()
    assert folders.copy.control["rows"] == folders.sent


def test_pieces_are_bounded_record_batches_of_columns(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.record(300, "a text of some length " * 3)
    seen: dict[str, int] = {}
    for change in folders.reader.round():
        if isinstance(change, Numbers):
            continue
        batch = pa.ipc.read_record_batch(change.data, SCHEMAS[change.table])
        seen[change.table] = seen.get(change.table, 0) + len(batch)
        rows, size = len(batch), batch.get_total_buffer_size()
        assert rows == 1 or change.table == "peek" or size <= 2 * PIECE, change.table
        assert len(change.data) < size + 8_192  # and what Arrow adds: the places of the columns
    assert seen == {"rows": 300, "chunks": 600, "failures": 1, "replicas": 1, "samples": 1, "bodies": 300, "peek": 640}
    assert SCHEMAS["rows"].names == list(ROW.names or ())


def test_rows_that_were_counted_after_the_run_are_copied_again(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.record(20)
    for is_last in (False, True):
        for change in folders.reader.round(is_last):
            folders.take(change)
        if not is_last:
            folders.spool.set_tokens({id: 9 for id in range(20)}, 2)
    assert merge(tmp_path / "copied", 1)[0].rows["n_out"].tolist() == [9] * 20


def test_without_its_chunks_a_lost_shard_has_its_rows_all_the_same(tmp_path: Path) -> None:
    """Chunks and texts are left out while the run is in progress if the shard stores them elsewhere; here, it does not get to that."""
    folders = Folders(tmp_path)
    folders.reader.left_out = BULKY
    folders.record(20)
    for change in folders.reader.round():
        assert not isinstance(change, Piece) or change.table not in BULKY
        folders.take(change)
    records, chunks = merge(tmp_path / "copied", 1)
    assert records.rows["id"].tolist() == list(range(20)) and not records.rows["chunk_count"].any()
    assert list(chunks) == [] and list(read_bodies(tmp_path / "copied", [0])) == []
    folders.reader.left_out = frozenset()  # it could not store them
    for change in folders.reader.round(is_last=True):
        folders.take(change)
    folders.check()
    assert len(list(read_bodies(tmp_path / "copied", [0]))) == 20
