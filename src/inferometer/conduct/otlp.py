"""What a run sends to an OpenTelemetry receiver."""

from inferometer.conduct.live_families import live_families, stage_labels
from inferometer.config.data import Mix
from inferometer.config.observe import Otlp
from inferometer.config.secret import without_password
from inferometer.prepare.setup import Setup
from inferometer.publish.new_rows import NewRows
from inferometer.publish.otlp import EndedSpans, LiveMetrics, OtlpExport, Source
from inferometer.publish.otlp_transport import connect
from inferometer.publish.spans import SpanMaker, TracedRun


def otlp_export(setup: Setup, settings: Otlp) -> OtlpExport:
    """Return the observer that sends spans and metrics. Raises UserError if the receiver's URL is malformed."""
    sources: list[Source] = []
    if settings.metrics:
        sources.append(LiveMetrics(setup.spool.parent.name, live_families(setup)))
    if settings.spans:
        sources.append(EndedSpans(NewRows(setup.spool, setup.shards), SpanMaker(_traced_run(setup))))
    transport = connect(settings.url, settings.headers)
    return OtlpExport(transport, without_password(settings.url), float(settings.timeout), sources)


def _traced_run(setup: Setup) -> TracedRun:
    config, targets = setup.config, setup.reached.targets
    classes = config.data.classes if isinstance(config.data, Mix) else []
    return TracedRun(
        name=setup.spool.parent.name,
        tag=setup.tag,
        api=config.server.api,
        model=setup.reached.model,
        method=config.server.method or "",
        servers=tuple((target.host, target.port) for target in targets),
        stages=tuple(stage_labels(setup.stages)),
        classes=tuple(class_.name for class_ in classes),
        class_models=tuple(class_.model or "" for class_ in classes),
        is_http=not targets[0].grpc,
    )
