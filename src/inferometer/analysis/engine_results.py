"""The results of a comparison of engines: from campaign.json and the runs beside it to the figures, and to which engine to use.

The structs define the layout of the JSON file. engine_levels.py has the figures of each level, engine_choice.py the rules of the
recommendation, agreement.py and parity.py whether the comparison is fair, encoder_results.py what is different for encoders.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from inferometer import __version__
from inferometer.analysis import agreement, utilisation
from inferometer.analysis.agreement import Encode, EngineAgreement, compare_outputs
from inferometer.analysis.encoder_results import EncoderFigures, as_level, encoder_figures, recommend_encoders
from inferometer.analysis.engine_choice import recommend
from inferometer.analysis.engine_figures import EngineLevel
from inferometer.analysis.engine_levels import LevelRounds, currency_of, levels_of
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.parity import Mismatch, mismatches
from inferometer.analysis.recommendation import RULES, Recommendation, headline
from inferometer.analysis.summary import Measured
from inferometer.campaign import CampaignRecord, DeviceFacts, EngineRecord, ModelFacts, StartUp
from inferometer.config.convert import quantity
from inferometer.config.engines import Agreement, Encoder

DEFINITIONS = {
    "throughput.output_tokens": "output tokens per second while the load was on; over several rounds the mean of the rounds",
    "throughput.requests": "requests completed per second while the load was on",
    "scaling": "throughput at the level / (throughput at the lowest level x level / lowest level): 1 if twice the load gives twice the throughput",
    "resources.cpu": "cores that the engine's processes and their children kept busy on average",
    "resources.memory": "highest sum of the resident memory of the engine's processes",
    "resources.gpu_memory": "highest memory in use of all GPUs that worked",
    "energy_per_token": "energy of all GPUs of the machine / output tokens that arrived in that time",
    "cost_per_million": "price per hour / output tokens per hour x 1,000,000",
    "output_tokens_per_user": "output tokens per second that one user sees while a response is streamed: the median of 1 / tpot",
    "startup": "seconds since the process was started until each phase was complete, the health check passed, and the first token arrived",
    "padding": "static batches: share of the processed tokens that was padding",
}  # fmt: skip


class EngineResult(msgspec.Struct, frozen=True, kw_only=True):
    """One engine."""

    name: str
    type: str
    mode: str
    status: Literal["ok", "failed"]
    reason: str = ""
    """Why it failed, in a word or two: not installed, port taken, not ready, died, out of memory ..."""
    message: str = ""
    """The same in a sentence, with what to do next."""
    log_tail: tuple[str, ...] = ()
    log: str = ""
    version: str = ""
    settings: dict[str, Any] = {}
    """Its entry in the file."""
    facts: dict[str, str] = {}
    startup: tuple[StartUp, ...] = ()
    agreement: EngineAgreement | None = None
    """Null if it has no outputs."""
    levels: tuple[EngineLevel, ...] = ()
    """In ascending order. Encoders: one for each batch size and length."""
    encoder: tuple[EncoderFigures, ...] = ()
    """Encoders: all figures of each batch size and length."""
    excluded: str = ""
    """Why it cannot be recommended; empty if it can."""


class EngineResults(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of the JSON file."""

    schema: int = 1
    inferometer: str = __version__
    started: str
    folder: str = ""
    model: ModelFacts
    device: DeviceFacts
    engines: tuple[EngineResult, ...]
    """In the order of the file."""
    answer: str = ""
    """The recommendation in a sentence: which engine for which use."""
    recommendation: tuple[Recommendation, ...]
    parity: tuple[Mismatch, ...] = ()
    slos: tuple[str, ...] = ()
    currency: str = "USD"
    rounds: int = 1
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    """What limits the comparison."""
    definitions: dict[str, str] = {}
    campaign: dict[str, Any] = {}
    """The file, with secrets removed."""


def summarise_campaign(
    record: CampaignRecord, runs: Mapping[str, Measured], encode: Encode | None = None, folder: str = ""
) -> EngineResults:
    """The results of a campaign; `runs` by the names of their folders, `encode` the model's tokenizer, if there is one."""
    outputs = compare_outputs(record.engines, _section(record, "agreement", Agreement), encode)
    levels = {engine.name: _with_utilisation(levels_of(engine, runs), engine, record) for engine in record.engines}
    tolerance = _section(record, "encoder", Encoder).tolerance
    encoders = {engine.name: encoder_figures(engine, tolerance) for engine in record.engines if engine.encoder}
    excluded = {
        engine.name: why for engine in record.engines if (why := _why_excluded(engine, outputs.get(engine.name)))
    }
    slos, currency = _slos(levels), currency_of([run for run, _ in runs.values()])
    candidates = {name: own for name, own in levels.items() if name not in excluded}
    if record.campaign.get("encoder") is not None:
        cells = {name: own for name, (own, _) in encoders.items() if name not in excluded}
        recommendation = recommend_encoders(cells, excluded)
    else:
        recommendation = recommend(candidates, excluded, slos, currency)
    measured = {name: own for name, own in levels.items() if any(each.runs for each in own)}
    return EngineResults(
        started=record.started,
        folder=folder,
        model=record.model,
        device=record.device,
        engines=tuple(
            _engine(
                engine,
                levels[engine.name],
                encoders[engine.name][1] if engine.name in encoders else [],
                outputs.get(engine.name),
                excluded.get(engine.name, ""),
            )
            for engine in record.engines
        ),
        answer=headline(recommendation)[1],
        recommendation=recommendation,
        parity=mismatches(record.engines, measured),
        slos=slos,
        currency=currency,
        rounds=_rounds(record),
        interrupted=record.interrupted,
        notes=tuple(_notes(record, outputs)),
        definitions=_definitions(record, outputs),
        campaign=record.campaign,
    )


def _engine(
    engine: EngineRecord,
    levels: Sequence[LevelRounds],
    encoder: Sequence[EncoderFigures],
    outputs: EngineAgreement | None,
    excluded: str,
) -> EngineResult:
    return EngineResult(
        name=engine.name,
        type=engine.type,
        mode=engine.mode,
        status="ok" if engine.status == "ok" else "failed",
        reason=engine.reason or ("not measured" if engine.status == "pending" else ""),
        message=engine.message,
        log_tail=engine.log_tail,
        log=engine.log,
        version=engine.version,
        settings=engine.settings,
        facts=engine.facts,
        startup=engine.starts,
        agreement=outputs,
        levels=tuple(each.level for each in levels) or tuple(map(as_level, encoder)),
        encoder=tuple(encoder),
        excluded=excluded,
    )


def _why_excluded(engine: EngineRecord, outputs: EngineAgreement | None) -> str:
    if engine.status == "pending":
        return "it was not measured: the comparison was interrupted"
    if engine.status == "failed":
        kind = f" ({engine.reason})" if engine.reason not in ("", "failed") else ""
        return f"it failed{kind}: {engine.message}".removesuffix(": ")
    return outputs.text if outputs is not None and not outputs.can_win else ""


def _with_utilisation(levels: Sequence[LevelRounds], engine: EngineRecord, record: CampaignRecord) -> list[LevelRounds]:
    found = []
    for each in levels:
        rate = each.level.throughput.requests
        requests = None if rate is None else rate.value
        about = (record.model, record.device, each.work, requests, engine.facts.get("dtype", ""))
        batch = each.level.level if engine.mode == "batched" else None
        level = msgspec.structs.replace(
            each.level, mfu=utilisation.mfu(*about), mbu=utilisation.mbu(*about, batch=batch)
        )
        found.append(msgspec.structs.replace(each, level=level))
    return found


def _slos(levels: Mapping[str, Sequence[LevelRounds]]) -> tuple[str, ...]:
    """The objectives, in their order."""
    return tuple(dict.fromkeys(slo.slo for own in levels.values() for each in own for slo in each.level.slos))


def _section(record: CampaignRecord, name: str, kind: type[Any]) -> Any:
    """A section of the file; what is not set has its default."""
    return msgspec.convert(record.campaign.get(name) or {}, kind, dec_hook=quantity)


def _rounds(record: CampaignRecord) -> int:
    levels = [level.repeat for engine in record.engines for level in engine.levels]
    encoders = [level.repeat for engine in record.engines for level in engine.encoder]
    return max((*levels, *encoders), default=0) + 1


def _notes(record: CampaignRecord, outputs: Mapping[str, EngineAgreement]) -> list[str]:
    notes = []
    if record.interrupted:
        notes.append("the comparison was interrupted: some engines or levels are missing")
    if _rounds(record) == 1:
        notes.append(
            "one round: the intervals are from within the runs and do not cover what changes from run to run; "
            "`repeat: 3` or more does"
        )
    compared = [each for each in outputs.values() if each.exact is not None]
    if len(compared) > 1 and all(each.verdict == "nonsense" for each in compared):
        notes.append(f"no engine's outputs are those of {compared[0].reference}: it may be the one that is wrong")
    profiled = [engine.name for engine in record.engines if any(level.is_profiled for level in engine.levels)]
    notes += [f"{name} was profiled at one level, which is not part of the comparison" for name in profiled]
    return notes


def _definitions(record: CampaignRecord, outputs: Mapping[str, EngineAgreement]) -> dict[str, str]:
    latencies = {name: METRICS[name].definition for name in ("ttft", "tpot", "e2e")}
    rules = {f"recommendation.{use}": rule for use, rule in RULES.items() if use.startswith("encoder") == bool(record.campaign.get("encoder"))}  # fmt: skip
    return latencies | DEFINITIONS | utilisation.DEFINITIONS | (agreement.DEFINITIONS if outputs else {}) | rules
