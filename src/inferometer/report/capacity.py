"""The capacity of a server in words: the answer, what it is based on, and what each probe showed."""

import math

from inferometer.analysis.slo_expression import TIME_UNITS, parse
from inferometer.analysis.slo_result import SloResult, Status
from inferometer.capacity_search.objectives import excess
from inferometer.capacity_search.result import Capacity, Probe
from inferometer.capacity_search.trials import By
from inferometer.report import formatting
from inferometer.units import format_number, format_seconds

UNITS: dict[By, str] = {"rate": "requests/s", "concurrency": "requests in flight", "users": "users"}
PURPOSES = {"explore": "closed loop", "narrow": "narrow down", "repeat": "repeat", "confirm": "confirm"}
_METRICS = {
    "ttft": "time to first token",
    "ttft_service": "time to first token",
    "ttft_content": "time to the first token of the response itself",
    "tpot": "time per output token",
    "ntpot": "time per output token, with the wait,",
    "itl": "gap between chunks",
    "e2e": "response time",
    "e2e_service": "response time",
    "failure_rate": "share of failed requests",
}
_VIOLATIONS = {"failure_rate": "failed", "goodput": "outside the limits"}
"""What requests that violate an objective are called; all others are too slow."""
_BY_CURVE = "by the curve of the closed loops"
_CLOSE = 0.5, 2.0
"""A share of violations within these multiples of what is allowed is close to the limit."""
_WIDE, _SAME = 1.25, 1.02


# --- the answer ------------------------------------------------------------------------------------------------------


def words(found: Capacity) -> str:
    """The answer in one sentence that anyone understands."""
    limit = consequence(found)
    return f"{headline(found)}; {limit}" if limit else headline(found)


def headline(found: Capacity) -> str:
    """The first part of the answer: what holds."""
    ends, unit = found.bracket, UNITS[found.by]
    if ends.low is None:
        return (
            _too_slow(found.by, found.alone) if found.alone else "the search ended before any level was shown to hold"
        )
    if ends.low_basis == "estimated":
        estimate = ends.estimate or ends.low
        high, is_seen = amount(ends.high or 0.0), ends.high_basis != "estimated"
        least = f"at least {amount(ends.low)} {_BY_CURVE} (no probe showed it)"
        if ends.high is not None and is_seen:
            least += f", {'likely ' if ends.high_basis == 'likely' else ''}at most {high}"
        elif ends.high is not None and found.has_limit:
            least = f"between {amount(ends.low)} and {high} {_BY_CURVE} (no probe showed it)"
        return f"probably holds about {amount(estimate)} {unit}{_bracketed(_people(found, estimate))}, {least}"
    probe = found.at_low
    remarks = [_people(found, ends.low)]
    if ends.low_basis == "likely":
        remarks += ["" if probe is None else seen(probe, "requests "), "" if ends.confirmed else "not confirmed"]
    verb = "likely holds" if ends.low_basis == "likely" else "holds at least"
    return f"{verb} {amount(ends.low)} {unit}{_bracketed(*remarks)}{_above(found, ends.low)}"


def consequence(found: Capacity) -> str:
    """The second part of the answer: what limits the server."""
    if found.bracket.low is None:
        return ""
    if not found.has_limit:
        return "no level failed"
    if found.limited_by is None:
        return ""
    if found.limited_by.rpartition(": ")[2].startswith("goodput"):
        return "beyond that, fewer requests keep the limits"
    return f"beyond that, the {limiting_metric(found.limited_by)} grows first"


def _above(found: Capacity, low: float) -> str:
    """Where the capacity probably is, and the upper end."""
    high, estimate = found.bracket.high, found.bracket.estimate
    if high is None or not found.has_limit:
        return ""
    most = f"{'likely ' if found.bracket.high_basis == 'likely' else ''}at most {amount(high)}"
    unseen = f"{_BY_CURVE}; no probe showed it" if found.bracket.high_basis == "estimated" else ""
    if estimate is None or estimate < _SAME * low or amount(estimate) in (amount(low), amount(high)):
        return f", {most}{_bracketed(unseen)}"
    return f", probably about {amount(estimate)} ({most}{unseen and ' '}{unseen})"


def _too_slow(by: By, alone: Probe) -> str:
    """Why no level holds."""
    is_user = by == "users" and alone.purpose != "explore"
    start = f"{'one user' if is_user else 'one request at a time'} already violates"
    worst = decisive(alone)
    if worst is None:
        return f"{start} the objectives"
    objective = parse(worst.expression)
    what = f"{worst.expression}{f' of {worst.class_}' if worst.class_ else ''}"
    if worst.value is None or not math.isfinite(worst.value):
        return f"{start} {what}"
    verb = "it takes" if objective.threshold.unit in TIME_UNITS else "it is"
    return f"{start} {what} ({verb} {_measured(worst)})"


def _bracketed(*remarks: str) -> str:
    text = "; ".join(filter(None, remarks))
    return f" ({text})" if text else ""


def _people(found: Capacity, level: float) -> str:
    """How many people, or inferences per second, a level is."""
    if found.by == "users":
        return f"each thinks {format_seconds(found.think)} between messages"
    if found.has_text:
        people = found.people_at(level)
        return "" if people is None else f"about {people:,} people"
    if found.by == "rate" and (found.batch or 1) == 1:
        return ""
    rate = inferences(found)
    return "" if rate is None else f"{amount(rate)} inferences/s"


def inferences(found: Capacity) -> float | None:
    """Inferences per second at the lower end, for tensor endpoints; None if no level holds."""
    probe = found.at_low
    rate = found.bracket.low if found.by == "rate" or probe is None else probe.throughput
    return None if rate is None or (probe is None and found.by != "rate") else rate * (found.batch or 1)


def limiting_metric(limited_by: str) -> str:
    """What limits the server, in words: `time to first token`; with the name of its traffic class, if it is about one."""
    class_, _, rest = limited_by.rpartition(": ")
    metric = rest.partition(".")[0]
    return _METRICS.get(metric, metric) + (f" of {class_}" if class_ else "")


def amount(value: float) -> str:
    """Format a level with three digits."""
    return f"{value:,.0f}" if value >= 1000 else format_number(value, 3)


def minutes(seconds: float) -> str:
    """Format a budget: `2m`, `90 s`."""
    return format_seconds(seconds).removesuffix("00s")


# --- what it is based on ---------------------------------------------------------------------------------------------


def required(found: Capacity) -> str:
    """Whether the level that must hold does."""
    assert found.at_least is not None
    is_low = found.outcome == "met"
    likely = "likely " if (found.bracket.low_basis if is_low else found.bracket.high_basis) == "likely" else ""
    ends = {"met": f"{likely}holds", "missed": f"{likely}fails", "undecided": "is not shown to hold"}
    if found.is_too_slow:
        ends["missed"] = "fails"
    return f"{amount(found.at_least)} {UNITS[found.by]}, which must hold: {ends[found.outcome]}"


def basis(found: Capacity) -> str:
    """What was judged, and how long the search took."""
    preset = f"{' + '.join(found.presets)}: " if found.presets else ""
    judged = f"; judged at {found.percentile}" if found.percentile else ""
    spent = f"{format_seconds(found.seconds)} of {minutes(found.budget)}"
    return f"{preset}{', '.join(found.slos)}{judged}; {count_probes(found)} in {spent}"


def count_probes(found: Capacity) -> str:
    return f"{len(found.probes)} probe{'' if len(found.probes) == 1 else 's'}"


def chatting(found: Capacity) -> str:
    """What a person in the answer does; "" if it has no people."""
    if not found.has_text or found.by == "users" or found.mean_e2e is None or found.bracket.low is None:
        return ""
    every = format_seconds(found.mean_e2e + found.think)
    return f"each person sends a message every {every}, and thinks for {format_seconds(found.think)} of it"


def raised_budget(asked: float | None, budget: float, takes: float | None) -> str:
    """Why the search takes longer than usual; "" if it does not."""
    if asked is None:
        return ""
    slow = "responses take long" if takes is None else f"a response takes {format_seconds(takes)}"
    return f"{slow}, so the search takes up to {minutes(budget)} instead of {minutes(asked)}"


def notes(found: Capacity) -> list[str]:
    """What a reader of the answer should know."""
    ends, result = found.bracket, []
    is_complete = not found.interrupted and not found.ended_by
    if found.interrupted:
        result.append("interrupted: this is what the probes had shown until then")
    if found.ended_by:
        result.append(f"the search ended early, and this is what the probes had shown until then: {found.ended_by}")
    if raised := raised_budget(found.asked_budget, found.budget, _unloaded(found)):
        result.append(raised)
    if warming := sum(probe.is_warming for probe in found.probes):
        which = "a probe" if warming == 1 else f"{warming} probes"
        result.append(f"the server was still warming up during {which}: search again for a better answer")
    if found.strict and ends.low is not None and found.outcome == "undecided" and ends.low_basis != "shown":
        result.append("--strict: no level was shown to hold with 95 % confidence")
    if ends.non_monotone:
        result.append("a level held although a lower one failed, also when it was repeated: other load on the server?")
    held = found.at_low
    if held is not None and ends.low is not None and held.level > ends.low:
        result.append(
            f"{amount(held.level)} held, but all probes together make less more likely: close to its limit, a queue grows for minutes"
        )
    is_wide = ends.low is not None and (ends.high or math.inf) > _WIDE * ends.low
    is_confirmed = ends.low is None or ends.confirmed or ends.low_basis == "estimated"
    more = ["narrow the interval"] * is_wide + ["confirm the lower end by a fresh run"] * (not is_confirmed)
    if is_complete and ends.low is None and not found.is_too_slow:
        result.append("no probe was long enough to show anything: raise --budget")
    if is_complete and more:
        result.append(f"a larger --budget would {' and '.join(more)}")
    if found.has_sessions and found.by == "rate":
        result.append(
            "requests are turns of conversations, whose rate builds up for as long as a conversation lasts, which may be longer "
            "than a probe: --by users keeps the number of conversations constant"
        )
    if found.percentile == "p90":
        result.append("p90 is judged because p99 takes ten times as many requests: --percentile p99 --budget 20m")
    return result


def _unloaded(found: Capacity) -> float | None:
    """Seconds of a response at the lowest level, which is about what it takes without load."""
    return next((probe.mean_e2e for probe in found.curve if probe.mean_e2e), None)


# --- what a probe showed ---------------------------------------------------------------------------------------------


def verdict(probe: Probe) -> tuple[str, str, str]:
    """The verdict on a probe: its sign, one word, and the tone of a page (good, warn, bad)."""
    if probe.status == "undecided" or (probe.is_warming and probe.status == "fails" and probe.purpose != "explore"):
        return "?", _why_undecided(probe), "warn"
    if probe.purpose == "explore" and probe.excess is None:
        return "?", "too short", "warn"
    sign, tone = ("✓", "good") if probe.status == "holds" else ("✗", "bad")
    if probe.purpose == "explore":
        return sign, "within" if probe.status == "holds" else "beyond", tone
    return sign, ("overloaded" if probe.overloaded else probe.status) if probe.is_sure else "likely", tone


def _why_undecided(probe: Probe) -> str:
    worst = decisive(probe)
    if probe.is_warming:
        return "warming up"
    if probe.is_growing:
        return "growing"
    if worst is None or not worst.allowed or worst.violations is None:
        return "not proven"
    if _CLOSE[0] <= worst.violations / worst.allowed <= _CLOSE[1]:
        return "close"
    needed = math.log(0.05) / math.log(1 - worst.allowed) if worst.allowed < 1 else 0.0
    return "too short" if probe.requests < needed else "not proven"


def decisive(probe: Probe) -> SloResult | None:
    """The objective that decides a probe: one that is missed, or else the one that is closest to its limit."""
    return max(probe.slos, key=lambda one: (one.status == "missed", excess(one) or 0.0), default=None)


def judged(probe: Probe, result: SloResult) -> Status:
    """How a probe judged one of its objectives: when it holds, all are met; when it fails, the one that decides it is missed."""
    if probe.status == "holds" and probe.purpose != "explore":
        return "met"
    is_worst = decisive(probe) is result and (excess(result) or 0.0) > 1
    return "missed" if probe.status == "fails" and is_worst else result.status


def seen(probe: Probe, noun: str = "") -> str:
    """What a probe saw of the objective that decides it: `0 of 231 too slow`."""
    worst = decisive(probe)
    if worst is None:
        return "nothing could be judged"
    share = probe.violations.get(worst.slo, worst.violations)
    if share is None:
        return "no response was complete" if worst.value is None and not probe.overloaded else _measured(worst)
    what = _VIOLATIONS.get(parse(worst.expression).kind, "too slow")
    if worst.class_:
        return f"{format_number(100 * share, 3)} % {noun and 'of '}{noun}{what}"
    return f"{round(share * probe.requests):,} of {probe.requests:,} {noun}{what}"


def reason(probe: Probe) -> str:
    """What a probe saw, with the objective that decides it."""
    worst = decisive(probe)
    failed = f"; {probe.failed:,} failed" if probe.failed else ""
    warming = "; warming up" if probe.is_warming and probe.status != "undecided" else ""
    class_ = "" if worst is None or not worst.class_ else f"{worst.class_}: "
    subject = "" if worst is None else f"{class_}{parse(worst.expression).subject}: "
    return formatting.one_line(f"{subject}{seen(probe)}{failed}{warming}", 300)


def _measured(result: SloResult) -> str:
    """The value of an objective in the unit of its limit."""
    if result.value is None:
        return "no steady value"
    return parse(result.expression).amount(float(f"{result.value:.3g}"))
