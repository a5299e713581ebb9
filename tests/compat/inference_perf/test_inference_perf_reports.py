"""inference-perf's report files: that every file and field is there, and that the tools which read them find what they need."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_run as made
import yaml
from helpers import measure
from report_fields import ENTRY, LIFECYCLE, PARTIAL, STAGE, VALIDATION, problems
from report_specs import spec

from inferometer.compat.inference_perf import reports
from inferometer.compat.inference_perf.reports.validation import validate
from inferometer.records import Failure, Run, StagePlan
from inferometer.serve.background import running
from inferometer.serve.settings import simulator

SUMMARY, STAGE_0, STAGE_1 = (f"{each}_lifecycle_metrics.json" for each in ("summary", "stage_0", "stage_1"))
PER_REQUEST = "per_request_lifecycle_metrics.json"
FAILURES = (
    Failure("http_503", '{"error": {"message": "busy", "type": "overloaded"}}'),
    Failure("http_400", "This model's maximum context length is 4096 tokens"),
    Failure("http_404", "nope"),
    Failure("total_timeout", "no end within 300 s"),
    Failure("connect_refused", "nothing is listening"),
    Failure("malformed_json", "Expecting value"),
)
ALL = {"report": {"request_lifecycle": {"per_request": True, "per_request_fields": {"computed_metrics": True}}}}


def two_stages(**about: Any) -> Run:
    """600 requests in two stages, some of which failed."""
    rows, chunks = made.open_rows()
    rows["stage"][300:] = 1
    for number, which in enumerate(([0, 1, 2], [10], [20], [30], [40], [50]), 1):
        made.fail(rows, which, number)
    plan = (made.OPEN, made.OPEN)
    return made.run(rows, chunks, failures=FAILURES, plan=plan, **about)


def written(run: Run, settings: dict[str, Any]) -> dict[str, Any]:
    """The files, decoded. The summary of the run is not used: its window is another one."""
    files = reports.files(run, None, settings)  # type: ignore[arg-type]
    return {
        name: (yaml.safe_load if name.endswith("yaml") else json.loads)(bytes(text)) for name, text in files.items()
    }


def two_stage_spec(**sections: Any) -> dict[str, Any]:
    load = {"stages": [{"rate": 100.0, "duration": 3}, {"rate": 110.0, "duration": 3}]} | sections.pop("load", {})
    return spec(load=load, **sections)


def assert_complete(files: dict[str, Any], *, entries: bool = True) -> None:
    for name, content in files.items():
        if name.endswith("lifecycle_metrics.json") and name != PER_REQUEST:
            fields = STAGE if "stage_" in name else LIFECYCLE
        elif name.startswith("inference-perf.partial"):
            fields = PARTIAL
        elif name == "validation.json":
            fields = VALIDATION
        else:
            continue
        assert list(problems(content, fields)) == [], name
    for entry in files[PER_REQUEST] if entries else ():
        if entry["error"] is None:
            assert list(problems(entry, ENTRY)) == []


def test_every_field_of_a_made_up_run_is_there() -> None:
    settings = two_stage_spec(
        **ALL | {"report": ALL["report"] | {"goodput": {"constraints": {"ttft": 0.05, "itl": 1, "x": 1}}}}
    )
    files = written(two_stages(), settings)
    assert list(files) == [
        *(SUMMARY, STAGE_0, STAGE_1, PER_REQUEST, "config.yaml"),
        *("inference-perf.partial.stage_0.yaml", "inference-perf.partial.stage_1.yaml", "validation.json"),
    ]
    assert_complete(files)
    assert files[STAGE_1]["load_summary"]["requested_rate"] == 110.0
    assert "concurrency" not in files[STAGE_1]["load_summary"]
    assert set(files[SUMMARY]["successes"]["goodput_metrics"]) >= {
        "ttft_attainment_percentage",
        "itl_attainment_percentage",
    }
    assert (
        files[SUMMARY]["successes"]["image"]["count"]["max"] == 0
        and files[SUMMARY]["successes"]["image"]["bytes"] is None
    )
    assert not files["validation.json"]["global"]["errors"]
    assert PER_REQUEST in files["validation.json"]["reports"]
    assert not any(group["errors"] for group in files["validation.json"]["reports"].values())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run against the simulator with its texts, in two stages."""
    stages = [
        {"type": "constant", "rate": 60, "duration": "500ms"},
        {"type": "closed", "concurrency": 3, "requests": 20},
    ]
    with running(simulator()) as url:
        run, _ = measure(
            tmp_path_factory.mktemp("runs"),
            url,
            server={"model": "sim"},
            load={"stages": stages},
            keep="text",
            data={"type": "synthetic", "input": 8, "output": 5},
        )
    return run


@pytest.mark.parametrize("compat", ["right", "exact"])
def test_every_field_of_a_real_run_is_there(real: Run, compat: str) -> None:
    tokenizer = {"pretrained_model_name_or_path": "sim"}
    files = written(real, two_stage_spec(**ALL, compat=compat, tokenizer=tokenizer))
    assert_complete(files)
    assert files[SUMMARY]["successes"]["count"] == len(real.records.rows) == len(files[PER_REQUEST])
    entry = files[PER_REQUEST][0]
    sizes = [len(each["request"].encode()) for each in files[PER_REQUEST]]
    assert json.loads(entry["request"])["model"] == "sim" and entry["response"]
    assert files[SUMMARY]["successes"]["request_size_bytes"]["max"] == max(sizes)
    ends = [each["end_time"] for each in files[PER_REQUEST]]
    assert ends == sorted(ends)
    assert not any(group["errors"] for group in files["validation.json"]["reports"].values())


# --- which files ------------------------------------------------------------------------------------------------------


def test_reports_that_are_switched_off_are_not_written() -> None:
    off = {"request_lifecycle": {"summary": False, "per_stage": False}}
    assert [name for name in written(two_stages(), two_stage_spec(report=off)) if name.endswith("json")] == [
        "validation.json"
    ]


def test_run_without_requests_has_the_config_and_the_validation_only() -> None:
    run = made.run(made.blank(0), plan=(made.OPEN,))
    assert list(written(run, spec())) == ["config.yaml", "validation.json"]


def test_requests_that_were_never_sent_do_not_count() -> None:
    rows, chunks = made.open_rows(20)
    made.never_sent(rows, [18, 19], 1)
    made.never_sent(rows, [17], 2)
    failures = (Failure("cancelled", "the run ended"), Failure("connect_refused", "nothing is listening"))
    files = written(made.run(rows, chunks, failures=failures, plan=(made.OPEN,)), spec())
    assert files[SUMMARY]["load_summary"]["count"] == 18
    assert files[SUMMARY]["failures"]["by_label"] == {
        "Connection Error": {"count": 1, "messages": [{"message": "nothing is listening"}]}
    }


def test_adapter_files_divide_the_requests_by_their_model() -> None:
    rows, chunks = made.open_rows(60)
    rows["class"], rows["stage"] = np.arange(60) % 2, np.arange(60) // 40
    made.fail(rows, [0])
    run = made.run(rows, chunks, failures=FAILURES, classes=("movie", "org/consumer"), plan=(made.OPEN, made.OPEN))
    split = {"lora_traffic_split": [{"name": "movie", "split": 0.5}, {"name": "org/consumer", "split": 0.5}]}
    per_stage = {"request_lifecycle": {"per_adapter_stage": True, "per_request": True}}
    files = written(run, two_stage_spec(load=split, report=per_stage))
    adapters = {name: content for name, content in files.items() if name.startswith("adapter_")}
    assert list(adapters) == [
        "adapter_movie_lifecycle_metrics.json",
        "adapter_org_consumer_lifecycle_metrics.json",
        "adapter_movie_stage_0_lifecycle_metrics.json",
        "adapter_movie_stage_1_lifecycle_metrics.json",
        "adapter_org_consumer_stage_0_lifecycle_metrics.json",
        "adapter_org_consumer_stage_1_lifecycle_metrics.json",
    ]
    assert_complete(adapters, entries=False)
    assert adapters["adapter_movie_lifecycle_metrics.json"]["load_summary"]["count"] == 30
    assert adapters["adapter_movie_stage_1_lifecycle_metrics.json"]["load_summary"]["count"] == 10
    assert {entry["info"]["lora_adapter"] for entry in files[PER_REQUEST]} == {"movie", "org/consumer"}
    exact = written(run, two_stage_spec(load=split, report=per_stage, compat="exact"))
    assert exact["adapter_movie_lifecycle_metrics.json"]["load_summary"]["count"] == 29


def test_per_request_fields_can_be_switched_off() -> None:
    off = {"request": False, "response": False, "response_chunks": False}
    lifecycle = {"per_request": True, "per_request_fields": off}
    entry = written(two_stages(), two_stage_spec(report={"request_lifecycle": lifecycle}))[PER_REQUEST][0]
    assert set(entry) == {"start_time", "end_time", "info", "error"}
    assert "response_chunks" not in (entry["info"]["response_metrics"] or {})
    lifecycle["per_request_fields"] = off | {"info": False}
    entry = written(two_stages(), two_stage_spec(report={"request_lifecycle": lifecycle}))[PER_REQUEST][0]
    assert set(entry) == {"start_time", "end_time", "error"}


def test_config_file_has_every_key_and_no_secrets() -> None:
    settings = spec(
        server={"api_key": "s3cret-1", "base_url": "http://user:s3cret-2@host:8000"},
        api={"headers": {"X-Team": "s3cret-3", "x-slo-ttft-ms": "50"}},
        tokenizer={"pretrained_model_name_or_path": "m", "token": "s3cret-4"},
        metrics={"type": "default", "prometheus": {"url": "http://h/?token=s3cret-5", "bearer_token": "s3cret-6"}},
    )
    files = reports.files(two_stages(), None, settings)  # type: ignore[arg-type]
    assert not any(b"s3cret" in bytes(text) for text in files.values())
    saved = yaml.safe_load(bytes(files["config.yaml"]))
    assert saved["server"] == settings["server"] | {"api_key": "[REDACTED]", "base_url": "http://host:8000"}
    assert saved["api"]["headers"] == {"X-Team": "[REDACTED]", "x-slo-ttft-ms": "50"}
    assert saved["circuit_breakers"] is None and saved["load"] == settings["load"]


# --- failures and retries --------------------------------------------------------------------------------------------


def test_failures_are_counted_by_label() -> None:
    failures = written(two_stages(), two_stage_spec())[SUMMARY]["failures"]
    assert {label: each["count"] for label, each in failures["by_label"].items()} == {
        "503 - Service Unavailable": 3,
        "400 - Context Window": 1,
        "404 - other": 1,
        "Timeout": 1,
        "Connection Error": 1,
        "jsondecodeerror": 1,
    }
    assert failures["by_label"]["503 - Service Unavailable"]["messages"] == [{"message": "busy"}]


def test_errors_of_requests_have_inference_perfs_names() -> None:
    files = written(two_stages(), two_stage_spec(**ALL))
    errors = {entry["error"]["error_type"] for entry in files[PER_REQUEST] if entry["error"]}
    assert errors == {
        *(
            "HTTP Error 503",
            "HTTP Error 400",
            "HTTP Error 404",
            "TimeoutError",
            "ClientConnectorError",
            "JSONDecodeError",
        )
    }


def test_number_of_messages_is_limited() -> None:
    rows, chunks = made.open_rows(10)
    for number in range(1, 6):
        made.fail(rows, [number], number)
    failures = tuple(Failure("http_500", f"error {number}") for number in range(5))
    limited = spec(report={"request_lifecycle": {"max_error_messages": 2}})
    found = written(made.run(rows, chunks, failures=failures, plan=(made.OPEN,)), limited)[SUMMARY]["failures"]
    (label,) = found["by_label"].values()
    assert label == {"count": 5, "messages": [{"message": "error 0"}, {"message": "error 1"}]}


def test_retries_are_reported_if_there_were_any() -> None:
    rows, chunks = made.open_rows(10)
    rows["attempts"][:3] = 2, 3, 2
    rows["wasted"][:3] = made.SECOND, made.SECOND, 2 * made.SECOND
    made.fail(rows, [2])
    run = made.run(rows, chunks, failures=FAILURES, plan=(made.OPEN,))
    retries = written(run, spec(load={"request_retries": 2}))[SUMMARY]["retries"]
    assert (retries["requests_retried"], retries["attempts"]) == (3, 4)
    assert (retries["recovered"], retries["failed_after_retry"]) == (2, 1)
    assert (retries["wasted_sec_total"], retries["wasted_sec"]["max"]) == (4, 2)
    assert "retries" not in written(run, spec())[SUMMARY], "a stale connection is not a retry of inference-perf"


# --- validation ------------------------------------------------------------------------------------------------------


def test_validation_finds_files_that_do_not_agree() -> None:
    files = reports.files(two_stages(), None, two_stage_spec(**ALL))  # type: ignore[arg-type]
    broken = json.loads(bytes(files[STAGE_0]))
    broken["successes"]["count"] += 1
    broken["successes"]["latency"]["request_latency"]["p90"] = 1e9
    broken["load_summary"]["schedule_delay"]["min"] = -1.0
    found = validate(files | {STAGE_0: json.dumps(broken).encode(), PER_REQUEST: b""})
    own = found["reports"][STAGE_0]
    assert {each["check"] for each in own["errors"]} == {"counts", "distributions", "rates"}
    assert [each["check"] for each in own["warnings"]] == ["distributions"]
    assert {each["check"] for each in found["global"]["errors"]} == {"stage_sums", "per_request_count"}
    assert all(each.keys() == {"check", "severity", "message", "report"} for each in own["errors"])


# --- readers -----------------------------------------------------------------------------------------------------------


def test_stdout_blocks_can_be_read_back() -> None:
    files = reports.files(two_stages(), None, two_stage_spec())  # type: ignore[arg-type]
    text = reports.stdout_blocks(files)
    blocks = re.findall(r"^=== START_(\w+) ===\n(.*?)\n=== END_\1 ===$", text, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == [
        *("SUMMARY", "STAGE_0", "STAGE_1", "PARTIAL_BR_V0_2_STAGE_0", "PARTIAL_BR_V0_2_STAGE_1")
    ]
    for (name, content), file in zip(blocks, (SUMMARY, STAGE_0, STAGE_1), strict=False):
        assert json.loads(content) == json.loads(bytes(files[file])), name
    assert yaml.safe_load(blocks[-1][1])["version"] == "0.2.1"


def test_the_entries_of_many_requests_are_made_while_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferometer.compat.inference_perf.reports.per_request._BLOCK", 100)
    content = reports.files(two_stages(), None, two_stage_spec(**ALL))[PER_REQUEST]  # type: ignore[arg-type]
    whole = json.loads(bytes(content))
    assert not isinstance(content, bytes) and len(whole) == len(content) > 500
    assert max(map(len, content)) < len(bytes(content)) / 5


def test_llm_d_finds_what_it_reads(tmp_path: Path) -> None:
    concurrent = {"type": "concurrent", "stages": [{"num_requests": 600, "concurrency_level": 8}]}
    run = made.run(*made.closed_rows(), plan=(StagePlan(type="closed", open=False, concurrency=8),))
    for name, text in reports.files(run, None, spec(load=concurrent, **ALL)).items():  # type: ignore[arg-type]
        (tmp_path / name).write_bytes(bytes(text))
    (stage,) = (path for path in tmp_path.glob("stage_*.json") if path.name.split("_")[1] == "0")
    report = json.loads(stage.read_text())
    assert (report["load_summary"]["concurrency"], report["load_summary"]["requested_rate"]) == (8, 600)
    every = ("mean", "min", "p0.1", "p1", "p5", "p10", "p25", "median", "p75", "p90", "p95", "p99", "p99.9", "max")
    successes = report["successes"]
    for distribution in (successes["prompt_len"], successes["output_len"], *successes["latency"].values()):
        assert all(isinstance(distribution[name], float) for name in every)
    for entry in json.loads((tmp_path / PER_REQUEST).read_text()):
        times = entry["info"]["output_token_times"]
        assert len(times) == entry["info"]["output_tokens"] == 10 and entry["info"]["input_tokens"] == 64
        assert entry["start_time"] < times[0] < times[-1] <= entry["end_time"]


def test_prism_finds_reports_in_the_text_of_the_log() -> None:
    text = "2026-01-01 log\n" + reports.stdout_blocks(reports.files(two_stages(), None, two_stage_spec()))  # type: ignore[arg-type]
    decoder, objects, at = json.JSONDecoder(), [], 0
    while (at := text.find("{", at)) >= 0:
        try:
            found, at = decoder.raw_decode(text, at)
        except ValueError:
            at += 1
        else:
            objects.append(found)
    usable = [each for each in objects if "load_summary" in each and each["successes"]["throughput"]]
    assert len(usable) == 3
    for each in usable:
        latency = each["successes"]["latency"]
        assert latency["request_latency"]["p99"] >= latency["request_latency"]["median"] > 0
        assert all(latency[name]["mean"] > 0 for name in latency)
        assert each["successes"]["prompt_len"]["mean"] == 64 and each["successes"]["output_len"]["mean"] == 10
        assert each["failures"]["count"] == 0 or each["failures"]["prompt_len"]["mean"] == 64
