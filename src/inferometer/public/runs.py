"""`inferometer.run`, `inferometer.open` and `Run`: measure a server, or open a stored run, and look at the result."""

import difflib
import importlib
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from inferometer import conduct, records
from inferometer.analysis.checks import Check
from inferometer.analysis.gate import is_passed
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.percentiles import PERCENTILES, Distribution
from inferometer.analysis.run_figures import FAILURE_RATE, RATES
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.summary import StageSummary, Summary, summarise
from inferometer.errors import UserError, named
from inferometer.public.inputs import sent
from inferometer.public.pages import in_frame, written
from inferometer.public.settings import Overrides, Source, config_of, keywords_of, objectives

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


@keywords_of("run")
def run(
    config: Source,
    overrides: Overrides | None = None,
    /,
    *,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    progress: bool = False,
    **settings: Any,
) -> "Run":
    """Measure a server, and return the run when it has ended.

    `config` is the path of a YAML file, a URL, or the same tree as a mapping. `overrides` changes single keys:
    {"load.rate": 50}. Keywords are the options of the command `inferometer run`: rate=50, slo=["ttft.p99 < 500ms"]; or a whole
    section or a top-level key of the config: load={"rate": 50}, seed=7. `inputs` are what a tensor server is sent, in turn: arrays by name, as `dummy_inputs` makes them, or a list of such dicts. `progress`
    shows the run on standard error while it lasts.

    The run is stored under `output` (runs/ by default), as by the command `inferometer run`. This call blocks until the run has
    ended, and may be made in any thread. In the main thread, Ctrl-C and SIGTERM end the run early; elsewhere they are left alone.
    Raises Error when the config is not right or the server cannot be reached. An INVALID run is not an error: see `Run.valid`.
    """
    from inferometer.report.live import LiveView  # noqa: PLC0415 - this imports the terminal's code
    from inferometer.report.output import RUN, RunReport, with_file_exports, write_exports  # noqa: PLC0415

    with sent(inputs) as given:
        made, source = config_of(config, overrides, settings, given)
        with named(source=source):
            exports = with_file_exports({}, made.report.exports)
            measured, summary = conduct.measure(made, LiveView() if progress else None)
    write_exports(RUN, RunReport(measured, summary), exports)
    return Run(measured, summary)


def open(folder: str | PathLike[str], *, slo: str | Sequence[str] | None = None) -> "Run":
    """Open a stored run: the path of its folder, such as runs/LATEST, or its URL, such as s3://bucket/prefix/LATEST.

    `slo` has objectives to judge it by instead of its own; they are not stored. Raises Error when there is no run.
    """
    from inferometer.conduct.remote import local_names  # noqa: PLC0415 - for URLs

    names = local_names([fspath(folder)])
    if len(names) > 1:
        raise UserError(f"{folder}: {len(names)} runs match", "give the name of one")
    return Run(*conduct.open_run(names[0], None if slo is None else objectives(slo)))


class Run(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A run: what was measured, whether it may be trusted, and whether it meets its objectives. Times are in seconds.

    In a notebook, a run shows itself as the HTML report.
    """

    _stored: records.Run
    summary: Summary
    """All figures and checks: see docs/reference/python.md and docs/reference/json.md."""

    # --- the verdict ---

    @property
    def valid(self) -> bool:
        """Whether the figures may be trusted: no check failed."""
        return self.summary.verdict == "VALID"

    @property
    def verdict(self) -> str:
        """VALID or INVALID."""
        return self.summary.verdict

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks behind the verdict, each with its status (pass, warn, fail) and a message."""
        return self.summary.checks

    @property
    def slo(self) -> tuple[SloResult, ...]:
        """How each objective was judged: met, missed or undecided, with the reason."""
        return self.summary.slos

    def passed(self, strict: bool = False) -> bool:
        """Whether the run is VALID, or failed only checks that can have made latencies no better, and no objective is missed. One that
        is undecided counts as its measured value says.

        With `strict`, every objective has to be met, and not by margin only.
        """
        return is_passed(self.summary, strict)

    def judge(self, *slos: str) -> "Run":
        """The same run, judged by other objectives: run.judge("ttft.p99 < 500ms", "failure_rate < 1%")."""
        return Run(self._stored, summarise(self._stored, slos))

    # --- the figures ---

    def metric(self, name: str, statistic: str = "", *, stage: int | str | None = None) -> float:
        """One figure: metric("ttft", "p99") or metric("ttft.p99") in seconds, metric("throughput.requests") per second.

        A metric has mean, std, min, max, count and percentiles (p50, p90, p95, p99, p99.9). There are also goodput (requests per
        second) and failure_rate (a share). `stage` is the index or the name of a stage, of a run with several. Raises Error when
        it was not measured. `summary.metrics["ttft"].supported["p99"]` says whether the run is long enough for the percentile.
        """
        name, _, of_name = name.partition(".")
        statistic = of_name or statistic
        part = self._part(stage)
        value: float | None
        if name == "throughput":
            if statistic not in RATES:
                raise _unknown(statistic, RATES, "rate")
            value = getattr(part.throughput, statistic)
        elif name == "goodput":
            value = None if part.goodput is None else part.goodput.rate
        elif name == FAILURE_RATE:
            ended = part.counts.ok + part.counts.failed
            value = part.counts.failed / ended if ended else None
        else:
            if name not in METRICS:
                raise _unknown(name, (*METRICS, "throughput", "goodput", FAILURE_RATE), "metric")
            value = _statistic(part.metrics.get(name), statistic or "mean")
        if value is None:
            raise UserError(f"the run has no {name}{'.' * bool(statistic)}{statistic}", "see run.report()")
        return float(value)

    def _part(self, stage: int | str | None) -> Summary | StageSummary:
        stages = self.summary.stages
        if stage is None and (not stages or self.summary.metrics):
            return self.summary
        names = [each.name for each in stages]
        if stage in names or (isinstance(stage, int) and 0 <= stage < max(len(stages), 1)):
            return stages[names.index(stage) if isinstance(stage, str) else stage] if stages else self.summary
        what = (
            f"there is no stage {stage!r}" if stage is not None else "the run has several stages with different loads"
        )
        raise UserError(what, f"give stage=, one of {', '.join(names) or '0'}, or its index")

    # --- the records ---

    @property
    def folder(self) -> Path:
        """Where the run is stored."""
        return self._stored.folder

    @property
    def config(self) -> dict[str, object]:
        """The config as it ran, without secrets."""
        return self._stored.manifest.config

    @property
    def requests(self) -> "pyarrow.Table":
        """One row per request: the columns of requests.parquet, and each latency in seconds (ttft_s, e2e_s ...).

        Times are nanoseconds since t=0. `phase` says whether a request counts (steady) or not (warmup, cooldown, start), and
        `failure` is null for a success. docs/reference/run-folder.md lists the columns.
        """
        from inferometer.public import tables  # noqa: PLC0415 - pyarrow is needed only here

        return tables.requests(self._stored)

    @property
    def chunks(self) -> "pyarrow.Table":
        """One row per chunk: when it arrived, and how many tokens it carried. `chunk_start` of a request is its first row."""
        from inferometer.public import tables  # noqa: PLC0415

        return tables.stored(self.folder, "chunks")

    @property
    def series(self) -> "pyarrow.Table":
        """What was observed beside the requests, over time: source, name, labels (JSON), at (ns since t=0), value."""
        from inferometer.public import tables  # noqa: PLC0415

        return tables.stored(self.folder, "series")

    def to_pandas(self) -> "pandas.DataFrame":
        """The requests as a pandas DataFrame. Needs pandas: pip install 'inferometer[pandas]'."""
        _needed("pandas")
        frame: pandas.DataFrame = self.requests.to_pandas()
        return frame

    def to_polars(self) -> "polars.DataFrame":
        """The requests as a polars DataFrame. Needs polars: pip install 'inferometer[polars]'."""
        frame: polars.DataFrame = _needed("polars").from_arrow(self.requests)
        return frame

    # --- the report ---

    def report(self, *, explain: bool = False, histogram: bool = False, why: bool = False, color: bool = False) -> str:
        """The report as text, as the command prints it.

        `explain` adds definitions, `histogram` histograms, and `why` what made slow requests slow.
        """
        from inferometer.report import console  # noqa: PLC0415

        return console.render(self._stored, self.summary, explain, color, histogram=histogram, why=why)

    def html(self, path: str | PathLike[str] | None = None) -> str:
        """The report as one HTML page with charts, which needs no network. With a path, it is also written there."""
        from inferometer.report.html import run_page  # noqa: PLC0415

        return written(run_page.encode(self._stored, self.summary).decode(), path)

    def _repr_html_(self) -> str:
        return in_frame(self.html(), f"inferometer: {self.folder.name}")

    def __repr__(self) -> str:
        counts = self.summary.counts
        return f"<inferometer.Run {self.verdict}: {counts.ok:,} ok, {counts.failed:,} failed, {str(self.folder)!r}>"


def _statistic(found: Distribution | None, statistic: str) -> float | None:
    """One statistic of a metric."""
    field = "p999" if statistic == "p99.9" else statistic
    known = ("mean", "std", "min", "max", "count", *PERCENTILES, *(found.percentiles if found is not None else ()))
    if field not in known:
        raise _unknown(statistic, known, "statistic")
    return found.value(field) if found is not None and found.count else None


def _unknown(name: str, known: Sequence[str], what: str) -> UserError:
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return UserError(f"there is no {what} {name!r}", f"did you mean {near[0]}?" if near else f"use {', '.join(known)}")


def _needed(library: str) -> Any:
    try:
        return importlib.import_module(library)  # an extra
    except ImportError:
        raise UserError(f"{library} is not installed", f"pip install 'inferometer[{library}]'") from None
