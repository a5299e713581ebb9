"""inference-perf's circuit breakers: JMESPath texts over its records, judged while a run is in progress.

A record is a sample if any of `matches` is true, and a hit if any of `rules` is true or there are none. A breaker opens when one of its
triggers fires. It never closes again: every later stage is ended at once.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from inferometer.compat.inference_perf.error_types import error_type
from inferometer.compat.inference_perf.spec import Spec, at, unsupported
from inferometer.errors import UserError
from inferometer.records import Columns, Failure, Trip
from inferometer.units import NS

_FIELDS = frozenset(
    [
        "stage_id",
        "scheduled_time",
        "start_time",
        "end_time",
        "info",
        "error",
        "error_type",
        "error_msg",
        "input_tokens",
        "output_tokens",
        "request_metrics",
        "response_metrics",
        "text",
    ]
)
"""The fields of a record that are known while a run is in progress."""


def notes(spec: Spec) -> list[str]:
    """A sentence for the log."""
    names = at(spec, "load.circuit_breakers", [])
    return [f"load.circuit_breakers: {', '.join(names)} may end stages."] if names else []


def check(spec: Spec) -> None:
    """Raise UserError for a breaker that does not exist, or whose texts cannot be judged during a run."""
    breakers_of(spec)


def breakers_of(spec: Spec) -> "Breakers | None":
    """What judges the run, for `conduct.measure(..., ends=...)`; None if no breaker may end stages."""
    names: list[str] = at(spec, "load.circuit_breakers", [])
    given = {entry["name"]: (number, entry) for number, entry in enumerate(at(spec, "circuit_breakers", []))}
    for name in names:
        if name not in given:
            known = ", ".join(given) or "there are none"
            raise UserError(
                f"there is no circuit breaker {name!r}",
                f"define it in circuit_breakers ({known})",
                "load.circuit_breakers",
            )
    chosen = [_Breaker(entry, f"circuit_breakers.{number}") for name, (number, entry) in given.items() if name in names]
    return Breakers(chosen) if chosen else None


class Breakers:
    """Judges the requests of a run as they end."""

    def __init__(self, breakers: Sequence["_Breaker"]) -> None:
        self._breakers = breakers
        self._open: _Breaker | None = None
        self._ended: set[int] = set()

    def __call__(self, rows: Columns, failures: Sequence[Failure | None], elapsed: float, stage: int) -> Trip | None:
        """Return what ends the stage in progress, once per stage. `rows` have ended since the last call."""
        if self._open is None:
            self._feed(rows, failures)
        if self._open is None or stage in self._ended:
            return None
        self._ended.add(stage)
        name = self._open.name
        return Trip(name, "stage", stage, elapsed, None, f"the circuit breaker {name} is open")

    def _feed(self, rows: Columns, failures: Sequence[Failure | None]) -> None:
        for index in np.argsort(rows["done"], kind="stable").tolist():
            record = _record(rows, index, failures[index])
            for breaker in self._breakers:
                if breaker.feed(record):
                    self._open = self._open or breaker


class _Breaker:
    """One breaker."""

    def __init__(self, entry: dict[str, Any], key: str) -> None:
        self.name = str(entry["name"])
        self._matches = [_compiled(text, f"{key}.metrics.matches") for text in at(entry, "metrics.matches", [])]
        self._rules = [_compiled(text, f"{key}.metrics.rules") for text in at(entry, "metrics.rules", [])]
        self._triggers = [_trigger(each, f"{key}.triggers.{n}") for n, each in enumerate(entry.get("triggers") or [])]

    def feed(self, record: dict[str, Any]) -> bool:
        """Count a record; True if a trigger fires."""
        if not any(expression.search(record) for expression in self._matches):
            return False
        hit = not self._rules or any(expression.search(record) for expression in self._rules)
        return any([trigger.add(hit, record["end_time"]) for trigger in self._triggers])  # every trigger counts it


def _record(rows: Columns, index: int, failure: Failure | None) -> dict[str, Any]:
    """A request as inference-perf records it, without nulls."""
    own = {name: int(rows[name][index]) for name in ("stage", "intended", "sent", "done", "n_in", "n_out")}
    info: dict[str, Any] = {}
    if own["n_in"] >= 0:
        info |= {"input_tokens": own["n_in"], "request_metrics": {"text": {"input_tokens": own["n_in"]}}}
    if own["n_out"] >= 0:
        info["response_metrics"] = {"output_tokens": own["n_out"]}
    record = {
        "stage_id": own["stage"], "scheduled_time": own["intended"] / NS, "start_time": own["sent"] / NS,
        "end_time": own["done"] / NS, "info": info,
    }  # fmt: skip
    if failure is not None:
        record["error"] = {"error_type": error_type(failure.code), "error_msg": failure.message}
    return record


# --- triggers --------------------------------------------------------------------------------------------------------


class _Trigger(Protocol):
    def add(self, hit: bool, time: float) -> bool:
        """Count a sample; True if the trigger fires."""


class _Consecutive:
    """Fires after a number of hits without any other sample between them."""

    def __init__(self, threshold: int) -> None:
        self._threshold, self._count = threshold, 0

    def add(self, hit: bool, time: float) -> bool:
        self._count = self._count + 1 if hit else 0
        return self._count >= self._threshold


class _RateOverWindow:
    """Fires when a share of the samples of the last seconds are hits."""

    def __init__(self, window: float, threshold: float, fewest: int) -> None:
        self._window, self._threshold, self._fewest = window, threshold, fewest
        self._samples: deque[tuple[float, bool]] = deque()
        self._hits = 0

    def add(self, hit: bool, time: float) -> bool:
        self._samples.append((time, hit))
        self._hits += hit
        while self._samples[0][0] < time - self._window:
            self._hits -= self._samples.popleft()[1]
        count = len(self._samples)
        return count >= self._fewest and self._hits / count >= self._threshold


def _trigger(entry: dict[str, Any], key: str) -> _Trigger:
    if entry.get("type") == "consecutive":
        return _Consecutive(int(entry["threshold"]))
    if entry.get("type") == "rate_over_window":
        return _RateOverWindow(
            float(entry["window_sec"]), float(entry["threshold"]), int(entry.get("min_samples") or 0)
        )
    raise unsupported(
        f"{key}.type", f"a trigger of the type {entry.get('type')!r}", "use consecutive or rate_over_window"
    )


# --- JMESPath --------------------------------------------------------------------------------------------------------


def _compiled(text: str, key: str) -> Any:
    try:
        import jmespath  # noqa: PLC0415 - few configs need it
    except ImportError:
        raise UserError("JMESPath is not installed", "pip install 'inferometer[inference-perf]'", key) from None
    try:
        expression = jmespath.compile(text)
    except jmespath.exceptions.JMESPathError as error:
        raise UserError(f"{text!r} is not JMESPath: {str(error).splitlines()[0]}", "correct it", key) from None
    if unknown := [name for name in _fields(expression.parsed) if name not in _FIELDS]:
        known = "stage_id, scheduled_time, start_time, end_time, error.error_type, error.error_msg, info.input_tokens"
        raise unsupported(key, f"the field {unknown[0]!r}, which is not known during a run,", f"use {known}")
    return expression


def _fields(node: Any) -> list[str]:
    """The names of all fields that an expression reads, from left to right."""
    own = [str(node["value"])] if node["type"] == "field" else []
    return own + [name for child in node.get("children", []) if isinstance(child, dict) for name in _fields(child)]
