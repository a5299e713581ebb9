"""`inferometer.compare` and `Comparison`: whether B is better than A, by how much, and how sure that is."""

from collections.abc import Sequence
from os import PathLike, fspath

import msgspec

from inferometer import conduct
from inferometer.analysis.comparison import Compared, ConditionResult, MetricComparison, Side, StageComparison
from inferometer.conduct.comparing import compare_sides, runs_of
from inferometer.errors import UserError, named
from inferometer.public.pages import in_frame, written
from inferometer.public.runs import Run
from inferometer.public.settings import objectives

One = Run | str | PathLike[str]


def compare(
    a: One | Sequence[One], b: One | Sequence[One], *, fail_if: str | Sequence[str] = (), force: bool = False
) -> "Comparison":
    """Compare B with A, as the command `inferometer compare` does.

    A side is a run, its folder, a folder of repeated runs or a glob; or a list of these. `fail_if` has conditions such as "ttft.p99
    worse by 5%": see `Comparison.passed`. `force` compares runs that differ in their workload, load or objectives, or are INVALID.
    With one run per side, the intervals do not cover run-to-run variation. Raises Error when the runs should not be compared.
    """
    with named({"--fail-if": "fail_if"}):
        conditions = conduct.parse_conditions(objectives(fail_if))
    return Comparison(compare_sides(_side(a, "A"), _side(b, "B"), conditions, force))


def _side(given: One | Sequence[One], letter: str) -> Side:
    each = [given] if isinstance(given, Run | str | PathLike) else list(given)
    runs = []
    for one in each:
        if isinstance(one, Run):
            runs.append((one._stored, one.summary))
        else:
            runs.extend(conduct.open_run(str(folder)) for folder in runs_of(fspath(one)))
    if not runs:
        raise UserError(f"there is no run on side {letter}", "give a run, or the folder of one")
    first = each[0]
    return Side(str(first.folder) if isinstance(first, Run) else fspath(first), tuple(runs))


class Comparison(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """What a comparison found: for each figure the ratio B / A, its 95 % interval, and a verdict. In a notebook, it shows itself."""

    _compared: Compared

    @property
    def metrics(self) -> dict[str, MetricComparison]:
        """By figure (ttft.p99, throughput.requests ...): ratio, ci, verdict and a sentence. Empty if there are several stages."""
        return self._compared.found.metrics

    @property
    def stages(self) -> tuple[StageComparison, ...]:
        """The same for each stage; empty if there is only one."""
        return self._compared.found.stages

    @property
    def differs(self) -> dict[str, MetricComparison]:
        """The figures with a clear difference, better or worse; those of a stage are called STAGE: FIGURE. Empty: none has one."""
        each = {f"{stage.name}: {name}": one for stage in self.stages for name, one in stage.metrics.items()}
        return {name: one for name, one in (self.metrics | each).items() if one.verdict != "no clear difference"}

    @property
    def conditions(self) -> tuple[ConditionResult, ...]:
        """How each condition of `fail_if` was judged: fails, passes or undecided, with the reason."""
        return self._compared.found.conditions

    @property
    def notes(self) -> tuple[str, ...]:
        """What limits the comparison."""
        return self._compared.found.notes

    def passed(self, strict: bool = False) -> bool:
        """Whether no condition of `fail_if` fails. One that is undecided counts as the measured figures say; with `strict`, it fails."""
        return self._compared.found.is_passed(strict)

    def report(self, *, color: bool = False) -> str:
        """The comparison as text, as the command prints it."""
        from inferometer.report import compare  # noqa: PLC0415

        return compare.render([self._compared.found], color)

    def html(self, path: str | PathLike[str] | None = None) -> str:
        """The comparison as one HTML page with charts. With a path, it is also written there."""
        from inferometer.report.html import compare_page  # noqa: PLC0415

        return written(compare_page.encode([self._compared]).decode(), path)

    def _repr_html_(self) -> str:
        return in_frame(self.html(), "inferometer: comparison")

    def __repr__(self) -> str:
        clear = ", ".join(f"{name} {one.verdict}" for name, one in self.differs.items())
        return f"<inferometer.Comparison {clear or 'no clear difference'}>"
