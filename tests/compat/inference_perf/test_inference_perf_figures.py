"""The figures of inference-perf's reports, against a second computation in plain Python, for `compat: right` and `exact`."""

import json
import statistics
from typing import Any

import numpy as np
import pytest
import synthetic_run as made
from helpers import measure
from report_specs import PERCENTILES, spec

from inferometer.compat.inference_perf import reports
from inferometer.records import MISSING, Chunks, Failure, Run
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.workload import tokenizer

MS = 1_000_000
TOKENIZER = {"pretrained_model_name_or_path": "a-model"}

REQUESTS: list[dict[str, Any]] = [
    # intended, start (sent - held), done in ms; chunks as (arrival in ms, tokens)
    {"intended": 0, "start": 1, "done": 61, "chunks": [(21, 1), (31, 1), (61, 2)], "n_in": 7, "n_out": 4, "cached": 3},
    {"intended": 10, "start": 12, "done": 42, "chunks": [(32, 1)], "n_in": 5, "n_out": 1},
    {"intended": 20, "start": 20, "done": 90, "chunks": [(60, 1), (90, 1)], "n_in": 9, "n_out": 2, "content": 90},
    {"intended": 30, "start": 31, "done": 45, "chunks": [], "n_in": 6, "n_out": 0},
    {"intended": 40, "start": 43, "done": 143, "chunks": [(93, 1)], "n_in": 8, "n_out": 1, "failure": 1},
    {"intended": 50, "start": 50, "done": 70, "chunks": [(60, 1)], "n_in": 8, "n_out": 1, "failure": 2},
]
"""One with two tokens in its last chunk, one with a single chunk, one that starts with reasoning, one without tokens, one that timed
out, and one whose stream ended early."""
FAILURES = (Failure("total_timeout", "no end within 100 ms"), Failure("truncated", "the stream ended without [DONE]"))


def six_requests() -> Run:
    rows = made.blank(len(REQUESTS))
    rows["open_loop"] = 1
    arrivals, tokens = [], []
    for row, each in zip(rows, REQUESTS, strict=True):
        times = [at * MS for at, _ in each["chunks"]]
        row["intended"], row["held"], row["done"] = each["intended"] * MS, MS // 2, each["done"] * MS
        row["sent"] = each["start"] * MS + MS // 2
        row["chunk_start"], row["chunk_count"] = len(arrivals), len(times)
        if times:
            row["first_token"], row["last_token"] = times[0], times[-1]
            row["first_content"] = each.get("content", times[0] // MS) * MS
            row["first_tokens"], row["streamed_tokens"] = each["chunks"][0][1], sum(each for _, each in each["chunks"])
        row["n_in"], row["n_out"], row["cached"] = each["n_in"], each["n_out"], each.get("cached", -1)
        row["failure"], row["bytes_out"], row["in_counted_by"] = each.get("failure", 0), 100, 1
        arrivals += times
        tokens += [each for _, each in each["chunks"]]
    return made.run(rows, Chunks(np.array(arrivals), np.array(tokens, np.uint16)), failures=FAILURES, plan=(made.OPEN,))


def report(run: Run, settings: dict[str, Any], name: str = "stage_0") -> dict[str, Any]:
    files = reports.files(run, None, settings)  # type: ignore[arg-type]
    found: dict[str, Any] = json.loads(bytes(files[f"{name}_lifecycle_metrics.json"]))
    return found


def summary(values: list[float]) -> dict[str, float] | None:
    """Their distribution, by a definition of its own: linear interpolation between ranks."""
    if not values:
        return None
    ordered = sorted(values)
    found = {"mean": statistics.fmean(values), "min": ordered[0], "max": ordered[-1]}
    for percentile in PERCENTILES:
        whole, part = divmod((len(ordered) - 1) * percentile / 100, 1)
        above = ordered[min(int(whole) + 1, len(ordered) - 1)]
        found["median" if percentile == 50 else f"p{percentile:g}"] = ordered[int(whole)] * (1 - part) + above * part
    return found


def assert_distribution(found: dict[str, float] | None, values: list[float]) -> None:
    expected = summary(values)
    assert (found is None) == (expected is None), (found, expected)
    assert found == (expected and pytest.approx(expected, rel=1e-9, abs=1e-12))


RIGHT = {
    "request_latency": [0.060, 0.030, 0.070, 0.014],
    "normalized_time_per_output_token": [0.060 / 4, 0.030, 0.070 / 2],
    "time_per_output_token": [0.040 / 3, 0.030],
    "time_to_first_token": [0.020, 0.020, 0.040],
    "inter_token_latency": [0.010, 0.030, 0.030],
}
EXACT = {
    "request_latency": [0.060, 0.030, 0.070, 0.014, 0.020],
    "normalized_time_per_output_token": [0.060 / 4, 0.030, 0.070 / 2, 0.0, 0.020],
    "time_per_output_token": [0.040 / 3, 0.0],
    "time_to_first_token": [0.020, 0.070],
    "inter_token_latency": [0.010, 0.030, 0.030],
}


@pytest.mark.parametrize(("compat", "latencies"), [("right", RIGHT), ("exact", EXACT)])
def test_latencies(compat: str, latencies: dict[str, list[float]]) -> None:
    successes = report(six_requests(), spec(compat=compat))["successes"]
    assert successes["count"] == len(latencies["request_latency"])
    for name, values in latencies.items():
        assert_distribution(successes["latency"][name], values)


def test_tokens_of_a_chunk_share_its_time_in_exact_mode_with_a_tokenizer() -> None:
    itl = report(six_requests(), spec(compat="exact", tokenizer=TOKENIZER))["successes"]["latency"]
    assert_distribution(itl["inter_token_latency"], [0.010, 0.030, 0.0, 0.030])
    right = report(six_requests(), spec(tokenizer=TOKENIZER))["successes"]["latency"]
    assert_distribution(right["inter_token_latency"], RIGHT["inter_token_latency"])


@pytest.mark.parametrize(("compat", "ok"), [("right", 4), ("exact", 5)])
def test_throughput_counts_from_the_first_start_to_the_last_end(compat: str, ok: int) -> None:
    found = report(six_requests(), spec(compat=compat))
    seconds = 0.143 - 0.001
    n_in, n_out = (sum(each[name] for each in (REQUESTS[:4] + REQUESTS[5:])[:ok]) for name in ("n_in", "n_out"))
    assert found["benchmark_time_seconds"] == pytest.approx(seconds)
    assert found["successes"]["throughput"] == pytest.approx(
        {
            "input_tokens_per_sec": n_in / seconds,
            "output_tokens_per_sec": n_out / seconds,
            "total_tokens_per_sec": (n_in + n_out) / seconds,
            "requests_per_sec": ok / seconds,
            "images_per_sec": 0,
            "videos_per_sec": 0,
            "audios_per_sec": 0,
        }
    )


def test_load_summary() -> None:
    load = report(six_requests(), spec())["load_summary"]
    assert_distribution(load["schedule_delay"], [0.001, 0.002, 0.0, 0.001, 0.003, 0.0])
    assert load["send_duration"] == pytest.approx(0.049) and load["achieved_rate"] == pytest.approx(6 / 0.049)
    assert (load["count"], load["requested_rate"]) == (6, 100.0)


def test_delay_of_a_concurrent_stage_counts_from_the_stage_in_exact_mode() -> None:
    load = {"type": "concurrent", "stages": [{"num_requests": 16, "concurrency_level": 8}]}
    rows, chunks = made.closed_rows(16)
    right, exact = (
        report(made.run(rows, chunks), spec(load=load, compat=compat))["load_summary"]["schedule_delay"]
        for compat in ("right", "exact")
    )
    assert right["max"] == pytest.approx(50e-6)
    assert exact["max"] == pytest.approx(max(rows["sent"].tolist()) / 1e9)


def test_tokens_of_successes_and_failures() -> None:
    right, exact = (report(six_requests(), spec(compat=compat)) for compat in ("right", "exact"))
    prompt = right["successes"]["prompt_tokens"]
    assert (prompt["total"], prompt["cached"], prompt["uncached"]) == (27, 3, 24)
    assert_distribution(right["successes"]["prompt_len"], [7, 5, 9, 6])
    assert_distribution(right["successes"]["output_len"], [4, 1, 2, 0])
    assert right["successes"]["output_tokens"]["total"] == 7
    assert right["failures"]["prompt_tokens"]["total"] == 16
    assert exact["failures"]["prompt_tokens"]["total"] == 0 and exact["failures"]["count"] == 1
    assert_distribution(right["failures"]["request_latency"], [0.100, 0.020])
    assert right["successes"]["client_fallback_requests"] == {"prompt": 0, "output": 0}


def test_unknown_tokens_are_left_out_and_counted() -> None:
    run = six_requests()
    rows = np.asarray(run.records.rows)
    rows["n_out"][0], rows["counted_by"][0] = -1, 0
    chunks = next(iter(run.chunks()))
    again = made.run(rows, chunks, failures=FAILURES, plan=(made.OPEN,))
    right, exact = (report(again, spec(compat=compat))["successes"] for compat in ("right", "exact"))
    assert_distribution(right["output_len"], [1, 2, 0])
    assert_distribution(exact["output_len"], [0, 1, 2, 0, 1])
    assert right["client_fallback_requests"]["output"] == 1


def test_run_that_was_not_streamed_has_no_times_of_tokens() -> None:
    found = report(six_requests(), spec(api={"streaming": False}))["successes"]["latency"]
    assert found["time_to_first_token"] is found["time_per_output_token"] is found["inter_token_latency"] is None
    assert_distribution(found["request_latency"], RIGHT["request_latency"])


def test_percentiles_are_those_of_the_config() -> None:
    lifecycle = {"request_lifecycle": {"percentiles": [50, 99.95]}}
    latency = report(six_requests(), spec(report=lifecycle))["successes"]["latency"]["request_latency"]
    assert list(latency) == ["mean", "min", "max", "median", "p99.95"]


# --- goodput ---------------------------------------------------------------------------------------------------------


def test_goodput_by_constraints() -> None:
    constraints = {"ttft": 0.030, "ntpot": 0.031, "unknown": 1}
    met = report(six_requests(), spec(report={"goodput": {"constraints": constraints}}))["successes"]["goodput_metrics"]
    seconds = 0.090 - 0.001  # of the successes
    assert met == pytest.approx(
        {
            "goodput_percentage": 50.0,
            "request_goodput": 2 / seconds,
            "token_goodput": (7 + 4 + 5 + 1) / seconds,
            "good_requests": 2,
            "total_requests": 4,
            "ttft_attainment_percentage": 50.0,
            "ntpot_attainment_percentage": 50.0,
        }
    )


def test_header_comes_before_the_constraint() -> None:
    goodput = {"goodput": {"constraints": {"ttft": 1.0}}}
    by_header = spec(api={"headers": {"X-SLO-TTFT-MS": "30"}}, report=goodput)
    assert report(six_requests(), by_header)["successes"]["goodput_metrics"]["good_requests"] == 2
    default = spec(api={"headers": {"x-slo-ttft-ms": "default"}}, report=goodput)
    assert report(six_requests(), default)["successes"]["goodput_metrics"]["good_requests"] == 3
    named = spec(api={"headers": {"my-tpot": "0.02"}, "slo_tpot_header": "my-tpot", "slo_unit": "s"})
    assert report(six_requests(), named)["successes"]["goodput_metrics"]["good_requests"] == 1


def test_mean_gap_of_each_request_counts_for_itl() -> None:
    goodput = {"goodput": {"constraints": {"itl": 0.025}}}
    assert report(six_requests(), spec(report=goodput))["successes"]["goodput_metrics"]["good_requests"] == 1


# --- tokens counted by the client ------------------------------------------------------------------------------------


def test_exact_mode_counts_the_tokens_of_the_text(tmp_path: Any) -> None:
    with running(simulator()) as url:
        data = {"type": "synthetic", "input": 8, "output": 5}
        run, _ = measure(tmp_path, url, server={"model": "sim"}, data=data, keep="text")
    per_request = {"request_lifecycle": {"per_request": True}}
    files = reports.files(run, None, spec(compat="exact", report=per_request))  # type: ignore[arg-type]
    count = tokenizer.load().count
    entries = json.loads(bytes(files["per_request_lifecycle_metrics.json"]))
    counted = [count(entry["response"]) for entry in entries]
    assert [entry["info"]["output_tokens"] for entry in entries] == counted
    exact = json.loads(bytes(files["stage_0_lifecycle_metrics.json"]))["successes"]
    assert_distribution(exact["output_len"], [float(each) for each in counted])
    assert exact["output_tokens"]["total"] == run.records.rows["n_out"].sum()
    server = {"request_lifecycle": {"use_server_output_tokens": True}}
    by_server = report(run, spec(compat="exact", report=server))["successes"]
    assert by_server["output_len"]["mean"] == run.records.rows["n_out"].mean()


def test_request_that_was_never_connected_starts_when_it_was_due() -> None:
    run = six_requests()
    rows = np.asarray(run.records.rows)
    rows["sent"][4], rows["failure"][4] = MISSING, 1
    failed = (Failure("connect_timeout", "not connected"), FAILURES[1])
    again = made.run(rows, next(iter(run.chunks())), failures=failed, plan=(made.OPEN,))
    assert_distribution(report(again, spec())["failures"]["request_latency"], [0.103, 0.020])
