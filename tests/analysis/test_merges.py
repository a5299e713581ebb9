"""Which gaps the client may have merged, and what percentiles would be if it had not."""

import msgspec
import numpy as np
import pytest
import synthetic_run as made
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.analysis.checks.effect import percentiles_replacing
from inferometer.analysis.client_samples import TICK, Stalls
from inferometer.analysis.gaps import gather
from inferometer.analysis.merges import Merges, find
from inferometer.analysis.percentiles import PERCENTILES, needed, rank
from inferometer.records import Chunks, Run

MS, SECOND = made.MS, made.SECOND


def run_of(*responses: list[int], piece: int = 1000, stall: int = 2 * MS) -> Run:
    """Responses with these gaps in ms, all of them read late."""
    rows = made.blank(len(responses))
    rows["read_delay"] = 100 * MS
    rows["chunk_count"] = [len(gaps) + 1 for gaps in responses]
    rows["chunk_start"] = np.cumsum(rows["chunk_count"]) - rows["chunk_count"]
    arrival = np.concatenate([np.cumsum([7, *gaps]) for gaps in responses]).astype(np.int64) * MS
    rows["stage"] = np.arange(len(responses)) % 2
    chunks = Chunks(arrival, np.ones(len(arrival), np.uint16))
    return made.run(rows, chunks, piece=piece, sampled=made.samples(stall=stall))


def merges_of(run: Run) -> Merges:
    counted = np.ones(len(run.records.rows), np.bool_)
    return find(run, gather(run, counted), Stalls(run.records.samples))


def in_ms(merges: Merges) -> dict[int, list[int]]:
    return {stage: (gaps // MS).tolist() for stage, gaps in merges.gaps.items()}


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_zeros_and_the_gap_before_them_are_suspects(piece: int) -> None:
    found = merges_of(run_of([10, 20, 0, 10], [10, 30, 0, 0, 10], [10, 10], piece=piece, stall=25 * MS))
    assert in_ms(found) == {0: [0, 20], 1: [0, 0, 30]} and not len(found.first)


def test_first_chunks_have_no_gap_before_them() -> None:
    found = merges_of(run_of([0, 10, 10], [10, 20, 0], stall=25 * MS))
    assert in_ms(found) == {0: [0], 1: [0, 20]}
    assert found.first.tolist() == [0] and found.first_by.tolist() == [25 * MS + TICK]


def test_chunks_are_in_doubt_only_if_the_loop_was_blocked_for_long_enough() -> None:
    """Four chunks 10 ms apart are merged if they wait for 30 ms or more. A tick may miss 5 ms of a stall."""
    nagle = [40, 0, 0, 0] * 10
    assert merges_of(run_of(nagle, stall=24 * MS)).gaps == {}
    assert in_ms(merges_of(run_of(nagle, stall=26 * MS))) == {0: [0] * 30 + [40] * 10}


def test_a_pause_before_merged_chunks_does_not_excuse_the_client() -> None:
    """The server paused for 200 ms, and then the client merged two chunks 10 ms apart."""
    assert in_ms(merges_of(run_of([10] * 30 + [210, 0], stall=14 * MS))) == {0: [0, 210]}


def test_everything_is_in_doubt_without_samples() -> None:
    run = run_of([400, 0, 400, 0])
    records = msgspec.structs.replace(run.records, samples=())
    assert in_ms(merges_of(msgspec.structs.replace(run, records=records))) == {0: [0, 0, 400, 400]}


def test_a_stall_counts_at_its_time_and_for_its_process() -> None:
    early, late = (
        tuple(s for s in made.samples(stall=50 * MS) if (s.at > 3 * SECOND) == is_late) for is_late in (0, 1)
    )
    quiet = tuple(msgspec.structs.replace(s, stall=0) for s in early)
    stalls = Stalls(quiet + late + made.samples(shard=1, stall=MS))
    at = np.array([SECOND, 2 * SECOND, 4 * SECOND, 9 * SECOND, 4 * SECOND])
    assert stalls.around(np.array([0, 0, 0, 0, 1], np.int16), at).tolist() == [0, 0, 50 * MS, 50 * MS, MS]


def test_merged_gaps_were_probably_the_mean_gap_and_the_rest() -> None:
    found = merges_of(run_of([10] * 30 + [210, 0], [0, 10, 20], stall=14 * MS))
    assert {stage: (gaps / MS).round().tolist() for stage, gaps in found.likely.items()} == {0: [16, 194], 1: [10]}


@given(st.lists(st.integers(0, 20), min_size=10, max_size=700), st.data())
@settings(deadline=None, max_examples=50)
def test_percentiles_replacing_suspects_are_those_of_the_replaced_values(
    values: list[int], data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(0, len(values)))
    likely = data.draw(st.lists(st.integers(0, 25), min_size=chosen, max_size=chosen))
    replaced = sorted(values[chosen:] + likely)
    suspects, likely_gaps = (np.array(sorted(some), np.int64) for some in (values[:chosen], likely))
    found = percentiles_replacing(np.array(values, np.uint32), suspects, likely_gaps, list(PERCENTILES))
    assert found == {
        name: replaced[rank(thousandths, len(replaced)) - 1] / SECOND
        for name, thousandths in PERCENTILES.items()
        if len(replaced) >= needed(thousandths)
    }
