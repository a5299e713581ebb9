"""The report that `inferometer report` makes of what is stored in a folder: one row of _KINDS for each kind."""

from collections.abc import Callable, Mapping
from pathlib import Path

import click
import msgspec

from inferometer import conduct
from inferometer.conduct.campaign_reading import open_campaign
from inferometer.conduct.comparing import compare_pairs, folders_of, runs_of
from inferometer.conduct.folders import Stored, open_runs, stored_in
from inferometer.conduct.sweep import open_sweep
from inferometer.errors import UserError, named
from inferometer.report.capacity_output import FORMATS as CAPACITY_FORMATS
from inferometer.report.capacity_output import deliver_capacity, read
from inferometer.report.compare_output import deliver_comparison
from inferometer.report.engines_output import FORMATS as ENGINE_FORMATS
from inferometer.report.engines_output import deliver_engines
from inferometer.report.output import deliver, show_as, show_request
from inferometer.report.repeats import EXPORTS as REPEAT_FORMATS
from inferometer.report.repeats import deliver_repeats
from inferometer.report.sweep import EXPORTS as SWEEP_FORMATS
from inferometer.report.sweep import deliver_sweep


class Wanted(msgspec.Struct, frozen=True):
    """What the command line asks for."""

    run_dirs: tuple[str, ...]
    exports: dict[str, str]
    slos: tuple[str, ...]
    strict: bool
    changes: Mapping[str, Mapping[str, object]]
    """Settings of the report, over those of the run."""
    histogram: bool
    explain: bool
    has_why: bool
    id: int | None
    """Of the request that --why is about; None if it is about the whole tail."""
    tool: str | None


class Kind(msgspec.Struct, frozen=True):
    """One kind of folder, in words, and its report."""

    name: str
    report: Callable[[Wanted], int]
    formats: tuple[str, ...]
    """The exports that it has."""
    takes_slos: bool = True
    takes_costs: bool = False

    def home(self, run_dirs: tuple[str, ...]) -> Path:
        """The folder that the page of --open is written to."""
        if self is RUN:
            return Path(runs_of(run_dirs[0])[0]).resolve()
        if len(run_dirs) > 1 or not Path(run_dirs[0]).is_dir():
            raise UserError("--open of several runs needs a path for the page", "add --html PATH")
        return Path(run_dirs[0])

    def check(self, wanted: Wanted) -> None:
        """Raise UserError for options that this kind does not have."""
        if self is RUN:
            return
        single = {
            "--why": wanted.has_why,
            "--as": wanted.tool,
            "--histogram": wanted.histogram,
            "--explain": wanted.explain,
        }
        given = [name for name, value in single.items() if value]
        given += [f"--{name}" for name in wanted.exports if name not in self.formats]
        given += ["--slo"] if wanted.slos and not self.takes_slos else []
        options = {"cost": "--price-per-hour, --gpus or --cheapest-at", "report": "--percentiles"}
        given += [options[name] for name in wanted.changes if not (name == "cost" and self.takes_costs)]
        if given:
            where = wanted.run_dirs[0] if len(wanted.run_dirs) == 1 else "the command line"
            formats = ", ".join(f"--{name}" for name in self.formats)
            raise UserError(
                f"{where} has {self.name}, and {given[0]} is about a single run",
                f"give the folder of one run, or use {formats} or --open",
            )


def the_only(names: tuple[str, ...]) -> tuple[str, ...]:
    """The folder that a glob matches, if it matches only one; else the names as they are."""
    folders = [folder for name in names for folder in folders_of(name)]
    return (str(folders[0]),) if len(folders) == 1 else names


def kind_of(run_dirs: tuple[str, ...]) -> Kind:
    """The kind of what is stored there."""
    return _KINDS[stored_in(run_dirs)]


def _report_run(wanted: Wanted) -> int:
    exports, slos, has_why = wanted.exports, wanted.slos or None, wanted.has_why
    try:
        with named({"cost.cheapest_at": "--cheapest-at"}):
            run, summary = conduct.open_run(str(runs_of(wanted.run_dirs[0])[0]), slos, wanted.changes)
    except conduct.UnsavedError as error:
        deliver(error.run, error.summary, exports, wanted.explain, wanted.histogram, why=has_why)
        raise
    if wanted.tool is not None:
        return show_as(run, summary, wanted.tool, exports.get("json"))
    if wanted.id is not None:
        return show_request(run, wanted.id, exports.get("json"))
    return deliver(run, summary, exports, wanted.explain, wanted.histogram, wanted.strict, has_why)


def _report_runs(wanted: Wanted) -> int:
    measured = open_runs(wanted.run_dirs, wanted.slos or None, _skip)
    return deliver_repeats(" ".join(wanted.run_dirs), measured, wanted.exports, wanted.strict)


def _skip(error: UserError) -> None:
    click.echo(f"left out: {error}", err=True)


def _report_pairs(wanted: Wanted) -> int:
    return deliver_comparison([compare_pairs(Path(wanted.run_dirs[0]))], wanted.exports, wanted.strict)


def _report_sweep(wanted: Wanted) -> int:
    sweep, measured = open_sweep(Path(wanted.run_dirs[0]), wanted.slos or None, wanted.changes)
    return deliver_sweep(sweep, measured, wanted.exports, wanted.strict)


def _report_capacity(wanted: Wanted) -> int:
    found, manifest = read(wanted.run_dirs[0])
    strict = found.strict or wanted.strict
    return deliver_capacity(msgspec.structs.replace(found, strict=strict), manifest, wanted.exports)


def _report_campaign(wanted: Wanted) -> int:
    found = open_campaign(Path(wanted.run_dirs[0]), wanted.slos or None, wanted.changes)
    return deliver_engines(found, wanted.exports)


RUN = Kind("a run", _report_run, ())
_KINDS: dict[Stored, Kind] = {
    "run": RUN,
    "runs": Kind("several runs", _report_runs, REPEAT_FORMATS),
    "pairs": Kind("pairs of runs", _report_pairs, REPEAT_FORMATS, takes_slos=False),
    "sweep": Kind("a sweep", _report_sweep, SWEEP_FORMATS, takes_costs=True),
    "capacity": Kind("a search for the capacity", _report_capacity, CAPACITY_FORMATS, takes_slos=False),
    "campaign": Kind("a comparison of engines", _report_campaign, ENGINE_FORMATS, takes_costs=True),
}
