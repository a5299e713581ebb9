"""A run while it runs: a live view in a terminal, plain lines elsewhere.

It reads what the shards have recorded so far, in the parent process, and costs them nothing.
"""

import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from inferometer import schedule
from inferometer.config.schema import Closed, Config, Ramp, Stages, Steps, stages_of
from inferometer.fleet.supervisor import Snapshot
from inferometer.probe.reach import Reached
from inferometer.records import ROW
from inferometer.report import formatting
from inferometer.store.spool import failures_of
from inferometer.types import Plan
from inferometer.units import NS, format_seconds

_WINDOW = 5.0
"""Seconds that the percentiles look back."""
_LINE_EVERY = 5.0
_MOST_ROWS = 2_000
_MOST_CHUNKED = 100


class LiveView:
    """Shows one run. `conduct.Show` says what it is told."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._recent: deque[tuple[float, np.ndarray[tuple[int], np.dtype[np.void]]]] = deque()
        self._counts: deque[tuple[float, int]] = deque([(0.0, 0)])
        self._failed: Counter[str] = Counter()
        self._last_line = 0.0
        self._last: Snapshot | None = None
        self._title = ""

    # --- told by conduct ---

    def planned(self, config: Config, plan: Plan, reached: Reached, shards: int, folder: Path) -> None:
        self._specs = stages_of(config.load)
        self._plan = plan
        self._total = schedule.total_requests(plan)
        self._duration = schedule.planned_duration(plan)
        self._spool = folder / "spool"
        where = reached.targets[0].url + (f" and {len(reached.targets) - 1} more" if len(reached.targets) > 1 else "")
        self._title = f"{where}  {reached.model}  {describe(config)}"
        processes = "1 client process" if shards == 1 else f"{shards} client processes"
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True, get_renderable=self._render)
            self._live.start()
        else:
            self._console.print(f"{self._title}  ({processes})", highlight=False, soft_wrap=True)

    def progress(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        at = time.monotonic()
        rows = snapshot.rows()
        if len(rows):
            self._recent.append((at, rows))
            self._note_failures(rows)
        self._note_sent(snapshot)
        while self._recent and self._recent[0][0] < at - _WINDOW:
            self._recent.popleft()
        if self._live is None and snapshot.started and at - self._last_line >= _LINE_EVERY:
            self._last_line = at
            self._console.print(self._line(snapshot), highlight=False, soft_wrap=True)

    def over(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # --- what is shown ---

    def _render(self) -> RenderableType:
        snapshot = self._last
        if snapshot is None or not snapshot.started:
            return self._panel(Text("preparing: prompts, connections ...", style="dim"), "dim")
        share, eta = self._share(snapshot)
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right")
        left = (
            "waiting for the last answers" if share >= 1 else f"{format_seconds(eta)} left" if eta is not None else ""
        )
        left = "stopping: Ctrl-C again ends at once" if snapshot.stopping else left
        bar.add_row(
            ProgressBar(total=1.0, completed=min(share, 1.0)),
            f"{min(share, 1):4.0%}  {format_seconds(snapshot.elapsed)}  {left}",
        )

        asked = self._asked(snapshot)
        numbers = Table.grid(padding=(0, 3))
        for _ in range(4):
            numbers.add_column()
        numbers.add_row(
            _pair("asked", asked),
            _pair("reached", f"{formatting.rate(self._rate(), 4)}/s"),
            _pair("in flight", snapshot.in_flight),
            _pair("waiting", snapshot.queued),
        )
        numbers.add_row(
            _pair("sent", snapshot.sent),
            _pair("ok", snapshot.ok),
            _pair("failed", snapshot.failed, "red" if snapshot.failed else ""),
            "",
        )

        latency = Table.grid(padding=(0, 3))
        for _ in range(3):
            latency.add_column()
        for name, (low, high) in self._percentiles().items():
            latency.add_row(
                Text(name, style="bold"), _pair("p50", format_seconds(low)), _pair("p99", format_seconds(high))
            )
        parts: list[RenderableType] = [bar, "", numbers, "", latency]
        if self._failed:
            kinds = "   ".join(f"{code} {count}" for code, count in self._failed.most_common(5))
            parts += ["", Text(kinds, style="red")]
        return self._panel(Group(*parts), "cyan", subtitle=f"last {_WINDOW:.0f} s", padding=(1, 2))

    def _panel(self, inside: RenderableType, color: str, **more: Any) -> RenderableType:
        """Beside it is room for the ^C that a terminal echoes: on a line of its own it would shift what is drawn next."""
        panel = Panel(inside, title=self._title, border_style=color, **more)
        return Constrain(panel, max(self._console.width - len("^C^C"), 1))

    def _line(self, snapshot: Snapshot) -> str:
        share, _ = self._share(snapshot)
        parts = [
            f"{snapshot.elapsed:6.1f}s {min(share, 1):4.0%}",
            f"asked {self._asked(snapshot)}",
            f"reached {formatting.rate(self._rate(), 4)}/s",
            f"in flight {snapshot.in_flight}",
            f"ok {snapshot.ok}",
            f"failed {snapshot.failed}",
        ]
        parts += [
            f"{name} {format_seconds(low)} / {format_seconds(high)}"
            for name, (low, high) in self._percentiles().items()
        ]
        parts += [f"{code} {count}" for code, count in self._failed.most_common(3)]
        return "  ".join(parts)

    # --- numbers ---

    def _share(self, snapshot: Snapshot) -> tuple[float, float | None]:
        """How much of the run is done, and the seconds that are left, as far as that can be told."""
        by_count = (snapshot.ok + snapshot.failed) / self._total if self._total else 0.0
        by_time = snapshot.elapsed * NS / self._duration if self._duration else 0.0
        share = (
            max(by_count, by_time)
            if self._duration and any(stage.duration for stage in self._plan.stages)
            else by_count
        )
        return share, snapshot.elapsed * (1 - share) / share if 0.005 < share < 1 else None

    def _asked(self, snapshot: Snapshot) -> str:
        spec = self._specs[snapshot.stage]
        started = sum(stage.duration for stage in self._plan.stages[: snapshot.stage])
        rate = schedule.rate_at(spec, int(snapshot.elapsed * NS) - started)
        return f"{spec.concurrency} in flight" if rate is None else f"{formatting.rate(rate, 4)}/s"  # type: ignore[union-attr]

    def _note_sent(self, snapshot: Snapshot) -> None:
        """How many were sent by when since t=0, as long as there is something to send: waiting for answers is no slower sending."""
        last, before = self._counts[-1]
        at = snapshot.elapsed
        if self._duration and not snapshot.queued:
            at = min(at, self._duration / NS)
        if snapshot.stopping or at <= last or (self._total and before >= self._total):
            return
        self._counts.append((at, snapshot.sent))
        while len(self._counts) > 2 and self._counts[0][0] < at - _WINDOW:
            self._counts.popleft()

    def _rate(self) -> float:
        (first, before), (last, after) = self._counts[0], self._counts[-1]
        return (after - before) / (last - first) if last > first else 0.0

    def _percentiles(self) -> dict[str, tuple[float, float]]:
        """Of what ended in the last seconds; where no stream did, of streams still in flight."""
        rows = np.concatenate([rows for _, rows in self._recent])[-_MOST_ROWS:] if self._recent else np.zeros(0, ROW)
        peeks = self._last.peeks() if self._last is not None else np.zeros((0, 2), np.int64)
        start = np.where(rows["open_loop"] > 0, rows["intended"], rows["sent"])
        sent = rows["sent"] > 0
        first = (rows["first_token"] > 0) & sent
        done = sent & (rows["failure"] == 0)
        gaps = self._gaps(rows)
        columns = {
            "TTFT": (rows["first_token"] - start)[first] if first.any() else peeks[:, 0],
            "ITL": gaps if len(gaps) else peeks[:, 1][peeks[:, 1] > 0],
            "end to end": (rows["done"] - start)[done],
            "lag": (rows["sent"] - rows["intended"])[sent],
        }
        return {name: _p50_p99(values) for name, values in columns.items() if len(values)}

    def _gaps(self, rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Gaps between the chunks of the latest answers, from the shards' files."""
        found = []
        for row in rows[rows["chunk_count"] > 1][-_MOST_CHUNKED:]:
            path = self._spool / f"{row['shard']}.arrivals"
            found.append(np.diff(np.fromfile(path, "<i8", row["chunk_count"], offset=int(row["chunk_start"]) * 8)))
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _note_failures(self, rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> None:
        failed = rows[rows["failure"] > 0]
        for shard in np.unique(failed["shard"]):
            known = failures_of(self._spool, int(shard))
            for place in failed["failure"][failed["shard"] == shard]:
                self._failed[known[place - 1].code if place <= len(known) else "?"] += 1


def describe(config: Config) -> str:
    """The load in a few words."""
    load = config.load
    if isinstance(load, Stages):
        return f"{len(load.stages)} stages"
    kind = type(load).__struct_config__.tag
    if isinstance(load, Closed):
        return f"{kind} {load.concurrency}"
    if isinstance(load, Ramp):
        return f"{kind} {formatting.rate(load.start)} to {formatting.rate(load.end)}/s"
    rates = load.rates if isinstance(load, Steps) else [load.rate]
    return f"{kind} {', '.join(formatting.rate(rate) for rate in rates)}/s"


def _p50_p99(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[float, float]:
    low, high = np.percentile(values, (50, 99))
    return float(low) / NS, float(high) / NS


def _pair(name: str, value: object, style: str = "bold") -> Text:
    return Text.assemble((f"{name} ", "dim"), (str(value), style))
