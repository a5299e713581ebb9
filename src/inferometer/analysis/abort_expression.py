"""Limits that end a run, as text (`abort.on`, `--abort-on`): the parser.

    failure_rate > 20%          the share of requests that failed, over the window
    consecutive_failures > 50   requests that failed one after the other
    ttft.p99 > 30s              a percentile or the mean of a latency, over the window
    e2e > 60s                   a single request

The words, units and errors are those of service level objectives (slo_expression.py). What a limit means while a run is in progress
is in conduct/breakers.py.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from inferometer.analysis.metrics import METRICS
from inferometer.analysis.slo_expression import SHOWN, STATISTICS, TIME_UNITS, Scanner, Sign, Threshold

Kind = Literal["failure_rate", "consecutive_failures", "statistic", "request"]

_LATENCIES = [name for name, metric in METRICS.items() if metric.unit == "s" and metric.values is not None]


class Limit(msgspec.Struct, frozen=True):
    """Something measured, a sign, and the threshold above which the run ends."""

    kind: Kind
    sign: Sign
    threshold: Threshold
    metric: str = ""
    statistic: str = ""
    """Of a metric: `mean`, or a key of PERCENTILES. Empty: the limit is for a single request."""

    @property
    def subject(self) -> str:
        """What is measured: the expression up to the sign."""
        if not self.metric:
            return self.kind
        return f"{self.metric}.{SHOWN.get(self.statistic, self.statistic)}" if self.statistic else self.metric

    def is_exceeded(self, value: float) -> bool:
        limit = self.threshold.value
        return value >= limit if self.sign == ">=" else value > limit

    def __str__(self) -> str:
        return f"{self.subject} {self.sign} {self.threshold}"


def parse_limits(texts: Sequence[str], key: str = "abort.on") -> tuple[Limit, ...]:
    """Parse several limits; `key` is what the user calls the setting in errors. Duplicates are dropped."""
    return tuple(dict.fromkeys(parse_limit(text, key) for text in texts))


def parse_limit(text: str, key: str = "abort.on") -> Limit:
    """Parse a limit; raises UserError with the column at fault."""
    scanner = Scanner(text, key)
    limit = _limit(scanner)
    scanner.expect_end()
    return limit


def _limit(scanner: Scanner) -> Limit:
    start, name = scanner.word([*METRICS, "failure_rate", "consecutive_failures"], "metric")
    if name == "failure_rate":
        return Limit("failure_rate", _sign(scanner), scanner.threshold(("%", "")))
    if name == "consecutive_failures":
        return Limit("consecutive_failures", _sign(scanner), scanner.threshold(("",)))
    if name not in _LATENCIES:
        raise scanner.error(start, f"{name} cannot end a run", f"use a latency: {', '.join(_LATENCIES)}")
    statistic = ""
    if scanner.take("."):
        statistic = STATISTICS[scanner.word([*STATISTICS], "statistic")[1]]
    kind: Kind = "statistic" if statistic else "request"
    return Limit(kind, _sign(scanner), scanner.threshold(TIME_UNITS), name, statistic)


def _sign(scanner: Scanner) -> Sign:
    scanner.peek()
    at = scanner.at
    sign = scanner.sign("")
    if sign[0] != ">":
        raise scanner.error(at, f"a run ends above a limit, got {sign!r}", f"did you mean >{sign[1:]}?")
    return sign
