"""The sentences of a comparison: "TTFT p99 is 12 % lower (9 to 15 %)"."""

import math
from collections.abc import Sequence

from inferometer.analysis import log_ratio
from inferometer.analysis.log_ratio import LogRatio, exp
from inferometer.analysis.run_figures import FAILURE_RATE, Figure
from inferometer.analysis.share_difference import ShareDifference
from inferometer.units import format_number

_SHORT = {
    "ttft": "TTFT", "ttft_service": "TTFT from the send", "ttft_content": "TTFT of the content", "itl": "ITL", "tpot": "TPOT",
    "ntpot": "NTPOT", "e2e": "E2E", "e2e_service": "E2E from the send", "queue": "queue time", "compute": "compute time",
    "protocol": "protocol time", "network": "network time", "overhead": "overhead", "rtt": "RTT", "tps_user": "tokens/s per user",
}  # fmt: skip
_RATES = {
    "throughput.requests": "throughput (requests/s)",
    "throughput.output_tokens": "throughput (output tokens/s)",
    "throughput.input_tokens": "throughput (input tokens/s)",
    "throughput.total_tokens": "throughput (tokens/s)",
    "throughput.inferences": "throughput (inferences/s)",
    "goodput": "goodput",
    FAILURE_RATE: "failure rate",
}
_ALPHA = 0.05
_POINT = 0.01
_AS_TIMES = 2.0
"""From this ratio on, a change is "2.3 times as high" rather than "130 % higher"."""


def title(name: str) -> str:
    """What people call a figure: `TTFT p99`."""
    metric, _, statistic = name.partition(".")
    return _RATES.get(name) or f"{_SHORT.get(metric, metric)} {statistic}"


def sentence(name: str, verdict: str, found: LogRatio) -> str:
    """What the comparison shows about a figure."""
    low, high = (exp(end) for end in found.interval())
    if verdict == "no clear difference":
        return f"{title(name)}: no clear difference ({_signed(low)} to {_signed(high)} %)"
    ratio = exp(found.value)
    if ratio >= _AS_TIMES:
        words = f"{format_number(ratio, 3)} times as high ({format_number(low, 3)} to {format_number(high, 3)})"
    elif ratio > 1:
        words = _change(ratio - 1, low - 1, high - 1, "higher")
    else:
        words = _change(1 - ratio, 1 - high, 1 - low, "lower")
    return f"{title(name)} is {words}{_doubt(found)}"


def _change(share: float, low: float, high: float, word: str) -> str:
    """`12 % lower (9 to 15 %)`, with as many decimals as it takes for the ends to differ."""
    decimals = next((n for n in range(4) if round(100 * high, n) - round(100 * low, n) >= 2 * 10**-n), 4)
    shown = [f"{100 * each:.{decimals}f}" for each in (share, low, high)]
    return f"{shown[0]} % {word} ({shown[1]} to {shown[2]} %)"


def _doubt(found: LogRatio) -> str:
    """What the exact test says against a clear difference. With fewer than six pairs, it cannot confirm any."""
    if found.sign_flip is None or found.sign_flip <= _ALPHA or 2**-found.freedom > _ALPHA:
        return ""
    return f"; the exact sign-flip test alone does not show it (p = {format_number(found.sign_flip, 2)})"


def more(found: LogRatio, effect: float, runs: int, requests: int) -> str:
    """How much more to measure until a difference of `effect` would show: `40 more requests per side would show 5 %`."""
    shown = f"{format_number(100 * effect, 3)} %"
    log_effect = math.log(1 + effect)
    count = (
        log_ratio.more_values(found, requests, log_effect)
        if found.method == "single"
        else log_ratio.more_runs(found, runs, log_effect)
    )
    what = {"single": "request", "paired": "pair", "unpaired": "run"}[found.method]
    if count is None:
        return f"it varies too much to show {shown}"
    if count == 0:
        return f"{shown} would have shown"
    each = "" if found.method == "paired" else " per side"
    return f"{count:,} more {what}{'s' * (count > 1)}{each} would show {shown}"


def failures(verdict: str, found: ShareDifference) -> str:
    """What the comparison shows about the failure rates: their difference, in percentage points."""
    low, high = found.interval()
    if verdict == "no clear difference":
        return f"failure rate: no clear difference ({_points(low)} to {_points(high)} percentage points)"
    word = "higher" if found.value > 0 else "lower"
    ends = sorted((abs(low), abs(high)))
    shown = [_points(each).lstrip("+") for each in (abs(found.value), *ends)]
    return f"failure rate is {shown[0]} percentage points {word} ({shown[1]} to {shown[2]})"


def more_failures(found: ShareDifference, effect: float) -> str:
    """How many more requests would show a difference of `effect`."""
    shown = f"{format_number(100 * effect, 3)} percentage point{'s' * (effect != _POINT)}"
    count = log_ratio.rounded_up(found.more_requests(effect))
    if count == 0:
        return f"{shown} would have shown"
    return f"{count:,} more request{'s' * (count > 1)} per side would show {shown}"


def _points(difference: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    number = format_number(100 * difference, 2)
    return number if number.startswith("-") or float(number) == 0 else f"+{number}"


def infinite(name: str, side: str) -> str:
    return f"{title(name)} is infinite on side {side}: too many of its requests failed"


def growing(name: str, side: str) -> str:
    return f"{title(name)} has no steady value on side {side}, which is overloaded: the queue grows"


def not_compared(name: str, sides: Sequence[Sequence[Figure]]) -> str:
    """Why there is no interval."""
    for label, side in zip("AB", sides, strict=True):
        if not all(each.is_steady for each in side):
            return f"{title(name)} cannot be compared: side {label} is overloaded, so it has no steady value"
        if any(each.value is None for each in side):
            return f"{title(name)} cannot be compared: it was not measured on side {label}"
        if any(each.value == 0 for each in side):
            return f"{title(name)} cannot be compared: it is 0 on side {label}"
    if any(each.value is not None and math.isinf(each.value) for side in sides for each in side):
        return f"{title(name)} cannot be compared: it is infinite in some runs, because requests failed"
    if not all(each.is_supported for side in sides for each in side):
        return (
            f"{title(name)}: no clear difference; too few requests for this percentile: run longer, or repeat the runs"
        )
    return f"{title(name)} cannot be compared: one run has no confidence interval for it"


def _percent(share: float) -> str:
    return format_number(100 * share, 2) if abs(share) < 0.1 else f"{100 * share:.0f}"


def _signed(ratio: float) -> str:
    number = _percent(ratio - 1)
    return number if number.startswith("-") or ratio == 1 else f"+{number}"
