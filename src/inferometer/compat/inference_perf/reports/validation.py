"""validation.json: whether the report files agree with themselves and with each other. Findings do not change the exit status."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import yaml

from inferometer.compat.inference_perf.reports.per_request import NAME as _PER_REQUEST
from inferometer.compat.inference_perf.reports.per_request import Content

Findings = Iterator[tuple[str, str]]
"""For each finding, its severity and its message."""
_SUMMARY = "summary_lifecycle_metrics.json"
_STAGE = re.compile(r"stage_(\d+)_lifecycle_metrics\.json")
_PARTIAL = re.compile(r"inference-perf\.partial\.stage_(\d+)\.yaml")
_RANK = re.compile(r"p(\d+(?:[.p]\d+)?)")
_TOLERANCE = 1e-6


def validate(files: Mapping[str, Content]) -> dict[str, Any]:
    """Check the files by name; the content of validation.json."""
    found: dict[str, Any] = {"global": {"warnings": [], "errors": []}, "reports": {}}
    reports = {name: msgspec.json.decode(bytes(text)) for name, text in files.items() if _is_lifecycle(name)}
    partials = {name: yaml.safe_load(bytes(text)) for name, text in files.items() if _PARTIAL.fullmatch(name)}
    for name, report in (reports | partials).items():
        found["reports"][name] = {"warnings": [], "errors": []}
        checks = _ON_LIFECYCLE if name in reports else _ON_PARTIALS
        for check, findings in checks.items():
            _add(found["reports"][name], check, findings(report), name)
    stages = {int(match[1]): reports[name] for name in reports if (match := _STAGE.fullmatch(name))}
    shares = {int(match[1]): report for name, report in partials.items() if (match := _PARTIAL.fullmatch(name))}
    summary = reports.get(_SUMMARY)
    if _PER_REQUEST in files:
        found["reports"][_PER_REQUEST] = {"warnings": [], "errors": []}
    entries = len(files[_PER_REQUEST]) if _PER_REQUEST in files else None
    _add(found["global"], "stage_sums", _stage_sums(summary, stages), None)
    _add(found["global"], "per_request_count", _per_request_count(summary, entries), None)
    _add(found["global"], "partials", _partials_agree(stages, shares), None)
    return found


def _is_lifecycle(name: str) -> bool:
    return name.endswith("lifecycle_metrics.json") and name != _PER_REQUEST


def _add(group: dict[str, Any], check: str, findings: Findings, report: str | None) -> None:
    for severity, message in findings:
        group[f"{severity}s"].append({"check": check, "severity": severity, "message": message, "report": report})


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-9)


def _at_most(one: float, other: float) -> bool:
    return one <= other or _same(one, other)


# --- checks of one file ----------------------------------------------------------------------------------------------


def _counts(report: dict[str, Any]) -> Findings:
    total, ok, failed = (report[part]["count"] for part in ("load_summary", "successes", "failures"))
    if ok + failed != total:
        yield "error", f"{ok} successes and {failed} failures are not the {total} requests of load_summary"
    labelled = sum(each["count"] for each in report["failures"]["by_label"].values())
    if labelled != failed:
        yield "error", f"the labels count {labelled} failures, not {failed}"


def _distributions(report: dict[str, Any]) -> Findings:
    """Check the order of minimum, percentiles and maximum. Only a delay may be negative, and then it is worth a warning."""
    for path, block in _blocks(report, ""):
        low, high = block["min"], block["max"]
        if low < 0:
            yield "warning" if "schedule_delay" in path else "error", f"{path}: the minimum is {low}"
        ranked = sorted((rank, value) for key, value in block.items() if (rank := _rank(key)) is not None)
        ascending = [low, *(value for _, value in ranked), high]
        if not all(_at_most(one, other) for one, other in itertools.pairwise(ascending)):
            yield "error", f"{path}: minimum, percentiles and maximum are not in ascending order"
        if not (_at_most(low, block["mean"]) and _at_most(block["mean"], high)):
            yield "error", f"{path}: the mean {block['mean']} is not between {low} and {high}"


def _blocks(tree: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(tree, dict):
        return
    if isinstance(tree.get("min"), int | float):
        yield path, tree
    for key, value in tree.items():
        yield from _blocks(value, f"{path}.{key}" if path else key)


def _rank(key: str) -> float | None:
    if key == "median":
        return 50.0
    match = _RANK.fullmatch(key)
    return float(match[1].replace("p", ".")) if match else None


def _tokens(report: dict[str, Any]) -> Findings:
    prompt = report["successes"]["prompt_tokens"]
    if not _same(prompt["cached"] + prompt["uncached"], max(prompt["total"], prompt["cached"])):
        yield "error", "prompt_tokens: cached and uncached tokens are not the total"
    for name in ("prompt_tokens", "output_tokens"):
        block, count = report["successes"][name], report["successes"]["count"]
        if "max" in block and not _at_most(block["total"], block["max"] * count):
            yield "error", f"{name}: the total {block['total']} exceeds {count} requests of at most {block['max']}"


def _rates(report: dict[str, Any]) -> Findings:
    rates, seconds = report["successes"]["throughput"], report["benchmark_time_seconds"]
    if seconds > 0 and not _same(rates["requests_per_sec"] * seconds, report["successes"]["count"]):
        yield "error", "requests_per_sec times benchmark_time_seconds is not the number of successes"
    if not _same(rates["input_tokens_per_sec"] + rates["output_tokens_per_sec"], rates["total_tokens_per_sec"]):
        yield "error", "input and output tokens per second are not total_tokens_per_sec"
    load = report["load_summary"]
    if load.get("send_duration", 0) > 0 and not _same(load["achieved_rate"] * load["send_duration"], load["count"]):
        yield "error", "achieved_rate times send_duration is not the number of requests"


def _goodput(report: dict[str, Any]) -> Findings:
    good = report["successes"].get("goodput_metrics")
    if good is None:
        return
    if good["total_requests"] != report["successes"]["count"] or good["good_requests"] > good["total_requests"]:
        yield "error", f"{good['good_requests']} good of {good['total_requests']} requests do not fit the successes"
    if not _same(good["goodput_percentage"] * good["total_requests"], 100 * good["good_requests"]):
        yield "error", "goodput_percentage is not the share of good_requests"
    for name, value in good.items():
        if name.endswith("_attainment_percentage") and not good["goodput_percentage"] <= value <= 100:
            yield "error", f"{name} {value} is not between goodput_percentage and 100"


_ON_LIFECYCLE: dict[str, Callable[[dict[str, Any]], Findings]] = {
    "counts": _counts,
    "distributions": _distributions,
    "tokens": _tokens,
    "rates": _rates,
    "goodput": _goodput,
}
_ON_PARTIALS: dict[str, Callable[[dict[str, Any]], Findings]] = {"distributions": _distributions}


# --- checks of several files -----------------------------------------------------------------------------------------


def _stage_sums(summary: dict[str, Any] | None, stages: dict[int, dict[str, Any]]) -> Findings:
    if summary is None or not stages:
        return
    for part in ("load_summary", "successes", "failures"):
        total = sum(stage[part]["count"] for stage in stages.values())
        if total != summary[part]["count"]:
            yield "error", f"{part}.count: the stages have {total}, the summary has {summary[part]['count']}"


def _per_request_count(summary: dict[str, Any] | None, entries: int | None) -> Findings:
    if summary is not None and entries is not None and entries != summary["load_summary"]["count"]:
        yield "error", f"{_PER_REQUEST} has {entries} entries, the summary counts {summary['load_summary']['count']}"


def _partials_agree(stages: dict[int, dict[str, Any]], partials: dict[int, dict[str, Any]]) -> Findings:
    if stages and stages.keys() != partials.keys():
        yield "error", f"there are reports of the stages {sorted(stages)}, and partials of {sorted(partials)}"
    for stage in sorted(stages.keys() & partials.keys()):
        own = partials[stage]["results"]["request_performance"]["aggregate"]["requests"]
        counted = (stages[stage]["load_summary"]["count"], stages[stage]["failures"]["count"])
        if (own["total"], own["failures"]) != counted:
            yield "error", f"stage {stage}: the partial counts {own['total']} requests and {own['failures']} failures"
