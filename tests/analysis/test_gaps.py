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


def of_gaps(*responses: tuple[int, list[int]], piece: int = 1000) -> Gaps:
    """Gaps gathered from responses, each with a read delay and gaps."""
    rows = made.blank(len(responses))
    rows["read_delay"] = [delay for delay, _ in responses]
    rows["chunk_count"] = [len(gaps) + 1 for _, gaps in responses]
    rows["chunk_start"] = np.cumsum(rows["chunk_count"]) - rows["chunk_count"]
    arrival = np.concatenate([np.cumsum([7, *gaps]) for _, gaps in responses]).astype(np.int64)
    run = made.run(rows, Chunks(arrival, np.ones(len(arrival), np.uint16)), piece=piece)
    return gather(run, np.ones(len(rows), np.bool_))


def counts(found: Gaps) -> tuple[int, int, list[int]]:
    return found.read_late, found.merged, sorted(found.first_merged.tolist())


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
@pytest.mark.parametrize(("delay", "late"), [(-1, 0), (0, 0), (10, 0), (11, 1), (39, 1), (500, 1)])
def test_a_response_is_read_late_above_a_quarter_of_its_gap(delay: int, late: int, piece: int) -> None:
    even, merged = [40, 40, 40], [0, 80, 40, 0, 80]
    found = of_gaps((0, even), (delay, merged), (0, even), piece=piece)
    assert counts(found) == (late, 2 * late, [1] * late)


def test_the_first_gap_is_distinguished_from_later_ones() -> None:
    assert counts(of_gaps((20, [40, 0, 80]), (20, [0, 40, 40]), (20, [40, 40]))) == (3, 2, [1])


def test_a_server_that_writes_in_pairs_is_not_read_late() -> None:
    pairs = [0, 1000, 0, 1000, 0]
    assert counts(of_gaps((60, pairs), (99, pairs))) == (0, 0, [])


def test_chunks_merged_ten_at_a_time_are_found_by_the_mean_gap() -> None:
    assert counts(of_gaps((30, ([0] * 9 + [1000]) * 3))) == (1, 27, [0])


def test_one_long_gap_does_not_hide_late_reads() -> None:
    assert counts(of_gaps((30, [0, 100, 100, 100, 50_000]))) == (1, 1, [0])


def test_a_response_with_only_zero_gaps_uses_the_mean_of_all_responses() -> None:
    even = (0, [100, 100, 100, 100])
    assert counts(of_gaps(even, (20, [0]), even)) == (0, 0, [])
    assert counts(of_gaps(even, (30, [0]), even)) == (1, 1, [1])
    assert counts(of_gaps((1, [0, 0]), (0, [0]))) == (1, 2, [0])


def test_a_response_without_a_known_read_delay_is_not_read_late() -> None:
    assert counts(of_gaps((-1, [0, -50]), (0, [0, -50]))) == (0, 0, [])


def reference(rows: np.ndarray, chunks: Chunks, counted: np.ndarray) -> tuple[int, int, list[int]]:
    """The rule of gaps.py, for one response at a time."""
    ends = zip(rows["chunk_start"].tolist(), rows["chunk_count"].tolist(), strict=True)
    own = [np.diff(chunks.arrival[start : start + count]).tolist() for start, count in ends]
    everything = [gap for gaps, counts in zip(own, counted, strict=True) for gap in gaps if counts]
    late = []
    for row in np.flatnonzero(counted).tolist():
        gaps = own[row]
        if not gaps:
            continue
        distinct = sorted(gap for gap in gaps if gap)
        if distinct:
            yardstick = min(distinct[len(distinct) // 2], sum(gaps) / len(gaps))
        else:
            yardstick = sum(everything) / len(everything)
        if rows["read_delay"][row] > yardstick / 4:
            late.append(row)
    return len(late), sum(own[row].count(0) for row in late), [row for row in late if own[row][0] == 0]


@given(responses, st.integers(1, 40), st.data())
@settings(deadline=None)
def test_merged_chunks_are_counted_correctly_for_any_piece_size(
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
    assert counts(found) == reference(rows, chunks, np.array(counted))


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


def test_no_chunks_no_gaps() -> None:
    assert len(gather(made.run(made.blank(3)), np.ones(3, np.bool_)).values) == 0


def test_gaps_above_32_bits_and_negative_gaps_are_exact() -> None:
    """A wall clock that jumps back causes a negative gap; a stall of over 4.29 s causes a long one."""
    rows = made.blank(1)
    rows["chunk_count"] = 4
    arrival = np.array([0, 5_000_000_000, 5_000_000_007, 5_000_000_002], np.int64)
    run = made.run(rows, Chunks(arrival, np.ones(4, np.uint16)), piece=2)
    assert sorted(gather(run, np.array([True])).values.tolist()) == [-5, 7, 5_000_000_000]
