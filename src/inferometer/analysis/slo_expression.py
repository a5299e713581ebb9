"""Service level objectives as text: the parser, and which requests meet one.

    ttft.p99 < 500ms        a statistic of a metric: mean, p50, p90, p95, p99 or p99.9
    throughput.requests > 20                  a rate per second
    failure_rate < 0.1%                       the share of requests that fail
    goodput(ttft<500ms & tpot<50ms) > 95%     the share of requests that meet every condition, or (> 20/s) how many per second

    chat                    a preset: the objectives of a common service (slo_presets.py)

docs/reference/slo.md is the reference. `parse` raises UserError with the column at fault; `str` gives an expression that
parses to an equal one. How an objective is judged is in slo.py.
"""

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.metrics import METRICS, RATES
from inferometer.analysis.percentiles import PERCENTILES
from inferometer.analysis.slo_presets import PERCENTILE, PRESETS
from inferometer.errors import UserError
from inferometer.records import Columns
from inferometer.units import format_number

Mask = NDArray[np.bool_]
Sign = Literal["<", "<=", ">", ">="]
Kind = Literal["metric", "throughput", "failure_rate", "goodput"]

_DIVISORS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9, "%": 100.0, "/s": 1.0, "": 1.0}
"""A number with the unit, divided by this, is in seconds, is a share, or is per second."""
_ALIASES = {"µs": "us", "μs": "us"}
_PER_SECOND = ("", "/s")
TIME_UNITS = ("ms", "s", "us", "ns")
_GOODPUT = ("%", "/s")
"""A goodput needs one of them: 0.95 could be a share as well as a rate."""
_EXAMPLES = {TIME_UNITS: "500ms", _PER_SECOND: "20", ("%", ""): "0.1%", _GOODPUT: "95%", ("",): "100"}
_NOT_JUDGED = ("little", "decode", "span")
"""Rates without a confidence interval: no run could decide an objective for them."""
STATISTICS = {"mean": "mean", **{name: name for name in PERCENTILES}, "p99.9": "p999"}
SHOWN = {"p999": "p99.9"}
_KINDS: tuple[Kind, ...] = ("throughput", "failure_rate", "goodput")
_SIGNS: tuple[Sign, ...] = ("<", "<=", ">", ">=")


class Threshold(msgspec.Struct, frozen=True):
    """A number as it was written, with its unit."""

    number: float
    unit: str = ""

    @property
    def value(self) -> float:
        """In seconds for times, a share for percentages."""
        return self.number / _DIVISORS[self.unit]

    def __str__(self) -> str:
        return f"{repr(self.number).removesuffix('.0')}{self.unit}"


class Condition(msgspec.Struct, frozen=True):
    """What a single request meets or not: a metric and a limit, without a percentile."""

    metric: str
    sign: Sign
    threshold: Threshold

    def met(self, rows: Columns) -> Mask:
        """Which rows meet it, by their values alone. A row whose value is not known meets it."""
        compute = METRICS[self.metric].values
        assert compute is not None  # `parse` accepts only metrics with one value per request
        values = compute(rows)
        return holds(values, self.sign, self.threshold.value) | np.isnan(values)

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.threshold}"


class Slo(msgspec.Struct, frozen=True):
    """A service level objective: something measured, a sign and a threshold."""

    kind: Kind
    sign: Sign
    threshold: Threshold
    name: str = ""
    """The metric, or the rate."""
    statistic: str = ""
    """Of a metric: `mean`, or a key of PERCENTILES."""
    conditions: tuple[Condition, ...] = ()
    """Of a goodput."""

    @property
    def is_share(self) -> bool:
        """For a goodput: whether the share of requests is judged, rather than their rate."""
        return self.threshold.unit == "%"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that it depends on."""
        return (self.name,) if self.kind == "metric" else tuple(condition.metric for condition in self.conditions)

    def per_request(self) -> tuple[Condition, ...] | None:
        """What it requires of a single request that succeeded; None if it says nothing about single requests.

        For a percentile it is the threshold without the percentile. A failure rate requires nothing but success.
        """
        if self.kind == "goodput":
            return self.conditions
        if self.kind == "failure_rate":
            return ()
        if self.kind == "metric" and self.statistic != "mean" and METRICS[self.name].values is not None:
            return (Condition(self.name, self.sign, self.threshold),)
        return None

    def amount(self, value: float) -> str:
        """A measured value as text, in the unit of the threshold."""
        if self.threshold.unit == "%" or self.kind == "failure_rate":
            return f"{format_number(100 * value, 4)} %"
        if self.kind == "metric" and METRICS[self.name].unit == "s":
            return f"{format_number(value * _DIVISORS[self.threshold.unit], 4)} {self.threshold.unit}"
        return format_number(value, 4) + ("/s" if self.kind != "metric" and self.name != "in_flight" else "")

    def __str__(self) -> str:
        return f"{self.subject} {self.sign} {self.threshold}"

    @property
    def subject(self) -> str:
        """What is measured: the expression up to the sign."""
        if self.kind == "metric":
            return f"{self.name}.{SHOWN.get(self.statistic, self.statistic)}"
        if self.kind == "throughput":
            return f"throughput.{self.name}"
        return f"goodput({' & '.join(map(str, self.conditions))})" if self.kind == "goodput" else self.kind


def holds(values: NDArray[np.float64], sign: Sign, limit: float) -> Mask:
    """Compare each value with the limit; NaN does not hold."""
    compare = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}[sign]
    return np.asarray(compare(values, limit), np.bool_)


def met(conditions: Iterable[Condition], rows: Columns) -> Mask:
    """Which rows succeeded and meet every condition."""
    good: Mask = rows["failure"] == 0
    for condition in conditions:
        good = good & condition.met(rows)
    return good


def parse_all(texts: Sequence[str], key: str = "slo", percentile: str = PERCENTILE) -> tuple[Slo, ...]:
    """Parse several objectives; `key` is what the user calls the setting in errors. Duplicates are dropped.

    A preset is replaced by its objectives, for this percentile.
    """
    expressions = [one for text in texts for one in _expanded(text, key, percentile)]
    return tuple(dict.fromkeys(parse(one, key) for one in expressions))


def _expanded(text: str, key: str, percentile: str) -> list[str]:
    name = text.strip()
    if name in PRESETS:
        return PRESETS[name].expressions(percentile)
    if name.isidentifier() and name not in (*METRICS, *_KINDS):
        near = difflib.get_close_matches(name.lower(), [*PRESETS, *METRICS, *_KINDS], 1, 0.6)
        remedy = f"did you mean {near[0]}?" if near else "give an expression such as 'ttft.p99 < 500ms'"
        raise UserError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}", remedy, key)
    return [text]


def parse(text: str, key: str = "slo") -> Slo:
    """Parse an objective; raises UserError with the column at fault."""
    scanner = Scanner(text, key)
    slo = _slo(scanner)
    scanner.expect_end()
    return slo


# --- the grammar -----------------------------------------------------------------------------------------------------


def _slo(scanner: "Scanner") -> Slo:
    _, name = scanner.word([*METRICS, *_KINDS], "metric")
    if name == "throughput":
        scanner.expect(".", "name a rate: throughput.requests, throughput.output_tokens ...")
        rate = _rate(scanner)
        units = ("",) if rate == "in_flight" else _PER_SECOND
        return Slo("throughput", scanner.sign(">"), scanner.threshold(units), rate)
    if name == "failure_rate":
        return Slo("failure_rate", scanner.sign("<"), scanner.threshold(("%", "")))
    if name == "goodput":
        conditions = _conditions(scanner)
        return Slo("goodput", scanner.sign(">"), scanner.threshold(_GOODPUT), conditions=conditions)
    scanner.expect(".", f"name a statistic: {name}.p99 or {name}.mean, for example")
    _, statistic = scanner.word([*STATISTICS], "statistic")
    return Slo("metric", *_limit(scanner, name), name, STATISTICS[statistic])


def _rate(scanner: "Scanner") -> str:
    start, rate = scanner.word([*RATES], "rate")
    if rate in _NOT_JUDGED:
        judged = ", ".join(name for name in RATES if name not in _NOT_JUDGED)
        raise scanner.error(start, f"throughput.{rate} has no confidence interval", f"use one of {judged}")
    return rate


def _conditions(scanner: "Scanner") -> tuple[Condition, ...]:
    """Parse `(ttft<500ms & tpot<50ms)`."""
    scanner.expect("(", "give the conditions: goodput(ttft<500ms & tpot<50ms) > 95%")
    found = [_condition(scanner)]
    while scanner.take("&"):
        found.append(_condition(scanner))
    scanner.expect(")", "join conditions with &, and close the parenthesis")
    return tuple(found)


def _condition(scanner: "Scanner") -> Condition:
    start, name = scanner.word([*METRICS], "metric")
    if METRICS[name].values is None:
        raise scanner.error(start, f"{name} has many values per request", "use tpot, which has one")
    if scanner.peek() == ".":
        raise scanner.error(scanner.at, "a single request has no percentile", f"write the limit alone: {name}<500ms")
    return Condition(name, *_limit(scanner, name))


def _limit(scanner: "Scanner", metric: str) -> tuple[Sign, Threshold]:
    """Parse the sign and the threshold of a metric: latencies are to be short; numbers of tokens go either way."""
    is_time = METRICS[metric].unit == "s"
    return scanner.sign("<" if is_time else ""), scanner.threshold(TIME_UNITS if is_time else ("",))


# --- reading ---------------------------------------------------------------------------------------------------------


class Scanner:
    """Reads an expression from left to right. Space between its parts does not matter."""

    _WORD = re.compile(r"p\d+\.\d+|\w+")
    _SIGN = re.compile(r"[<>=!]+")
    _NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
    _UNIT = re.compile(r"[%/A-Za-zµμ]+")

    def __init__(self, text: str, key: str) -> None:
        self._text, self._key = text, key
        self.at = 0

    def error(self, at: int, what: str, remedy: str) -> UserError:
        shown = self._text if len(self._text) <= 120 else f"{self._text[:117]}..."
        return UserError(f"{what} (column {at + 1} of {shown!r})", remedy, self._key)

    def peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        self._skip()
        return self._text[self.at : self.at + 1]

    def take(self, character: str) -> bool:
        found = self.peek() == character
        self.at += found
        return found

    def expect(self, character: str, remedy: str) -> None:
        if not self.take(character):
            raise self.error(self.at, f"expected {character!r}, got {self._next()}", remedy)

    def expect_end(self) -> None:
        if self.peek():
            raise self.error(
                self.at,
                f"expected the end, got {self._next()}",
                "give one objective; further ones are entries of their own",
            )

    def word(self, known: Sequence[str], kind: str) -> tuple[int, str]:
        """Read one of the known words; return its position, and the word."""
        self._skip()
        start, match = self.at, self._WORD.match(self._text, self.at)
        if match is None:
            raise self.error(start, f"expected a {kind}, got {self._next()}", f"known: {', '.join(known)}")
        if match[0] not in known:
            near = difflib.get_close_matches(match[0].lower(), known, 1, 0.6)
            remedy = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise self.error(start, f"there is no {kind} {match[0]!r}", remedy)
        self.at = match.end()
        return start, match[0]

    def sign(self, direction: str) -> Sign:
        """Read a sign; `direction` is the only way in which it makes sense, if there is one."""
        self._skip()
        start, match = self.at, self._SIGN.match(self._text, self.at)
        if match is None:
            raise self.error(
                start, f"expected <, <=, > or >=, got {self._next()}", "give a limit, as in ttft.p99 < 500ms"
            )
        sign = next((sign for sign in _SIGNS if sign == match[0]), None)
        if sign is None:
            raise self.error(start, f"there is no sign {match[0]!r}", "use <, <=, > or >=")
        if direction and sign[0] != direction:
            bound = "an upper limit" if direction == "<" else "a lower limit"
            raise self.error(start, f"this needs {bound}, got {sign!r}", f"did you mean {direction}{sign[1:]}?")
        self.at = match.end()
        return sign

    def threshold(self, units: tuple[str, ...]) -> Threshold:
        self._skip()
        start, match = self.at, self._NUMBER.match(self._text, self.at)
        example = _EXAMPLES[units]
        if match is None:
            raise self.error(start, f"expected a number, got {self._next()}", f"write for example {example}")
        self.at = match.end()
        self._skip()
        at, found = self.at, self._UNIT.match(self._text, self.at)
        unit = _ALIASES.get(found[0], found[0]) if found else ""
        if unit not in units:
            known = ", ".join(one for one in units if one)
            what = f"{found[0]!r} is not a unit here" if found else "the number needs a unit"
            remedy = f"use {known}: {example}" if known else f"write the number alone: {example}"
            raise self.error(at, what, _share_or_rate(match[0]) if units == _GOODPUT and not found else remedy)
        self.at = found.end() if found else match.end()
        threshold = Threshold(float(match[0]), unit)
        if math.isinf(threshold.number):
            raise self.error(start, f"the limit {match[0]}{unit} is too large", f"write for example {example}")
        self._check_range(start, threshold, units)
        return threshold

    def _check_range(self, start: int, threshold: Threshold, units: tuple[str, ...]) -> None:
        """A threshold that no number of requests could show to be met is an error, like one that is always met."""
        value, is_share = threshold.value, threshold.unit == "%" or units == ("%", "")
        if value <= 0:
            raise self.error(start, f"the limit must be more than 0, got {threshold}", "no run can show less than that")
        if is_share and value >= 1:
            remedy = f"did you mean {threshold}%?" if not threshold.unit else "no run can show more than that"
            raise self.error(start, f"the limit must be less than 100%, got {threshold}", remedy)

    def _skip(self) -> None:
        while self._text[self.at : self.at + 1].isspace():
            self.at += 1

    def _next(self) -> str:
        rest = self._text[self.at :].split()
        return repr(rest[0]) if rest else "nothing"


def _share_or_rate(number: str) -> str:
    """What a number without a unit may mean for a goodput: a share, or a rate."""
    value = float(number)
    percent = 100 * value if value < 1 else value
    return f"did you mean {f'{percent:.12g}% or ' if percent < 100 else ''}{number}/s?"
