"""From inference-perf's config file and dotted options to the effective config.

Defaults < file < options; maps merge deeply, lists are replaced. Known keys with values that do not go together are refused here, with
inference-perf's own rules; what Inferometer does not support is refused by the translation.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from inferometer.compat.inference_perf.kinds import (
    Either,
    Key,
    Kind,
    Map,
    Reader,
    Section,
    from_text,
    long_names,
    unknown_key,
)
from inferometer.compat.inference_perf.schema import SCHEMA, SECRETS, STAGES, timestamp
from inferometer.compat.inference_perf.spec import Spec
from inferometer.config import read_tree
from inferometer.errors import UserError, named

REDACTED = "[REDACTED]"


def read(path: Path | None, options: Mapping[str, str], lenient: bool = False) -> tuple[Spec, tuple[str, ...]]:
    """Return the effective config, and notes about dropped keys and rewritten values. `options` are texts by dotted key.

    Raises UserError with the key at fault. With `lenient`, unknown keys are dropped.
    """
    source = str(path) if path is not None else ""
    reader = Reader(SCHEMA, lenient)
    with named(source=source):
        file = _in_long_names(read_tree(source) if source else {}, SCHEMA, ())
    tree, set_by = _overlaid(file, options)
    with named(source=source):
        try:
            spec = _completed(tree, reader)
            _check(spec)
        except UserError as error:
            option = next((set_by[key] for key in set_by if f"{error.key}.".startswith(f"{key}.")), "")
            key = "" if option == f"--{error.key}" else error.key
            raise (OptionError(error.what, error.remedy, key, option) if option else error) from None
    return spec, (*reader.notes, *_rewrite(spec))


class OptionError(UserError):
    """An error in an option of the command line, rather than in the file."""


# --- options ---------------------------------------------------------------------------------------------------------


def find_key(dotted: str) -> tuple[tuple[str, ...], Key]:
    """The path and the key that an option names. Raises UserError when there is no such key."""
    kind: Kind = SCHEMA
    path: tuple[str, ...] = ()
    key: Key | None = None
    for name in dotted.split("."):
        section = _section_of(kind)
        if isinstance(kind, Map):
            return (*path, name), Key(kind=kind.of) if kind.of is not None else Key(kind=Map())
        if section is None:
            raise UserError("unknown key", f"{'.'.join(path)} takes a value of its own", dotted)
        long = next((known for known, each in section.keys.items() if name in (known, each.short)), None)
        if long is None:
            raise unknown_key(name, path, SCHEMA, section)
        path, key = (*path, long), section.keys[long]
        kind = key.kind
    assert key is not None
    return path, key


def _section_of(kind: Kind) -> Section | None:
    if isinstance(kind, Either):
        return next((each for each in kind.kinds if isinstance(each, Section)), None)
    return kind if isinstance(kind, Section) else None


def _overlaid(tree: dict[str, Any], options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree with the values of the options, and which option set which key."""
    set_by = {}
    for dotted, text in options.items():
        try:
            path, key = find_key(dotted)
            value = from_text(text, key, path)
        except UserError as error:
            raise OptionError(error.what, error.remedy, f"--{dotted}") from None
        set_by[".".join(path)] = f"--{dotted}"
        node = tree
        for name in path[:-1]:
            inner = node.get(name)
            node[name] = node = inner if isinstance(inner, dict) else {}
        before = node.get(path[-1])
        node[path[-1]] = _merged(before, value) if isinstance(value, dict) and isinstance(before, dict) else value
    return tree, set_by


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {
        name: _merged(below[name], value) if isinstance(value, dict) and isinstance(below.get(name), dict) else value
        for name, value in above.items()
    }
    return below | both


def _in_long_names(tree: Any, kind: Kind, path: tuple[str, ...]) -> Any:
    section = _section_of(kind)
    if section is None or not isinstance(tree, dict):
        return tree
    return {
        name: _in_long_names(value, section.keys[name].kind, (*path, name)) if name in section.keys else value
        for name, value in long_names(tree, section, path).items()
    }


# --- what the kinds cannot express -------------------------------------------------------------------------------------


def _completed(tree: dict[str, Any], reader: Reader) -> Spec:
    """The tree with all defaults. The keys of a stage are those of the load's type."""
    load = tree.get("load")
    stages = load.get("stages") if isinstance(load, dict) else None
    if not isinstance(load, dict) or not isinstance(stages, list):  # missing or wrong
        return cast("Spec", reader.read(tree))
    spec = cast("Spec", reader.read(tree | {"load": {**load, "stages": []}}))
    kind = STAGES[spec["load"]["type"]]
    spec["load"]["stages"] = [
        reader.read(stage, ("load", "stages", str(number)), kind) for number, stage in enumerate(stages)
    ]
    return spec


def _check(spec: Spec) -> None:
    """Raise UserError for values that do not go together."""
    _check_secrets(spec)
    _check_load(spec["load"])
    for path, distribution in _distributions(spec["data"], "data"):
        _check_distribution(path, distribution)
    data = spec["data"]
    shared = data["shared_prefix"]
    if shared is not None:
        if data["type"] != "shared_prefix":
            raise UserError(
                f"data.type is {data['type']}, which has no prefixes",
                "leave it out, or set data.type to shared_prefix",
                "data.shared_prefix",
            )
        for length, legacy in (("question_len", "question_distribution"), ("output_len", "output_distribution")):
            if isinstance(shared[length], dict) and shared[legacy] is not None:
                raise UserError(
                    f"{length} has a distribution already",
                    f"leave out one of them; {legacy} is the older spelling",
                    f"data.shared_prefix.{legacy}",
                )
    if data["type"] in ("mock", "visionarena"):
        for name in ("input_distribution", "output_distribution"):
            if data[name] is not None:
                raise UserError(f"data.type {data['type']} has no lengths to choose", "leave it out", f"data.{name}")
    prometheus = (spec["metrics"] or {}).get("prometheus")
    if prometheus is not None and (prometheus["url"] is None) is not prometheus["google_managed"]:
        raise UserError(
            "needs either url or google_managed, and not both", "give the URL of Prometheus", "metrics.prometheus"
        )
    server = spec["server"] or {}
    if (server.get("cert_path") is None) is not (server.get("key_path") is None):
        raise UserError(
            "a client certificate needs cert_path and key_path", "give both, or neither", "server.cert_path"
        )


def _check_secrets(spec: Spec) -> None:
    for path in SECRETS:
        value: Any = spec
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value == REDACTED or (isinstance(value, dict) and REDACTED in value.values()):
            raise UserError(
                f"it contains {REDACTED}: secrets are not stored with a config",
                f"give the secret again, or remove it: edit the file, or use --{'.'.join(path)}",
                ".".join(path),
            )


def _check_load(load: dict[str, Any]) -> None:
    if load["sweep"] is not None and load["type"] in ("concurrent", "trace_session_replay"):
        raise UserError(f"load.type {load['type']} has no rate to sweep", "use constant or poisson", "load.sweep")
    for number, stage in enumerate(load["stages"]):
        for name in ("num_requests", "concurrency_level"):
            if load["type"] not in ("concurrent", "trace_session_replay") and stage[name] is not None:
                raise UserError(
                    f"load.type {load['type']} has no such limit",
                    "use load.type concurrent, or leave it out",
                    f"load.stages.{number}.{name}",
                )
        limit, rate = stage.get("concurrent_sessions"), stage.get("session_rate")
        if rate is not None and limit and rate > limit:
            raise UserError("must be at most concurrent_sessions", "lower it", f"load.stages.{number}.session_rate")
    split = load["lora_traffic_split"]
    if split is not None and math.fsum(row["split"] for row in split) != 1.0:
        raise UserError("the splits must add up to 1.0", "correct them", "load.lora_traffic_split")


_DISTRIBUTION_KEYS = {"min", "max", "mean", "std_dev", "variance"}


def _distributions(tree: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(tree, dict):
        if tree.keys() >= _DISTRIBUTION_KEYS:
            yield path, tree
        for name, value in tree.items():
            yield from _distributions(value, f"{path}.{name}")


def _check_distribution(path: str, distribution: dict[str, Any]) -> None:
    low, high = distribution["min"], distribution["max"]
    if low > high:
        raise UserError(f"min ({low}) is more than max ({high})", "correct one of them", path)
    if distribution["variance"] is not None:
        if distribution["std_dev"] > 0:
            raise UserError(
                "only with std_dev: 0, whose default is 200", "give std_dev, or add std_dev: 0", f"{path}.variance"
            )
        distribution["std_dev"] = math.sqrt(distribution["variance"])


# --- what inference-perf rewrites at the start -------------------------------------------------------------------------


def _rewrite(spec: Spec) -> list[str]:
    """Rewrite the values that inference-perf rewrites before it stores its config, and say so."""
    notes = []
    now = timestamp()
    for place in (spec["storage"] or {}).values():
        if place is not None:
            place["path"] = place["path"].replace("{timestamp}", now)
    load = spec["load"]
    if load["type"] == "concurrent":
        load["worker_max_concurrency"] = 0
        for stage in load["stages"]:
            stage |= {"rate": float(stage["num_requests"]), "duration": 1}
    sizes = [
        int(stage["rate"] * stage["duration"]) for stage in load["stages"] if isinstance(stage.get("rate"), int | float)
    ]
    if sizes and spec["data"]["type"] in ("random", "synthetic"):
        for name in ("input_distribution", "output_distribution"):
            distribution = spec["data"][name]
            if distribution is not None and (distribution["total_count"] or 0) < max(sizes) + 1:
                distribution["total_count"] = max(sizes) + 1
    prometheus = (spec["metrics"] or {}).get("prometheus")
    if (
        prometheus is not None
        and (spec["report"]["prometheus"] or {}).get("per_stage")
        and load["interval"] < prometheus["scrape_interval"]
    ):
        load["interval"] = float(prometheus["scrape_interval"])
        notes.append(
            f"load.interval is {load['interval']:g}: metrics.prometheus.scrape_interval, for report.prometheus.per_stage"
        )
    return notes
