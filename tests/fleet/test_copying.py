"""The copy of a shard's folder, as its parent reads it: consistent at all times, complete at the end, in bounded pieces."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.engine.inflight import Flight
from inferometer.fleet.copying import FolderCopy, FolderReader, Numbers, Piece
from inferometer.store.spool import Control, Spool, merge, pieces

PIECE = 256


class Folders:
    """A shard that records, and the copy of its folder."""

    def __init__(self, base: Path) -> None:
        self.own, self.copied = base / "own", base / "copied"
        for folder in (self.own, self.copied):
            folder.mkdir(parents=True)
            Control(folder / "0.control", create=True)
        self.spool = Spool(self.own, 0, 0, 0)
        self.spool.control["t0"] = 1_000
        self.reader = FolderReader(self.own, 0, self.spool.control, PIECE)
        self.copy = FolderCopy(self.copied, 0)
        self.sent = 0

    def record(self, count: int) -> None:
        flights = [
            Flight(id=self.sent + each, intended=1_000, done=1_500, arrivals=[1_100, 1_200 + each], counts=[1, 2])
            for each in range(count)
        ]
        self.sent += count
        self.spool.add(flights)
        self.spool.publish()

    def check(self) -> None:
        """The copy has whole rows and their chunks, and no number is ahead of its file."""
        records, _ = merge(self.copied, 1)
        rows = records.rows
        assert rows["id"].tolist() == list(range(len(rows)))
        arrivals = np.concatenate([part.arrival for part in pieces(self.copied, 1)] or [np.zeros(0)])
        expected = [at for id in rows["id"].tolist() for at in (100, None)]
        assert len(arrivals) == len(expected) == 2 * len(rows)
        assert arrivals[::2].tolist() == [100] * len(rows)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies")


@given(st.lists(st.one_of(st.integers(1, 40), st.just("look"), st.just("step")), max_size=30))
def test_the_copy_is_consistent_after_every_step(base: Path, actions: list[int | str]) -> None:
    """Rows are recorded, and pieces copied, in any order."""
    folders = Folders(base / str(len(list(base.iterdir()))))
    current = iter(())
    for action in actions:
        if isinstance(action, int):
            folders.record(action)
        for change in [next(current, None)] if action == "step" else list(current) if action == "look" else []:
            if change is None:
                current = folders.reader.round()
            elif isinstance(change, Numbers):
                folders.copy.put_numbers(change)
            else:
                assert isinstance(change, Piece) and (len(change.data) <= PIECE or change.name == "peek")
                folders.copy.put(change)
        folders.check()
    for change in [*current, *folders.reader.round(is_last=True)]:
        folders.copy.put_numbers(change) if isinstance(change, Numbers) else folders.copy.put(change)
    folders.check()
    assert folders.copy.control["rows"] == folders.sent


def test_rows_that_were_counted_after_the_run_are_copied_again(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.record(20)
    for is_last in (False, True):
        for change in folders.reader.round(is_last):
            folders.copy.put_numbers(change) if isinstance(change, Numbers) else folders.copy.put(change)
        if not is_last:
            folders.spool.set_tokens({id: 9 for id in range(20)}, 2)
    assert merge(tmp_path / "copied", 1)[0].rows["n_out"].tolist() == [9] * 20
