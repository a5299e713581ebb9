"""inference-perf.partial.stage_N.yaml: its part of a Benchmark Report 0.2, which llm-d's tools merge with parts from elsewhere."""

import hashlib
from datetime import UTC, datetime
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from inferometer.compat.inference_perf.reports.distribution import distribution
from inferometer.compat.inference_perf.reports.requests import Mask, Requests
from inferometer.units import NS

VERSION = "0.2.1"
PERCENTILES = (0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
_LATENCY_UNITS = {
    "request_latency": "s",
    "time_to_first_token": "s",
    "time_per_output_token": "s/token",
    "inter_token_latency": "s/token",
    "normalized_time_per_output_token": "s/token",
}
_RATES = {
    "input_token_rate": ("tokens/s", "input_tokens_per_sec"),
    "output_token_rate": ("tokens/s", "output_tokens_per_sec"),
    "total_token_rate": ("tokens/s", "total_tokens_per_sec"),
    "request_rate": ("queries/s", "requests_per_sec"),
}
"""Rates of the partial: their unit, and their name in the stage's lifecycle file."""


def partial(requests: Requests, own: Mask, gaps: NDArray[Any], stage: int, lifecycle: dict[str, Any]) -> bytes:
    """The partial of a stage as YAML. What is not known is left out. `lifecycle` is the stage's lifecycle report."""
    ok = own & requests.ok
    values = {name: requests.latencies[name][ok] for name in _LATENCY_UNITS if name != "inter_token_latency"}
    # Their partial leaves out requests without tokens, although their own report counts them as 0.0.
    values["normalized_time_per_output_token"] = np.where(
        requests.n_out[ok] > 0, values["normalized_time_per_output_token"], np.nan
    )
    values["inter_token_latency"] = gaps / NS if requests.is_streamed else np.zeros(0)
    throughput = lifecycle["successes"]["throughput"]
    aggregate = {
        "requests": {
            "total": int(np.count_nonzero(own)),
            "failures": int(np.count_nonzero(own & ~requests.ok)),
            "input_length": _statistics(requests.n_in[ok], "count"),
            "output_length": _statistics(requests.n_out[ok], "count"),
        },
        "latency": {name: _statistics(values[name], unit) for name, unit in _LATENCY_UNITS.items()},
        "throughput": {name: {"units": unit, "mean": throughput[field]} for name, (unit, field) in _RATES.items()},
    }
    report = {
        "version": VERSION,
        "run": _run(requests, own, stage),
        "results": {"request_performance": {"aggregate": _without_none(aggregate)}},
    }
    return yaml.safe_dump(report, sort_keys=False).encode()


def _run(requests: Requests, own: Mask, stage: int) -> dict[str, Any]:
    manifest = requests.run.manifest
    start, end = (
        manifest.t0_wall_ns / NS + float(each) for each in (requests.start[own].min(), requests.end[own].max())
    )
    identity = f"{manifest.t0_wall_ns} {manifest.workload.get('digest')}"
    return {
        "uid": f"inference-perf-stage-{stage}-{_hex(f'{identity} {stage}')}",
        "eid": f"inference-perf-experiment-{_hex(identity)}",
        "time": {
            "start": datetime.fromtimestamp(start, UTC).isoformat(),
            "end": datetime.fromtimestamp(end, UTC).isoformat(),
            "duration": f"PT{max(end - start, 0.0):.3f}S",
        },
    }


def _hex(text: str) -> str:
    """Eight digits that are the same whenever the reports of a run are written again."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _statistics(values: NDArray[Any], units: str) -> dict[str, Any] | None:
    values = values[~np.isnan(values)]
    found = distribution(values, PERCENTILES)
    if found is None:
        return None
    names = {"median" if each == 50 else f"p{each:g}": f"p{each:g}".replace(".", "p") for each in PERCENTILES}
    percentiles = {ours: found[theirs] for theirs, ours in names.items()}
    spread = {"stddev": float(values.std())}
    return {"units": units, "mean": found["mean"], **spread, "min": found["min"], **percentiles, "max": found["max"]}


def _without_none(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_none(value) for key, value in tree.items() if value is not None}
    return tree
