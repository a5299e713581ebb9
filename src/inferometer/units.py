"""Parses and formats quantities with units: `50ms`, `10s`, `2m`, `64KiB`."""

import math
import re
import sys

NS = 1_000_000_000
"""Nanoseconds per second."""

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_TERM = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)")


def parse_seconds(value: object) -> float:
    """Parse `1.5`, `"1.5"`, `"90s"`, `"1m30s"` or `"250ms"` into seconds; ValueError says what is accepted."""
    return _parse(value, _SECONDS, 1.0, "a duration such as 10s, 250ms or 1m30s")


def parse_bytes(value: object) -> int:
    """Parse `4096`, `"64KiB"` or `"1.5GB"` into bytes; ValueError says what is accepted."""
    return int(_parse(value, {k: float(v) for k, v in _BYTES.items()}, 1.0, "a size such as 4096, 64KiB or 1GB"))


def _parse(value: object, units: dict[str, float], bare: float, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected {expected}, got {value!r}")
    if not isinstance(value, str):
        if not 0 <= value <= sys.float_info.max:
            raise ValueError(f"expected {expected}, got {str(value)[:20]}")
        return value * bare
    total, position = 0.0, 0
    while position < len(value.rstrip()):
        term = _TERM.match(value, position)
        is_only_term = position == 0 and term is not None and term.end() >= len(value.rstrip())
        if term is None or (term[2] not in units and (term[2] or not is_only_term)):
            raise ValueError(f"expected {expected}, got {value!r}")
        total += float(term[1]) * (units[term[2]] if term[2] else bare)
        position = term.end()
    if position == 0 or math.isinf(total):
        raise ValueError(f"expected {expected}, got {value!r}")
    return total


def format_seconds(seconds: float) -> str:
    """Format a duration for people: three significant digits and a suitable unit."""
    if math.isnan(seconds):
        return "-"
    size = abs(seconds)
    if size >= 99.95:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if size >= 0.9995 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return "0 s" if size == 0 else f"{seconds * 1e9:.3g} ns"


def format_number(value: float, digits: int) -> str:
    """Format a number with `digits` significant digits. Large numbers are written in full, without an exponent."""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text else text


def format_bytes(count: float) -> str:
    """Format a size for people: three significant digits and a binary unit."""
    for unit, scale in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
