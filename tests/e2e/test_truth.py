"""Compares the client's records with the server's own log of the same requests, one by one.

Both read CLOCK_MONOTONIC of the same machine. The server stamps a chunk just before it hands it to the kernel; the client's stamp
says when the kernel received it for the client. So the client's stamp may be later, by however long the machine took, but it must
not be earlier, except for the error in converting the kernel's wall-clock stamps to the monotonic clock.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import measure

from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim import truth
from inferometer.serve.sim.settings import Batch, Fixed
from inferometer.timing.clock import wall_offset

TOLERANCE = 50_000
"""Nanoseconds."""

CLOSED = {"type": "closed", "concurrency": 8, "requests": 40}
OPEN = {"type": "poisson", "rate": 200, "requests": 60}


def id_of(row: truth.Row) -> int:
    """Return the request's id: it ends the X-Request-Id."""
    return int((row.id or "").rpartition("-")[2], 16)


class Both:
    """One run as the client recorded it and as the server logged it, both in order of the ids."""

    def __init__(self, run: Run, summary: Summary, log: list[truth.Row]) -> None:
        self.run, self.summary = run, summary
        self.rows = np.sort(run.records.rows, order="id")
        self.truth = sorted(log, key=id_of)
        self.arrival = np.concatenate([piece.arrival for piece in run.chunks()])
        self.t0 = run.manifest.t0_wall_ns - wall_offset()
        """On the monotonic clock; as accurate as the offset is steady."""

    def stamps(self) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Return (the client's, the server's) stamps of each request's chunks."""
        return [
            (self.arrival[row["chunk_start"] : row["chunk_start"] + row["chunk_count"]], np.array(logged.chunks))
            for row, logged in zip(self.rows, self.truth, strict=True)
        ]


def run_both(folder: Path, settings: dict[str, Any], **sections: Any) -> Both:
    log = folder / "truth.jsonl"
    sections.setdefault("data", {"type": "synthetic", "input": 20, "output": 12})
    sections["server"] = {"model": "sim"} | sections.get("server", {})
    with running(simulator(truth=str(log), **settings)) as url:
        run, summary = measure(folder / "runs", url, **sections)
    return Both(run, summary, truth.read(log))


@pytest.fixture(
    scope="module",
    params=[
        "chat closed",
        pytest.param("completions closed", marks=pytest.mark.slow),
        pytest.param("chat open", marks=pytest.mark.slow),
        "batch open",
        pytest.param("chunky", marks=pytest.mark.slow),
    ],
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    kind = request.param
    timing = Batch(decode_step=0.002, prefix_cache=True) if "batch" in kind else Fixed(ttft=0.03, itl=0.002)
    settings = {"timing": timing, "tokens_per_chunk": 5 if kind == "chunky" else 1}
    api = "completions" if "completions" in kind else "chat"
    load = OPEN if "open" in kind else CLOSED
    found = run_both(tmp_path_factory.mktemp("truth"), settings, server={"api": api}, load=load)
    if found.run.manifest.clock["stamps"] != "kernel":
        pytest.skip("no kernel stamps here: the client's own may be as late as it likes")
    return found


def test_every_request_is_in_both_records_and_succeeded(both: Both) -> None:
    assert both.summary.counts.failed == 0
    assert [id_of(row) for row in both.truth] == both.rows["id"].tolist() == list(range(len(both.rows)))


def test_counts_agree_exactly(both: Both) -> None:
    assert both.rows["n_in"].tolist() == [row.n_in for row in both.truth]
    assert both.rows["n_out"].tolist() == [row.n_out for row in both.truth]
    assert both.rows["cached"].tolist() == [row.cached for row in both.truth]
    assert both.rows["chunk_count"].tolist() == [len(row.chunks) for row in both.truth]


def test_no_request_reached_the_server_before_it_was_sent(both: Both) -> None:
    arrived = np.array([row.arrived for row in both.truth]) - both.t0
    assert (arrived - both.rows["sent"] >= -TOLERANCE).all()


def test_no_chunk_reached_the_client_before_the_server_wrote_it(both: Both) -> None:
    for ours, theirs in both.stamps():
        assert (ours - (theirs - both.t0) >= -TOLERANCE).all()


def test_first_and_last_token_are_the_first_and_last_content_chunk(both: Both) -> None:
    for row, (ours, _) in zip(both.rows, both.stamps(), strict=True):
        assert (row["first_token"], row["last_token"]) == (ours[0], ours[-1])


def test_time_to_first_token_is_never_less_than_the_servers(both: Both) -> None:
    """The client measures from the send to the first token, the server from the arrival to the first write."""
    served = np.array([(row.first or 0) - row.arrived for row in both.truth])
    assert (both.rows["first_token"] - both.rows["sent"] - served >= -TOLERANCE).all()


def test_chunks_arrive_in_order(both: Both) -> None:
    for ours, theirs in both.stamps():
        assert (np.diff(ours) >= 0).all()
        assert (np.diff(theirs) >= 0).all()


def test_empty_role_chunk_is_not_the_first_token(tmp_path: Path) -> None:
    ttft = 1  # longer than a busy machine takes to deliver the chunk before it
    both = run_both(tmp_path, {"timing": Fixed(ttft=ttft, itl=0.001)}, load={**CLOSED, "requests": 8})
    rows = both.rows
    assert ((rows["first_byte"] - rows["sent"]) < ttft * 1e9).any()
    assert (rows["first_token"] - rows["sent"] >= ttft * 1e9 - TOLERANCE).all()
    assert rows["chunk_count"].tolist() == [12] * 8


# --- a server that freezes -------------------------------------------------------------------------------------------


def test_freeze_of_the_server_counts_for_all_requests_that_had_to_wait(tmp_path: Path) -> None:
    """Open loop at 100 requests per second with a cap of 2; the server freezes once for 600 ms.

    The requests planned for that time are sent late. Measured from the intended instant, all of them waited, the k-th one for
    600 ms - 10 ms k; measured from the send, only the two in flight did. A client that measures from the send would report two.
    """
    both = run_both(
        tmp_path,
        {"timing": Fixed(ttft=0.001, itl=0), "faults": ("freeze=600ms@t=500ms",)},
        data={"type": "prompts", "prompts": ["hello"], "output": 1},
        load={"type": "constant", "rate": 100, "duration": "2s", "max_concurrency": 2},
    )
    rows, summary = both.rows, both.summary
    assert summary.counts.ok == len(rows) == 200
    from_intended, from_sent = rows["first_token"] - rows["intended"], rows["first_token"] - rows["sent"]
    slow = 200_000_000
    assert (from_intended >= slow).sum() >= 30
    assert (from_sent >= slow).sum() <= 2 + (from_intended >= slow).sum() // 4
    assert from_intended.sum() - from_sent.sum() >= 30 * slow
    assert np.array_equal(from_intended - from_sent, rows["sent"] - rows["intended"])
    ttft, service = summary.metrics["ttft"], summary.metrics["ttft_service"]
    assert (ttft.value("p90") or 0) > (service.value("p90") or 0)
    assert (ttft.value("p99") or 0) > 0.3
    held = rows["held"][from_intended >= slow]
    assert held.sum() > 30 * slow


@pytest.mark.slow
def test_without_a_cap_requests_are_sent_during_the_freeze_and_count_on_both_clocks(tmp_path: Path) -> None:
    both = run_both(
        tmp_path,
        {"timing": Fixed(ttft=0.001, itl=0), "faults": ("freeze=1s@t=300ms",)},
        data={"type": "prompts", "prompts": ["hello"], "output": 1},
        load={"type": "constant", "rate": 100, "duration": "1500ms"},
        client={"connections": 120},
    )
    rows = both.rows
    assert both.summary.counts.ok == 150
    slow = 100_000_000
    assert (rows["first_token"] - rows["sent"] >= slow).sum() >= 15
    assert ((rows["sent"] - rows["intended"]).sum()) < (rows["first_token"] - rows["sent"]).sum()
