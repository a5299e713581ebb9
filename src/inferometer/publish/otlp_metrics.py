"""The metrics of a run as OpenTelemetry's messages: the families of the live page, cumulative since the start of the run.

A receiver that offers them to Prometheus ends up with the names of the live page: it adds `_total` to counters.
"""

from collections.abc import Iterable

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)

from inferometer.publish.families import Family
from inferometer.publish.live_counts import BOUNDS, Histogram
from inferometer.publish.spans import attributes, resource, scope

_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def metrics_message(run: str, families: Iterable[Family], started: int, at: int) -> ExportMetricsServiceRequest:
    """Return the families as they are now, `at`. `started` is when the counts began. Both are wall-clock times in ns."""
    message = ExportMetricsServiceRequest()
    metrics = message.resource_metrics.add(resource=resource(run)).scope_metrics.add(scope=scope()).metrics
    metrics.extend(_metric(family, started, at) for family in families if family.points)
    return message


def _metric(family: Family, started: int, at: int) -> Metric:
    metric = Metric(name=family.name, description=family.help, unit="s" if family.name.endswith("_seconds") else "")
    for labels, value in family.points:
        own = attributes(dict(zip(family.label_names, labels, strict=True)))
        if isinstance(value, Histogram):
            histogram = HistogramDataPoint(
                attributes=own,
                start_time_unix_nano=started,
                time_unix_nano=at,
                count=sum(value.counts),
                sum=value.sum,
                bucket_counts=value.counts,
                explicit_bounds=BOUNDS,
            )
            metric.histogram.data_points.append(histogram)
            continue
        number = NumberDataPoint(attributes=own, time_unix_nano=at)
        if family.kind == "counter":
            number.start_time_unix_nano = started
            number.as_int = int(value)
            metric.sum.data_points.append(number)
        else:
            number.as_double = value
            metric.gauge.data_points.append(number)
    if family.kind == "histogram":
        metric.histogram.aggregation_temporality = _CUMULATIVE
    elif family.kind == "counter":
        metric.sum.aggregation_temporality = _CUMULATIVE
        metric.sum.is_monotonic = True
    return metric
