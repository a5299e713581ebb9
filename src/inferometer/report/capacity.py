"""The capacity of a server: the answer in words, and the report in the terminal."""

import math

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from inferometer.capacity_search.result import By, Capacity, Probe
from inferometer.report import formatting
from inferometer.report.console import new_console
from inferometer.report.width import bare, columns
from inferometer.units import format_number, format_seconds

UNITS: dict[By, str] = {"rate": "requests/s", "concurrency": "requests in flight", "users": "users"}
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
SIGNS = {"holds": ("✓", "green"), "fails": ("✗", "red"), "undecided": ("?", "yellow")}
PURPOSES = {"ramp": "ramp", "bisect": "narrow down", "repeat": "repeat", "confirm": "confirm"}
_TOO_WIDE = 1.5
"""From here on, the answer names the ends of the interval only."""


# --- words -----------------------------------------------------------------------------------------------------------


def words(found: Capacity) -> str:
    """The answer in one sentence that anyone understands."""
    return headline(found) + "".join(f"{sign} {text}" for sign, text in _rest(found))


def headline(found: Capacity) -> str:
    """The first part of the answer: what holds."""
    low, high, unit = found.bracket.low, found.bracket.high, UNITS[found.by]
    if low is None:
        if high is None:
            return "the search ended before any level was shown to hold or to fail"
        return f"no level was shown to hold; {amount(high)} {unit} is too much"
    if high is None:
        return f"holds at least {amount(low)} {unit}"
    if high > _TOO_WIDE * low:  # the middle of a wide interval would be a guess
        return f"holds at least {amount(low)} {unit} ({amount(high)} is too much)"
    return f"holds {amount(found.bracket.estimate or low)} {unit} ({amount(low)} to {amount(high)})"


def consequences(found: Capacity) -> str:
    """The rest of the answer: how many people that is, and what limits the server."""
    text = "; ".join(part for _, part in _rest(found))
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _rest(found: Capacity) -> list[tuple[str, str]]:
    """The parts of the answer after the headline, each with the sign before it."""
    parts = [(",", _people(found))] if found.bracket.low is not None else []
    if found.bracket.high is not None:
        parts.append((";", _limit(found)))
    elif found.bracket.low is not None:
        parts.append((";", "no level was shown to fail"))
    return [(sign, text) for sign, text in parts if text]


def inferences(found: Capacity) -> float | None:
    """Inferences per second at the level that holds, for tensor endpoints; None if no level does."""
    probe = found.at_low
    rate = found.bracket.low if found.by == "rate" or probe is None else probe.throughput
    return None if probe is None or rate is None else rate * (found.batch or 1)


def _people(found: Capacity) -> str:
    """How many people that is, for servers that people talk to."""
    probe = found.at_low
    if not found.has_text:
        rate = inferences(found)
        return "" if rate is None else f"{amount(rate)} inferences/s"
    if found.people is None or probe is None or probe.mean_e2e is None or found.by == "users":
        return ""
    every = probe.mean_e2e + found.think
    return (
        f"about {found.people:,} people chatting (one message every {format_seconds(every)} each, "
        f"of which they think {format_seconds(found.think)})"
    )


def _limit(found: Capacity) -> str:
    if found.limited_by is None:
        return ""
    if found.bracket.low is None:
        return f"the {limiting_metric(found.limited_by)} is what fails there"
    if found.limited_by.rpartition(": ")[2].startswith("goodput"):
        return "beyond that, fewer requests keep the limits"
    return f"beyond that, the {limiting_metric(found.limited_by)} grows first"


def limiting_metric(limited_by: str) -> str:
    """What limits the server, in words: `time to first token`; with the name of its traffic class, if it is about one."""
    class_, _, rest = limited_by.rpartition(": ")
    metric = rest.partition(".")[0]
    return _METRICS.get(metric, metric) + (f" of {class_}" if class_ else "")


def amount(value: float) -> str:
    """Format a level with three digits."""
    return f"{value:,.0f}" if value >= 1000 else format_number(value, 3)


# --- the report ------------------------------------------------------------------------------------------------------


def render(found: Capacity, color: bool = False, width: int | None = None) -> str:
    """Render the report for `width` columns; by default, for the width of standard output."""
    width = columns() if width is None else width
    console = new_console(color, width)
    with console.capture() as capture:
        for part in (_answer(found), _probes(found), Text(f"probes in {found.folder}", style="dim")):
            console.print(Padding(part, (0, 0, 1, 1)))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(lines).rstrip("\n") + "\n"


def _answer(found: Capacity) -> RenderableType:
    lines = [
        Text(formatting.one_line(f"{found.url} · {found.model}", 200), style="dim"),
        Text(words(found), style="bold"),
        Text(basis(found), style="dim"),
    ]
    if found.at_least is not None:
        sign, style = SIGNS[{"met": "holds", "missed": "fails", "undecided": "undecided"}[found.outcome]]
        lines.insert(2, Text(f"{sign} {required(found)}", style=style))
    lines += [Text(note, style="yellow") for note in notes(found)]
    return Group(*lines)


def required(found: Capacity) -> str:
    """Whether the level that must hold was shown to hold."""
    assert found.at_least is not None
    ends = {"met": "is shown to hold", "missed": "is shown to fail", "undecided": "is not shown to hold"}
    return f"{amount(found.at_least)} {UNITS[found.by]}, which must hold, {ends[found.outcome]}"


def basis(found: Capacity) -> str:
    """What was judged, and how long the search took."""
    preset = f"{' + '.join(found.presets)}: " if found.presets else ""
    judged = f"; judged at {found.percentile}" if found.percentile else ""
    spent = f"{format_seconds(found.seconds)} of {format_seconds(found.budget)}"
    return f"{preset}{', '.join(found.slos)}{judged}; {count_probes(found)} in {spent}"


def count_probes(found: Capacity) -> str:
    return f"{len(found.probes)} probe{'' if len(found.probes) == 1 else 's'}"


def notes(found: Capacity) -> list[str]:
    """What a reader of the answer should know."""
    result = []
    if found.interrupted:
        result.append("interrupted: this is what the probes had shown until then")
    if found.ended_by:
        result.append(f"the search ended early, and this is what the probes had shown until then: {found.ended_by}")
    if found.bracket.low is not None and not found.bracket.confirmed:
        result.append("the lower end was not confirmed by a fresh run: a larger --budget would allow that")
    if found.bracket.non_monotone:
        result.append("a level held although a lower one failed, also when it was repeated: other load on the server?")
    is_wide = found.bracket.low is None or (found.bracket.high or math.inf) > 1.25 * found.bracket.low
    is_complete = not found.interrupted and not found.ended_by
    if is_complete and found.bracket.low is None and found.bracket.high is None:
        result.append("no probe was long enough to show anything: raise --budget")
    elif is_complete and is_wide:
        result.append("the interval is wide because the budget is spent, not because the server varies: raise --budget")
    if found.has_sessions and found.by == "rate":
        result.append(
            "requests are turns of conversations, whose rate builds up for as long as a conversation lasts, which may be longer "
            "than a probe: --by users keeps the number of conversations constant"
        )
    if found.percentile == "p90":
        result.append("p90 is judged because p99 takes ten times as many requests: --percentile p99 --budget 20m")
    return result


def _probes(found: Capacity) -> RenderableType:
    table = bare()
    for name in (UNITS[found.by], "verdict", "requests", "time", "because"):
        table.add_column(f"{name} ", justify="right" if name in (UNITS[found.by], "requests", "time") else "left")
    for probe in found.probes:
        sign, style = SIGNS[probe.status]
        table.add_row(
            f"{amount(probe.level)} ",
            Text(f"{sign} {probe.status}", style=style),
            f"{probe.requests:,} ",
            f"{format_seconds(probe.seconds)} ",
            Text(f"{PURPOSES[probe.purpose]}: {reason(probe)}", style="dim"),
        )
    return table


def reason(probe: Probe) -> str:
    """Why a probe has its verdict: the objective that decides it."""
    order = {"missed": 0, "undecided": 1, "met": 2}
    worst = min(probe.slos, key=lambda one: order[one.status], default=None)
    if worst is None:
        return "nothing could be judged"
    return f"{worst.slo}: {worst.reason.partition(';')[0]}"
