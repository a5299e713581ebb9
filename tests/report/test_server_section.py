"""The section about the server's metrics, rendered from hand-made views, and the verdict above it."""

import msgspec
import pytest
import synthetic_run as made

from inferometer.analysis.server_view import Comparison, ServerView
from inferometer.analysis.summary import Summary, summarise
from inferometer.records import Run, StagePlan
from inferometer.report import console
from inferometer.server_metrics.figures import CounterFigure, Figures, GaugeFigure, HistogramFigure

URL = "http://127.0.0.1:8000/metrics"
LANGUAGE_MODEL = ServerView(
    Figures(
        gauges={
            "running": GaugeFigure(11.83, 16.0),
            "waiting": GaugeFigure(12.0, 31.0),
            "kv_cache_use": GaugeFigure(0.4512, 0.98),
        },
        counters={
            "requests": CounterFigure(600),
            "preemptions": CounterFigure(14),
            "input_tokens": CounterFigure(38_400),
        },
        histograms={
            "ttft": HistogramFigure(600, 0.048, {"p50": 0.047, "p90": 0.05, "p99": 0.06}),
            "queue_time": HistogramFigure(600, 0.0123, {"p50": 0.01, "p90": 0.025, "p99": 0.04}),
        },
        missing={"decode_time": "no observations", "itl": "no observations"},
        servers={URL: "vllm"},
    ),
    {
        "requests": Comparison(600, 600, "requests"),
        "input_tokens": Comparison(38_400, 38_700, "tokens"),
        "ttft.mean": Comparison(0.05, 0.048, "s"),
        "ttft.p99": Comparison(0.054, 0.06, "s"),
    },
    ("the server queued: 12 requests waiting on average (at most 31); its capacity was reached",),
    {"prefix_cache_hit_rate": 0.123, "spec_acceptance": 0.71},
)
TENSOR_SERVER = ServerView(
    Figures(
        gauges={"waiting": GaugeFigure(0.25, 2.0)},
        counters={"inferences": CounterFigure(2400), "executions": CounterFigure(300), "requests": CounterFigure(600)},
        servers={URL: "triton"},
    ),
    {"requests": Comparison(600, 600, "requests")},
    derived={"queue_time": 0.002, "compute_time": 0.003, "batch": 8.0},
)


def run(**about: object) -> Run:
    rows, chunks = made.closed_rows()
    return made.run(rows, chunks, **about)


def staged(*names: str) -> Run:
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] >= 400
    plan = tuple(
        StagePlan(type="poisson", open=True, name=name, rate=100.0, duration=seconds)
        for name, seconds in zip(names or ("1 poisson 100/s", "2 poisson 100/s"), (4.0, 2.0), strict=True)
    )
    return made.run(rows, chunks, plan=plan)


def lines(view: ServerView, width: int = 100, made_run: Run | None = None) -> list[str]:
    of = made_run or run()
    summary = msgspec.structs.replace(summarise(of), server=view)
    return rendered(of, summary, width)


def rendered(of: Run, summary: Summary, width: int = 100) -> list[str]:
    found = console.render(of, summary, width=width).splitlines()
    assert max(map(len, found)) <= width and all(line.isprintable() and line == line.rstrip() for line in found)
    return [line.strip() for line in found]


def below(found: list[str], title: str) -> list[str]:
    """The table with this title, and what follows."""
    return found[next(index for index, line in enumerate(found) if line.startswith(title)) :]


def row(found: list[str], label: str) -> list[str]:
    return next(line for line in found if line.startswith(f"{label} ")).removeprefix(label).split()


def test_figures_of_a_language_model() -> None:
    found = lines(LANGUAGE_MODEL)
    assert row(found, "server (vLLM)") == ["mean", "p50", "p90", "p99", "max", "total"]
    assert row(found, "running") == ["11.83", "16"]
    assert row(found, "waiting") == ["12.00", "31"]
    assert row(found, "KV cache, %") == ["45.12", "98"]
    assert row(found, "cache hits, %") == ["12.30"]
    assert row(found, "preemptions") == ["14"]
    assert row(found, "accepted, %") == ["71.00"]
    assert row(found, "queue, ms") == ["12.30", "10.00", "25.00", "40.00"]


def test_client_beside_server() -> None:
    found = lines(LANGUAGE_MODEL)
    assert row(found, "client and server") == ["client", "server", "difference", "share"]
    table = below(found, "client and server")
    assert row(table, "requests") == ["600", "600", "0"]
    assert row(table, "input tokens") == ["38,400", "38,700", "-300"]
    assert row(table, "ttft mean, ms") == ["50.00", "48.00", "2.000", "4.0%"]
    assert row(table, "ttft p99, ms") == ["54.00", "60.00"]
    assert any(line.startswith("difference of means: network and client") for line in table)


def test_counters_are_left_out_if_nothing_was_counted() -> None:
    none = {"preemptions": CounterFigure(0), "requests": CounterFigure(0)}
    quiet = msgspec.structs.replace(LANGUAGE_MODEL.figures, counters=none)
    found = lines(msgspec.structs.replace(LANGUAGE_MODEL, figures=quiet, comparison={}))
    assert not any(line.startswith("preemptions") for line in found)
    assert row(below(found, "server (vLLM)"), "requests") == ["0"]


def test_the_further_lines_of_a_note_are_aligned_with_its_text() -> None:
    of = run()
    summary = msgspec.structs.replace(summarise(of), server=LANGUAGE_MODEL)
    found = console.render(of, summary, width=80).splitlines()
    at = next(number for number, line in enumerate(found) if line.startswith(" ! the server queued"))
    assert found[at + 1].startswith("   ") and found[at + 1].strip()


def test_notes_and_what_is_missing() -> None:
    found = lines(LANGUAGE_MODEL)
    assert "! the server queued: 12 requests waiting on average (at most 31); its capacity was reached" in found
    assert "not known: decode_time, itl: no observations" in found


def test_a_tensor_server_has_queue_compute_and_batch_but_no_tokens() -> None:
    found = lines(TENSOR_SERVER)
    assert row(found, "server (Triton)") == ["mean", "max"]
    assert row(found, "queue, ms") == ["2.000"] and row(found, "compute, ms") == ["3.000"]
    assert row(found, "batch") == ["8.000"]
    assert not any("difference of means" in line or "KV cache" in line for line in found)


def test_what_the_client_does_not_know_is_shown_as_the_server_reports_it() -> None:
    found = lines(msgspec.structs.replace(LANGUAGE_MODEL, comparison={}))
    assert row(found, "ttft, ms") == ["48.00", "47.00", "50.00", "60.00"]
    assert row(below(found, "server (vLLM)"), "input tokens") == ["38,400"]


def test_stages_have_a_row_each() -> None:
    of = staged()
    summary = summarise(of)
    missing = dict.fromkeys(("waiting", "kv_cache_use"), "no scrape succeeded in this window")
    idle = ServerView(Figures(gauges={"running": GaugeFigure(0.5, 1.0)}, missing=missing))
    views = (LANGUAGE_MODEL, idle)
    stages = tuple(
        msgspec.structs.replace(stage, server=view) for stage, view in zip(summary.stages, views, strict=True)
    )
    summary = msgspec.structs.replace(summary, server=LANGUAGE_MODEL, stages=stages)
    found = rendered(of, summary)
    table = below(found, "server (vLLM)")
    assert "running" in table[0] and "queue p90" in table[0] and "batch" not in table[0]
    assert row(table, "1 poisson 100/s")[:2] == ["11.83", "12.00"]
    assert row(table, "2 poisson 100/s")[:2] == ["0.500", "-"]
    assert "2 poisson 100/s: waiting, kv_cache_use not known: no scrape succeeded in this window" in table


def test_stages_with_the_same_name_have_a_row_each() -> None:
    of = staged("same", "same")
    summary = summarise(of)
    views = [ServerView(Figures(gauges={"running": GaugeFigure(mean, 16.0)})) for mean in (2.0, 12.0)]
    stages = tuple(
        msgspec.structs.replace(stage, server=view) for stage, view in zip(summary.stages, views, strict=True)
    )
    found = rendered(of, msgspec.structs.replace(summary, server=LANGUAGE_MODEL, stages=stages))
    table = below(found, "server (vLLM)")
    assert [line.split() for line in table[1:3]] == [["same", "2.000"], ["same", "12.00"]]


def test_replicas_have_a_row_each() -> None:
    by_target = {"http://10.0.0.1:8000/metrics": 3.0, "http://10.0.0.2:8000/metrics": 9.0}
    gauges = {
        "running": GaugeFigure(12.0, 14.0, by_target),
        "waiting": GaugeFigure(1.0, 2.0, dict.fromkeys(by_target, 0.5)),
    }
    found = lines(ServerView(Figures(gauges=gauges, servers=dict.fromkeys(by_target, "vllm"))))
    assert row(found, "10.0.0.1:8000") == ["3.000", "0.500"]
    assert row(found, "10.0.0.2:8000") == ["9.000", "0.500"]


@pytest.mark.parametrize("width", [70, 80])
def test_narrow_terminals(width: int) -> None:
    found = lines(LANGUAGE_MODEL, width)
    assert {"mean", "max", "total"} <= set(row(found, "server (vLLM)"))
    assert not any("…" in line for line in found)


def test_an_endpoint_that_was_not_read_has_its_reason_once() -> None:
    of = run(observer_errors={URL: "3 of 60 scrapes failed: timed out", "gpu": "no driver"})
    text = "\n".join(lines(LANGUAGE_MODEL, made_run=of))
    assert text.count("3 of 60 scrapes failed: timed out") == 1
    assert text.count("observer gpu: no driver") == 1


def test_if_nothing_was_read_the_section_is_the_reason() -> None:
    of = run(observer_errors={URL: "HTTP status 404"})
    assert summarise(of).server is not None
    assert f"server's metrics   not read: {URL}: HTTP status 404" in lines(summarise(of).server, made_run=of)  # type: ignore[arg-type]


def test_metrics_that_are_not_known_are_mentioned() -> None:
    found = lines(ServerView(Figures(servers={URL: "other"})))
    assert any(
        line.startswith("server's metrics   not read: none of the metrics of http://127.0.0.1") for line in found
    )


def test_without_metrics_there_is_no_section() -> None:
    assert not any(line.startswith("server") for line in rendered(run(), summarise(run())))
