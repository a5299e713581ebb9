"""The view of a capacity search while it goes on."""

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from inferometer.capacity_search.judgement import Look
from inferometer.capacity_search.objectives import Objectives
from inferometer.capacity_search.result import Probe
from inferometer.capacity_search.trials import Bracket, By, Goal, Request, Trial
from inferometer.records import Snapshot
from inferometer.report import formatting
from inferometer.report.capacity import PURPOSES, UNITS, amount, minutes, raised_budget, reason, verdict
from inferometer.report.capacity_report import closed_loops, interval, scale
from inferometer.report.safe_console import SafeConsole
from inferometer.units import format_seconds


class SearchView:
    """Shows the search: in a terminal, the curve of the closed loops and how the interval narrows; elsewhere, a line for each probe; if it is quiet, nothing."""

    def __init__(self, by: By, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or SafeConsole(stderr=True, quiet=quiet)
        self._by = by
        self._budget = 0.0
        self._probes: list[Probe] = []
        self._bracket = Bracket(None, None, None)
        self._request: Request | None = None
        self._snapshot: Snapshot | None = None
        self._live: Live | None = None
        self._started = time.monotonic()

    def planned(self, goal: Goal, objectives: Objectives, unloaded: float, asked_budget: float | None) -> None:
        """Say first what is judged, and how long it may take."""
        self._budget = goal.budget + time.monotonic() - self._started
        budget = round(self._budget)
        takes = f"a response takes {format_seconds(unloaded)} without load, so the search takes up to {minutes(budget)}"
        self._print(
            f"objectives: {', '.join(objectives.names)}",
            raised_budget(asked_budget, budget, unloaded) or takes,
            f"first a few closed loops, for the curve of throughput; then probes of {_LOADS[self._by]}",
        )
        if self._console.is_terminal and not self._console.quiet:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True, get_renderable=self._render)
            self._live.start()

    def probing(self, request: Request, trials: Sequence[Trial]) -> None:
        self._request, self._snapshot = request, None

    def progress(self, snapshot: Snapshot, look: Look | None) -> None:
        self._snapshot = snapshot

    def probed(self, probe: Probe, found: Bracket) -> None:
        self._probes.append(probe)
        self._bracket = found
        sign, word, _ = verdict(probe)
        word = f"likely {probe.status}" if word == "likely" else word
        what = f"{amount(probe.level)} {UNITS[self._by]}"
        if probe.purpose == "explore":
            what = f"{probe.level:,.0f} in flight, {formatting.number(probe.throughput)} requests/s"
        self._print(f"{sign} {what}: {word} ({reason(probe)}; {format_seconds(probe.seconds)}) -> {interval(found)}")

    def over(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._console.print()

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._console.print(line, highlight=False, soft_wrap=not self._console.is_terminal, style="dim")

    def _render(self) -> RenderableType:
        request = self._request
        if request is None:
            return Text("starting ...", style="dim")
        is_exploring = request.purpose == "explore"
        curve = [probe for probe in self._probes if probe.purpose == "explore"]
        levels = [probe for probe in self._probes if probe.purpose != "explore"]
        parts: list[RenderableType] = [closed_loops(curve, request.level if is_exploring else None), Text()]
        if not is_exploring or self._bracket.low is not None:
            parts += [
                scale(self._by, levels, self._bracket, self._console.width, None if is_exploring else request.level),
                Text(),
            ]
        return Padding(Group(*parts, *self._now(request)), (1, 0, 0, 1))

    def _now(self, request: Request) -> list[Text]:
        """The probe in progress, and the time left."""
        unit = "requests in flight" if request.purpose == "explore" else UNITS[self._by]
        done, snapshot = "", self._snapshot
        if snapshot is not None:
            failed = f", {snapshot.failed:,} failed" if snapshot.failed else ""
            elapsed = f"{snapshot.elapsed:.0f} of at most {request.seconds:.0f} s"
            done = f": {elapsed}, {snapshot.ok:,} responses{failed}, {snapshot.in_flight:,} in flight"
        left = max(self._budget - (time.monotonic() - self._started), 0.0)
        return [
            Text(f"{PURPOSES[request.purpose]} {amount(request.level)} {unit}{done}"),
            Text(f"at most {format_seconds(round(left))} left of {minutes(round(self._budget))}", style="dim"),
        ]


_LOADS: dict[By, str] = {
    "rate": "a rate, with random arrivals",
    "concurrency": "a number of requests in flight",
    "users": "a number of users",
}
