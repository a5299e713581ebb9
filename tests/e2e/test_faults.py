"""Server faults, one at a time, end to end: each has its own failure code, and the server's message is kept."""

from pathlib import Path
from typing import Any

import pytest
from helpers import measure

from inferometer.analysis.summary import Summary
from inferometer.records import MISSING, Run
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Batch, Fixed

REJECTED, FAILED = "injected fault: request rejected", "injected fault: request failed"
WANTED = 8
"""Output tokens of each request."""
STREAMED_CHAT = {"api": "chat"}
STREAMED_COMPLETIONS = {"api": "completions"}
UNSTREAMED_CHAT = {"api": "chat", "stream": False}
UNSTREAMED_COMPLETIONS = {"api": "completions", "stream": False}
STREAMED = {"chat": STREAMED_CHAT, "completions": STREAMED_COMPLETIONS}
UNSTREAMED = {"unstreamed chat": UNSTREAMED_CHAT, "one-piece completions": UNSTREAMED_COMPLETIONS}


def first_quick(servers: dict[str, dict[str, Any]]) -> list[Any]:
    """The servers as parameters of a test; all but the first are left to CI."""
    return [
        pytest.param(server, id=name, marks=[pytest.mark.slow] if number else [])
        for number, (name, server) in enumerate(servers.items())
    ]


def run_with_fault(folder: Path, url: str, fault: str, server: dict[str, Any], **more: Any) -> tuple[Run, Summary]:
    """Send four requests, two at a time, each with the fault."""
    headers = {"headers": {"x-sim-fault": fault}} if fault else {}
    return measure(
        folder,
        url,
        server={"model": "sim"} | headers | server,
        data={"type": "prompts", "prompts": ["hello there"], "output": WANTED},
        load={"type": "closed", "concurrency": 2, "requests": 4},
        **more,
    )


# --- failures --------------------------------------------------------------------------------------------------------

IN_A_STREAM = {
    "reject=503": ("http_503", REJECTED),
    "reject=429": ("http_429", REJECTED),
    "reset": ("reset", ""),
    "error_body": ("error_body", FAILED),
    "html": ("not_json", "a web page: Welcome"),
    "empty": ("empty", "finish_reason length, completion_tokens 0"),
    "abort": ("reset", ""),
    "cut": ("cut_short", ""),
    "truncate": ("truncated", ""),
    "error_frame": ("error_frame", FAILED),
    "garbage": ("malformed_json", "garbage"),
}
IN_ONE_PIECE = {
    "reject=500": ("http_500", REJECTED),
    "reset": ("reset", ""),
    "error_body": ("error_body", FAILED),
    "html": ("not_json", "a web page: Welcome"),
    "empty": ("empty", "finish_reason length, completion_tokens 0"),
    "abort": ("reset", ""),
    "cut": ("cut_short", ""),
    "truncate": ("malformed_json", ""),
    "error_frame": ("error_body", FAILED),
}


@pytest.mark.parametrize(("fault", "code", "message"), [(k, *v) for k, v in IN_A_STREAM.items()], ids=[*IN_A_STREAM])
@pytest.mark.parametrize("server", first_quick(STREAMED))
def test_fault_in_a_stream(
    tmp_path: Path, sim: str, server: dict[str, Any], fault: str, code: str, message: str
) -> None:
    run, summary = run_with_fault(tmp_path, sim, fault, server)
    assert_all_failed(run, summary, code, message)
    begun = fault in ("abort", "cut", "truncate", "error_frame", "garbage")
    assert (run.records.rows["chunk_count"] == (WANTED // 2 if begun else 0)).all()
    assert ((run.records.rows["first_token"] != MISSING) == begun).all()


@pytest.mark.parametrize(("fault", "code", "message"), [(k, *v) for k, v in IN_ONE_PIECE.items()], ids=[*IN_ONE_PIECE])
@pytest.mark.parametrize("server", first_quick(UNSTREAMED))
def test_fault_in_a_response_that_is_not_streamed(
    tmp_path: Path, sim: str, server: dict[str, Any], fault: str, code: str, message: str
) -> None:
    run, summary = run_with_fault(tmp_path, sim, fault, server)
    assert_all_failed(run, summary, code, message)


@pytest.mark.parametrize("server", [STREAMED_CHAT, UNSTREAMED_CHAT], ids=["streamed", "whole"])
def test_responses_without_a_token_make_the_run_invalid(tmp_path: Path, sim: str, server: dict[str, Any]) -> None:
    """A server that responds with [DONE] and no token generates nothing, and must not pass as a fast one."""
    run, summary = run_with_fault(tmp_path, sim, "empty", server | {"usage": False})
    assert_all_failed(run, summary, "empty", "finish_reason length")
    assert set(run.records.rows["status"]) == {200}


def assert_all_failed(run: Run, summary: Summary, code: str, message: str) -> None:
    assert summary.counts.by_failure == {code: 4}
    assert (summary.counts.ok, summary.counts.failed, summary.verdict) == (0, 4, "INVALID")
    assert message in summary.failures[0].message
    assert (run.records.rows["done"] != MISSING).all()
    assert [summary.metrics[name].infinite for name in ("ttft", "e2e", "tpot")] == [4, 4, 0], (
        "failures are infinitely slow"
    )


@pytest.mark.parametrize("server", [STREAMED_CHAT, UNSTREAMED_CHAT], ids=["streamed", "whole"])
def test_stall_beyond_the_limit_is_a_timeout_and_does_not_affect_the_next_request(
    tmp_path: Path, sim: str, server: dict[str, Any]
) -> None:
    limit = {"idle": "100ms"} if server.get("stream", True) else {"total": "100ms"}
    run, summary = run_with_fault(tmp_path, sim, "stall=5s", server | {"timeouts": limit})
    assert summary.counts.by_failure == {"idle_timeout" if "idle" in limit else "total_timeout": 4}
    assert sorted(run.records.rows["id"].tolist()) == [0, 1, 2, 3]


def test_stall_within_the_limit_is_not_a_failure(tmp_path: Path, sim: str) -> None:
    run, summary = run_with_fault(tmp_path, sim, "stall=150ms", STREAMED_CHAT | {"timeouts": {"idle": "5s"}})
    assert summary.counts.ok == 4
    assert (run.records.rows["done"] - run.records.rows["sent"]).min() >= 150_000_000


def test_full_queue_is_a_503_with_the_servers_reason(tmp_path: Path) -> None:
    timing = Fixed(ttft=1, itl=0.001, max_batch=1)  # long enough for the others to arrive, even on a busy machine
    with running(simulator(timing=timing, max_queue=0)) as url:
        _, summary = measure(
            tmp_path,
            url,
            server={"model": "sim"},
            load={"type": "constant", "rate": 1000, "requests": 10},
        )
    assert summary.counts.by_failure["http_503"] >= 1
    assert summary.failures[0].message == "the queue is full"


def test_wrong_model_is_a_404_with_the_servers_reason(tmp_path: Path, sim: str) -> None:
    _, summary = run_with_fault(tmp_path, sim, "", {"model": "gpt-x"})
    assert summary.counts.by_failure == {"http_404": 4}
    assert "'gpt-x' does not exist" in summary.failures[0].message


def test_each_kind_of_occasional_failure_is_counted(tmp_path: Path) -> None:
    faults = ("reject=503@#2", "truncate@#5", "reset@#7")
    with running(simulator(timing=Fixed(ttft=0.001, itl=0.0001), faults=faults)) as url:
        _, summary = measure(
            tmp_path,
            url,
            server={"model": "sim"},
            load={"type": "closed", "concurrency": 1, "requests": 10},
            limits={"failures": 0.5},
        )
    assert summary.counts.by_failure["http_503"] == summary.counts.by_failure["truncated"] == 1
    assert summary.counts.ok + summary.counts.failed == 10
    failed = next(check for check in summary.checks if check.name == "failures")
    assert failed.status == "pass"


# --- harmless --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "fault"),
    [(STREAMED_CHAT, fault) for fault in ("split=3", "split=1", "close", "freeze=30ms")]
    + [(STREAMED_COMPLETIONS, fault) for fault in ("split=3", "close")]
    + [(UNSTREAMED_CHAT, fault) for fault in ("split=1", "close")]
    + [(UNSTREAMED_COMPLETIONS, "split=3")],
)
def test_unusual_but_valid_responses_are_measured(tmp_path: Path, sim: str, server: dict[str, Any], fault: str) -> None:
    run, summary = run_with_fault(tmp_path, sim, fault, server)
    assert_all_good(run, summary, WANTED if server.get("stream", True) else 0)


@pytest.mark.parametrize("tokens_per_chunk", [3, 100])
def test_several_tokens_a_chunk(tmp_path: Path, tokens_per_chunk: int) -> None:
    timing = Fixed(ttft=0.005, itl=0.001)
    with running(simulator(timing=timing, tokens_per_chunk=tokens_per_chunk)) as url:
        run, summary = run_with_fault(tmp_path, url, "", STREAMED_CHAT)
    assert_all_good(run, summary, -(-WANTED // tokens_per_chunk))


@pytest.mark.parametrize("timing", [Fixed(ttft=0.005, itl=0.001, jitter=1.0), Batch(decode_step=0.001, jitter=0.5)])
def test_jitter(tmp_path: Path, timing: Fixed | Batch) -> None:
    with running(simulator(timing=timing)) as url:
        run, summary = run_with_fault(tmp_path, url, "", STREAMED_COMPLETIONS)
    assert_all_good(run, summary, WANTED)


def assert_all_good(run: Run, summary: Summary, chunks: int) -> None:
    rows = run.records.rows
    assert (summary.counts.ok, summary.counts.by_failure) == (4, {})
    assert rows["n_out"].tolist() == [WANTED] * 4
    assert (rows["n_in"] > 0).all()
    assert rows["chunk_count"].tolist() == [chunks] * 4
    assert summary.tokens_counted_by == {"server": 4}
    arrivals = next(run.chunks(), None)
    assert (0 if arrivals is None else len(arrivals.arrival)) == 4 * chunks
