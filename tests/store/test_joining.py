"""The records of several runs, joined: every row finds its chunks, failure and address again, and memory does not grow with the chunks."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import synthetic_run as made

from inferometer import store
from inferometer.records import MISSING, TIMES, Failure
from inferometer.store import joining, writing
from inferometer.store.folder import CHUNKS, shard_file

SHIFTS = (0, 5_000, 70)


def stored(folder: Path, by_shard: bool, failures: tuple[Failure, ...], replicas: tuple[str, ...]) -> Path:
    """Store a run in which some requests failed, some were never sent, and the others went to different addresses. `by_shard`: its chunks
    are in a file per shard."""
    rows, chunks = made.open_rows()
    for number in range(len(failures)):
        made.fail(rows, [number], 1 + number)
    made.never_sent(rows, [20, 21], 1)
    rows["replica"] = np.arange(len(rows)) % len(replicas)
    run = made.run(rows, chunks, failures=failures)
    folder.mkdir()
    records = msgspec.structs.replace(run.records, replicas=replicas)
    store.write(folder, run.manifest, records, None if by_shard else made.pieces(chunks, 1 << 20), run.series())
    for shard, piece in enumerate(made.pieces(chunks, -(-len(chunks.arrival) // 11)) if by_shard else ()):
        writing.write_chunks(folder / shard_file(CHUNKS, shard), [piece])
    return folder


@pytest.fixture
def placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[joining.Placed]:
    monkeypatch.setattr(writing, "GROUP", 100)
    busy, cut, reset = Failure("http_503", "busy"), Failure("cut", ""), Failure("reset", "by peer")
    kinds = [((busy, cut), ("a:1", "b:1")), ((reset, busy), ("b:1",)), ((cut,), ("c:1", "a:1"))]
    return [
        joining.Placed(stored(tmp_path / str(number), number == 1, *kind), SHIFTS[number], 2 * number)
        for number, kind in enumerate(kinds)
    ]


def test_every_row_keeps_its_times_failure_address_and_process(placed: list[joining.Placed]) -> None:
    records = joining.joined_records(placed)
    at = 0
    for each in placed:
        own = store.read(each.folder).records
        rows = records.rows[at : at + len(own.rows)]
        for name in TIMES:
            expected = np.where(own.rows[name] == MISSING, MISSING, own.rows[name] + each.shift)
            assert rows[name].tolist() == expected.tolist(), name
        assert rows["id"].tolist() == own.rows["id"].tolist()
        assert rows["shard"].tolist() == (own.rows["shard"] + each.first_shard).tolist()
        for joined, before in zip(rows, own.rows, strict=True):
            assert (joined["failure"] == 0) == (before["failure"] == 0)
            if before["failure"]:
                assert records.failures[joined["failure"] - 1] == own.failures[before["failure"] - 1]
            assert records.replicas[joined["replica"]] == own.replicas[before["replica"]]
        at += len(own.rows)
    assert len(records.rows) == at
    assert len(records.failures) == len(set(records.failures)) == 3
    assert records.replicas == ("a:1", "b:1", "c:1")
    assert {sample.shard for sample in records.samples} == {0, 2, 4}


def test_every_row_finds_its_chunks_again(placed: list[joining.Placed]) -> None:
    records = joining.joined_records(placed)
    arrival = np.concatenate([piece.arrival for piece in joining.joined_chunks(placed)])
    rows = records.rows[(records.rows["chunk_count"] > 0) & (records.rows["failure"] == 0)]
    assert arrival[rows["chunk_start"]].tolist() == rows["first_token"].tolist()
    assert arrival[rows["chunk_start"] + rows["chunk_count"] - 1].tolist() == rows["last_token"].tolist()
    assert len(arrival) == int(records.rows["chunk_count"].sum())


def test_chunks_come_one_row_group_at_a_time(placed: list[joining.Placed]) -> None:
    sizes = [len(piece.arrival) for piece in joining.joined_chunks(placed)]
    assert max(sizes) <= 100 and len(sizes) > 3 * len(placed)
