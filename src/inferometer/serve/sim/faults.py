"""Injected faults: which fault applies to which request. Parsing and selection only; response.py carries them out.

    KIND[=ARG][@WHEN]        stall=2s@#7    reject=503@5%    reset@every=10    freeze=2s@t=5s

KINDS and WHENS describe the syntax. Requests are counted from 1; only those with a response of tokens or vectors count.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from inferometer.errors import UserError
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
    "split": ("=BYTES", "send each write in segments of at most BYTES bytes (3)"),
    "close": ("", "close after the response, without announcing it"),
    "freeze": ("=TIME", "pause the whole server (1s)"),
}
WHENS = {
    "5%": "a random share of the requests (see --seed)",
    "#7": "the 7th request",
    "every=10": "every 10th request",
    "t=5s": "freeze only: once, 5 s after the first request",
    "(none)": "every request",
}

_DEFAULTS = {"reject": "503", "split": "3", "stall": "1s", "freeze": "1s"}
_REMEDY = "KIND[=ARG][@WHEN], such as stall=2s@#7 or reject=503@5%; see `inferometer serve --help`"
_MASK = (1 << 64) - 1


class Fault(msgspec.Struct, frozen=True):
    """A fault with its argument, and the requests that it applies to."""

    kind: str
    arg: int = 0  # a status, a number of bytes, or ns
    share: float = 0.0
    nth: int = 0
    every: int = 0
    after: int = -1  # ns after the first request's arrival


def parse_fault(text: str) -> Fault:
    """Parse `KIND[=ARG][@WHEN]`; raises UserError if it is invalid."""
    what, _, when = text.partition("@")
    kind, _, arg = what.partition("=")
    if kind not in KINDS:
        raise UserError(f"unknown fault {kind!r}", "use one of " + ", ".join(KINDS))
    try:
        return Fault(kind, _argument(kind, arg), **_applies_to(kind, when))
    except ValueError as error:
        raise UserError(f"fault {text!r}: {error}", _REMEDY) from None


def _argument(kind: str, arg: str) -> int:
    if kind not in _DEFAULTS:
        if arg:
            raise ValueError(f"it takes no argument (got {arg!r})")
        return 0
    arg = arg or _DEFAULTS[kind]
    if kind == "reject":
        return _whole(arg, 400, 599)
    return _whole(arg, 1) if kind == "split" else round(parse_seconds(arg) * NS)


def _applies_to(kind: str, when: str) -> dict[str, Any]:
    """Return the field of Fault that says to which requests it applies, with its value."""
    if not when:
        return {"every": 1}
    if when.startswith("#"):
        return {"nth": _whole(when[1:], 1)}
    if when.startswith("every="):
        return {"every": _whole(when[6:], 1)}
    if when.startswith("t=") and kind == "freeze":
        return {"after": round(parse_seconds(when[2:]) * NS)}
    if when.endswith("%") and 0 < float(when[:-1]) <= 100:
        return {"share": float(when[:-1]) / 100}
    raise ValueError(f"expected {', '.join(w for w in WHENS if w[0] != '(')} after the @ (got {when!r})")


def _whole(text: str, low: int, high: int = 1 << 62) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"expected a whole number from {low} to {high} (got {text!r})")
    return int(text)


def pick(rules: Sequence[Fault], n: int, seed: int) -> Fault | None:
    """Return the fault of the n-th request: that of the first rule that matches."""
    for index, rule in enumerate(rules):
        is_counted = n == rule.nth or (rule.every and n % rule.every == 0)
        if is_counted or (rule.share and noise(seed ^ 0x5EED, n, index) < 2 * rule.share - 1):
            return rule
    return None


def noise(seed: int, n: int, k: int) -> float:
    """Return a number in [-1, 1) that depends only on seed, request and token (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + n * 0xD1342543DE82EF95 + k * 0x2545F4914F6CDD1D + 0x632BE59BD9B4E019) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) / 9223372036854775808.0 - 1.0
