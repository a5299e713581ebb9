"""The section `load` of inference-perf: stages, and the client that sends them."""

import math
import os
from typing import Any

from inferometer.compat.inference_perf.spec import Spec, at, is_exact, unsupported
from inferometer.errors import UserError

_RATED = ("constant", "poisson")
_MAX_CONCURRENCY = 100
_MAX_CONNECTIONS = 2500
"""Defaults of worker_max_concurrency and worker_max_tcp_connections."""


def load(spec: Spec, unit: str, users: int = 0) -> tuple[dict[str, Any], list[str]]:
    """Our section `load` and notes. `unit`: what a stage counts, `sessions` or, if the data has sessions, `requests`. `users`: how many
    sessions take turns in stages with a rate; 0: each goes on by itself."""
    stages = _stages(spec)
    kind = at(spec, "load.type", "constant")
    if kind == "trace_session_replay":
        raise unsupported(
            "load.type", "the replay of recorded sessions", "use constant, poisson, trace_replay or concurrent"
        )
    if kind == "trace_replay":
        return _replay(spec, stages)
    made, note = _concurrent(spec, stages) if kind == "concurrent" else _rated(spec, kind, stages)
    if unit != "sessions":
        is_paced = users and kind != "concurrent"
        made = [stage | {"unit": unit} | ({"users": users} if is_paced else {}) for stage in made]
    section: dict[str, Any] = {"type": "stages", "stages": made, "drain": True}
    notes = [note]
    pause = float(at(spec, "load.interval", 1.0))
    if len(made) > 1 and pause:
        section["pause"] = f"{pause:g}s"
        notes.append(
            f"load.interval: load.pause {pause:g}s between stages, each of which waits for the responses of the one before."
        )
    return section, notes


def requests_of(stage: dict[str, Any]) -> int:
    """How many requests a stage of inference-perf has."""
    if stage.get("num_requests"):
        return int(stage["num_requests"])
    return int(float(stage["rate"]) * float(stage["duration"]))


def _stages(spec: Spec) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = at(spec, "load.stages", [])
    if not stages and at(spec, "load.sweep") is not None:
        raise UserError("the rates of a sweep are found by a run", "run it, or give load.stages", "load.sweep")
    if not stages:
        raise UserError("there are no stages", "give at least one, such as {rate: 1, duration: 30}", "load.stages")
    return stages


# --- kinds of load ---------------------------------------------------------------------------------------------------


def _rated(spec: Spec, kind: str, stages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    if kind not in _RATED:
        raise unsupported("load.type", f"the load {kind!r}", "use constant, poisson, trace_replay or concurrent")
    arrivals = "poisson" if is_exact(spec) else kind
    cap = _cap(spec)
    made = []
    for number, stage in enumerate(stages):
        rate, duration = _number(stage, "rate", number), _number(stage, "duration", number)
        if not (count := int(rate * duration)):
            what = f"has no requests: {rate:g} per second for {duration:g} s is less than one"
            raise UserError(what, "raise the rate or the duration", f"load.stages.{number}")
        own = {"type": arrivals, "rate": rate, "duration": f"{duration:g}s", "requests": count}
        made.append(own | ({"max_concurrency": cap} if cap else {}))
    if kind == "poisson":
        return made, "load.type poisson: exponential gaps, int(rate x duration) requests."
    if is_exact(spec):
        return (
            made,
            "load.type constant: random intervals, rescaled to fill the duration, as inference-perf sends them.",
        )
    return made, "load.type constant: even intervals (compat: exact sends at random intervals, as inference-perf does)."


def _concurrent(spec: Spec, stages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    made: list[dict[str, Any]] = []
    for number, stage in enumerate(stages):
        level, count = (int(_number(stage, name, number)) for name in ("concurrency_level", "num_requests"))
        made.append(
            {"type": "closed", "concurrency": level, "requests": count} | ({"ramp_up": "0"} if is_exact(spec) else {})
        )
    return made, "load.type concurrent: a closed loop with concurrency_level requests in flight."


def _replay(spec: Spec, stages: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    if len(stages) > 1:
        raise unsupported("load.stages", "a trace that is replayed in several stages", "give one stage")
    times, lengths = at(spec, "load.trace.file"), at(spec, "data.trace.file")
    if times is None:
        raise UserError("there is no trace", "give load.trace.file", "load.trace")
    if lengths is None or at(spec, "data.type") != "random":
        what = "a trace whose times are used without its lengths"
        raise unsupported("load.trace", what, "use data.type random, and data.trace with the same file")
    if times != lengths:
        raise unsupported("data.trace.file", "another trace than that of load.trace.file", "use the same file")
    if at(spec, "load.lora_traffic_split"):
        raise unsupported("load.lora_traffic_split", "a split of a replayed trace")
    cap = _cap(spec)
    section = {"type": "trace"} | ({"max_concurrency": cap} if cap else {})
    return section, ["load.type trace_replay: each row is sent at its time; the rows, not the stage, end the load."]


def _number(stage: dict[str, Any], name: str, number: int) -> float:
    value = stage.get(name)
    key = f"load.stages.{number}.{name}"
    if isinstance(value, str):
        raise unsupported(key, "an expression", "give a number")
    if value is None or not math.isfinite(value) or value <= 0:
        raise UserError(f"must be more than 0, got {value}", "give a number", key)
    return float(value)


# --- the client ------------------------------------------------------------------------------------------------------


def client(spec: Spec) -> tuple[dict[str, Any], list[str]]:
    """Our section `client` and notes."""
    grace = float(at(spec, "load.stage_teardown_grace_seconds", 120))
    section: dict[str, Any] = {"grace": f"{grace:g}s"}
    workers, notes = at(spec, "load.num_workers"), []
    if workers is not None and workers != os.cpu_count():
        section["processes"] = int(workers)
        notes.append(f"load.num_workers: client.processes {workers}.")
    else:
        notes.append("load.num_workers: client.processes auto, as many as the load needs.")
    if retries := int(at(spec, "load.request_retries", 0)):
        backoff = float(at(spec, "load.request_retry_backoff_sec", 0.5))
        section |= {"retries": retries, "retry_backoff": f"{backoff:g}s"}
        notes.append(f"load.request_retries: client.retries {retries}.")
    if is_exact(spec):
        section["probe"] = False
    if cap := _cap(spec):
        notes.append(f"load.worker_max_concurrency: at most {cap:,} requests in flight.")
    return section, notes


def _cap(spec: Spec) -> int:
    """How many requests may be in flight in an open loop; 0: no limit."""
    if at(spec, "load.type") == "concurrent":
        return 0
    limit = int(at(spec, "load.worker_max_concurrency", _MAX_CONCURRENCY))
    connections = int(at(spec, "load.worker_max_tcp_connections", _MAX_CONNECTIONS))
    if (limit, connections) == (_MAX_CONCURRENCY, _MAX_CONNECTIONS) and not is_exact(spec):
        return 0
    workers = at(spec, "load.num_workers")
    count = max(os.cpu_count() or 1 if workers is None else int(workers), 1)
    return count * min((each for each in (limit, connections) if each), default=0)


# --- adapters --------------------------------------------------------------------------------------------------------


def adapters(spec: Spec) -> dict[str, float]:
    """The share of each LoRA adapter, by its name; empty if there is no split."""
    split: list[dict[str, Any]] = at(spec, "load.lora_traffic_split", [])
    shares = {str(entry["name"]): float(entry["split"]) for entry in split}
    if len(shares) < len(split):
        raise UserError("an adapter is named twice", "give each adapter one share", "load.lora_traffic_split")
    if shares and (total := math.fsum(shares.values())) != 1.0:
        raise UserError(f"the shares must add up to 1, got {total:g}", "correct them", "load.lora_traffic_split")
    return shares
