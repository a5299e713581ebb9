"""Statistics of sessions, from rows that are written by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import queues

from inferometer.analysis.sessions import summarise
from inferometer.records import ROW, UNKNOWN
from inferometer.units import NS


def rows_of(*sessions: Sequence[tuple[float, float, float, int]], planned: int = 2) -> Any:
    """Rows from (intended, first token, done, failure) in seconds, one sequence for each session; 10 tokens in, 4 cached, 5 out."""
    flat = [(number, turn, *each) for number, session in enumerate(sessions) for turn, each in enumerate(session)]
    rows = np.zeros(len(flat), ROW)
    for name in UNKNOWN:
        rows[name] = -1
    rows["id"] = np.arange(len(flat))
    for index, (session, turn, intended, first, done, failure) in enumerate(flat):
        rows[index]["session"], rows[index]["turn"], rows[index]["turns"] = session, turn, planned
        rows[index]["intended"] = rows[index]["sent"] = int(intended * NS)
        rows[index]["first_token"], rows[index]["done"] = int(first * NS), int(done * NS)
        rows[index]["failure"] = failure
    rows["open_loop"] = 1
    rows["n_in"], rows["cached"], rows["n_out"] = 10 * (rows["turn"] + 1), 4, 5
    return rows


def summary_of(rows: Any) -> Any:
    run = queues.run(rows, queues.stage(5, 60))
    return summarise(run, np.ones(len(rows), np.bool_))


def test_a_session_lasts_from_its_first_turn_to_its_last_response() -> None:
    found = summary_of(rows_of([(0, 0.1, 1, 0), (3, 3.2, 4, 0)], [(1, 1.1, 2, 0), (2, 2.2, 3, 0)]))
    assert (found.ok, found.failed, found.cut) == (2, 0, 0)
    assert (found.metrics["duration"].min, found.metrics["duration"].max) == (2.0, 4.0)
    totals = {name: found.metrics[name].mean for name in ("turns", "input_tokens", "output_tokens", "cached_tokens")}
    assert totals == {"turns": 2, "input_tokens": 30, "output_tokens": 10, "cached_tokens": 8}
    assert abs(found.metrics["cached_share"].mean - 8 / 30) < 1e-12


def test_ttft_by_turn() -> None:
    found = summary_of(rows_of([(0, 0.1, 1, 0), (3, 3.2, 4, 0)], [(1, 1.1, 2, 0), (2, 2.2, 3, 0)]))
    means = {turn: round(each.mean, 6) for turn, each in found.ttft_by_turn.items()}
    assert means == {"1": 0.1, "2": 0.2}


def test_failed_and_unfinished_sessions_are_counted_apart() -> None:
    whole, failed, cut = [(0, 0.1, 1, 0), (2, 2.1, 3, 0)], [(0, 0.1, 1, 0), (2, 2.1, 3, 1)], [(0, 0.1, 1, 0)]
    found = summary_of(rows_of(whole, failed, cut))
    assert (found.ok, found.failed, found.cut) == (1, 1, 1)
    assert found.metrics["duration"].count == 1


def test_tokens_that_a_turn_does_not_know_are_left_out() -> None:
    rows = rows_of([(0, 0.1, 1, 0), (3, 3.2, 4, 0)], [(1, 1.1, 2, 0), (2, 2.2, 3, 0)])
    rows["cached"][0] = -1
    found = summary_of(rows)
    assert (found.metrics["cached_tokens"].count, found.metrics["input_tokens"].count) == (1, 2)


def test_requests_without_sessions_have_no_summary() -> None:
    rows = rows_of([(0, 0.1, 1, 0)], planned=-1)
    rows["session"] = rows["turn"] = -1
    assert summary_of(rows) is None
