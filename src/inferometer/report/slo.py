"""The report's last section: which service level objectives are met, missed or undecided, and the goodput."""

from inferometer.analysis.slo import Goodput
from inferometer.analysis.slo_expression import parse
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.summary import Summary
from inferometer.report import formatting
from inferometer.report.document import Judged, Judgement, Note, Section, Words

SIGNS = {"missed": ("✗", "bad"), "undecided": ("?", "warn"), "met": ("✓", "good")}


def objectives(summary: Summary) -> Section:
    """The section, for a summary that has objectives: a line that sums them up, one for each, and the goodput."""
    statuses = [result.status for result in summary.slos]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in SIGNS if status in statuses)
    judged = Judged([_judged(result, summary) for result in summary.slos])
    goodputs = [(stage.name, stage.goodput) for stage in summary.stages] or [("", summary.goodput)]
    notes = [Note(_goodput(name, goodput), "") for name, goodput in goodputs if goodput is not None]
    head = Note((("objectives", "strong"), (f"   {counts}", "")), "")
    return Section("objectives", "Objectives", [head, judged, *notes] if summary.slos else [])


def _judged(result: SloResult, summary: Summary) -> Judgement:
    value = "" if result.value is None else parse(result.expression).amount(result.value)
    reason = _where(result, summary) + formatting.one_line(result.reason, 1000)
    return Judgement(*SIGNS[result.status], result.status, result.slo, value, reason)


def _where(result: SloResult, summary: Summary) -> str:
    """The stages that a result is about, unless it is the same in all of them."""
    if not result.stages or len(result.stages) == len(summary.stages):
        return ""
    names = [stage.name for stage in summary.stages if stage.stage in result.stages]
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}: "


def _goodput(stage: str, goodput: Goodput) -> Words:
    low, high = (None if end is None else 100 * end for end in goodput.ci["attainment"])
    interval = f"{formatting.number(low, 2)} .. {formatting.number(high, 2)} %"
    return (
        ("goodput", "strong"),
        (f"   {stage}: " if stage else "   ", ""),
        (formatting.number(goodput.rate), "strong"),
        (" requests/s, ", ""),
        (f"{formatting.number(100 * goodput.attainment, 2)} %", "strong"),
        (f" of the requests met {' & '.join(goodput.slos)}", ""),
        (f" (95 % CI {interval})", "dim"),
    )
