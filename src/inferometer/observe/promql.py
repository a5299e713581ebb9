"""An observer that reads the measured server's metrics from a Prometheus server instead of scraping them itself.

It reads raw samples, with the times at which Prometheus took them (a range selector in an instant query; `query_range` would
resample them). They are stored as if we had scraped the server (server_metrics/figures.py). The expressions of
`observe.promql.queries` are evaluated over the run when it has ended.

Samples are read every minute and after the end: those of a long run would be too many for one response. Before the start and after
the end, the observer waits for the next scrape if it is due soon: the latest one may be a whole scrape interval old.
"""

import contextlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.config.observe import PromQL
from inferometer.errors import UserError
from inferometer.observe.observer import HelperCpu, Observer
from inferometer.observe.prometheus_api import Answer, PrometheusApi, QueryError, Result
from inferometer.observe.raw_samples import RawSamples
from inferometer.series import TimeSeries
from inferometer.server_metrics.figures import UP
from inferometer.timing.clock import now, wall_offset
from inferometer.units import NS, format_seconds

QUERY_SOURCE = "promql"
"""The source of the series that `observe.promql.queries` become."""

READ_EVERY = 60.0
_LOOKBACK = 120.0
"""Seconds before the run that are read for the last scrape before it: longer than a usual scrape interval."""
_START_BUDGET = 4.0
"""Seconds to wait for a scrape before the run; observer.START_TIMEOUT is more than twice as long."""
_END_BUDGET = 8.0
"""Seconds for everything after the run; observer.END_TIMEOUT is a little longer."""
_TIMEOUT = 5.0
"""Seconds for one query during the run."""
_CHECK_TIMEOUT = 3.0
_RESERVE = 1.0
"""Seconds that are left of a budget when a scrape is no longer waited for."""
_POLL_EVERY = 0.2
_AT_ONCE = 8
"""Queries in flight, if each metric needs a query of its own."""
_SHORTEST_PIECE = 5.0
"""Seconds of the window below which a result that is too large is not split further."""
_MAX_POINTS = 10_000
"""Points per series of a `query_range`; Prometheus refuses more than 11,000."""
_CLOCKS_DIFFER = NS // 2
"""A difference between the clocks that the report mentions."""


class _Clock(NamedTuple):
    """How the Prometheus server's clock relates to ours, in ns."""

    ahead: int
    """The server's clock minus our wall clock."""
    uncertainty: int
    """The round trip in which `ahead` was measured: the server may have read its clock at any time of it."""
    wall: int
    """Our wall clock minus CLOCK_MONOTONIC at that time."""

    @property
    def offset(self) -> int:
        """The server's clock minus CLOCK_MONOTONIC. Differences too small to be measured are taken for none."""
        return self.wall + (self.ahead if abs(self.ahead) > self.uncertainty else 0)

    def server_ms(self, at: int) -> int:
        return (at + self.offset) // 1_000_000

    def monotonic(self, server_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        return server_ms * 1_000_000 - self.offset


class PromQLQuery(Observer):
    """Reads the samples of the run, and evaluates expressions over it."""

    interval = READ_EVERY

    def __init__(self, api: PrometheusApi, settings: PromQL, names: str, step: float) -> None:
        """`names` is a regular expression for the names of the metrics to read; `step`: seconds between two values of a query."""
        self._api = api
        self._match = settings.match.strip().removeprefix("{").removesuffix("}").strip().removesuffix(",")
        self._names = f"{UP}|{names}"
        self._selectors = [_selector(self._match, "=~", self._names)]
        self._queries = settings.queries
        self._step = step
        self._reads_by_name = False
        self._responds = False
        self._begin = 0
        self._clock: _Clock | None = None
        self._samples: RawSamples | None = None
        self._problems: dict[str, str] = {}
        self._pool_cpu = HelperCpu()

    def check(self) -> None:
        """Raise UserError when the URL, the token or an expression is wrong. A server that does not respond now may respond later."""
        expressions = {f"queries.{name}": expression for name, expression in self._queries.items()}
        setting = "match"
        try:
            self._check_selector()
            for setting, expression in expressions.items():  # noqa: B007 - the one at fault
                self._api.evaluate(expression, None, _CHECK_TIMEOUT)
        except QueryError as error:
            if error.kind != "setting":
                return
            is_expression = "bad_data" in error.what
            key = f"observe.promql.{setting}" if is_expression else "observe.promql"
            remedy = "correct the expression" if is_expression else _CHECK_SETTINGS
            raise UserError(error.what, remedy, key) from None
        self._responds = True

    def _check_selector(self) -> None:
        """Find out whether the server accepts a regular expression for names. Google's managed service does not: there, each metric is
        read by its name."""
        try:
            self._api.evaluate(f"count({self._selectors[0]})", None, _CHECK_TIMEOUT)
        except QueryError as error:
            if error.kind != "setting":
                raise
            try:
                self._api.evaluate(f"count({_selector(self._match, '=', UP)})", None, _CHECK_TIMEOUT)
            except QueryError:
                raise error from None  # something else is wrong
            self._reads_by_name = True

    def _find_names(self, deadline: float) -> None:
        """Select each known metric that the server has. There may be new ones: many appear only with the first request."""
        is_known = re.compile(self._names).fullmatch
        listed = self._api.metric_names(_left(deadline))
        known = [name + part for name in listed for part in ("", "_bucket", "_sum", "_count") if is_known(name + part)]
        self._selectors = [_selector(self._match, "=", name) for name in dict.fromkeys(known)]

    def start(self) -> None:
        """Wait for the next scrape, if it is soon, so that the requests of the probe do not count."""
        self._begin = now()
        deadline = time.monotonic() + _START_BUDGET
        with contextlib.suppress(QueryError):  # it may respond later
            if self._responds:
                self._read(deadline)
                self._await_scrapes(self._begin, deadline)
        self._begin, self._samples = now(), None

    def sample(self) -> None:
        """Read what has been scraped since the last reading. The next reading makes up for one that fails."""
        with contextlib.suppress(QueryError):
            self._read(time.monotonic() + _TIMEOUT)

    def end(self) -> Sequence[TimeSeries]:
        """Read the rest, and return all series."""
        ended = now()
        deadline = time.monotonic() + _END_BUDGET
        try:
            self._read(deadline - _RESERVE)
            self._await_scrapes(ended, deadline)
        except QueryError as error:
            self._problems["promql"] = f"{self._unread(ended)}: {error.what}"
        scraped = self._scraped(ended)
        return scraped + [each for name in self._queries for each in self._evaluated(name, ended, deadline)]

    def problems(self) -> Mapping[str, str]:
        return self._problems

    def helper_cpu(self) -> float:
        return self._pool_cpu.seconds

    # --- raw samples ---

    def _read(self, deadline: float) -> None:
        """Read all samples that are new."""
        clock = self._clock = self._measured_clock(deadline)
        begin = clock.server_ms(self._begin)
        if self._samples is None:
            self._samples = RawSamples(self._api.url, begin)
        if self._reads_by_name:
            self._find_names(deadline)
        until = clock.server_ms(now()) / 1000
        since = max(self._samples.complete_until() / 1000, begin / 1000 - _LOOKBACK)
        self._read_piece(self._samples, since, until, deadline)

    def _read_piece(self, samples: RawSamples, since: float, until: float, deadline: float) -> None:
        """Read the samples of a time span, in smaller pieces if they are too many."""
        seconds = math.ceil(until - since) + 1

        def read(selector: str) -> Answer:
            return self._api.evaluate(f"{selector}[{seconds}s]", until, _left(deadline))

        def read_in_pool(selector: str) -> Answer:
            with self._pool_cpu.counted():
                return read(selector)

        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                reading = pool.map(read_in_pool, self._selectors) if self._reads_by_name else map(read, self._selectors)
                answers = list(reading)
        except QueryError as error:
            if error.kind != "too_much" or until - since < _SHORTEST_PIECE:
                raise
            middle = (since + until) / 2
            self._read_piece(samples, since, middle, deadline)
            self._read_piece(samples, middle, until, deadline)
            return
        samples.add([one for answer in answers for one in self._series(answer, "promql warning")])

    def _measured_clock(self, deadline: float) -> _Clock:
        """Read the server's clock, and keep the reading with the shortest round trip of the run."""
        answer = self._api.evaluate("time()", None, _left(deadline))
        wall = wall_offset()
        ahead = round(answer.scalar() * NS) - wall - (answer.sent + answer.done) // 2
        measured = _Clock(ahead, answer.done - answer.sent + NS // 1000, wall)  # the server's clock is given in ms
        return measured if self._clock is None else min(self._clock, measured, key=lambda clock: clock.uncertainty)

    def _await_scrapes(self, since: int, deadline: float) -> None:
        """Read until each server has been scraped after `since`, unless that takes too long."""
        assert self._clock is not None and self._samples is not None
        since += self._clock.uncertainty
        latest, give_up = (self._clock.server_ms(at) for at in (since, round((deadline - _RESERVE) * NS)))
        while due := self._samples.next_scrapes(latest, give_up, at := self._clock.server_ms(now())):
            time.sleep(max((min(due) - at) / 1000, _POLL_EVERY))
            self._read(deadline)

    def _scraped(self, ended: int) -> list[TimeSeries]:
        if self._clock is None or self._samples is None:
            return []
        clock, end = self._clock, self._clock.server_ms(ended)
        if abs(clock.ahead) > max(_CLOCKS_DIFFER, clock.uncertainty):
            self._problems["promql clock"] = (
                f"the clock of {self._api.url} is {format_seconds(abs(clock.ahead) / NS)} "
                f"{'ahead of' if clock.ahead > 0 else 'behind'} ours; times are corrected to within {format_seconds(clock.uncertainty / NS)}"
            )
        newest = self._samples.newest()
        if not newest and "promql" not in self._problems:
            self._problems["promql"] = self._nothing_found(self._samples)
        for target, at in newest.items():
            if at <= end and "promql" not in self._problems:
                age = format_seconds((end - at) / 1000)
                self._problems[f"promql {target}"] = f"the last scrape was {age} before the end of the run"
        return [msgspec.structs.replace(each, at=clock.monotonic(each.at)) for each in self._samples.series()]

    def _nothing_found(self, samples: RawSamples) -> str:
        if self._match and (failing := samples.failing()):
            return f"{self._api.url} could not scrape {', '.join(failing)}"
        matching = f" that match {self._match}" if self._match else ""
        return f"{self._api.url} has no metrics of a known model server{matching} from the time of the run"

    def _unread(self, ended: int) -> str:
        """Describe what is missing when a reading has failed."""
        newest = {} if self._samples is None else self._samples.newest()
        if not newest or self._clock is None:
            return "no metrics could be read"
        age = format_seconds((self._clock.server_ms(ended) - min(newest.values())) / 1000)
        return f"the metrics of the last {age} could not be read"

    # --- expressions ---

    def _evaluated(self, name: str, ended: int, deadline: float) -> list[TimeSeries]:
        """Evaluate one of the user's expressions over the run."""
        problem = f"promql {name}"
        if self._clock is None:
            self._problems[problem] = "not evaluated: the Prometheus server did not respond"
            return []
        begin, end = (self._clock.server_ms(at) / 1000 for at in (self._begin, ended))
        step = max(self._step, (end - begin) / _MAX_POINTS)
        try:
            answer = self._api.evaluate_range(self._queries[name], begin, end, step, _left(deadline))
            series = self._series(answer, f"{problem} warning")
        except QueryError as error:
            self._problems[problem] = error.what
            return []
        evaluated = [self._result(name, one) for one in series]
        evaluated = [each for each in evaluated if len(each.at)]
        if not evaluated:
            self._problems.setdefault(problem, "the expression has no value during the run")
        return evaluated

    def _result(self, name: str, one: Result) -> TimeSeries:
        """Return one series of an expression, without NaN."""
        assert self._clock is not None
        value = np.array([float(text) for _, text in one.values])
        at = np.rint(np.array([at for at, _ in one.values]) * 1000).astype(np.int64)
        known = ~np.isnan(value)
        return TimeSeries(QUERY_SOURCE, name, _without_name(one.metric), self._clock.monotonic(at[known]), value[known])

    def _series(self, answer: Answer, problem: str) -> list[Result]:
        """Return the series of a result; note what the server warns of, and what cannot be used."""
        series = answer.series()
        if answer.warnings:
            self._problems[problem] = f"{self._api.url}: {answer.warnings[0]}"
        native = sum(not one.values for one in series)
        if native:
            self._problems[problem] = f"{native} native histograms were left out; only classic ones are supported"
        return [one for one in series if one.values]


_CHECK_SETTINGS = "check {observe.promql.url}, and the token: {observe.promql.token_env} or {observe.promql.token_file}"


def _without_name(metric: dict[str, str]) -> dict[str, str]:
    return {label: value for label, value in metric.items() if label != "__name__"}


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.1)


def _selector(match: str, operator: str, name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return "{" + (f"{match}, " if match else "") + f'__name__{operator}"{escaped}"' + "}"
