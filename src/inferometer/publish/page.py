"""The metrics of a run as a page in Prometheus' text format. prometheus_client formats it when it is scraped."""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from inferometer.publish.families import Family
from inferometer.publish.live_counts import BOUNDS, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_UPPER_BOUNDS = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")


def page(families: Iterable[Family]) -> bytes:
    """Return the page."""
    registry = CollectorRegistry()
    registry.register(_Collector(families))
    return generate_latest(registry)


class _Collector:
    """Families as prometheus_client reads them."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._families)


def _metric(family: Family) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.label_names)
        for labels, value in family.points:
            assert isinstance(value, Histogram)
            buckets = zip(_UPPER_BOUNDS, accumulate(value.counts), strict=True)
            histogram.add_metric(labels, list(buckets), value.sum)
        return histogram
    plain = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(
        family.name, family.help, labels=family.label_names
    )
    for labels, value in family.points:
        assert not isinstance(value, Histogram)
        plain.add_metric(labels, value)
    return plain
