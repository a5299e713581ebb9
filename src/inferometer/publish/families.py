"""The metrics that a run offers to other tools: one table of names, kinds and help texts, and their values now.

page.py writes them for Prometheus; any other exporter reads the same families.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Literal, NamedTuple

import msgspec

from inferometer.publish.live_counts import Histogram, Labels, LiveCounts, Progress, Totals

PREFIX = "inferometer_"

TargetRate = Callable[[int, float], float | None]
"""Returns the planned rate in requests per second for (stage, seconds since the stage began); None for a closed loop."""


class RunInfo(msgspec.Struct, frozen=True):
    """What the run is about, for the labels of `inferometer_run_info`. It must contain no secrets."""

    run: str
    url: str
    model: str
    api: str
    version: str


class Point(NamedTuple):
    labels: tuple[str, ...]
    """One value for each of the family's label names."""
    value: float | Histogram


class Family(NamedTuple):
    """One metric with its values."""

    name: str
    """With the prefix and, for a counter, without `_total`."""
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    label_names: tuple[str, ...]
    points: list[Point]


class LiveFamilies:
    """The metrics of one run."""

    def __init__(self, counts: LiveCounts, info: RunInfo, target_rate: TargetRate) -> None:
        self.counts = counts
        self._info = info
        self._target_rate = target_rate
        self._stage, self._stage_began = 0, 0.0

    def mark(self, stage: int) -> None:
        """Note that a stage has begun, which determines the target rate."""
        if stage > self._stage:
            self._stage, self._stage_began = stage, self.counts.elapsed

    def update(self) -> None:
        """Count what has been recorded since the last call."""
        self.counts.update()
        self.mark(self.counts.stage)  # a short stage may not be announced

    def read(self) -> Iterator[Family]:
        """Yield all metrics as of the last update; the gauges are those of now."""
        progress, totals = self.counts.progress(), self.counts.totals()
        info = msgspec.structs.asdict(self._info)
        yield Family(
            PREFIX + "run_info",
            "gauge",
            "The run: its folder, server, model and API; always 1.",
            tuple(info),
            [Point(tuple(info.values()), 1)],
        )
        for name, (kind, text, value) in _OF_THE_RUN.items():
            yield Family(PREFIX + name, kind, text, (), [Point((), value(progress))])
        stage = [Point((), self._stage)]
        yield Family(PREFIX + "stage", "gauge", "Index of the stage in progress, from 0.", (), stage)
        yield self._target(progress)
        cpu = [Point((str(process),), share) for process, share in progress.cpu.items()]
        yield Family(
            PREFIX + "client_cpu_ratio",
            "gauge",
            "CPU time of a client process as a share of one core.",
            ("process",),
            cpu,
        )
        for name, (text, read) in _COUNTERS.items():
            yield _labelled(name, "counter", text, totals, read)
        failures = [
            Point((*labels, code), count) for labels, each in totals.items() for code, count in each.failures.items()
        ]
        yield Family(
            PREFIX + "failures", "counter", "Requests that failed, by failure code.", (*_LABELS, "code"), failures
        )
        for metric, (name, text) in _HISTOGRAMS.items():
            yield _labelled(name, "histogram", text, totals, partial(_histogram, metric))

    def _target(self, progress: Progress) -> Family:
        """Return the planned rate; without a value in a closed loop, in which the server determines the rate."""
        rate = self._target_rate(self._stage, progress.elapsed - self._stage_began)
        is_over = progress.reached > self._stage or not progress.elapsed
        points = [] if rate is None else [Point((), 0.0 if is_over else rate)]
        text = "Requests per second that the load plans to send now (open loop)."
        return Family(PREFIX + "target_rate", "gauge", text, (), points)


_LABELS = ("stage", "class")

_OF_THE_RUN: dict[str, tuple[Literal["counter", "gauge"], str, Callable[[Progress], float]]] = {
    "requests_sent": ("counter", "Requests that were sent.", lambda progress: progress.sent),
    "in_flight": ("gauge", "Requests in flight.", lambda progress: progress.in_flight),
    "queued": ("gauge", "Requests that are due and wait for the concurrency cap or for a connection.", lambda progress: progress.queued),
    "run_elapsed_seconds": ("gauge", "Time since the start of the load.", lambda progress: progress.elapsed),
}  # fmt: skip

_COUNTERS: dict[str, tuple[str, Callable[[Totals], float]]] = {
    "requests_completed": ("Requests that succeeded.", lambda totals: totals.completed),
    "input_tokens": ("Prompt tokens of the requests that succeeded.", lambda totals: totals.input_tokens),
    "output_tokens": ("Output tokens of the requests that succeeded, counted when a request ends.", lambda totals: totals.output_tokens),
}  # fmt: skip

_HISTOGRAMS = {
    "ttft": ("ttft_seconds", "Time to first token, from the instant at which the request was due (closed loop: sent)."),
    "e2e": ("e2e_seconds", "End-to-end latency, from the instant at which the request was due (closed loop: sent)."),
    "tpot": ("tpot_seconds", "Time per output token after the first chunk, one value per request."),
    "client_lag": ("client_lag_seconds", "How late the client sent requests, without waiting for the cap or a connection."),
}  # fmt: skip
"""By the names of live_counts.HISTOGRAMS."""


def _histogram(metric: str, totals: Totals) -> Histogram:
    return totals.histograms[metric]


def _labelled(
    name: str,
    kind: Literal["counter", "histogram"],
    text: str,
    totals: Mapping[Labels, Totals],
    read: Callable[[Totals], float | Histogram],
) -> Family:
    return Family(
        PREFIX + name, kind, text, _LABELS, [Point(tuple(labels), read(each)) for labels, each in totals.items()]
    )
