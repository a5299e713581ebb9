"""Goodput: which successful requests met the objectives of report.goodput.constraints and of the SLO headers."""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from inferometer.compat.inference_perf.reports.distribution import known_sum, per
from inferometer.compat.inference_perf.reports.requests import Mask, Requests
from inferometer.compat.inference_perf.spec import Spec

_FIGURES = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "itl": "inter_token_latency",
    "ntpot": "normalized_time_per_output_token",
    "request_latency": "request_latency",
}
"""Names of constraints, and the latency that each is about. Other names are ignored, as in inference-perf."""
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


class Objectives(msgspec.Struct, frozen=True):
    """Upper limits in seconds by the names of _FIGURES."""

    limits: dict[str, float]
    ttft_header: float | None
    tpot_header: float | None


def objectives(spec: Spec) -> Objectives:
    """The limits that hold for every request: a header comes before a constraint."""
    constraints = (spec["report"].get("goodput") or {}).get("constraints") or {}
    limits = {name: float(constraints[name]) for name in _FIGURES if constraints.get(name) is not None}
    ttft, tpot = slo_of_header(spec["api"], "ttft"), slo_of_header(spec["api"], "tpot")
    for name, value in (("ttft", ttft), ("tpot", tpot)):
        if value is not None:
            limits[name] = value
    return Objectives({name: limits[name] for name in _FIGURES if name in limits}, ttft, tpot)


def slo_headers(api: Mapping[str, Any]) -> dict[str, str]:
    """The names of the headers with SLOs, in lower case, by constraint."""
    unit = api.get("slo_unit") or "ms"
    return {name: (api.get(f"slo_{name}_header") or f"x-slo-{name}-{unit}").lower() for name in ("ttft", "tpot")}


def slo_of_header(api: Mapping[str, Any], name: str) -> float | None:
    """The SLO of a request header in seconds; only streamed requests have one."""
    if not api.get("streaming"):
        return None
    headers = {key.lower(): value for key, value in (api.get("headers") or {}).items()}
    try:
        return float(headers[slo_headers(api)[name]]) * _UNITS[api.get("slo_unit") or "ms"]
    except (KeyError, TypeError, ValueError):  # not set, or `default`
        return None


def goodput(requests: Requests, own: Mask, aims: Objectives) -> dict[str, float] | None:
    """Goodput of the successful requests among `own`; None without objectives or requests. A missing value is a miss."""
    own = own & requests.ok
    total = int(np.count_nonzero(own))
    if not aims.limits or not total:
        return None
    met = {name: requests.latencies[_FIGURES[name]][own] <= limit for name, limit in aims.limits.items()}
    good: Mask = np.logical_and.reduce(list(met.values()))
    seconds = float(requests.end[own].max() - requests.start[own].min())
    count = int(np.count_nonzero(good))
    return {
        "goodput_percentage": count / total * 100,
        "request_goodput": per(count, seconds),
        "token_goodput": per(known_sum(requests.n_in[own][good]) + known_sum(requests.n_out[own][good]), seconds),
        "good_requests": count,
        "total_requests": total,
    } | {f"{name}_attainment_percentage": float(each.mean()) * 100 for name, each in met.items()}
