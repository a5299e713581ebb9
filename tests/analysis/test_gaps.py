"""Gaps gathered piece by piece are the gaps taken at once, whatever the pieces."""

import numpy as np
import pytest
import synthetic_run as made
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.analysis.gaps import gather
from inferometer.errors import UserError
from inferometer.records import Chunks


def tangled(counts: list[int], spare: list[int], stages: list[int]) -> tuple[np.ndarray, Chunks]:
    """Answers of these many chunks, in any order of rows, with `spare` chunks that belong to nobody between them."""
    rng = np.random.default_rng(len(counts))
    rows = made.blank(len(counts))
    start, arrivals = 0, []
    for place in rng.permutation(len(counts)):
        rows["chunk_start"][place], rows["chunk_count"][place] = start, counts[place]
        rows["stage"][place] = stages[place]
        arrivals.append(np.cumsum(rng.integers(0, 100, counts[place] + spare[place])))
        start += counts[place] + spare[place]
    arrival = np.concatenate(arrivals).astype(np.int64)
    return rows, Chunks(arrival, np.ones(len(arrival), np.uint16))


def at_once(rows: np.ndarray, chunks: Chunks, counted: np.ndarray, stage: int) -> list[int]:
    gaps = [
        np.diff(chunks.arrival[row["chunk_start"] : row["chunk_start"] + row["chunk_count"]])
        for row in rows[counted & (rows["stage"] == stage)]
    ]
    return sorted(int(gap) for each in gaps for gap in each)


answers = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1)


@given(answers, st.integers(1, 40))
@settings(deadline=None)
def test_pieces_of_any_size_give_the_same_gaps(answers: list[tuple[int, int, int, bool]], piece: int) -> None:
    counts, spare, stages, counted = (list(column) for column in zip(*answers, strict=True))
    rows, chunks = tangled(counts, spare, stages)
    found = gather(made.run(rows, chunks, piece=piece), np.array(counted))
    for stage, part in found.stages.items():
        assert sorted(found.values[part].tolist()) == at_once(rows, chunks, np.array(counted), stage)
    assert sum(part.stop - part.start for part in found.stages.values()) == len(found.values)


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
def test_answers_read_later_than_their_median_gap_are_found(piece: int) -> None:
    rows = made.blank(3)
    rows["chunk_count"], rows["chunk_start"] = 4, [0, 4, 8]
    rows["read_delay"] = [9, 11, -1]  # their median gap is 10
    arrival = np.array([[0, 10, 20, 40], [0, 0, 10, 20], [5, 5, 15, 25]], np.int64).reshape(-1)
    found = gather(made.run(rows, Chunks(arrival, np.ones(12, np.uint16)), piece=piece), np.ones(3, np.bool_))
    assert (found.read_late, found.merged) == (1, 1)


@pytest.mark.parametrize(
    ("start", "count"), [([0, 2], [3, 3]), ([-1, 2], [2, 2]), ([0, 3], [3, 9])], ids=["overlap", "before", "beyond"]
)
def test_slices_that_do_not_fit_the_chunks_are_an_error(start: list[int], count: list[int]) -> None:
    rows = made.blank(2)
    rows["chunk_start"], rows["chunk_count"] = start, count
    chunks = Chunks(np.arange(6, dtype=np.int64), np.ones(6, np.uint16))
    with pytest.raises(UserError, match="do not fit"):
        gather(made.run(rows, chunks), np.ones(2, np.bool_))


def test_no_chunks_no_gaps() -> None:
    assert len(gather(made.run(made.blank(3)), np.ones(3, np.bool_)).values) == 0


def test_a_gap_longer_than_32_bits_hold_and_one_that_goes_back_are_kept_exactly() -> None:
    """A wall clock that steps back makes a negative gap; a stall of over 4.29 s a long one."""
    rows = made.blank(1)
    rows["chunk_count"] = 4
    arrival = np.array([0, 5_000_000_000, 5_000_000_007, 5_000_000_002], np.int64)
    run = made.run(rows, Chunks(arrival, np.ones(4, np.uint16)), piece=2)
    assert sorted(gather(run, np.array([True])).values.tolist()) == [-5, 7, 5_000_000_000]
