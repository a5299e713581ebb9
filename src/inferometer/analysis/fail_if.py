"""Conditions that fail a comparison: `ttft.p99 worse by 5%`.

    METRIC worse by NUMBER%      it is shown to be worse by more than this share
    METRIC worse                 it is shown to be worse at all

METRIC is a name of `run_figures.NAMES`, such as ttft.p99, e2e.mean, throughput.requests, goodput or failure_rate. The percentage of
failure_rate is a difference in percentage points: from 0.2 % to 1.2 % is worse by 1 %. `parse` raises UserError with the column at fault.
"""

import difflib
import math
import re

import msgspec

from inferometer.analysis.run_figures import FAILURE_RATE, NAMES, is_higher_better
from inferometer.errors import UserError

_PART = re.compile(r"\s*([^\s%]+|%)")
_NUMBER = re.compile(r"\s*(\d+\.?\d*|\.\d+)")


class FailIf(msgspec.Struct, frozen=True):
    """A metric, and by how much it may be worse, as a share."""

    metric: str
    margin: float = 0.0

    @property
    def limit(self) -> float:
        """The margin as a log ratio, positive: that of B / A for a latency, of A / B for a rate. For failures, the difference."""
        if self.metric == FAILURE_RATE:
            return self.margin
        return -math.log(1 - self.margin) if is_higher_better(self.metric) else math.log(1 + self.margin)

    def __str__(self) -> str:
        return f"{self.metric} worse" + (f" by {100 * self.margin:.6g}%" if self.margin else "")


def parse(text: str, key: str = "--fail-if") -> FailIf:
    """Parse a condition; raises UserError with the column at fault."""

    def error(at: int, what: str, remedy: str) -> UserError:
        return UserError(f"{what} (column {at + 1} of {text!r:.120})", remedy, key)

    def word(at: int) -> tuple[str, int, int]:
        match = _PART.match(text, at)
        return (match[1], match.start(1), match.end()) if match else ("", len(text), len(text))

    name, start, at = word(0)
    if not name:
        raise error(start, "expected a metric, got nothing", "write for example 'ttft.p99 worse by 5%'")
    name = name.replace("p999", "p99.9")
    if name not in NAMES:
        raise error(start, f"there is no metric {name!r} to compare", _suggestion(name))
    verb, start, at = word(at)
    if verb != "worse":
        raise error(start, f"expected 'worse', got {verb!r}" if verb else "expected 'worse', got nothing", _EXAMPLE)
    by, start, at = word(at)
    if not by:
        return FailIf(name)
    if by != "by":
        raise error(start, f"expected 'by' or the end, got {by!r}", _EXAMPLE)
    number = _NUMBER.match(text, at)
    if number is None:
        raise error(word(at)[1], f"expected a number, got {word(at)[0]!r}", _EXAMPLE)
    sign, start, at = word(number.end())
    if sign != "%":
        raise error(start, "the number needs a percent sign", f"write {number[1]}%")
    rest, start, _ = word(at)
    if rest:
        raise error(start, f"expected the end, got {rest!r}", "give each condition with an option of its own")
    margin = float(number[1]) / 100
    if (is_higher_better(name) or name == FAILURE_RATE) and margin >= 1:
        raise error(number.start(1), f"{name} cannot become worse by 100 % or more", _EXAMPLE)
    return FailIf(name, margin)


_EXAMPLE = "write for example 'ttft.p99 worse by 5%'"


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), NAMES, 1, 0.6)
    metrics = dict.fromkeys(each.partition(".")[0] for each in NAMES)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(metrics)} with a statistic, as in ttft.p99"
