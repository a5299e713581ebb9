"""Was the comparison fair? The same requests with the same lengths for every engine, and the settings that must be the same.

A difference does not make a comparison useless, but readers have to know it: an engine that counts or generates fewer tokens per
request looks faster, and one with half the precision is.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from inferometer.analysis.engine_figures import EngineLevel
from inferometer.analysis.engine_levels import LevelRounds
from inferometer.analysis.utilisation import plain_type
from inferometer.campaign import EngineRecord
from inferometer.units import format_number

Kind = Literal["requests", "prompts", "input tokens", "output tokens", "setting", "unknown", "cache"]
_DIFFERS = 0.005
"""Relative difference of token counts that is worth a sentence."""
FACTS = ("dtype", "max length", "prefix cache", "speculation", "chat template")
"""Settings that must be the same for a fair comparison, as EngineRecord.facts calls them."""
_WHY = {
    "dtype": "less precision is faster and changes outputs",
    "max length": "it decides how much memory is reserved",
    "prefix cache": "a hit saves the prefill",
    "speculation": "it generates several tokens per step",
    "chat template": "it changes the prompts",
}


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not the same for all engines, or not known to be."""

    kind: Kind
    name: str
    """What it is about: a level, or a setting."""
    text: str
    values: dict[str, str] = {}
    """By engine."""


Levels = Mapping[str, Sequence[LevelRounds]]
"""The levels of each engine that was measured, by its name."""


def mismatches(engines: Sequence[EngineRecord], levels: Levels) -> tuple[Mismatch, ...]:
    """All differences: those of the workload first."""
    return (*_workload(levels), *_settings([each for each in engines if each.name in levels]), *_caches(levels))


# --- the workload ----------------------------------------------------------------------------------------------------


def _workload(levels: Levels) -> list[Mismatch]:
    by_level: dict[float, dict[str, LevelRounds]] = {}
    for name, own in levels.items():
        for each in own:
            if each.level.counts is not None:
                by_level.setdefault(each.level.level, {})[name] = each
    found = []
    for _, same in sorted(by_level.items()):
        if len(same) > 1:
            found += [*_requests(same), *_prompts(same), *_tokens(same, "input"), *_tokens(same, "output")]
    return found


def _name(own: Mapping[str, LevelRounds]) -> str:
    return " / ".join(dict.fromkeys(each.level.name for each in own.values()))


def _requests(own: Mapping[str, LevelRounds]) -> list[Mismatch]:
    """Different numbers of requests per round, unless the level ended after a time: then a faster engine gets more."""
    if all(run.manifest.plan[0].duration for each in own.values() for run, _ in each.runs.values()):
        return []
    counts = {name: {len(run.records.rows) for run, _ in each.runs.values()} for name, each in own.items()}
    if len(set.union(*counts.values())) == 1:
        return []
    values = {name: " and ".join(f"{one:,}" for one in sorted(each)) for name, each in counts.items()}
    text = f"{_name(own)}: the engines got different numbers of requests: {_words(values)}"
    return [Mismatch(kind="requests", name=_name(own), text=text, values=values)]


def _prompts(own: Mapping[str, LevelRounds]) -> list[Mismatch]:
    """Different prompts in the same round: the digest covers the data's spec, the seed and the files that it uses."""
    for number in sorted({number for each in own.values() for number in each.runs}):
        digests = {
            name: str(each.runs[number][0].manifest.workload.get("digest", ""))
            for name, each in own.items()
            if number in each.runs
        }
        known = {name: digest for name, digest in digests.items() if digest}
        if len(set(known.values())) > 1:
            values = {name: digest.removeprefix("sha256:")[:12] for name, digest in known.items()}
            text = f"{_name(own)}: the engines did not get the same prompts: {_words(values)}"
            return [Mismatch(kind="prompts", name=_name(own), text=text, values=values)]
    return []


def _tokens(own: Mapping[str, LevelRounds], side: Literal["input", "output"]) -> list[Mismatch]:
    kind: Kind = "input tokens" if side == "input" else "output tokens"
    counts = {name: _per_request(each.level, side) for name, each in own.items()}
    unknown = [name for name, count in counts.items() if count is None]
    known = {name: count for name, count in counts.items() if count is not None}
    found = []
    if unknown:
        text = f"{_name(own)}: nobody counted the {kind} of {_listed(unknown)}"
        found.append(Mismatch(kind="unknown", name=_name(own), text=text, values=dict.fromkeys(unknown, "not counted")))
    if not known or max(known.values()) - min(known.values()) <= _DIFFERS * max(known.values()):
        return found
    values = {
        name: f"{format_number(count, 4)} ({_counted_by(own[name].level, side)})" for name, count in known.items()
    }
    low, high = min(known.values()), max(known.values())
    share = f"{100 * (high - low) / low:.2g} %" if low else "all"
    text = f"{_name(own)}: {kind} per request differ by {share}: {_words(values)}"
    found.append(Mismatch(kind=kind, name=_name(own), text=text, values=values))
    return found


def _per_request(level: EngineLevel, side: str) -> float | None:
    assert level.counts is not None
    return level.counts.input_tokens if side == "input" else level.counts.output_tokens


def _counted_by(level: EngineLevel, side: str) -> str:
    assert level.counts is not None
    who = level.counts.input_counted_by if side == "input" else level.counts.output_counted_by
    return f"counted by the {' and the '.join(who)}" if who else "counted by nobody"


# --- settings --------------------------------------------------------------------------------------------------------


def _settings(engines: Sequence[EngineRecord]) -> list[Mismatch]:
    names = dict.fromkeys((*FACTS, *(name for engine in engines for name in engine.facts)))
    found, unknown = [], []
    for name in names:
        values = {engine.name: engine.facts[name] for engine in engines if engine.facts.get(name)}
        if len({_same(name, value) for value in values.values()}) > 1:
            why = f" ({_WHY[name]})" if name in _WHY else ""
            found.append(
                Mismatch(kind="setting", name=name, text=f"{name} differs{why}: {_words(values)}", values=values)
            )
        missing = [engine.name for engine in engines if not engine.facts.get(name)]
        if missing and name in FACTS:
            unknown.append(
                Mismatch(
                    kind="unknown",
                    name=name,
                    text=f"{name} is not known for {_listed(missing)}",
                    values=dict.fromkeys(missing, "not known"),
                )
            )
    return found + unknown


def _same(name: str, value: str) -> str:
    """The value in one spelling, to compare it with others."""
    return plain_type(value) if name == "dtype" else value.strip().lower()


def _caches(levels: Levels) -> list[Mismatch]:
    shared = [name for name, own in levels.items() if any(each.level.cache == "shared" for each in own)]
    if not shared:
        return []
    text = f"nothing kept the prompts of earlier levels out of the prefix cache of {_listed(shared)}"
    return [Mismatch(kind="cache", name="prefix cache", text=text, values=dict.fromkeys(shared, "shared"))]


def _words(values: Mapping[str, str]) -> str:
    """`bfloat16 (vllm and sglang), float32 (transformers)`, or `vllm 12, transformers 13` if all differ."""
    by_value: dict[str, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(value, []).append(name)
    return ", ".join(f"{_listed(names)} {value}" for value, names in by_value.items())


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
