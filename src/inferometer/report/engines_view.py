"""The view of a comparison of engines while it goes on: in a terminal, a table of all engines and levels; elsewhere, a line per step."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.campaign import StartUp
from inferometer.config.engines import Level
from inferometer.records import Run, Snapshot
from inferometer.report import formatting
from inferometer.report.live import Outline, Show
from inferometer.report.safe_console import SafeConsole
from inferometer.units import NS, format_number, format_seconds

_Key = tuple[str, float]


class LevelView(Show):
    """The progress of one level."""

    def __init__(self, view: "CampaignView", key: _Key) -> None:
        self._view, self._key = view, key
        self._total: int | None = None
        self._duration: float | None = None

    def planned(self, outline: Outline) -> None:
        self._total = outline.total
        self._duration = outline.duration / NS if outline.duration is not None else None

    def warn(self, line: str) -> None:
        self._view.line(Text(formatting.one_line(line, 300), style="yellow"))

    def progress(self, snapshot: Snapshot) -> None:
        if self._total:
            share: float | None = (snapshot.ok + snapshot.failed) / self._total
        else:
            share = snapshot.elapsed / self._duration if self._duration else None
        self._view.note_share(self._key, share)

    def done(self, count: int, total: int) -> None:
        """Note the progress of an engine without a server."""
        self._view.note_share(self._key, count / total if total else None)


class CampaignView:
    """Shows the whole campaign; if it is quiet, nothing."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or SafeConsole(stderr=True, quiet=quiet)
        self._started = time.monotonic()
        self._names: Sequence[str] = ()
        self._levels: dict[str, Sequence[Level]] = {}
        self._rounds = 1
        self._round = 0
        self._cells: dict[_Key, Text] = {}
        self._states: dict[str, Text] = {}
        self._current = ""
        self._live: Live | None = None

    def planned(self, names: Sequence[str], levels: Sequence[Sequence[Level]], rounds: int, folder: Path) -> None:
        self._names, self._levels, self._rounds = names, dict(zip(names, levels, strict=True)), rounds
        count = sum(map(len, levels)) * rounds
        words = [f"{len(names)} engine{'s' if len(names) != 1 else ''}"]
        words += [f"{count} measurements"] if count else []
        repeats = f" in {rounds} rounds" if rounds > 1 else ""
        self.line(f"{', '.join(words)}{repeats}, in {folder}")
        if self._console.is_terminal and count and not self._console.quiet:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True, get_renderable=self._render)
            self._live.start()

    def starting(self, name: str, round: int) -> None:
        self._current, self._round = name, round
        self._say(name, "starting", "starting ...", "cyan")

    def ready(self, name: str, startup: StartUp) -> None:
        took = f" after {format_seconds(startup.first_token)}" if startup.first_token is not None else ""
        self._say(name, f"ready{took}", "ready", "cyan")

    def doing(self, name: str, what: str) -> None:
        self._say(name, what, f"{what} ...", "cyan")

    def measuring(self, name: str, level: Level) -> LevelView | None:
        if self._console.quiet:
            return None
        self._states[name] = Text(f"{level.name} ...", style="cyan")
        self._cells[name, level.value] = Text("...", style="cyan")
        return LevelView(self, (name, level.value))

    def measured(self, name: str, level: Level, run: Run | None, error: str) -> None:
        if run is None:
            self._cells[name, level.value] = Text("✗", style="red")
            self.line(Text(f"{name}, {level.name}: {formatting.one_line(error, 300)}", style="red"))
            return
        figure, failed = _figure(run)
        self._cells[name, level.value] = Text(figure, style="yellow" if failed else "green")
        words = f", {failed:,} failed" if failed else ""
        self.line(f"{name}, {level.name}: {figure}{words}")

    def failed(self, name: str, reason: str, message: str, log_tail: Sequence[str]) -> None:
        self._states[name] = Text(f"✗ {reason}", style="red")
        self.line(Text(f"{name}: {message}", style="red"))
        for each in log_tail:
            self.line(Text(f"    {formatting.one_line(each, 200)}", style="dim"))

    def stopped(self, name: str) -> None:
        self._current = ""
        if "✗" not in self._states[name].plain:
            self._say(name, "stopped", "✓", "green")

    def over(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def note_share(self, key: _Key, share: float | None) -> None:
        self._cells[key] = Text(f"{min(share, 1.0):.0%}" if share is not None else "...", style="cyan")

    def line(self, text: str | Text) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, style="dim" if isinstance(text, str) else "")

    def _say(self, name: str, line: str, state: str, color: str) -> None:
        self._states[name] = Text(state, style=color)
        if self._live is None:
            self.line(f"{name}: {line}")

    def _render(self) -> RenderableType:
        values = list(dict.fromkeys(level.value for name in self._names for level in self._levels[name]))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("engine")
        for value in sorted(values):
            table.add_column(f"{value:g}", justify="right")
        table.add_column("")
        for name in self._names:
            own = {level.value for level in self._levels[name]}
            cells = [
                self._cells.get((name, value), Text("·" if value in own else "", style="dim"))
                for value in sorted(values)
            ]
            style = "bold" if name == self._current else ""
            table.add_row(Text(name, style=style), *cells, self._states.get(name, Text("")))
        spent = format_seconds(round(time.monotonic() - self._started))
        rounds = f"round {self._round + 1} of {self._rounds}   " if self._rounds > 1 else ""
        return Padding(Group(table, Text(f"{rounds}{spent}", style="dim")), (1, 0, 0, 1))


def _figure(run: Run) -> tuple[str, int]:
    """Output tokens per second over the whole level, or requests per second without tokens; and how many requests failed."""
    rows = run.records.rows
    good = rows["failure"] == 0
    failed = int(len(rows) - good.sum())
    if not good.any():
        return "✗", failed
    seconds = (int(rows["done"][good].max()) - int(rows["sent"][good].min())) / NS or 1e-9
    tokens = rows["n_out"][good]
    if (tokens >= 0).all() and tokens.sum():
        return f"{format_number(float(tokens.sum()) / seconds, 3)} tok/s", failed
    return f"{format_number(float(good.sum()) / seconds, 3)}/s", failed
