"""Repeats of one config, and interleaved pairs of two.

Repeats have a seed each (the config's, plus 0, 1, 2 ...). The runs of a pair share a seed; A goes first in one pair and B in the
next, so that a machine that becomes slower over time favours neither.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from inferometer.analysis.summary import Measured
from inferometer.analysis.sweep import MeasuredCell
from inferometer.conduct.experiment import Cell, Experiment, Note, RunList, measure_cells, new_experiment
from inferometer.conduct.server_process import started
from inferometer.config.grid import projected_seconds
from inferometer.config.schema import Config
from inferometer.config.secret import without_password
from inferometer.errors import UserError
from inferometer.probe.reach import reach
from inferometer.report import formatting
from inferometer.units import format_seconds

Ended = Callable[[str], None]
"""Called after each run of a pair with its verdict in a line."""


class Subject(msgspec.Struct, frozen=True):
    """One of the two servers that are compared."""

    name: str
    config: Config
    command: str | None = None
    """A shell command that starts the server for each of its runs; None: it is running."""
    patience: float = 0.0
    """Seconds until a started server must respond."""

    @contextlib.contextmanager
    def running(self, log: Path) -> Iterator[None]:
        """The server while the block runs, if it is to be started."""
        if self.command is None:
            yield
            return
        with started(self.command, self.config.server, log, self.patience):
            yield


def repeat(config: Config, count: int, note: Note) -> Experiment:
    """Run a config several times, with fresh seeds. Ends early after a Ctrl-C, without the run that it interrupted."""

    def choose(measured: list[MeasuredCell]) -> Iterator[Cell]:
        for number in range(count):
            seed = config.seed + number
            again = msgspec.structs.replace(config, seed=seed)
            yield Cell(settings={"seed": seed}, config=again, line=f"run {number + 1} of {count}")

    with new_experiment(config, RunList(kind="repeats")) as experiment:
        measure_cells(experiment, choose, note)
    return experiment


def measure_pairs(
    subjects: Mapping[str, Subject], count: int, note: Note, ended: Ended, force: bool = False
) -> Experiment:
    """Measure pairs of runs of the subjects "A" and "B". After a Ctrl-C, it returns with what was measured.

    Raises UserError before the first run if one of two running servers cannot be measured, and after two pairs if a check failed in both
    of them on the same side, unless there is `force`: the further pairs would be left out, too.
    """
    for subject in subjects.values():
        if subject.command is None:
            reach(subject.config.server)

    def choose(measured: list[MeasuredCell]) -> Iterator[Cell]:
        began, of = time.monotonic(), 2 * count
        for index in range(of):
            pair, side = index // 2, "AB"[(index // 2 + index) % 2]
            subject = subjects[side]
            per_run = (time.monotonic() - began) / index if index else projected_seconds(subject.config)
            left = f" · about {format_seconds(round(per_run * (of - index)))} left" if per_run else ""
            yield Cell(
                settings={"pair": pair, "side": side},
                config=msgspec.structs.replace(subject.config, seed=subject.config.seed + pair),
                line=f"run {index + 1} of {of} · {side} {without_password(subject.config.server.urls[0])}{left}",
                around=lambda folder, side=side, subject=subject: subject.running(
                    folder / f"server-{side.lower()}.log"
                ),  # type: ignore[misc]
            )
            ended(_outcome(measured[-1]))
            if index == 3 and of > 4 and not force:
                _check_lasting(measured, count)

    with new_experiment(
        subjects["A"].config, RunList(kind="ab", sides=tuple(each.name for each in subjects.values()))
    ) as new:
        measure_cells(new, choose, note)
    return new


def _outcome(measured: MeasuredCell) -> str:
    """The verdict of a run in a line, with the reason or the rate."""
    _, _, summary = measured
    why = next((f"{check.name}: {check.message}" for check in summary.checks if check.status == "fail"), "")
    return f"{summary.verdict} · {why or f'{formatting.rate(summary.throughput.requests or 0, 4)} requests/s'}"


def _check_lasting(measured: Sequence[MeasuredCell], count: int) -> None:
    """Raise UserError if a check failed in both of the first two pairs on the same side."""
    failed: list[dict[tuple[str, str], str]] = [{}, {}]
    for settings, _, summary in measured:
        failing = {check.name: check.message for check in summary.checks if check.status == "fail"}
        failed[settings["pair"]] |= {(settings["side"], name): message for name, message in failing.items()}
    lasting = next((key for key in failed[0] if key in failed[1]), None)
    if lasting is not None:
        side, name = lasting
        raise UserError(
            f"{measured[0][1].folder.parent}: stopped after 2 of {count} pairs: {side} is INVALID in both: {name}: {failed[1][lasting]}",
            "remove the cause and measure again, or add --force",
        )


def pairs_of(experiment: Experiment) -> list[tuple[Measured, Measured]]:
    """The pairs that are complete, each with A's run first."""
    pairs: dict[int, dict[str, Measured]] = {}
    for settings, run, summary in experiment.measured:
        if not run.manifest.outcome.interrupted:
            pairs.setdefault(settings["pair"], {})[settings["side"]] = run, summary
    return [(pair["A"], pair["B"]) for pair in pairs.values() if len(pair) == 2]
