"""Draw one chart with matplotlib: the kinds and options that charts.js knows, in the colours of style.css."""

import colorsys
import io
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, MultipleLocator, NullLocator

from inferometer.report.html.page import COLOURS, Block

Spec = dict[str, Any]

_WIDTH, _DPI = 9.6, 100
"""Inches, and pixels of the HTML report per inch. A PNG has twice as many."""
_LEAST_HEIGHT = 300
"""In pixels, for charts that are small because they stand below each other in the HTML report."""
_MOST_ROWS = 8
"""Lines of the legend; with more series, its text becomes smaller."""


_PITCH = {"rows": 42, "forest": 28}
"""Height of a row, for charts with rows."""


class Theme(NamedTuple):
    """What style.css says: colours by their names, and the look of the parts of a timeline."""

    colours: dict[str, str]
    parts: dict[str, tuple[str, float]]
    """Colour and opacity."""

    def series(self, spec: Spec, index: int) -> str:
        """The colour of a line: its own, or its place on the ramp from the first to the second colour, by way of green."""
        if spec.get("ramp") is None:
            return self.colours[f"c{spec.get('colour', index) % COLOURS}"]
        ends = [colorsys.rgb_to_hls(*mpl.colors.to_rgb(self.colours[name])) for name in ("c0", "c1")]
        mixed = [begin + spec["ramp"] * (end - begin) for begin, end in zip(*ends, strict=True)]
        code: str = mpl.colors.to_hex(colorsys.hls_to_rgb(mixed[0], mixed[1], 0.75 * mixed[2]))
        return code


@cache
def read_theme(is_dark: bool) -> Theme:
    """Read the theme from the style sheet of the HTML report."""
    style = resources.files("inferometer.report.html").joinpath("style.css").read_text("utf-8")
    block = style.split(':root[data-theme="dark"] {' if is_dark else ":root {", 1)[1].split("}", 1)[0]
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{3,6});", block))
    parts = re.findall(r"\.part\.([a-z0-9]+) \{ fill: var\(--([a-z0-9]+)\); opacity: ([0-9.]+); \}", style)
    return Theme(colours, {name: (colours[colour], float(opacity)) for name, colour, opacity in parts})


def draw(chart: Block, source: str, format: str, is_dark: bool = False) -> bytes:
    """The chart as a PNG or SVG file; `source` is a line that says what was measured. The same chart gives the same bytes."""
    theme, spec = read_theme(is_dark), chart["data"]
    with mpl.rc_context(
        {"font.family": "DejaVu Sans", "font.size": 9, "svg.hashsalt": "inferometer", "svg.fonttype": "none"}
    ):
        height = _height(spec)
        figure = Figure(figsize=(_WIDTH, height / _DPI), dpi=_DPI, facecolor=theme.colours["card"])
        axes = figure.add_subplot()
        keys = _KINDS[spec["kind"]](axes, spec, theme)
        _frame(axes, spec, theme)
        _title(figure, height, chart["title"], source, theme)
        _legend(figure, keys, theme)
        file = io.BytesIO()
        metadata = {"Date": None} if format == "svg" else {"Software": None}
        figure.savefig(file, format=format, dpi=2 * _DPI, metadata=metadata)
        return file.getvalue()


def _height(spec: Spec) -> float:
    own = spec.get("height", 240)
    if spec["kind"] in _PITCH:
        own = _PITCH[spec["kind"]] * len(spec["rows"]) + 60
    return float(max(own, _LEAST_HEIGHT) + 90)


def _title(figure: Figure, height: float, title: str, source: str, theme: Theme) -> None:
    """The title and what was measured, in two lines at the top; the rest of the figure is below them."""
    left = 0.1 / _WIDTH
    figure.text(left, 1 - 10 / height, title.rstrip("."), va="top", fontsize=12, fontweight="bold", color=theme.colours["ink"])  # fmt: skip
    figure.text(left, 1 - 32 / height, source, va="top", fontsize=8, color=theme.colours["soft"])
    rest = (0.0, 0.0, 1.0, 1 - 48 / height)
    figure.set_layout_engine("constrained", rect=rest, w_pad=0.1, h_pad=0.08)


def _legend(figure: Figure, keys: Sequence[Line2D | Patch], theme: Theme) -> None:
    """Below the axes, in as many columns as fit."""
    longest = max((len(str(key.get_label())) for key in keys), default=0)
    columns = max(min(len(keys), 120 // (longest + 7)), 1)
    if keys:
        figure.legend(
            handles=keys,
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            fontsize=8.5 if len(keys) <= columns * _MOST_ROWS else 6,
            labelcolor=theme.colours["soft"],
            handlelength=1.8,
            columnspacing=1.6,
        )


# --- axes ------------------------------------------------------------------------------------------------------------


def _frame(axes: Axes, spec: Spec, theme: Theme) -> None:
    """Grid, spines, and the names of the axes."""
    colours = theme.colours
    axes.set_facecolor(colours["card"])
    axes.set_axisbelow(True)
    axes.grid(True, color=colours["grid"], linewidth=0.8)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colours["faint"])
    axes.tick_params(colors=colours["soft"], length=0, pad=5)
    axes.set_xlabel(spec["x"].get("label", ""), color=colours["soft"])
    axes.set_ylabel(spec.get("y", {}).get("label", ""), color=colours["soft"])


def number(value: float) -> str:
    """As in charts.js: with decimals that suit its size, without trailing zeros."""
    size = abs(value)
    decimals = 0 if size == 0 else next((d for below, d in ((0.1, 4), (1, 3), (10, 2), (100, 1)) if size < below), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def clock(seconds: float) -> str:
    """`2:05`, `1:02:05`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _share(value: float) -> str:
    return f"{number(100 * value)} %"


def _change(ratio: float) -> str:
    """A ratio as a change: `+5 %`, `−5 %`, `3 ×`."""
    if abs(ratio - 1) < 1e-9:
        return "same"
    return f"{number(ratio)} ×" if ratio >= 2.995 else f"{'+' if ratio > 1 else '−'}{number(abs(100 * (ratio - 1)))} %"


_FORMATS: dict[str, Callable[[float], str]] = {"share": _share, "change": _change}


def _set_ticks(axis: Any, axis_spec: Spec, low: float, high: float, is_log: bool) -> None:
    format = _FORMATS.get(axis_spec.get("format", ""), number)
    if axis_spec.get("format") == "time" and high - low >= 180:
        format = clock
        steps = (15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)
        axis.set_major_locator(MultipleLocator(next((s for s in steps if (high - low) / s <= 14), 43200)))
    elif is_log:
        decades = math.log10(high / low)
        if decades < 0.5:
            axis.set_major_locator(MaxNLocator(6))
        else:
            subs = (1, 2, 5) if decades < 3 else (1, 3) if decades < 5 else (1,)
            axis.set_major_locator(LogLocator(subs=subs, numticks=30))
    else:
        axis.set_major_locator(MaxNLocator(9 if axis.axis_name == "x" else 6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: format(value)))


def _bands(axes: Axes, spec: Spec, theme: Theme) -> None:
    """Stages, every other one shaded, with their names if there is room for them."""
    bands = spec.get("bands") or ()
    for index, band in enumerate(bands):
        if index % 2 == 0:
            axes.axvspan(band["from"], band["to"], color=theme.colours["stage"], linewidth=0, zorder=0)
        if len(bands) <= 12:
            axes.text(
                (band["from"] + band["to"]) / 2,
                1.01,
                band["label"]
                if len(band["label"]) <= 80 // len(bands)
                else band["label"][: 80 // len(bands) - 1] + "…",
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="bottom",
                fontsize=7.5,
                color=theme.colours["soft"],
            )


def _limits(axes: Axes, spec: Spec, theme: Theme, lows: tuple[float, float], highs: tuple[float, float]) -> None:
    """Objectives that lie within the axes, each with its expression."""
    look = {"color": theme.colours["bad"], "linewidth": 1.1, "linestyle": (0, (3, 3)), "zorder": 3}
    words = {"color": theme.colours["bad"], "fontsize": 8, "zorder": 5}
    for line in spec.get("hlines") or ():
        if lows[1] <= line["at"] <= highs[1]:
            axes.axhline(line["at"], **look)
            axes.annotate(line["label"], (0, line["at"]), (5, 3), axes.get_yaxis_transform(), "offset points", **words)
    for line in spec.get("vlines") or ():
        if lows[0] <= line["at"] <= highs[0]:
            axes.axvline(line["at"], **look)
            axes.annotate(
                line["label"], (line["at"], 1), (4, -10), axes.get_xaxis_transform(), "offset points", **words
            )


# --- kinds -----------------------------------------------------------------------------------------------------------


def _grid(values: Any) -> list[float | None]:
    """Values, or the points of a regular grid."""
    if isinstance(values, dict):
        return [values["from"] + index * values["step"] for index in range(values["count"])]
    return list(values)


def _numbers(values: Sequence[float | None]) -> Any:
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _xy(axes: Axes, spec: Spec, theme: Theme) -> list[Line2D | Patch]:
    """Lines with bands or whiskers, points, and marks."""
    x_log, y_log = (spec[name].get("scale") == "log" for name in ("x", "y"))
    keys: list[Line2D | Patch] = []
    every_x, every_y = [], []
    for index, each in enumerate(spec["series"]):
        x = _numbers(_grid(each.get("x", spec["x"].get("values"))))
        y = _numbers(_grid(each["y"]) if "y" in each else _grid(spec["y"]["values"])[: len(x)])
        y = np.where((y > 0) | (not y_log), y, np.nan)
        x = np.where((x > 0) | (not x_log), x, np.nan)
        colour = theme.series(each, index)
        keys.append(_line(axes, each, x, y, colour, theme))
        every_x += [x, *([_numbers(pair) for pair in each["ex"]] if each.get("ex") else [])]
        every_y += [y, *(_numbers(each[end]) for end in ("lo", "hi") if each.get(end))]
    low_x, high_x = _range(every_x, spec["x"], x_log, [line["at"] for line in spec.get("vlines") or ()], 4)
    low_y, high_y = _range(every_y, spec["y"], y_log, [line["at"] for line in spec.get("hlines") or ()], 3)
    if spec["x"].get("pad"):
        high_x += 0.06 * (high_x - low_x)
    if y_log:
        low_y, high_y = low_y / 1.15, high_y * 1.2
    elif "max" not in spec["y"]:
        low_y = spec["y"].get("min", min(low_y, 0.0))
        high_y = high_y + 0.08 * (high_y - low_y)
    axes.set_xscale("log" if x_log else "linear")
    axes.set_yscale("log" if y_log else "linear")
    axes.set_xlim(low_x, high_x)
    axes.set_ylim(low_y, high_y if high_y > low_y else low_y + 1)
    _set_ticks(axes.xaxis, spec["x"], low_x, high_x, x_log)
    _set_ticks(axes.yaxis, spec["y"], low_y, high_y, y_log)
    _bands(axes, spec, theme)
    _limits(axes, spec, theme, (low_x, low_y), (high_x, high_y))
    _marks(axes, spec, theme)
    return keys


def _line(axes: Axes, each: Spec, x: Any, y: Any, colour: str, theme: Theme) -> Line2D:
    is_faint = each.get("faint", False)
    look = {
        "color": colour,
        "linewidth": 1.0 if is_faint else 1.7,
        "alpha": 0.55 if is_faint else 1.0,
        "linestyle": (0, (4, 3)) if each.get("dash") else "-",
    }
    if not each.get("bare"):
        axes.plot(x, y, drawstyle="steps-post" if each.get("step") else "default", **look, zorder=2)
    ends = [_numbers(each[name]) for name in ("lo", "hi")] if each.get("lo") else []
    if ends and not each.get("points"):
        axes.fill_between(x, ends[0], ends[1], color=colour, alpha=0.15, linewidth=0, zorder=1)
    if not each.get("points"):
        return Line2D([], [], label=each["name"], **look)
    if ends:
        axes.vlines(x, ends[0], ends[1], colors=colour, linewidth=1.3, alpha=0.6, zorder=2)
    if each.get("ex"):
        axes.hlines(y, *(_numbers([pair[end] for pair in each["ex"]]) for end in (0, 1)), colors=colour, linewidth=1.3, alpha=0.6, zorder=2)  # fmt: skip
    hollow = np.array(each.get("hollow") or [False] * len(x), np.bool_)
    card = theme.colours["card"]
    axes.scatter(x[~hollow], y[~hollow], s=34, color=colour, edgecolors=card, linewidths=1, zorder=4)
    axes.scatter(x[hollow], y[hollow], s=30, color=card, edgecolors=colour, linewidths=1.6, zorder=4)
    return Line2D([], [], label=each["name"], marker="o", markersize=5, markeredgecolor=card, **look)


def _range(
    arrays: Sequence[Any], axis: Spec, is_log: bool, lines: Sequence[float], within: float
) -> tuple[float, float]:
    """The range of an axis: what it says, or all values and the objectives that are not too far away."""
    values = np.concatenate([np.ravel(array) for array in arrays]) if arrays else np.zeros(0)
    values = values[np.isfinite(values) & ((values > 0) | (not is_log))]
    if not len(values):
        return (0.1, 1.0) if is_log else (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    for at in lines:
        if at < high * within:
            low, high = min(low, at), max(high, at * 1.05)
    low, high = axis.get("min", low), axis.get("max", high)
    if not high > low:
        return (low / 2, low * 2) if is_log else (low - 0.5, low + 0.5)
    return low, high


def _marks(axes: Axes, spec: Spec, theme: Theme) -> None:
    """Points with a ring and a name, such as the knee of a curve; a name that would cover another one moves up."""
    taken: list[tuple[float, float, float]] = []
    box = {"facecolor": theme.colours["card"], "alpha": 0.75, "linewidth": 0, "pad": 1}
    for mark in spec.get("marks") or ():
        colour = theme.colours[f"c{mark['colour'] % COLOURS}"]
        x, y = (float(value) for value in axes.transData.transform((mark["x"], mark["y"])))
        half, up = 3.6 * len(mark["label"]), 13.0
        while any(abs(at - x) < wide + half and abs(other - y - up) < 14 for at, wide, other in taken):
            up += 3
        taken.append((x, half, y + up))
        axes.scatter([mark["x"]], [mark["y"]], s=150, facecolors="none", edgecolors=colour, linewidths=1.8, zorder=5)
        axes.annotate(
            mark["label"], (mark["x"], mark["y"]), (0, up * 72 / _DPI), "data", "offset points", ha="center", fontsize=8,
            fontweight="bold", color=colour, bbox=box, zorder=6,
        )  # fmt: skip


def _heat(axes: Axes, spec: Spec, theme: Theme) -> list[Line2D | Patch]:
    counts = np.array(spec["counts"], np.float64).reshape(spec["columns"], spec["rows"]).T
    alpha = np.where(counts > 0, (40 + 215 * np.log1p(counts) / np.log1p(max(counts.max(), 1))) / 255, 0.0)
    x = spec["from"] + spec["step"] * np.arange(spec["columns"] + 1)
    edges = np.array(spec["edges"], np.float64)
    colours = np.zeros((*counts.shape, 4))
    colours[..., :3] = mpl.colors.to_rgb(theme.colours["accent"])
    colours[..., 3] = np.minimum(alpha, 1.0)
    axes.pcolormesh(x, edges, colours, shading="flat", rasterized=True, zorder=2)
    axes.set_yscale("log")
    low, high = spec["x"].get("min", x[0]), spec["x"].get("max", x[-1])
    axes.set_xlim(low, high)
    axes.set_ylim(edges[0], edges[-1])
    _set_ticks(axes.xaxis, spec["x"], low, high, False)
    _set_ticks(axes.yaxis, {}, edges[0], edges[-1], True)
    _bands(axes, spec, theme)
    _limits(axes, spec, theme, (low, edges[0]), (high, edges[-1]))
    return [Patch(color=theme.colours["accent"], label=f"the stronger, the more (up to {number(counts.max())})")]


def _rows(axes: Axes, spec: Spec, theme: Theme) -> list[Line2D | Patch]:
    """One timeline per request, the first at the top."""
    high = max(row["end"] for row in spec["rows"]) * 1.01
    for index, row in enumerate(spec["rows"]):
        for begin, end, part in row["parts"]:
            colour, alpha = theme.parts[part]
            axes.barh(index, max(end - begin, high / 4000), 0.42, begin, color=colour, alpha=alpha, linewidth=0)
        lines = [[(at, index - 0.21), (at, index + 0.21)] for at in row["tokens"]]
        axes.add_collection(
            LineCollection(lines, colors=theme.colours["c2"], linewidths=0.6, alpha=0.75), autolim=False
        )
        axes.text(0, index - 0.3, row["label"], fontsize=8, color=theme.colours["soft"], va="bottom")
    axes.set_xlim(0, high)
    axes.set_ylim(len(spec["rows"]) - 0.6, -0.8)
    axes.yaxis.set_major_locator(FixedLocator([]))
    _set_ticks(axes.xaxis, spec["x"], 0, high, False)
    return [Patch(color=theme.parts[style][0], alpha=theme.parts[style][1], label=name) for name, style in spec["keys"]]


def _forest(axes: Axes, spec: Spec, theme: Theme) -> list[Line2D | Patch]:
    """Ratios with intervals, a row each, on a logarithmic axis around 1."""
    tones = {"good": theme.colours["good"], "bad": theme.colours["bad"]}
    words = theme.colours["soft"]
    known = [row for row in spec["rows"] if row.get("at") is not None]
    ends = [row.get(name) for row in known for name in ("at", "lo", "hi", "limit")]
    logs = [math.log(end) for end in ends if end] or [0.0]
    most = max(3 * max((abs(math.log(row["at"])) for row in known), default=0.0), math.log(1.12))
    low, high = max(min(*logs, -0.02), -most), min(max(*logs, 0.02), most)
    names = []
    for index, row in enumerate(spec["rows"]):
        names.append(row.get("label") or row.get("heading") or "")
        if row.get("at") is None:
            continue
        colour = tones.get(row.get("tone"), theme.colours["c7"])
        if row.get("lo") is not None and row.get("hi") is not None:
            axes.hlines(index, row["lo"], row["hi"], colors=colour, linewidth=2, zorder=3)
        if row.get("limit") is not None:
            axes.vlines(row["limit"], index - 0.4, index + 0.4, colors=theme.colours["bad"], linestyles="dashed")
        axes.scatter([row["at"]], [index], s=44, color=colour, edgecolors=theme.colours["card"], zorder=4)
    axes.axvline(1, color=words, linewidth=1.2, zorder=2)
    axes.set_xscale("log")
    pad = 0.05 * (high - low)
    axes.set_xlim(math.exp(low - pad), math.exp(high + pad))
    axes.set_ylim(len(names) - 0.4, -0.6)
    _set_ticks(axes.xaxis, spec["x"], math.exp(low), math.exp(high), True)
    axes.yaxis.set_major_locator(FixedLocator(range(len(names))))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda _, index: names[index] if index is not None else ""))
    return []


_KINDS: dict[str, Callable[[Axes, Spec, Theme], list[Line2D | Patch]]] = {
    "xy": _xy,
    "heat": _heat,
    "rows": _rows,
    "forest": _forest,
}
