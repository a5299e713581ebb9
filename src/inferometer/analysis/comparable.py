"""Whether runs may be compared: the same workload, model, load and objectives, and runs that are complete and VALID."""

from collections.abc import Iterator, Sequence
from typing import Any

from inferometer.analysis.comparison import Side
from inferometer.analysis.run_figures import parts
from inferometer.analysis.summary import Measured
from inferometer.records import Manifest
from inferometer.units import format_number

STAGES_DIFFER = "the number of stages differs"
"""A difference that no force overcomes."""
_SECTIONS = {
    "model": ("server", "model"),
    "API": ("server", "api"),
    "streaming": ("server", "stream"),
    "load": ("load",),
    "objectives": ("slo",),
    "rules of measurement": ("measure",),
}
"""What must be the same, and where it is in the config."""
_PROMPT_FILES = ("path", "tokenizer", "corpus", "classes", "fill")
"""Settings of the data by which the same config may mean other prompts."""


def unusable(side: Side) -> list[str]:
    """Why a run of this side cannot be compared at all: it has no successful request."""
    return [f"{run.folder}: no request in the window succeeded" for run, summary in side.runs if not summary.counts.ok]


def doubts(sides: Sequence[Side]) -> list[str]:
    """Why a comparison would mislead, one line each; empty if there is no reason."""
    found = [line for side in sides for measured in side.runs for line in _unfit(measured)]
    reference, *others = [measured for side in sides for measured in side.runs]
    first = reference[0].manifest
    for run, summary in others:
        found += _differences(first, run.manifest)
        if len(parts(summary)) != len(parts(reference[1])):
            found.append(STAGES_DIFFER)
    return list(dict.fromkeys(found))


def _unfit(measured: Measured) -> list[str]:
    run, summary = measured
    if run.manifest.outcome.interrupted:
        return [f"{run.folder} was interrupted"]
    if summary.verdict == "INVALID":
        failed = ", ".join(check.name for check in summary.checks if check.status == "fail")
        return [f"{run.folder} is INVALID ({failed})"]
    return []


def _differences(one: Manifest, other: Manifest) -> list[str]:
    found = []
    for what, keys in _SECTIONS.items():
        values = [_value(manifest.config, keys) for manifest in (one, other)]
        if values[0] != values[1]:
            found.append(f"the {what} differ{'' if what.endswith('s') else 's'}: {_describe('.'.join(keys), *values)}")
    if line := _workload(one, other):
        found.append(line)
    return found


def _workload(one: Manifest, other: Manifest) -> str:
    """How the workloads differ. The digest depends on the seed; generated prompts of another seed are the same workload."""
    if one.workload.get("digest") == other.workload.get("digest"):
        return ""
    data = [_without_salt(manifest.config.get("data")) for manifest in (one, other)]
    if data[0] != data[1]:
        return f"the workload differs: {_describe('data', *data)}"
    seeds = [manifest.seeds.get("seed") for manifest in (one, other)]
    if seeds[0] != seeds[1] and not (isinstance(data[0], dict) and any(data[0].get(name) for name in _PROMPT_FILES)):
        return ""
    if seeds[0] != seeds[1]:
        return f"the workload differs: seed {seeds[0]} against {seeds[1]}, and prompts from files cannot be compared across seeds"
    return (
        "the workload differs: its digest does, although the settings are the same (a file or a tokenizer has changed)"
    )


_OWN = ("seed", "output", "report")
"""Settings that say nothing about what was measured."""


def manifest_differences(one: Manifest, other: Manifest) -> list[tuple[str, str, str]]:
    """Every setting and fact of two runs that differs: its name, and both values. Seeds and salts are left out."""
    trees = [
        {
            **{key: value for key, value in manifest.config.items() if key not in _OWN},
            "workload.digest": manifest.workload.get("digest") if manifest.seeds == one.seeds else None,
            "answered by": {key: manifest.server.get(key) for key in ("name", "version") if manifest.server.get(key)},
            "client": {"inferometer": manifest.inferometer, **manifest.versions},
            "machine": manifest.host,
        }
        for manifest in (one, other)
    ]
    if one.seeds != other.seeds:  # the digest depends on the seed
        for tree in trees:
            tree.pop("workload.digest")
    flat = [dict(_leaves(_without_salt(tree))) for tree in trees]
    keys = dict.fromkeys([*flat[0], *flat[1]])
    return [
        (key, _short(flat[0].get(key)), _short(flat[1].get(key)))
        for key in keys
        if flat[0].get(key) != flat[1].get(key)
    ]


def _leaves(tree: object, where: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{where}.{key}" if where else str(key))
    else:
        yield where, tree


def are_repeats(measured: Sequence[Measured]) -> bool:
    """Whether runs differ in nothing but their seeds: the same server, workload, load, objectives and rules."""
    (first, summary), *others = measured
    return all(
        _value(first.manifest.config, ("server", "url")) == _value(run.manifest.config, ("server", "url"))
        and len(parts(summary)) == len(parts(other))
        and not _differences(first.manifest, run.manifest)
        for run, other in others
    )


def _without_salt(tree: object) -> object:
    if isinstance(tree, dict):
        return {key: _without_salt(value) for key, value in tree.items() if key != "salt"}
    return [_without_salt(each) for each in tree] if isinstance(tree, list | tuple) else tree


def _value(tree: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _describe(where: str, one: Any, other: Any) -> str:
    """The first settings that differ: `load.rate 10 against 20`."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]
        lines = [_describe(f"{where}.{key}", one.get(key), other.get(key)) for key in keys[:3]]
        return ", ".join(lines) + (" ..." if len(keys) > 3 else "")
    return f"{where} {_short(one)} against {_short(other)}"


def _short(value: object) -> str:
    if isinstance(value, float):
        return format_number(value, 6)
    if isinstance(value, list | tuple) and not any(isinstance(each, dict) for each in value):
        value = ", ".join(map(str, value))
    shown = "nothing" if value is None or value in ("", [], ()) else str(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
