"""Numbers and loads in words, as the reports print them."""

import math

from inferometer.analysis import settings
from inferometer.records import Manifest, StagePlan
from inferometer.units import format_seconds


def plain(value: float | None, decimals: int | None = None) -> str:
    """A number with as many decimals as its size deserves, or `decimals` as far as there is room for them."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if decimals is None:
        decimals = decimals_for(value)
    room = next(places for below, places in ((99.9995, 3), (999.995, 2), (math.inf, 0)) if abs(value) < below)
    return f"{value:,.{min(decimals, room)}f}"


def milliseconds(seconds: float | None, decimals: int | None = None) -> str:
    """A latency in milliseconds; from 1000 s on, where nobody counts them any more, in seconds with their unit."""
    if seconds is not None and 1000 <= abs(seconds) < math.inf:
        return f"{seconds:,.0f}s"
    return plain(None if seconds is None else seconds * 1e3, decimals)


def decimals_for(value: float | None) -> int:
    """Enough for four digits or so."""
    size = abs(value or 0)
    return next(places for below, places in ((9.9995, 3), (99.995, 2), (999.95, 1), (math.inf, 0)) if size < below)


def count(value: float | None) -> str:
    """Tokens: whole where they are whole."""
    if value is None or not math.isfinite(value) or value != round(value):
        return plain(value)
    return f"{value:,.0f}"


def rate(value: float, digits: int = 6) -> str:
    """A rate with so many digits at the most before and after the point, whatever its size: `2,000,000`, never 2e+06."""
    return f"{value:,.{digits}g}" if value < 10**digits - 0.5 else f"{value:,.0f}"


def one_line(text: str, width: int) -> str:
    """A server's words, made harmless for a terminal and cut to `width`."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def load_words(stage: StagePlan) -> str:
    """`poisson, 500 requests/s for 10 s`, `closed loop, 256 in flight, 2,560 requests`."""
    if stage.open:
        parts = [f"{stage.type}, {rate(stage.rate)} requests/s"] if stage.rate else [stage.type]
    else:
        parts = [f"closed loop, {stage.concurrency:,} in flight"]
    ends = [f"{stage.requests:,} requests"] if stage.requests else []
    ends += [f"for {format_seconds(stage.duration)}"] if stage.duration else []
    parts.append(" ".join(ends))
    if stage.open and stage.concurrency:
        parts.append(f"at most {stage.concurrency:,} in flight")
    parts += [f"ramp-up {format_seconds(stage.ramp_up)}"] if stage.ramp_up else []
    parts += [f"think {format_seconds(stage.think)}"] if stage.think else []
    return ", ".join(part for part in parts if part)


def target_words(manifest: Manifest) -> str:
    url = settings.text(manifest, "server", "url")
    urls = [str(each) for each in url] if isinstance(url, list | tuple) else [str(url or "?")]
    more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
    return f"{urls[0]}{more}"


def api_words(manifest: Manifest) -> str:
    api = settings.api(manifest)
    if api.has_method:
        return str(settings.text(manifest, "server", "method"))
    return f"{api.name}, {'streamed' if settings.text(manifest, 'server', 'stream') is not False else 'not streamed'}"
