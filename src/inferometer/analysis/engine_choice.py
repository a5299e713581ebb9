"""The rules of the recommendation: what each of them picks of an engine's levels (recommendation.py)."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from inferometer.analysis.engine_levels import LevelRounds
from inferometer.analysis.recommendation import Found, Held, Recommendation, choose, listed
from inferometer.units import format_number, format_seconds

Candidates = Mapping[str, Sequence[LevelRounds]]
"""The levels of each engine that may win."""


def recommend(
    candidates: Candidates, excluded: Mapping[str, str], slos: Sequence[str], currency: str = "USD"
) -> tuple[Recommendation, ...]:
    """A recommendation for each use that the measurements say something about."""
    found = []
    if slos:
        title = f"for interactive use at {' and '.join(slos)}"
        found.append(choose("interactive", title, _each(candidates, _interactive), excluded, "holds", "the load of"))
    found.append(
        choose("offline", "for offline batches", _each(candidates, _offline), excluded, "delivers", "as much as")
    )
    if any(each.level.level == 1 and each.level.by != "rate" for levels in candidates.values() for each in levels):
        found.append(
            choose("single user", "for a single user", _each(candidates, _single), excluded, "is", "as fast as")
        )
    if any(each.level.cost_per_million is not None for levels in candidates.values() for each in levels):
        prices = _each(candidates, partial(_cost, currency))
        found.append(choose("cost", "for the lowest cost", prices, excluded, "is", "as cheap as"))
    if any(each.level.energy_per_token is not None for levels in candidates.values() for each in levels):
        found.append(
            choose("energy", "for the least energy", _each(candidates, _energy), excluded, "is", "as efficient as")
        )
    return tuple(each for each in found if each.standings or each.use in ("interactive", "offline"))


def _each(candidates: Candidates, rule: Callable[[Sequence[LevelRounds]], Found | None]) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for name, levels in candidates.items():
        held = rule(levels) if levels else "it was not measured"
        if held is not None:
            found[name] = msgspec.structs.replace(held, engine=name) if isinstance(held, Held) else held
    return found


# --- the rules -------------------------------------------------------------------------------------------------------


def _interactive(levels: Sequence[LevelRounds]) -> Found:
    quotable = [each for each in levels if each.level.quotable.get("latency") and each.level.slos]
    if not quotable:
        return _not_quotable(levels, "latencies")
    met = [
        each
        for each in quotable
        if each.level.outcome == "met"
        and each.level.quotable.get("throughput")
        and "throughput.requests" in each.figures
    ]
    if met:
        best = max(met, key=lambda each: each.figures["throughput.requests"].value)
        rate = best.figures["throughput.requests"]
        more = "" if best.level.level < max(each.level.level for each in levels) else " (the highest measured)"
        return Held("", rate, "requests/s", f"{_number(rate.value)} requests/s at {best.level.name}{more}", best.level)
    undecided = [each for each in quotable if each.level.outcome == "undecided"]
    if undecided:
        first = undecided[0].level
        why = next(slo.reason for slo in first.slos if slo.status == "undecided")
        return f"undecided at {first.name}: {why}"
    first = quotable[0].level
    why = next((f"{slo.slo}: {slo.reason}" for slo in first.slos if slo.status == "missed"), "there are no rates")
    return f"it meets the objectives at no level; at {first.name}, {why}"


def _offline(levels: Sequence[LevelRounds]) -> Found:
    usable = [each for each in levels if each.level.quotable.get("throughput") and each.rate is not None]
    if not usable:
        return _not_quotable(levels, "rates")
    best = max(usable, key=lambda each: each.rate.value if each.rate else 0.0)
    assert best.rate is not None
    unit = "output tokens/s" if "throughput.output_tokens" in best.figures else "requests/s"
    return Held("", best.rate, unit, f"{_number(best.rate.value)} {unit} at {best.level.name}", best.level)


def _single(levels: Sequence[LevelRounds]) -> Found | None:
    alone = [each for each in levels if each.level.level == 1 and each.level.by != "rate"]
    if not alone:
        return "it was not measured with one request at a time"
    usable = [each for each in alone if each.level.quotable.get("latency") and "e2e.p50" in each.figures]
    if not usable:
        return _not_quotable(alone, "latencies")
    best = min(usable, key=lambda each: each.figures["e2e.p50"].value)
    time = best.figures["e2e.p50"]
    first = best.level.ttft.p50 if best.level.ttft is not None else None
    words = f", first token after {format_seconds(first)}" if first is not None and math.isfinite(first) else ""
    text = f"{format_seconds(time.value)} for a median response{words}"
    return Held("", time.inverse(), "s", text, best.level, is_inverted=True)


def _cost(currency: str, levels: Sequence[LevelRounds]) -> Found:
    usable = [each for each in levels if each.level.quotable.get("throughput") and each.level.cost_per_million]
    if not usable:
        return _not_quotable(levels, "costs")
    best = min(usable, key=lambda each: each.level.cost_per_million.value if each.level.cost_per_million else math.inf)
    price = best.level.cost_per_million
    tokens = best.figures.get("throughput.output_tokens")
    if price is None or tokens is None:
        return "its output tokens per second are not known"
    unit = f"{currency} per million output tokens"
    text = f"{_number(price.value)} {unit} at {best.level.name}"
    figure = tokens.scaled(1 / (tokens.value * price.value))  # tokens per money: the price of the hardware is exact
    return Held("", figure, unit, text, best.level, is_inverted=True)


def _energy(levels: Sequence[LevelRounds]) -> Found:
    usable = [each for each in levels if each.level.quotable.get("throughput") and each.level.energy_per_token]
    if not usable:
        return "its energy is not known"
    best = min(usable, key=lambda each: each.level.energy_per_token or math.inf)
    tokens, joules = best.figures.get("throughput.output_tokens"), best.level.energy_per_token
    if tokens is None or not joules:
        return "its output tokens per second are not known"
    text = f"{_number(joules)} J per output token at {best.level.name}"
    return Held(
        "", tokens.scaled(1 / (tokens.value * joules)), "J per output token", text, best.level, is_inverted=True
    )


def _not_quotable(levels: Sequence[LevelRounds], what: str) -> str:
    checks = list(dict.fromkeys(name.replace("_", " ") for each in levels for name in each.level.failed_checks))
    if checks:
        plural = "s" if len(checks) > 1 else ""
        return f"its {what} may not be quoted: the check{plural} {listed(checks)} failed"
    problems = [problem for each in levels for problem in each.level.problems]
    return f"its {what} are not known{f': {problems[0]}' if problems else ''}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else format_number(value, 3)
