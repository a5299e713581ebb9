"""The charts of `inference-perf --analyze`: latency, throughput and goodput of the stages in folders of reports.

matplotlib draws them. It comes with the extra `inference-perf`, and is imported only for this.
"""

import importlib.util
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferometer.replacing import replaced

LEGEND = "analyzed_reports_legend.json"
_STAGE = re.compile(r"stage_(\d+)_lifecycle_metrics\.json")
_LOG = logging.getLogger(__name__)
_MS = 1e3

Point = tuple[float, float]
Value = Callable[[dict[str, Any]], float | None]
"""Reads a value from the report of a stage; None if it is missing."""


class Panel(msgspec.Struct, frozen=True):
    """One of the diagrams of a chart."""

    title: str
    x_label: str
    y_label: str
    x: Value
    y: Value


def analyze(folders: Sequence[Path], unified: Path | None = None) -> bool:
    """Draw the charts of each folder into it, and with `unified` those of all folders together into that folder.

    Problems are logged: inference-perf ends successfully in any case. Returns whether all charts could be drawn.
    """
    found = {folder: stages for folder in folders if (stages := _read(folder))}
    if importlib.util.find_spec("matplotlib") is None:
        _LOG.error("--analyze needs matplotlib: pip install 'inferometer[inference-perf]'")
        return False
    if unified is None:
        for folder, stages in found.items():
            _draw_all(folder, {"": stages})
    elif not unified.is_dir():
        _LOG.error("%s: there is no such folder; create it, or give another one to --unified_analysis_dir", unified)
        return False
    elif found:
        labels = {f"report_{number}": folder for number, folder in enumerate(found, 1)}
        _draw_all(unified, {label: found[folder] for label, folder in labels.items()})
        legend = {label: str(folder) for label, folder in labels.items()}
        with replaced(unified / LEGEND) as partial:
            partial.write_text(json.dumps(legend, indent=2), encoding="utf-8")
    return len(found) == len(folders) > 0


def _read(folder: Path) -> list[dict[str, Any]]:
    """The reports of a folder's stages. Files that cannot be read are logged and left out."""
    stages = []
    for path in sorted(folder.glob("stage_*_lifecycle_metrics.json"), key=_number):
        if not _STAGE.fullmatch(path.name):  # of a session report
            continue
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            _LOG.error("%s: cannot be read: %s", path, error)
            continue
        if isinstance(report, dict):
            stages.append(report)
    if not stages:
        _LOG.error("%s: there are no stage_*_lifecycle_metrics.json in this folder; give the folder of reports", folder)
    return stages


def _number(path: Path) -> int:
    match = _STAGE.fullmatch(path.name)
    return int(match[1]) if match else 0


# --- what is drawn ---------------------------------------------------------------------------------------------------


def _at(*keys: str, scale: float = 1.0) -> Value:
    """Read the value under these keys."""

    def value(report: dict[str, Any]) -> float | None:
        node: Any = report
        for key in keys:
            node = node.get(key) if isinstance(node, dict) else None
        return node * scale if isinstance(node, int | float) and not isinstance(node, bool) else None

    return value


def _first(*values: Value) -> Value:
    """Read the first of the values that is there."""
    return lambda report: next((found for each in values if (found := each(report)) is not None), None)


def _concurrency(report: dict[str, Any]) -> float | None:
    """The concurrency of a stage; 0 counts as none."""
    return _at("load_summary", "concurrency")(report) or None


_QPS = ("QPS (achieved rate)", _at("load_summary", "achieved_rate"))
_USERS = ("Concurrency", _concurrency)
_LATENCIES = {
    "Time to First Token": ("Mean TTFT (ms)", "time_to_first_token"),
    "Normalized Time per Output Token": ("Mean NTPOT (ms/token)", "normalized_time_per_output_token"),
    "Inter-Token Latency": ("Mean ITL (ms)", "inter_token_latency"),
}
_RATES = {
    "Input Tokens per Second": ("Input tokens/s", "input_tokens_per_sec"),
    "Output Tokens per Second": ("Output tokens/s", "output_tokens_per_sec"),
    "Total Tokens per Second": ("Total tokens/s", "total_tokens_per_sec"),
}
_GOODPUT = ("successes", "goodput_metrics")


def _latency(name: str) -> Value:
    return _at("successes", "latency", name, "mean", scale=_MS)


def _rate(name: str) -> Value:
    return _at("successes", "throughput", name)


def _latency_panels(x_label: str, x: Value) -> list[Panel]:
    return [Panel(title, x_label, label, x, _latency(name)) for title, (label, name) in _LATENCIES.items()]


def _rate_panels(x_label: str, x: Value) -> list[Panel]:
    return [Panel(title, x_label, label, x, _rate(name)) for title, (label, name) in _RATES.items()]


CHARTS: dict[str, list[Panel]] = {
    "latency_vs_qps": _latency_panels(*_QPS),
    "throughput_vs_qps": _rate_panels(*_QPS),
    "latency_vs_concurrency": _latency_panels(*_USERS),
    "throughput_vs_concurrency": _rate_panels(*_USERS),
    "throughput_vs_latency": [
        Panel(
            f"Output Tokens per Second vs. {title}",
            label,
            "Output tokens/s",
            _latency(name),
            _rate("output_tokens_per_sec"),
        )
        for title, (label, name) in _LATENCIES.items()
    ],
    "goodput_vs_qps": [
        Panel("Goodput Percentage", _QPS[0], "Good requests (%)", _QPS[1], _at(*_GOODPUT, "goodput_percentage")),
        Panel(
            "Request Goodput",
            _QPS[0],
            "Good requests/s",
            _QPS[1],
            _first(_at(*_GOODPUT, "request_goodput"), _at(*_GOODPUT, "request_goodput_rate")),
        ),
    ],
}
"""The diagrams of each chart by the name of its file. A chart without data is not drawn."""


def _draw_all(folder: Path, stages: dict[str, list[dict[str, Any]]]) -> None:
    """Draw the charts of these reports by label into the folder."""
    for name, panels in CHARTS.items():
        drawn = []
        for panel in panels:
            lines = {label: _points(panel, reports) for label, reports in stages.items()}
            if any(lines.values()):
                drawn.append((panel, lines))
        if drawn:
            path = folder / f"{name}.png"
            try:
                _draw(path, drawn)
            except OSError as error:
                _LOG.error("%s: cannot be written: %s", path, error)
            else:
                _LOG.info("Chart saved to %s", path)


def _points(panel: Panel, reports: Iterable[dict[str, Any]]) -> list[Point]:
    pairs = ((panel.x(report), panel.y(report)) for report in reports)
    return sorted((x, y) for x, y in pairs if x is not None and y is not None)


def _draw(path: Path, panels: Sequence[tuple[Panel, dict[str, list[Point]]]]) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(7 * len(panels), 6))
    for number, (panel, lines) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), number)
        for label, points in lines.items():
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=label)
        axes.set_title(panel.title)
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        axes.grid(visible=True)
        if any(lines):
            axes.legend()
    figure.tight_layout()
    with replaced(path) as partial:
        figure.savefig(partial, format="png")
