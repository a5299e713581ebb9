"""The summary as a whole, compared with a plain computation of its numbers."""

import math

import msgspec
import numpy as np
import pytest
import synthetic_run as made

from inferometer.analysis.metrics import METRICS
from inferometer.analysis.summary import Summary, summarise
from inferometer.analysis.window import mark
from inferometer.config.fields import Window
from inferometer.config.schema import Measure
from inferometer.records import Columns, Failure
from inferometer.report.json import encode

BUSY = (Failure("http_503", "busy"), Failure("dropped", ""), Failure("http_503", "very busy"))


def test_results_of_a_closed_run() -> None:
    rows, chunks = made.closed_rows()
    found = summarise(made.run(rows, chunks))
    assert found.verdict == "VALID"
    assert (found.counts.ok, found.counts.failed, found.counts.dropped, found.counts.by_failure) == (600, 0, 0, {})
    assert found.window.span == rows["done"].max() / 1e9
    rate = 8 / np.mean((rows["done"] - rows["intended"]) / 1e9)
    assert found.throughput.requests == pytest.approx(rate, rel=0.01)
    assert found.throughput.output_tokens == pytest.approx(10 * rate, rel=0.01)
    assert found.throughput.input_tokens == pytest.approx(64 * rate, rel=0.01)
    ttft = np.sort(rows["first_token"] - rows["sent"])
    assert found.metrics["ttft"].p50 == ttft[299] / 1e9 and found.metrics["ttft"].value("p99") == ttft[593] / 1e9
    gaps = np.sort(np.diff(chunks.arrival.reshape(600, 10), axis=1).reshape(-1))
    assert found.metrics["itl"].count == 5400 and found.metrics["itl"].p999 == gaps[5394] / 1e9
    assert found.stages == ()


def test_piece_size_does_not_change_the_summary() -> None:
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] % 3
    about = {"plan": (made.OPEN,) * 3}
    whole, tiny = (summarise(made.run(rows, chunks, piece=piece, **about)) for piece in (1 << 20, 7))
    assert encode(whole) == encode(tiny)


def test_stages_add_up_to_the_whole() -> None:
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] >= 400
    found = summarise(made.run(rows, chunks, plan=(made.OPEN, made.OPEN)))
    assert [stage.counts.ok for stage in found.stages] == [400, 200]
    assert sum(stage.metrics["itl"].count for stage in found.stages) == found.metrics["itl"].count == 5400
    gaps = np.diff(chunks.arrival.reshape(600, 10), axis=1)
    assert found.stages[1].metrics["itl"].max == gaps[400:].max() / 1e9
    assert found.metrics["itl"].max == gaps.max() / 1e9
    assert found.stages[1].window.start == rows["intended"][400] / 1e9


def test_a_stage_that_never_started_is_empty() -> None:
    rows, chunks = made.open_rows()
    found = summarise(made.run(rows, chunks, plan=(made.OPEN, made.CLOSED)))
    assert found.stages[1].counts.ok == 0 and found.stages[1].throughput.requests is None


def test_failures_are_counted_by_kind_and_excluded_from_latency() -> None:
    rows, chunks = made.open_rows()
    made.fail(rows, slice(0, 5), 1)
    made.fail(rows, [10], 3)
    made.never_sent(rows, [20, 21], 2)
    found = summarise(made.run(rows, chunks, failures=BUSY))
    assert (found.counts.ok, found.counts.failed, found.counts.dropped) == (592, 6, 2)
    assert found.counts.by_failure == {"http_503": 6}
    assert [(kind.code, kind.count, kind.message) for kind in found.failures] == [
        ("http_503", 6, "busy"),
        ("dropped", 2, ""),
    ]
    assert found.metrics["ttft"].count == found.metrics["e2e"].count == 592
    assert found.metrics["lag"].count == 598


def refused(which: list[int], **about: object) -> Summary:
    """An open-loop run of 600 requests, of which some failed, with the default settings."""
    rows, chunks = made.open_rows()
    made.fail(rows, which, 1)
    return summarise(made.run(rows, chunks, failures=BUSY, **({"config": {}} | about)))


def test_row_6_refusing_the_slowest_requests_does_not_improve_the_p99_of_ttft() -> None:
    rows, _ = made.open_rows()
    slowest = np.argsort(rows["first_token"] - rows["intended"])[-12:].tolist()
    before, after = refused([]).metrics["ttft"].value("p99"), refused(slowest).metrics["ttft"].value("p99")
    assert before is not None and after is not None and math.isfinite(before) and after == math.inf
    off = refused(slowest, config={"measure": {"failures_as_inf": False}}).metrics["ttft"]
    assert off.infinite == 0 and (off.value("p99") or 0) < before, "the old behaviour, on request"


def test_failures_count_as_infinite_in_ttft_and_e2e_and_nowhere_else() -> None:
    found = refused(list(range(0, 600, 50))).metrics
    assert {name for name, each in found.items() if each.infinite} == {
        "ttft",
        "ttft_content",
        "ttft_service",
        "e2e",
        "e2e_service",
    }
    e2e = found["e2e"]
    assert (e2e.count, e2e.infinite, e2e.value("p99")) == (600, 12, math.inf)
    assert math.isfinite(e2e.p95 or math.inf) and math.isfinite(e2e.max or math.inf) and e2e.mean is not None


def test_infinite_percentiles_are_words_in_json() -> None:
    stored = msgspec.json.decode(encode(refused(list(range(0, 600, 10)))))["metrics"]["e2e"]
    assert stored["p95"] == "inf" and stored["ci"]["p95"] == ["inf", "inf"] and stored["infinite"] == 60
    assert stored["p999"] == "inf" and not stored["supported"]["p999"] and stored["ci"]["p999"][1] is None


def test_cancelled_and_lost_requests_never_count_as_infinite() -> None:
    rows, chunks = made.open_rows()
    for number in (1, 2, 3, 4):
        made.never_sent(rows, list(range(number, 600, 100)), number)
    kinds = tuple(Failure(code, "") for code in ("dropped", "cancelled", "lost", "http_503"))
    assert summarise(made.run(rows, chunks, failures=kinds, config={})).metrics["e2e"].infinite == 12


def test_a_metric_that_does_not_apply_has_no_failures() -> None:
    rows = made.blank(100)
    rows["intended"] = rows["sent"] = np.arange(100) * made.SECOND
    rows["done"] = rows["sent"] + made.SECOND
    made.fail(rows, [3], 1)
    found = summarise(made.run(rows, failures=BUSY, config={})).metrics
    assert (found["ttft"].count, found["e2e"].infinite) == (0, 1)


def test_warmup_and_cooldown_are_left_out_and_do_not_bias_the_rate() -> None:
    rows, chunks = made.closed_rows()
    phase = mark(Columns.of(rows), Measure(Window("40"), Window("40")))
    found = summarise(made.run(rows, chunks, phase=phase))
    assert found.window.requests == {"warmup": 40, "steady": 520, "cooldown": 40}
    assert found.metrics["ttft"].count == found.counts.ok == 520
    assert found.throughput.requests == pytest.approx(8 / 0.140, rel=0.02)


def test_summary_of_an_empty_run() -> None:
    found = summarise(made.run(made.blank(0), sampled=()))
    assert found.verdict == "INVALID" and found.throughput.requests is None
    assert msgspec.json.decode(encode(found))["metrics"]["ttft"]["p50"] is None


def test_json_has_the_documented_layout() -> None:
    rows, chunks = made.closed_rows()
    tree = msgspec.json.decode(encode(summarise(made.run(rows, chunks))))
    assert list(tree)[:7] == ["schema", "verdict", "checks", "counts", "throughput", "metrics", "stages"]
    assert tree["schema"] == 3 and tree["stages"] == []
    assert set(tree["checks"][0]) == {"name", "status", "value", "limit", "message", "affects", "stages", "overstates"}
    assert list(tree["counts"]) == ["ok", "failed", "dropped", "by_failure", "retried"]
    assert set(tree["metrics"]) == set(METRICS)
    ttft = tree["metrics"]["ttft"]
    assert ttft["unit"] == "s" and ttft["p999"] > 0 and not ttft["supported"]["p999"]
    assert ttft["unsupported"]["p999"]["needs"] == 4603
    assert len(ttft["ci"]["p99"]) == 2 and {"count", "mean", "p50", "p90", "p95", "p99", "max"} <= set(ttft)
    assert {"ttft", "lag", "throughput.requests", "check.cpu"} <= set(tree["definitions"])


def test_a_token_rate_is_not_known_if_one_count_is_not() -> None:
    rows, chunks = made.closed_rows()
    rows["n_in"][300] = -1  # a later turn of a session, without the server's usage
    found = summarise(made.run(rows, chunks))
    assert found.throughput.input_tokens is None and found.throughput.total_tokens is None
    assert found.throughput.output_tokens is not None


def test_estimates_are_counted() -> None:
    rows, chunks = made.closed_rows()
    rows["streamed_tokens"][:7] = -1
    rows["chunk_count"][0] = 1
    found = summarise(made.run(rows, chunks)).metrics
    assert (found["tpot"].count, found["tpot"].estimated, found["tps_user"].estimated) == (599, 6, 6)
    assert found["ttft"].estimated == 0


def test_stages_of_the_same_load_are_pooled() -> None:
    """Stages as the manifest has them: they differ in their first ids and in how they start."""
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] >= 300
    second = msgspec.structs.replace(made.OPEN, name="again", first_id=300, drain=True)
    found = summarise(made.run(rows, chunks, plan=(made.OPEN, second)))
    assert found.metrics["e2e"].count == 600 and [stage.metrics["e2e"].count for stage in found.stages] == [300, 300]
