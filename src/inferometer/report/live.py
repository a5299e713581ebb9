"""The progress of a run: a live view in a terminal, plain lines elsewhere.

It reads what the shards have recorded so far, in the parent process, and costs them nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.control import Control
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import ControlType
from rich.table import Table
from rich.text import Text

from inferometer.config.loads import Closed, Load, Ramp, Replay, Stages, StageSpec, Steps, stages_of
from inferometer.records import Snapshot
from inferometer.report import blocks, formatting
from inferometer.report.live_figures import WINDOW, History, RecentRate, RecentRows, Rows
from inferometer.report.safe_console import SafeConsole
from inferometer.store.spool import failures_of
from inferometer.units import NS, format_seconds

_LINE_EVERY = 5.0
"""Seconds between two plain lines."""
_FIRST_LINE = 2.0
"""Seconds until the first one: preparing the requests may take longer than that."""


class Outline(msgspec.Struct, frozen=True):
    """What the view is told of a run before it starts."""

    urls: tuple[str, ...]
    model: str
    load: Load
    total: int | None
    """Number of requests; None if that depends on the server, as with `duration`."""
    duration: int | None
    """Nanoseconds."""
    stage_durations: tuple[int, ...]
    rate_at: Callable[[StageSpec, int], float | None]
    """Return the planned rate of a stage, at this many nanoseconds after its start; None for a closed loop."""
    processes: int
    spool: Path
    turns: float = 0.0
    """Mean number of turns per session; 0: there are no sessions."""
    metrics_url: str = ""
    """Where the run offers its live metrics; empty: nowhere."""


class Show:
    """What a run tells its view (conduct/measuring.py). This class shows nothing: a view inherits from it, and leaves out what it has no
    use for."""

    def probing(self) -> None:
        """Show that the server is probed."""
        return

    def planned(self, outline: Outline) -> None:
        """Show what will be sent."""
        return

    def warn(self, line: str) -> None:
        """Show what will be missing."""
        return

    def progress(self, snapshot: Snapshot) -> None:
        """Show the current state of the run."""
        return

    def waiting(self, observers: Sequence[str]) -> None:
        """Show which observers the run waits for after its last response."""
        return

    def uploading(self, line: str) -> None:
        """Show that the run is uploaded to its bucket; called after `over`."""
        return

    def over(self) -> None:
        """End the view."""
        return


class LiveView(Show):
    """Shows one run. conduct/ calls `probing` and `over`, then `planned`, `warn`, `progress`, `waiting` and `over`."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or SafeConsole(stderr=True)
        self._live: Live | None = None
        self._is_probing = False
        self._title = ""
        self._waiting = ""
        self._last: Snapshot | None = None
        self._drained = (
            0.0  # seconds spent so far on waiting for requests between stages, which the plan does not count
        )
        self._last_line = 0.0
        self._offered, self._completed, self._history = RecentRate(), RecentRate(), History()
        self._failed: Counter[str] = Counter()

    def probing(self) -> None:
        """Show that the server is probed, on a line that `over` removes."""
        if self._console.is_terminal:
            self._console.print("probing the server with a few requests ...", style="dim", end="")
            self._is_probing = True

    def planned(self, outline: Outline) -> None:
        """Start the view: the server was reached, and the load is planned."""
        self._outline = outline
        self._specs = stages_of(outline.load)
        self._total, self._duration = outline.total, outline.duration
        self._recent = RecentRows(outline.spool)
        more = f" and {len(outline.urls) - 1} more" if len(outline.urls) > 1 else ""
        self._title = f"{outline.urls[0]}{more} · {outline.model} · {describe(outline.load, outline.turns > 0)}"
        processes = "1 client process" if outline.processes == 1 else f"{outline.processes} client processes"
        if outline.metrics_url:
            self._console.print(f"live metrics at {outline.metrics_url}", highlight=False, soft_wrap=True)
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True, get_renderable=self._render)
            self._live.start()
        else:
            self._console.print(f"{self._title} · {processes}", highlight=False, soft_wrap=True)
            self._last_line = time.monotonic() + _FIRST_LINE - _LINE_EVERY

    def warn(self, line: str) -> None:
        """Print what will be missing from the report."""
        self._console.print(Text(formatting.one_line(line, 1000), style="yellow"), soft_wrap=True)

    def progress(self, snapshot: Snapshot) -> None:
        """Take note of how the run stands."""
        sent_before = self._last.sent if self._last is not None else 0
        has_just_started = snapshot.started and (self._last is None or not self._last.started)
        if snapshot.draining and self._last is not None:
            self._drained += snapshot.elapsed - self._last.elapsed
        self._last = snapshot
        at, rows = time.monotonic(), snapshot.rows()
        self._recent.add(at, rows)
        self._count_failures(rows)
        if not snapshot.stopping and not (self._total and sent_before >= self._total):
            self._note_rates(snapshot)
        self._history.add(snapshot.elapsed, snapshot.ok, rows)
        if self._live is None and (has_just_started or at - self._last_line >= _LINE_EVERY):
            self._last_line = at
            line = self._line(snapshot) if snapshot.started else _preparing(snapshot)
            self._console.print(line, highlight=False, soft_wrap=True)

    def waiting(self, observers: Sequence[str]) -> None:
        """Show which observers the end of the run waits for. Called again as long as it waits."""
        is_first = not self._waiting
        self._waiting = f"waiting for the observers: {', '.join(observers)}; press Ctrl-C to do without them"
        if self._live is None and is_first:
            self._console.print(self._waiting, highlight=False, soft_wrap=True)

    def uploading(self, line: str) -> None:
        """Show which file is uploaded."""
        self._console.print(line, style="dim", highlight=False, soft_wrap=True)

    def over(self) -> None:
        """End the view."""
        if self._is_probing:
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            self._is_probing = False
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._waiting = ""

    # --- what is shown ---

    def _render(self) -> RenderableType:
        snapshot = self._last
        if snapshot is None or not snapshot.started:
            return self._panel(Text(_preparing(snapshot), style="dim"), "dim")
        parts: list[RenderableType] = [self._bar(snapshot), "", self._numbers(snapshot), "", self._latencies(snapshot)]
        if levels := _server_levels(snapshot):
            pairs = [_pair(name, value) for name, value in levels.items()]
            parts += ["", Text("   ").join([Text("server", style="bold"), *pairs])]
        if self._history.rates:
            parts += ["", self._sparklines()]
        if self._failed:
            kinds = "   ".join(f"{code} {count}" for code, count in self._failed.most_common(5))
            parts += ["", Text(kinds, style="red")]
        if self._waiting:
            parts += ["", self._waiting]
        return self._panel(Group(*parts), "cyan", subtitle=f"figures of the last {WINDOW:.0f} s", padding=(1, 2))

    def _panel(self, inside: RenderableType, color: str, **more: Any) -> RenderableType:
        """A frame that leaves room beside it for the ^C that a terminal echoes: on a new line, it would shift what follows."""
        panel = Panel(inside, title=self._title, border_style=color, **more)
        return Constrain(panel, max(self._console.width - len("^C^C"), 1))

    def _bar(self, snapshot: Snapshot) -> RenderableType:
        share, eta = self._share(snapshot)
        if self._waiting:
            left = "all responses have arrived"
        elif snapshot.stopping:
            left = "stopping; press Ctrl-C again to end now"
        elif snapshot.draining:
            left = f"draining: {snapshot.in_flight:,} in flight before the next stage"
        elif snapshot.pausing:
            left = "pausing before the next stage"
        elif share >= 1:
            left = "waiting for the last responses"
        else:
            left = f"{format_seconds(eta)} left" if eta is not None else ""
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right")
        text = f"{min(share, 1):4.0%}  {format_seconds(snapshot.elapsed)}  {left}"
        bar.add_row(ProgressBar(total=1.0, completed=min(share, 1.0)), text)
        return bar

    def _numbers(self, snapshot: Snapshot) -> RenderableType:
        numbers = Table.grid(padding=(0, 3))
        rates = [_pair(name, value) for name, value in self._rates(snapshot).items()]
        numbers.add_row(*rates, _pair("in flight", snapshot.in_flight))
        counts = [_pair("sent", snapshot.sent), _pair("ok", snapshot.ok)]
        counts.append(_pair("failed", snapshot.failed, "red" if snapshot.failed else ""))
        counts += [_pair("waiting to be sent", snapshot.queued)] if snapshot.queued else []
        numbers.add_row(*counts)
        return numbers

    def _latencies(self, snapshot: Snapshot) -> RenderableType:
        table = Table.grid(padding=(0, 3))
        for name, (low, high) in self._recent.percentiles(snapshot.peeks()).items():
            p50, p99 = _pair("p50", format_seconds(low)), _pair("p99", format_seconds(high))
            table.add_row(Text(name, style="bold"), p50, p99)
        return table

    def _sparklines(self) -> RenderableType:
        """The course of the whole run: the rate and the p99, each scaled from 0 to its largest value."""
        rates, p99 = self._history.rates, self._history.p99
        table = Table.grid(padding=(0, 3))
        table.add_row("completed/s", Text(blocks.sparkline(rates), style="cyan"), _pair("max", _rate(max(rates))))
        if highest := max((value for value in p99 if value is not None), default=0.0):
            name = "TTFT p99" if self._history.is_streamed else "end to end p99"
            table.add_row(name, Text(blocks.sparkline(p99), style="cyan"), _pair("max", format_seconds(highest)))
        return table

    def _line(self, snapshot: Snapshot) -> str:
        share, _ = self._share(snapshot)
        parts = [f"{snapshot.elapsed:6.1f}s {min(share, 1):4.0%}"]
        parts += [f"{name} {value}" for name, value in self._rates(snapshot).items()]
        parts += ["draining"] if snapshot.draining else ["pausing"] if snapshot.pausing else []
        parts += [f"in flight {snapshot.in_flight}", f"ok {snapshot.ok}", f"failed {snapshot.failed}"]
        for name, (low, high) in self._recent.percentiles(snapshot.peeks()).items():
            parts.append(f"{name} p50 {format_seconds(low)} p99 {format_seconds(high)}")
        if levels := _server_levels(snapshot):
            parts.append("server " + " ".join(f"{name} {value}" for name, value in levels.items()))
        parts += [f"{code} {count}" for code, count in self._failed.most_common(3)]
        return "  ".join(parts)

    # --- figures ---

    def _rates(self, snapshot: Snapshot) -> dict[str, str]:
        """What the load is meant to be, and what it is. Only an open loop offers a rate of its own."""
        spec = self._specs[snapshot.stage]
        load = self._outline.load
        pauses = round(load.pause * NS) * snapshot.stage if isinstance(load, Stages) else 0
        started = sum(self._outline.stage_durations[: snapshot.stage]) + pauses
        target = self._outline.rate_at(spec, int(self._planned_time(snapshot) * NS) - started)
        counts_sessions = self._outline.turns > 0 and spec.unit == "sessions"
        if target is None:
            unit = "sessions" if counts_sessions else "in flight"
            rates = {"target": f"{spec.concurrency} {unit}"}  # type: ignore[union-attr]
        else:
            target *= self._outline.turns if counts_sessions else 1
            rates = {"target": _rate(target), "offered": _rate(self._offered.per_second)}
        return rates | {"completed": _rate(self._completed.per_second)}

    def _share(self, snapshot: Snapshot) -> tuple[float, float | None]:
        """How much of the run is done, and the seconds that are left if that can be estimated."""
        by_count = (snapshot.ok + snapshot.failed) / self._total if self._total else 0.0
        by_time = self._planned_time(snapshot) * NS / self._duration if self._duration else 0.0
        ends_by_time = self._duration and any(self._outline.stage_durations)
        share = max(by_count, by_time) if ends_by_time else by_count
        return share, snapshot.elapsed * (1 - share) / share if 0.005 < share < 1 else None

    def _planned_time(self, snapshot: Snapshot) -> float:
        """How far the plan has advanced, in seconds: the time since t=0 without the time between stages."""
        return snapshot.elapsed - self._drained

    def _note_rates(self, snapshot: Snapshot) -> None:
        """Count until the last send is due: waiting for the last responses must not lower the rates."""
        at = self._planned_time(snapshot)
        if self._duration and not snapshot.queued:
            at = min(at, self._duration / NS)
        self._offered.add(at, snapshot.sent)
        self._completed.add(at, snapshot.ok)

    def _count_failures(self, rows: Rows) -> None:
        failed = rows[rows["failure"] > 0]
        for shard in np.unique(failed["shard"]):
            known = failures_of(self._outline.spool, int(shard))
            for number in failed["failure"][failed["shard"] == shard]:
                self._failed[known[number - 1].code if number <= len(known) else "?"] += 1


def describe(load: Load, has_sessions: bool = False) -> str:
    """Describe the load in a few words."""
    if isinstance(load, Stages):
        return f"{len(load.stages)} stages"
    kind = type(load).__struct_config__.tag
    unit = "sessions" if has_sessions and load.unit == "sessions" else ""
    if isinstance(load, Closed):
        return f"closed loop, {load.concurrency} {unit or 'in flight'}"
    if isinstance(load, Ramp):
        return f"{kind} {formatting.rate(load.start)} to {formatting.rate(load.end)}{unit and ' ' + unit}/s"
    if isinstance(load, Replay):
        return "trace"
    rates = load.rates if isinstance(load, Steps) else [load.rate]
    shown = ", ".join(rate if isinstance(rate, str) else formatting.rate(rate) for rate in rates)
    return f"{kind} {shown}{unit and ' ' + unit}/s"


def _preparing(snapshot: Snapshot | None) -> str:
    if snapshot is None or snapshot.stopping:
        return "starting ..." if snapshot is None else "stopping ..."
    if snapshot.prepared < 1:
        return f"preparing requests {snapshot.prepared:.0%} ..."
    if snapshot.starts_in:
        return f"starts in {format_seconds(snapshot.starts_in)} ..."
    return "preparing connections ..."


def _server_levels(snapshot: Snapshot) -> dict[str, str]:
    """The latest of the server's own figures, as far as its metrics are read."""
    observed = snapshot.observed
    levels: dict[str, str] = {
        name: formatting.rate(observed[name], 4) for name in ("running", "waiting") if name in observed
    }
    if "kv_cache_use" in observed:
        levels["KV cache"] = f"{observed['kv_cache_use']:.0%}"
    return levels


def _rate(value: float) -> str:
    return f"{formatting.rate(value, 4)}/s"


def _pair(name: str, value: object, style: str = "bold") -> Text:
    return Text.assemble((f"{name} ", "dim"), (str(value), style))
