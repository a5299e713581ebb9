"""Gaps gathered piece by piece are the same as gaps computed at once, for any size of pieces."""

import numpy as np
import pytest
import synthetic_run as made
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.analysis import blocks
from inferometer.analysis.gaps import Gaps, gather, tally
from inferometer.errors import UserError
from inferometer.records import Chunks


def tangled(counts: list[int], spare: list[int], stages: list[int]) -> tuple[np.ndarray, Chunks]:
    """Responses with these numbers of chunks, in random row order, with `spare` chunks that belong to no request between them."""
    rng = np.random.default_rng(len(counts))
    rows = made.blank(len(counts))
    start, arrivals = 0, []
    for index in rng.permutation(len(counts)):
        rows["chunk_start"][index], rows["chunk_count"][index] = start, counts[index]
        rows["stage"][index] = stages[index]
        arrivals.append(np.cumsum(rng.integers(0, 100, counts[index] + spare[index])))
        start += counts[index] + spare[index]
    arrival = np.concatenate(arrivals).astype(np.int64)
    return rows, Chunks(arrival, np.ones(len(arrival), np.uint16))


def at_once(rows: np.ndarray, chunks: Chunks, counted: np.ndarray, stage: int) -> list[int]:
    gaps = [
        np.diff(chunks.arrival[row["chunk_start"] : row["chunk_start"] + row["chunk_count"]])
        for row in rows[counted & (rows["stage"] == stage)]
    ]
    return sorted(int(gap) for each in gaps for gap in each)


responses = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1)


@given(responses, st.integers(1, 40))
@settings(deadline=None)
def test_pieces_of_any_size_give_the_same_gaps(responses: list[tuple[int, int, int, bool]], piece: int) -> None:
    counts, spare, stages, counted = (list(column) for column in zip(*responses, strict=True))
    rows, chunks = tangled(counts, spare, stages)
    found = gather(made.run(rows, chunks, piece=piece), np.array(counted))
    for stage, part in found.stages.items():
        assert sorted(found.values[part].tolist()) == at_once(rows, chunks, np.array(counted), stage)
    assert sum(part.stop - part.start for part in found.stages.values()) == len(found.values)


@given(responses, st.integers(1, 40), st.lists(st.integers(0, 300), max_size=3))
@settings(deadline=None)
def test_gaps_are_counted_by_the_block_in_which_they_end(
    responses: list[tuple[int, int, int, bool]], piece: int, limits: list[int]
) -> None:
    counts, spare, stages, counted = (list(column) for column in zip(*responses, strict=True))
    rows, chunks = tangled(counts, spare, stages)
    rows["done"] = 800
    run, mask = made.run(rows, chunks, piece=piece), np.array(counted)
    found = gather(run, mask)
    own = {stage for stage, part in found.stages.items() if part.stop > part.start}
    thresholds = {stage: {str(limit): float(limit) for limit in limits} for stage in own}
    result = tally(run, found.slices, found.slices.stage, thresholds)
    for stage in own:
        ends, gaps = [], []
        for row in rows[mask & (rows["stage"] == stage)]:
            arrival = chunks.arrival[row["chunk_start"] : row["chunk_start"] + row["chunk_count"]]
            ends += arrival[1:].tolist()
            gaps += np.diff(arrival).tolist()
        block = blocks.index(np.array(ends), 0, 800)
        assert result[stage].finite.tolist() == np.bincount(block, minlength=20).tolist()
        assert result[stage].sums == np.bincount(block, gaps, minlength=20).tolist()
        for limit in limits:
            above = block[np.array(gaps) > limit]
            assert result[stage].above[str(limit)].tolist() == np.bincount(above, minlength=20).tolist()


# --- read late -------------------------------------------------------------------------------------------------------


def late(found: Gaps) -> list[int]:
    """Responses that were read late and have a gap of 0."""
    return sorted(found.late_rows.tolist())


def reference(rows: np.ndarray, chunks: Chunks, counted: np.ndarray) -> tuple[list[int], list[int]]:
    """The rule of gaps.py, for one response at a time."""
    ends = zip(rows["chunk_start"].tolist(), rows["chunk_count"].tolist(), strict=True)
    own = [np.diff(chunks.arrival[start : start + count]).tolist() for start, count in ends]
    everything = [gap for gaps, counts in zip(own, counted, strict=True) for gap in gaps if counts]
    rows_late, first_zero = [], []
    for row in np.flatnonzero(counted).tolist():
        gaps = own[row]
        if not gaps:
            continue
        distinct = sorted(gap for gap in gaps if gap)
        if distinct:
            yardstick = min(distinct[len(distinct) // 2], sum(gaps) / len(gaps))
        else:
            yardstick = sum(everything) / len(everything)
        if rows["read_delay"][row] > yardstick / 4 and 0 in gaps:
            rows_late.append(row)
        if gaps[0] == 0:
            first_zero.append(row)
    return rows_late, first_zero


@given(responses, st.integers(1, 40), st.data())
@settings(deadline=None)
def test_late_responses_are_found_for_any_piece_size(
    responses: list[tuple[int, int, int, bool]], piece: int, data: st.DataObject
) -> None:
    sizes, spare, stages, counted = (list(column) for column in zip(*responses, strict=True))
    rows, chunks = tangled(sizes, spare, stages)
    some = st.lists(
        st.sampled_from([0, 0, 1, 8, 9, 10, 40]), min_size=len(chunks.arrival), max_size=len(chunks.arrival)
    )
    chunks = Chunks(np.cumsum(data.draw(some), dtype=np.int64), chunks.tokens)
    rows["read_delay"] = data.draw(st.lists(st.integers(-1, 12), min_size=len(rows), max_size=len(rows)))
    found = gather(made.run(rows, chunks, piece=piece), np.array(counted))
    zeros: dict[int, int] = {}
    for row in np.flatnonzero(counted).tolist():
        own = np.diff(chunks.arrival[rows["chunk_start"][row] :][: rows["chunk_count"][row]])
        zeros[stages[row]] = zeros.get(stages[row], 0) + int((own == 0).sum())
    assert {stage: count for stage, count in found.zeros.items() if count} == {
        stage: count for stage, count in zeros.items() if count
    }
    assert (late(found), sorted(found.first_zero.tolist())) == reference(rows, chunks, np.array(counted))


# --- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "count"), [([0, 2], [3, 3]), ([-1, 2], [2, 2]), ([0, 3], [3, 9])], ids=["overlap", "before", "beyond"]
)
def test_slices_that_do_not_match_the_chunks_are_an_error(start: list[int], count: list[int]) -> None:
    rows = made.blank(2)
    rows["chunk_start"], rows["chunk_count"] = start, count
    chunks = Chunks(np.arange(6, dtype=np.int64), np.ones(6, np.uint16))
    with pytest.raises(UserError, match="do not match"):
        gather(made.run(rows, chunks), np.ones(2, np.bool_))


def test_gaps_above_32_bits_and_negative_gaps_are_exact() -> None:
    """A wall clock that jumps back causes a negative gap; a stall of over 4.29 s causes a long one."""
    rows = made.blank(1)
    rows["chunk_count"] = 4
    arrival = np.array([0, 5_000_000_000, 5_000_000_007, 5_000_000_002], np.int64)
    run = made.run(rows, Chunks(arrival, np.ones(4, np.uint16)), piece=2)
    assert sorted(gather(run, np.array([True])).values.tolist()) == [-5, 7, 5_000_000_000]
