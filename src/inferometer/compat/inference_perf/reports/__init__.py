"""From a stored run to inference-perf's report files.

requests.py      which requests take part, their times and tokens, by inference-perf's definitions or ours (differences.py)
lifecycle.py     the figures of the whole run, of a stage or of an adapter
per_request.py   one entry per request
prometheus.py    the server's metrics, read from a Prometheus server
partial.py       the parts of a Benchmark Report that llm-d's tools read
config_file.py   the effective config without secrets
validation.py    checks that the files agree with each other

Session reports are only for the replay of traced sessions, which is not supported; multi-turn runs have none in inference-perf either.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from inferometer.analysis.summary import Summary
from inferometer.compat.inference_perf.reports import lifecycle, prometheus, validation
from inferometer.compat.inference_perf.reports.config_file import config_file
from inferometer.compat.inference_perf.reports.differences import DIFFERENCES, LIMITS
from inferometer.compat.inference_perf.reports.partial import partial
from inferometer.compat.inference_perf.reports.per_request import NAME, Content, PerRequest
from inferometer.compat.inference_perf.reports.requests import Gaps, Requests, collect
from inferometer.compat.inference_perf.spec import Spec
from inferometer.records import Run

__all__ = ["DIFFERENCES", "LIMITS", "files", "stdout_blocks"]

CONFIG = "config.yaml"
SUMMARY = "summary_lifecycle_metrics.json"
STAGE = "stage_{}_lifecycle_metrics.json"
PARTIAL = "inference-perf.partial.stage_{}.yaml"
VALIDATION = "validation.json"


def files(run: Run, summary: Summary, spec: Spec) -> dict[str, Content]:
    """All report files by name, in the order in which they are written. Each storage puts its report_file_prefix in front of them.

    Waits for Prometheus if the config has one: its last scrape comes after the end of the run.
    """
    requests = collect(run, spec)
    found: dict[str, Content] = {}
    partials: dict[str, bytes] = {}
    if len(requests.rows):
        found |= _lifecycle(requests, spec, partials)
    found |= {name: to_json(report) for name, report in prometheus.reports(requests, spec).items()}
    found[CONFIG] = config_file(spec)
    found |= partials
    found[VALIDATION] = to_json(validation.validate(found))
    return found


def stdout_blocks(files: Mapping[str, Content]) -> str:
    """The text that inference-perf prints after it saved its reports: the summary, the stages and their partials between markers."""
    blocks = [("SUMMARY", SUMMARY)]
    stages = sorted(_stages(files))
    blocks += [(f"STAGE_{stage}", STAGE.format(stage)) for stage in stages]
    blocks += [(f"PARTIAL_BR_V0_2_STAGE_{stage}", PARTIAL.format(stage)) for stage in stages]
    return "".join(
        f"=== START_{name} ===\n{bytes(files[file]).decode().rstrip()}\n=== END_{name} ===\n"
        for name, file in blocks
        if file in files
    )


def to_json(report: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2)


def _stages(files: Mapping[str, Content]) -> Iterator[int]:
    """The numbers of the stages, each of which has a partial."""
    start, end = PARTIAL.split("{}")
    for name in files:
        if name.startswith(start):
            yield int(name.removeprefix(start).removesuffix(end))


def _lifecycle(requests: Requests, spec: Spec, partials: dict[str, bytes]) -> dict[str, Content]:
    """The lifecycle files. The partials of the stages are put into `partials`, because they are written later."""
    chosen, wanted = lifecycle.options(spec), spec["report"]["request_lifecycle"]
    found: dict[str, Content] = {}
    everything = np.ones(len(requests.rows), np.bool_)
    gaps = Gaps(requests)
    if wanted["summary"]:
        found[SUMMARY] = to_json(lifecycle.report(requests, everything, gaps.of(), chosen))
    gaps = Gaps(requests, requests.stage)
    for stage in np.unique(requests.stage).tolist():
        own = requests.stage == stage
        report = lifecycle.report(requests, own, gaps.of(stage), chosen, stage)
        if wanted["per_stage"]:
            found[STAGE.format(stage)] = to_json(report)
        partials[PARTIAL.format(stage)] = partial(requests, own, gaps.of(stage), stage, report)
    if wanted["per_request"]:
        found[NAME] = PerRequest(requests, spec)
    if spec["load"].get("lora_traffic_split"):
        found |= _adapters(requests, spec, chosen)
    return found


def _adapters(requests: Requests, spec: Spec, chosen: lifecycle.Options) -> dict[str, bytes]:
    """The files of LoRA adapters, which are the traffic classes of the run."""
    wanted, found = spec["report"]["request_lifecycle"], {}
    names = [name.replace("/", "_") for name in requests.run.records.classes]
    own_class = requests.rows["class"].astype(np.int64)
    if requests.is_exact:
        own_class[~requests.ok] = -1
    if wanted["per_adapter"]:
        gaps = Gaps(requests, own_class)
        for index, name in enumerate(names):
            own = own_class == index
            if own.any():
                report = lifecycle.report(requests, own, gaps.of(index), chosen)
                found[f"adapter_{name}_lifecycle_metrics.json"] = to_json(report)
    if wanted["per_adapter_stage"]:
        stages = int(requests.stage.max()) + 1
        group = own_class * stages + requests.stage
        gaps = Gaps(requests, group)
        for each in np.unique(group[own_class >= 0]).tolist():
            index, stage = divmod(each, stages)
            report = lifecycle.report(requests, group == each, gaps.of(each), chosen, stage)
            found[f"adapter_{names[index]}_stage_{stage}_lifecycle_metrics.json"] = to_json(report)
    return found
