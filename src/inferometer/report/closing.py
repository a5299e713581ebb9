"""What the commands that measure say last on a terminal: the answer in a sentence, the cause if there is one, and how to open the report with charts."""

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from inferometer.analysis import gate, slo_result
from inferometer.analysis.slo_expression import parse
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.summary import Summary
from inferometer.analysis.sweep import describe_knee
from inferometer.report import formatting
from inferometer.report.tail import tail_notes
from inferometer.report.verdict import may_be_quoted
from inferometer.store.folder import LATEST


def say_last(folder: str | Path, lines: Iterable[str] = ()) -> None:
    """Print the lines, and how to open the report of the folder, if standard error is a terminal."""
    latest = Path(folder).parent / LATEST
    shown = os.path.relpath(latest if latest.exists() and latest.samefile(folder) else folder)
    if sys.stderr.isatty():
        for line in (*lines, f"open it: inferometer report {shlex.quote(shown)} --open"):
            click.echo(formatting.one_line(line, 500), err=True)


def conclusion(summary: Summary, strict: bool = False) -> list[str]:
    """The answer, and its cause if there is one."""
    if causes := [f"cause: {check.name}: {check.message}" for check in gate.obstacles(summary)]:
        return [f"INVALID: may be quoted: {may_be_quoted(summary)}", causes[0]]
    answer = _objectives(summary.slos, strict) if summary.slos else _figures(summary)
    if failed := [check.name for check in summary.checks if check.status == "fail"]:
        return [answer, f"INVALID by {' and '.join(failed)}: this answer holds, but latencies may not be quoted"]
    return [answer, *(f"cause: {note.removesuffix(' (--why has more)')}" for note in tail_notes(summary)[:1])]


def _objectives(results: Sequence[SloResult], strict: bool) -> str:
    """The worst objective with what was measured, or that all are met."""
    failed = [one for one in results if not slo_result.is_passed([one], strict)]
    doubtful = failed or [one for one in results if one.status == "undecided"]
    if not doubtful:
        return f"the server meets {'all objectives' if len(results) > 1 else _measured(results[0])}"
    worst = min(doubtful, key=lambda one: one.status != "missed")
    words = {"missed": "the server misses", "undecided": "the run is too short to decide", "met": "met by margin only:"}
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{words[worst.status]} {_measured(worst)}{more}{slo_result.longer_text(worst.more_seconds)}"


def _measured(one: SloResult) -> str:
    return one.slo if one.value is None else f"{one.slo}: it is {parse(one.expression).amount(one.value)}"


def _figures(summary: Summary) -> str:
    """The rate and the latency, or where the knee is if there are several stages."""
    if summary.stages:
        knee = summary.knee or summary.no_knee
        return describe_knee(knee) if knee else f"{len(summary.stages)} stages, {summary.counts.ok:,} requests ok"
    rates = {"requests/s": summary.throughput.requests, "output tokens/s": summary.throughput.output_tokens}
    words = [f"{formatting.number(rate)} {unit}" for unit, rate in rates.items() if rate is not None]
    for name, title in (("ttft", "time to first token"), ("e2e", "end to end")):
        found = summary.metrics.get(name)
        if found is not None and found.count:
            p50, p99 = (formatting.milliseconds(found.value(column)) for column in ("p50", "p99"))
            words.append(f"{title} {p50} ms (p99 {p99} ms)")
    return ", ".join(words)
