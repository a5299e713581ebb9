"""Injected faults: which fault applies to which request. Parsing and selection only; answer.py carries them out.

    KIND[=ARG][@WHEN]        stall=2s@#7    reject=503@5%    reset@every=10    freeze=2s@t=5s

KINDS and WHENS describe the syntax. Requests are counted from 1; only completions and chat count.
"""

import math

import msgspec

from inferometer.errors import UserError
from inferometer.serve.sim.jobs import noise
from inferometer.units import NS, parse_seconds

KINDS = {
    "reject": ("=STATUS", "respond with an error of this status (503)"),
    "reset": ("", "reset the connection before the first byte of the response"),
    "error_body": ("", "respond with status 200 and an error object as the body"),
    "empty": ("", "respond with status 200, completely, but without a token"),
    "html": ("", "respond with status 200 and an HTML page"),
    "abort": ("", "reset the connection halfway through the response"),
    "cut": ("", "close the connection halfway through the body"),
    "truncate": ("", "end the stream halfway, without finish_reason and [DONE]"),
    "error_frame": ("", "send an error object halfway through the stream, then end it"),
    "garbage": ("", "send an event with malformed JSON halfway through the stream"),
    "stall": ("=TIME", "pause halfway (1s), then send what was due meanwhile at once"),
    "slow": ("=TIME", "send each write in two halves, TIME apart (20ms)"),
    "split": ("=BYTES", "send each write in segments of at most BYTES bytes (3)"),
    "close": ("", "close after the response despite Connection: keep-alive"),
    "freeze": ("=TIME", "pause the whole server (1s)"),
}

WHENS = {
    "5%": "a random share of the requests (see --seed)",
    "#7": "the 7th request",
    "every=10": "every 10th request",
    "t=5s": "once, 5 s after the first request, or at the next one after that",
    "(none)": "every request",
}

_DEFAULTS = {"reject": "503", "stall": "1s", "slow": "20ms", "split": "3", "freeze": "1s"}
_WHOLE = {"reject": (400, 599, "a status from 400 to 599"), "split": (1, 1 << 20, "a number of bytes")}
_REMEDY = "KIND[=ARG][@WHEN], such as stall=2s@#7 or reject=503@5%; see `inferometer serve --help`"
_SHARE = 0x5EED


class Fault(msgspec.Struct, frozen=True):
    """A fault with its argument."""

    kind: str
    arg: int = 0
    """A status, a number of bytes, or ns."""


class FaultRule(msgspec.Struct, frozen=True):
    """A fault, and the requests that it applies to."""

    fault: Fault
    share: float = 0.0
    nth: int = 0
    every: int = 0
    after: int = -1
    """ns after the first request's arrival."""


def parse_fault(text: str) -> Fault:
    """Parse `KIND[=ARG]`; raises UserError if it is invalid."""
    kind, equals, arg = text.partition("=")
    if kind not in KINDS:
        raise UserError(f"unknown fault {kind!r}", "use one of " + ", ".join(KINDS))
    if equals and kind not in _DEFAULTS:
        raise UserError(f"fault {kind} takes no argument (got {arg!r})", _REMEDY)
    if kind not in _DEFAULTS:
        return Fault(kind)
    try:
        return Fault(kind, _argument(kind, arg if equals else _DEFAULTS[kind]))
    except ValueError as error:
        raise UserError(f"fault {text!r}: {error}", _REMEDY) from None


def _argument(kind: str, arg: str) -> int:
    if kind not in _WHOLE:
        return round(parse_seconds(arg) * NS)
    low, high, expected = _WHOLE[kind]
    if not arg.isdecimal() or not low <= int(arg) <= high:
        raise ValueError(f"expected {expected} (got {arg!r})")
    return int(arg)


def parse_rule(text: str) -> FaultRule:
    """Parse `KIND[=ARG][@WHEN]`; raises UserError if it is invalid."""
    what, at, when = text.partition("@")
    fault = parse_fault(what)
    try:
        if not at:
            return FaultRule(fault, every=1)
        if when.startswith("#"):
            return FaultRule(fault, nth=_ordinal(when[1:]))
        if when.startswith("every="):
            return FaultRule(fault, every=_ordinal(when[6:]))
        if when.startswith("t="):
            return FaultRule(fault, after=round(parse_seconds(when[2:]) * NS))
        if when.endswith("%"):
            share = float(when[:-1]) / 100
            if not 0 < share <= 1 or math.isnan(share):
                raise ValueError(f"expected a share such as 5% (got {when!r})")
            return FaultRule(fault, share=share)
        raise ValueError(f"expected {', '.join(w for w in WHENS if w[0] != '(')} after the @ (got {when!r})")
    except ValueError as error:
        raise UserError(f"fault {text!r}: {error}", _REMEDY) from None


def _ordinal(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"expected a whole number of at least 1 (got {text!r})")
    return int(text)


class Faults:
    """Selects the fault of each request; the first matching rule wins."""

    def __init__(self, rules: tuple[str, ...], seed: int) -> None:
        self._rules = [parse_rule(rule) for rule in rules]
        self._once = [rule for rule in self._rules if rule.after >= 0 and rule.fault.kind != "freeze"]
        self._seed = seed
        self._first = 0

    def freezes(self) -> list[tuple[int, int]]:
        """Freezes at fixed times: (ns after the first request, duration in ns)."""
        return [(rule.after, rule.fault.arg) for rule in self._rules if rule.fault.kind == "freeze" and rule.after >= 0]

    def pick(self, n: int, arrived: int) -> Fault | None:
        """Return the fault of the n-th request."""
        if not self._rules:
            return None
        self._first = self._first or arrived
        for index, rule in enumerate(self._rules):
            is_counted = n == rule.nth or (rule.every and n % rule.every == 0)
            if is_counted or (rule.share and noise(self._seed ^ _SHARE, n, index) < 2 * rule.share - 1):
                return rule.fault
        for rule in self._once:
            if arrived - self._first >= rule.after:
                self._once.remove(rule)
                return rule.fault
        return None
