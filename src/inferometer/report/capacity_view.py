"""The view of a capacity search while it goes on."""

import math
import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from inferometer.analysis.slo_expression import Slo
from inferometer.capacity_search.result import By, Probe
from inferometer.capacity_search.search import bracket
from inferometer.capacity_search.judgement import Look
from inferometer.capacity_search.trials import Bracket, Goal, Request, Trial
needed_requests=None
from inferometer.records import Snapshot
from inferometer.report.capacity import PURPOSES, SIGNS, UNITS, amount, reason
from inferometer.units import format_seconds

_WIDTH = 40


class SearchView:
    """Shows the search: in a terminal, how the interval closes in; elsewhere, a line for each probe."""

    def __init__(self, by: By, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._unit = UNITS[by]
        self._goal: Goal | None = None
        self._trials: list[Trial] = []
        self._request: Request | None = None
        self._snapshot: Snapshot | None = None
        self._look: Look | None = None
        self._live: Live | None = None
        self._started = time.monotonic()

    def planned(self, goal: Goal, objectives: Sequence[Slo], names: Sequence[str], unloaded: float) -> None:
        """Say first how long it may take, and what that allows."""
        self._goal = goal
        needs = math.ceil(needed_requests(objectives))
        from_rate = needs / max(goal.telling, 1e-9)
        self._print(
            f"objectives: {', '.join(names)}; a request takes {format_seconds(unloaded)} without load",
            f"at most {format_seconds(goal.budget)} for probes; each needs {needs:,} requests at least to show that a level holds: "
            f"{format_seconds(goal.telling)} from {amount(from_rate)} requests/s on, longer below",
        )
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True, get_renderable=self._render)
            self._live.start()

    def probing(self, request: Request, trials: Sequence[Trial]) -> None:
        self._request, self._trials, self._look, self._snapshot = request, list(trials), None, None

    def progress(self, snapshot: Snapshot, look: Look | None) -> None:
        self._snapshot, self._look = snapshot, look

    def probed(self, probe: Probe, found: Bracket) -> None:
        sign, _ = SIGNS[probe.status]
        line = f"{sign} {amount(probe.level)} {self._unit} {probe.status} ({format_seconds(probe.seconds)}; {reason(probe)})"
        self._print(f"{line} -> {self._interval(found)}")

    def over(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._console.print(line, highlight=False, soft_wrap=True, style="dim")

    def _interval(self, found: Bracket) -> str:
        low = "?" if found.low is None else amount(found.low)
        return f"{low} .. {'?' if found.high is None else amount(found.high)}"

    def _render(self) -> RenderableType:
        request, snapshot = self._request, self._snapshot
        if request is None:
            return Text("starting ...", style="dim")
        lines = [self._scale(), Text()]
        done = (
            "" if snapshot is None else f"{snapshot.elapsed:.0f} of at most {request.seconds:.0f} s, {snapshot.ok:,} ok"
        )
        failed = f", {snapshot.failed:,} failed" if snapshot is not None and snapshot.failed else ""
        lines.append(Text(f"{PURPOSES[request.purpose]} {amount(request.level)} {self._unit}: {done}{failed}"))
        if self._look is not None and self._look.worst is not None:
            lines.append(Text(f"  {self._look.worst.slo}: {self._look.worst.reason}", style="dim"))
        if self._goal is not None:
            spent = time.monotonic() - self._started
            lines.append(Text(f"{format_seconds(spent)} of {format_seconds(self._goal.budget)}", style="dim"))
        return Padding(Group(*lines), (1, 0, 0, 1))

    def _scale(self) -> Text:
        """A log scale of the levels that were tried: what holds, what fails, and the probe in progress."""
        assert self._request is not None
        found = bracket(self._trials)
        levels = [trial.level for trial in self._trials] + [self._request.level]
        first, last = min(levels) / 1.1, max(levels) * 1.1
        marks = [("─", "dim")] * _WIDTH

        def at(level: float) -> int:
            return min(int(math.log(level / first) / math.log(last / first) * _WIDTH), _WIDTH - 1)

        for index in range(_WIDTH):
            level = first * (last / first) ** ((index + 0.5) / _WIDTH)
            if found.low is not None and level <= found.low:
                marks[index] = ("━", "green")
            elif found.high is not None and level >= found.high:
                marks[index] = ("━", "red")
        for trial in self._trials:
            marks[at(trial.level)] = SIGNS[trial.status]
        marks[at(self._request.level)] = ("●", "bold cyan")
        scale = Text.assemble(*marks)
        return Text.assemble(f"{amount(first)} ", scale, f" {amount(last)}   ", (self._interval(found), "bold"))


class Quiet:
    """Shows nothing."""

    def planned(self, goal: Goal, objectives: Sequence[Slo], names: Sequence[str], unloaded: float) -> None: ...

    def probing(self, request: Request, trials: Sequence[Trial]) -> None: ...

    def progress(self, snapshot: Snapshot, look: Look | None) -> None: ...

    def probed(self, probe: Probe, found: Bracket) -> None: ...

    def over(self) -> None: ...
