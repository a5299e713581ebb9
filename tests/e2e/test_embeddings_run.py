"""A whole run against the simulator's /v1/embeddings."""

from pathlib import Path

from helpers import measure

from inferometer.report import console
from inferometer.workload.tokenizer import load


def test_a_run_has_times_and_input_tokens_and_no_output_tokens(tmp_path: Path, sim: str) -> None:
    server = {"model": "sim", "api": "embeddings", "body": {"dimensions": 8}}
    run, summary = measure(tmp_path, sim, server=server)
    assert summary.counts.ok == 6
    assert summary.counts.failed == 0
    e2e, n_in = summary.metrics["e2e"], summary.metrics["input_tokens"]
    assert e2e.count == 6 and e2e.min is not None and e2e.min >= 0.01
    assert n_in.mean == load(None).count("hello")
    for name in ("ttft", "itl", "tpot", "output_tokens"):
        assert summary.metrics[name].count == 0
    assert not {"token_source", "answers"} & {check.name for check in summary.checks}
    report = console.render(run, summary)
    assert "embeddings" in report and "input tokens/s" in report
    assert "output tokens" not in report


def test_a_request_that_fails_is_counted_by_its_status(tmp_path: Path, sim: str) -> None:
    _, summary = measure(tmp_path, sim, server={"model": "other", "api": "embeddings"})
    assert summary.counts.by_failure == {"http_404": 6}
