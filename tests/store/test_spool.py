"""Rows and chunks through the spool's files and back: growth, several shards, crashes, full disks."""

import errno
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.engine.inflight import Flight
from inferometer.records import MISSING, ROW, Chunks, Failure, Sample
from inferometer.store import spool as module
from inferometer.store.spool import CONTROL, Control, Spool, merge, rows_of

T0 = 5_000


def start(folder: Path, shard: int = 0, t0: int = T0) -> Spool:
    Control(folder / f"{shard}.control", create=True)["t0"] = t0
    return Spool(folder, shard, 0, 0)


def add(spool: Spool, id: int, arrivals: list[int], counts: list[int] | None = None, **more: int) -> None:
    spool.add([flight(id, arrivals, counts, **more)])


def flight(id: int, arrivals: list[int], counts: list[int] | None = None, **more: int) -> Flight:
    """A request that ended; its times are T0 unless given."""
    values = dict.fromkeys(("intended", "sent", "first_byte", "done"), T0) | {"id": id, "read_delay": 0} | more
    return Flight(arrivals=arrivals, counts=counts or [1] * len(arrivals), **values)


def chunks_of(folder: Path, shards: int) -> Chunks:
    pieces = list(merge(folder, shards)[1])
    return Chunks(
        np.concatenate([piece.arrival for piece in pieces] or [np.zeros(0, np.int64)]),
        np.concatenate([piece.tokens for piece in pieces] or [np.zeros(0, np.uint16)]),
    )


def sample(shard: int = 0, at: int = 1) -> Sample:
    return Sample(shard, at, 0.5, 1, 0.1, 2, 3, 4, 5)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use tiny initial files, so that they must grow, and tiny blocks when merging."""
    monkeypatch.setattr(module, "_FIRST_ROWS", 2)
    monkeypatch.setattr(module, "_FIRST_CHUNKS", 2)
    monkeypatch.setattr(module, "_BLOCK", 3)


def test_rows_and_chunks_are_read_back_with_times_since_the_start(tmp_path: Path) -> None:
    spool = start(tmp_path)
    add(spool, 7, [T0 + 10, T0 + 30], [1, 65_535], intended=T0, sent=T0 + 1, first_token=T0 + 10, n_out=3)
    add(spool, 8, [], first_byte=0, first_token=0, last_token=0)
    spool.close()
    records, _ = merge(tmp_path, 1)
    assert records.rows["id"].tolist() == [7, 8]
    assert records.rows["sent"].tolist() == [1, 0]
    assert records.rows["first_token"].tolist() == [10, MISSING]
    assert records.rows["n_out"][0] == 3
    assert chunks_of(tmp_path, 1).arrival.tolist() == [10, 30]
    assert chunks_of(tmp_path, 1).tokens.tolist() == [1, 65_535]


@pytest.mark.usefixtures("tiny")
def test_files_grow_as_needed_and_are_truncated_at_the_end(tmp_path: Path) -> None:
    spool = start(tmp_path)
    for id in range(50):
        add(spool, id, [T0 + id * 100 + n for n in range(id % 7)])
    add(spool, 50, [T0 + n for n in range(1000)])
    spool.close()
    records, _ = merge(tmp_path, 1)
    assert records.rows["id"].tolist() == list(range(51))
    total = int(records.rows["chunk_count"].sum())
    assert (tmp_path / "0.rows").stat().st_size == 51 * ROW.itemsize
    assert (tmp_path / "0.arrivals").stat().st_size == 8 * total
    assert (tmp_path / "0.tokens").stat().st_size == 2 * total
    arrival = chunks_of(tmp_path, 1).arrival
    assert arrival[records.rows["chunk_start"][50] :].tolist() == list(range(1000))


@pytest.mark.usefixtures("tiny")
@given(
    st.lists(st.lists(st.tuples(st.integers(T0, 2**62), st.integers(0, 65_535)), max_size=9), max_size=12),
    st.sets(st.integers(0, 12)),
)
def test_any_rows_are_read_back_however_many_are_added_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, responses: list[list[tuple[int, int]]], cuts: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = start(folder)
    flights = [
        flight(id, [at for at, _ in response], [count for _, count in response], done=T0 + id)
        for id, response in enumerate(responses)
    ]
    for begin, end in pairwise([0, *sorted(cuts), 12]):
        spool.add(flights[begin:end])
    spool.close()
    records, _ = merge(folder, 1)
    chunks = chunks_of(folder, 1)
    assert records.rows["done"].tolist() == list(range(len(responses)))
    for one, response in zip(records.rows, responses, strict=True):
        part = slice(one["chunk_start"], one["chunk_start"] + one["chunk_count"])
        assert (chunks.arrival[part] + T0).tolist() == [at for at, _ in response]
        assert chunks.tokens[part].tolist() == [count for _, count in response]


def test_merged_rows_refer_to_their_own_shards_chunks_and_failures(tmp_path: Path) -> None:
    one, two = start(tmp_path, 0), start(tmp_path, 1, t0=9_000)
    add(one, 0, [T0 + 1, T0 + 2], shard=0)
    add(one, 2, [], failure=one.failure("reset", ""), shard=0)
    add(two, 1, [9_005], failure=two.failure("http_503", "busy"), shard=1)
    one.sample(sample(0))
    two.sample(sample(1))
    one.close()
    two.close()
    records, _ = merge(tmp_path, 2)
    assert records.rows["id"].tolist() == [0, 2, 1]
    assert records.rows["chunk_start"].tolist() == [0, 2, 2]
    assert records.failures == (Failure("reset", ""), Failure("http_503", "busy"))
    assert records.rows["failure"].tolist() == [0, 1, 2]
    assert chunks_of(tmp_path, 2).arrival.tolist() == [1, 2, 5]
    assert [each.shard for each in records.samples] == [0, 1]


@pytest.mark.usefixtures("tiny")
def test_shards_of_several_blocks_are_merged_completely(tmp_path: Path) -> None:
    for shard, count in enumerate((7, 0, 4)):
        spool = start(tmp_path, shard, t0=T0 + shard)
        failures = [0, spool.failure("reset", str(shard)), spool.failure("closed", "")]
        for id in range(count):
            add(
                spool,
                id,
                [T0 + 50] * (id % 3),
                shard=shard,
                done=0 if id == 5 else T0 + 10 + id,
                failure=failures[id % 3],
            )
        spool.close()
    records, _ = merge(tmp_path, 3)
    rows = records.rows
    assert rows["id"].tolist() == [*range(7), *range(4)]
    assert rows["shard"].tolist() == [0] * 7 + [2] * 4
    assert rows["done"].tolist() == [10, 11, 12, 13, 14, MISSING, 16, 8, 9, 10, 11]
    assert rows["chunk_start"].tolist() == [0, 0, 1, 3, 3, 4, 6, 6, 6, 7, 9]
    named = [records.failures[failure - 1].message if failure else None for failure in rows["failure"]]
    assert named == [None, "0", "", None, "0", "", None, None, "2", "", None]


def test_shard_that_recorded_nothing_does_not_affect_the_others(tmp_path: Path) -> None:
    start(tmp_path, 0)
    two = start(tmp_path, 1)
    add(two, 1, [T0 + 5])
    two.close()
    records, _ = merge(tmp_path, 2)
    assert records.rows["id"].tolist() == [1]
    assert chunks_of(tmp_path, 2).arrival.tolist() == [5]


def test_shard_that_never_opened_its_files_counts_as_empty(tmp_path: Path) -> None:
    Control(tmp_path / "0.control", create=True)
    records, _ = merge(tmp_path, 1)
    assert len(records.rows) == 0
    assert records.failures == records.samples == ()


def test_process_that_dies_leaves_what_it_had_published(tmp_path: Path) -> None:
    """Nothing is closed or truncated, as after SIGKILL: the reader relies on the numbers in the control file."""
    spool = start(tmp_path)
    add(spool, 0, [T0 + 1], failure=spool.failure("reset", ""))
    spool.publish()
    add(spool, 1, [T0 + 2])
    spool.sample(sample())
    with (tmp_path / "0.samples").open("ab") as file:
        file.write(b'{"shard":0,"at":12')
    with (tmp_path / "0.failures").open("ab") as file:
        file.write(b'{"code":"cut sho')
    records, _ = merge(tmp_path, 1)
    assert records.rows["id"].tolist() == [0]
    assert chunks_of(tmp_path, 1).arrival.tolist() == [1]
    assert records.failures == (Failure("reset", ""),)
    assert records.samples == (sample(),)


def test_row_is_never_published_before_its_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = start(tmp_path)
    add(spool, 0, [T0 + 1])
    written: list[str] = []
    monkeypatch.setattr(Control, "__setitem__", lambda self, name, value: written.append(name))
    spool.publish()
    assert written.index("chunks") < written.index("rows")


def test_equal_failures_share_an_entry_and_too_many_different_ones_lose_their_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_FAILURES", 3)
    spool = start(tmp_path)
    codes = [spool.failure(code, message) for code, message in [("a", "1"), ("a", "2"), ("a", "1"), ("b", "")]]
    assert codes == [1, 2, 1, 3]
    late = [spool.failure("a", f"another {number}") for number in range(5)]
    assert set(late) == {4}
    spool.close()
    assert [(each.code, each.message) for each in module.failures_of(tmp_path, 0)] == [
        ("a", "1"), ("a", "2"), ("b", ""), ("a", ""),
    ]  # fmt: skip


def test_tokens_counted_after_the_run_are_stored_in_their_rows(tmp_path: Path) -> None:
    spool = start(tmp_path)
    for id in (7, 5, 6, 4):
        add(spool, id, [], n_out=-1)
    spool.set_tokens({5: 42, 9: 1, 4: 43}, 2)  # 9 has no row
    spool.close()
    rows = merge(tmp_path, 1)[0].rows
    assert rows["n_out"].tolist() == [-1, 42, -1, 43]
    assert rows["counted_by"].tolist() == [0, 2, 0, 2]


def test_chunks_are_counted_for_responses_that_nobody_counted(tmp_path: Path) -> None:
    spool = start(tmp_path)
    add(spool, 0, [1, 2, 3], n_out=-1)
    add(spool, 1, [1, 2], n_out=9, counted_by=1)
    add(spool, 2, [], n_out=-1)
    add(spool, 3, [1], n_out=-1, failure=spool.failure("reset", ""))
    spool.count_chunks(3)
    spool.close()
    rows = merge(tmp_path, 1)[0].rows
    assert rows["n_out"].tolist() == [3, 9, -1, -1]
    assert rows["counted_by"].tolist() == [3, 1, 0, 0]


def test_rows_can_be_read_from_a_given_index(tmp_path: Path) -> None:
    spool = start(tmp_path)
    for id in range(10):
        add(spool, id, [])
    spool.publish()
    assert rows_of(tmp_path, 0, 10, 7)["id"].tolist() == [7, 8, 9]


def test_control_file_is_shared_and_holds_64_bit_numbers(tmp_path: Path) -> None:
    mine = Control(tmp_path / "c", create=True)
    theirs: Any = Control(tmp_path / "c", create=False)
    for number, name in enumerate(CONTROL):
        mine[name] = (1 << 62) + number
    assert [theirs[name] - (1 << 62) for name in CONTROL] == list(range(len(CONTROL)))
    theirs.state = "running"
    assert mine.state == "running"


def test_line_that_a_full_disk_cuts_off_is_removed_and_nothing_refers_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = start(tmp_path)
    spool.failure("reset", "")
    with pytest.raises(OSError, match="No space"), monkeypatch.context() as full:
        full.setattr(spool._failures, "_file", FileOnFullDisk(spool._failures._file, 5))
        spool.failure("closed", "")
    assert spool.failure("http_503", "") == 2
    spool.close()
    assert [each.code for each in module.failures_of(tmp_path, 0)] == ["reset", "http_503"]


class FileOnFullDisk:
    """A file on a disk with room for only `room` more bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room
        self.seek, self.truncate = file.seek, file.truncate

    def write(self, data: bytes) -> int:
        count: int = self.file.write(data[: self.room])
        return count


def test_column_that_could_not_grow_does_not_keep_the_other_from_growing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_CHUNKS", 2)
    spool = start(tmp_path)

    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"), monkeypatch.context() as patched:
        patched.setattr(spool._tokens, "grow", full)
        add(spool, 0, [T0 + 1, T0 + 2, T0 + 3])
    add(spool, 1, [T0 + 4, T0 + 5, T0 + 6])
    spool.close()
    assert chunks_of(tmp_path, 1).arrival.tolist() == [4, 5, 6]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("column", "kept", "arrivals"), [("_rows", [0, 1], [0, 10, 11, 20]), ("_tokens", [0, 2, 3], [0, 20])]
)
def test_rows_that_a_full_disk_has_room_for_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, kept: list[int], arrivals: list[int]
) -> None:
    """There is room for two rows and two chunks."""
    spool = start(tmp_path)

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    flights = [flight(0, [T0]), flight(1, [T0 + 10, T0 + 11]), flight(2, [T0 + 20]), flight(3, [])]
    with pytest.raises(OSError, match="No space"), monkeypatch.context() as patched:
        patched.setattr(getattr(spool, column), "grow", full)
        spool.add(flights)
    spool.close()
    assert merge(tmp_path, 1)[0].rows["id"].tolist() == kept
    assert chunks_of(tmp_path, 1).arrival.tolist() == arrivals


def test_equal_failures_of_two_shards_are_merged_and_unused_ones_removed(tmp_path: Path) -> None:
    first, second = start(tmp_path, 0), start(tmp_path, 1)
    first.failure("cancelled", "")
    for spool, messages in ((first, ("busy", "gone")), (second, ("gone", "busy"))):
        for id, message in enumerate(messages):
            add(spool, id, [], failure=spool.failure("http_503", message))
        add(spool, 9, [])
        spool.close()
    records, _ = merge(tmp_path, 2)
    assert records.failures == (Failure("http_503", "busy"), Failure("http_503", "gone"))
    assert records.rows["failure"].tolist() == [1, 2, 0, 2, 1, 0]
