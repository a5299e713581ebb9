"""What `run` and the other commands that measure say last on a terminal."""

import sys
from pathlib import Path

import pytest
import synthetic_run as made

from inferometer.analysis.summary import Summary, summarise
from inferometer.cli.uploads import finish
from inferometer.report.closing import conclusion
from inferometer.store.folder import point_latest


def summary(*slos: str, late: int = 0, count: int = 600) -> Summary:
    rows, chunks = made.open_rows(count=count)
    chunks.arrival.reshape(count, -1)[:20] += late
    for name in ("sent", "first_byte", "first_token", "last_token", "done"):
        rows[name][:20] += late
    return summarise(made.run(rows, chunks, plan=(made.OPEN,)), slos)


def test_the_answer_is_a_sentence_with_the_cause_if_there_is_one() -> None:
    (valid,) = conclusion(summary())
    assert valid.startswith("100.7 requests/s, ") and "time to first token 50.10 ms (p99 54.36 ms), end to end" in valid
    assert conclusion(summary("ttft.p99 < 5s"))[0].startswith("the server meets ttft.p99 < 5s: it is 0.05")
    assert conclusion(summary("ttft.p99 < 5s", "e2e.p99 < 9s")) == ["the server meets all objectives"]
    assert conclusion(summary("ttft.p99 < 5s", "e2e.p99 < 9ms"))[0].startswith(
        "the server misses e2e.p99 < 9ms: it is 1"
    )
    assert "too short to decide ttft.p99 < 58ms" in conclusion(summary("ttft.p99 < 58ms", count=300))[0]
    invalid = conclusion(summary(late=20 * made.MS))
    assert invalid[0] == "INVALID: may be quoted: throughput, not latency"
    assert invalid[1].startswith("cause: lag: Latencies include the client's own lag")
    passed = conclusion(summary("ttft.p99 < 5s", late=20 * made.MS))
    assert passed[0].startswith("the server meets") and passed[1].startswith("INVALID by lag: this answer holds")


@pytest.mark.parametrize("is_latest", [True, False])
def test_the_last_line_on_a_terminal_is_how_to_open_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_latest: bool
) -> None:
    run = tmp_path / "runs" / "a run"
    run.mkdir(parents=True)
    if is_latest:
        point_latest(run)
    monkeypatch.chdir(tmp_path)
    assert finish(run, 1, quiet=False, answer=["the answer"]) == 1
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert finish(run, 1, quiet=True, answer=["the answer"]) == 1
    assert capsys.readouterr().err == ""
    assert finish(run, 1, quiet=False, answer=["the answer"]) == 1
    shown = "runs/LATEST" if is_latest else "'runs/a run'"
    assert capsys.readouterr().err == f"the answer\nopen it: inferometer report {shown} --open\n"
