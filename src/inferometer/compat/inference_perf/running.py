"""The whole command: read a config, translate it, measure, write inference-perf's reports."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from inferometer import conduct
from inferometer.analysis.summary import Summary
from inferometer.compat.inference_perf import breakers, reports, translating
from inferometer.compat.inference_perf.destinations import Destinations
from inferometer.compat.inference_perf.logging import Log
from inferometer.compat.inference_perf.reading import read
from inferometer.compat.inference_perf.reports.config_file import config_file
from inferometer.compat.inference_perf.spec import Spec
from inferometer.compat.inference_perf.stage_log import StageLog
from inferometer.compat.inference_perf.translate_load import adapters
from inferometer.conduct.early_ends import Ends
from inferometer.config.schema import Config
from inferometer.errors import UserError, named
from inferometer.probe.refusal import unlisted
from inferometer.records import Run, Trip
from inferometer.report import output

_NAMES = {
    "server.url": "server.base_url",
    "server.model": "server.model_name",
    "server.api": "api.type",
    "server.stream": "api.streaming",
    "server.body": "api.response_format",
    "server.headers": "api.headers",
    "server.api_key_env": "server.api_key",
    "server.api_key_file": "an `authorization` header in api.headers",
    "server.timeouts": "load.request_timeout",
    "server.timeouts.total": "load.request_timeout",
    "server.tls.cert": "server.cert_path",
    "server.tls.key": "server.key_path",
    "data.tokenizer": "tokenizer.pretrained_model_name_or_path",
    "data.input": "data.input_distribution",
    "data.output": "data.output_distribution",
    "client.retries": "load.request_retries",
    "client.processes": "load.num_workers",
    "sessions.context": "data.conversation_replay.max_model_len",
    "output": "storage.local_storage.path",
    "storage.endpoint": "storage.simple_storage_service.endpoint_url",
    "observe.promql": "metrics.prometheus",
    "observe.promql.url": "metrics.prometheus.url",
}
"""What inference-perf calls our settings."""


def run(path: Path | None, options: Mapping[str, str], lenient: bool, log: Log, strict_exit: bool = False) -> int:
    """Measure what the config says, and write its reports. Returns the exit status.

    It is 0 when the run reached its end, unless `strict_exit` asks for 1 when it is INVALID or an objective is missed.
    """
    spec, notes = read(path, options, lenient)
    if path is not None:
        log.info(f"Using configuration from: {path}")
    for note in notes:
        log.warning(note)
    with named(_NAMES, str(path) if path is not None else "command line"):
        _check(spec)
        translating.translate(_with_any_stages(spec))  # refuses what is not supported before anything is written
        with contextlib.closing(Destinations(spec)) as destinations:
            try:
                run, summary = _measure(spec, destinations, log)
            except conduct.UnsavedError as error:
                _deliver(error.run, error.summary, spec, destinations, log)
                raise
            except _NothingFoundError as error:
                log.error(str(error))
                destinations.write({"config.yaml": config_file(spec), "validation.json": _NO_FINDINGS}, log)
                return 1 if strict_exit else 0
            status = _deliver(run, summary, spec, destinations, log)
            return status if strict_exit else 0


_NO_FINDINGS = b'{\n  "global": {\n    "warnings": [],\n    "errors": []\n  },\n  "reports": {}\n}'


class _NothingFoundError(Exception):
    """A sweep did not find the server's saturation."""


def _check(spec: Spec) -> None:
    if spec["server"] is None:
        raise UserError("there is no server to measure", "add `server: {base_url: http://HOST:PORT}`", "server")
    if not spec["load"]["stages"] and spec["load"]["sweep"] is None:
        raise UserError(
            "there are neither stages nor a sweep", "add `stages: [{rate: 1, duration: 30}]`", "load.stages"
        )


def _measure(spec: Spec, destinations: Destinations, log: Log) -> tuple[Run, Summary]:
    translation = translating.translate(_with_any_stages(spec))
    with _environment(translation.environment):
        _check_adapters(spec, translating.to_config(translation))
        if spec["load"]["sweep"] is not None:
            spec = _swept(spec, destinations, log)
            translation = translating.translate(spec)
        for note in translation.notes:
            log.info(note)
        stage_log = StageLog(log)
        config = _stored_in(destinations, translating.to_config(translation))
        run, summary = conduct.measure(config, stage_log, ends=_noted_ends(spec, stage_log), must_reach=False)
    stage_log.finish(run.manifest.outcome, len(run.manifest.plan))
    return run, summary


def _check_adapters(spec: Spec, config: Config) -> None:
    """Raise UserError if the server lists its models, and an adapter is not among them."""
    names = list(adapters(spec))
    missing, listed = unlisted(config.server, names) if names else ([], [])
    if missing:
        what, remedy = f"the server does not list {', '.join(missing)}", f"load them; it lists {', '.join(listed)}"
        raise UserError(what, remedy, "load.lora_traffic_split")


def _with_any_stages(spec: Spec) -> Spec:
    """The config; that of a sweep with a stage, since its own stages are not known before the server's saturation is searched."""
    if spec["load"]["sweep"] is None:
        return spec
    return spec | {"load": spec["load"] | {"sweep": None, "stages": [{"rate": 1.0, "duration": 1}]}}


def _swept(spec: Spec, destinations: Destinations, log: Log) -> Spec:
    """The config with the stages of its sweep."""
    log.info("load.sweep: looking for the saturation of the server")

    def measure(config: Config, *, watch: Any) -> tuple[Run, Summary]:
        return conduct.measure(_stored_in(destinations, config), None, watch=watch, must_reach=False)

    try:
        spec = translating.with_sweep_stages(spec, measure)
    except UserError as error:
        if error.key == "load.sweep":
            raise _NothingFoundError(str(error)) from None
        raise
    rates = ", ".join(f"{stage['rate']:g}" for stage in spec["load"]["stages"])
    log.info(f"load.sweep: the stages have {rates} requests per second")
    return spec


def _noted_ends(spec: Spec, stage_log: StageLog) -> Ends | None:
    """The circuit breakers; a stage that one of them ends is logged as failed."""
    judge = breakers.breakers_of(spec)
    if judge is None:
        return None

    def ends(*seen: Any) -> Trip | None:
        trip = judge(*seen)
        if trip is not None:
            stage_log.ended_early(trip.stage)
        return trip

    return ends


def _stored_in(destinations: Destinations, config: Config) -> Config:
    return msgspec.structs.replace(config, output=destinations.own_folder)


def _deliver(run: Run, summary: Summary, spec: Spec, destinations: Destinations, log: Log) -> int:
    """Write the files, print the blocks and the report, and return the exit status that the run itself deserves."""
    files = reports.files(run, summary, spec)
    destinations.write(files, log)
    log.info(f"The run is stored in: {run.folder}")
    click.echo(reports.stdout_blocks(files), nl=False)
    return output.deliver(output.RUN, output.RunReport(run, summary), {})


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables, such as the hub's token, for as long as the run needs them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
