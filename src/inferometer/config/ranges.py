"""Levels of load: a list (`[5, 10, 20]`) or a range becomes one stage per level.

A range is start:end[:step], such as `1:8:2` (end included, as in perf_analyzer), or geometric, start:end:xFACTOR, such as `1:64:x2`.
They are expanded in the plain tree, before it is validated: the other keys of the stage apply to every level. The levels are
measured apart from each other: each starts when all requests of the level before have ended, unless `drain` is false.

The levels of an adaptive range, start:end:adaptive, depend on what was measured before: `take_adaptive` takes it out of the tree.
"""

import math
from typing import Any, Literal

import msgspec

from inferometer.errors import UserError
from inferometer.units import format_number

_RATES = ("constant", "poisson", "gamma")
_MAX_LEVELS = 1000
_ADAPTIVE = ":adaptive"
_SHAPE = "start:end, start:end:step such as 1:8:2, or start:end:xFACTOR such as 1:64:x2"


class Adaptive(msgspec.Struct, frozen=True):
    """A range whose levels are chosen during a sweep."""

    by: Literal["rate", "concurrency"]
    start: float
    end: float


def expand(tree: dict[str, Any]) -> None:
    """Replace each load that has a list or a range by its levels, in place."""
    load = tree.get("load")
    if not isinstance(load, dict):
        return
    stages = load.get("stages")
    if isinstance(stages, list):
        levels = [level for number, stage in enumerate(stages) for level in _levels(stage, f"load.stages.{number}")]
        if levels != stages:
            load |= {"stages": levels} | _between(load)
    elif (levels := _levels(load, "load"))[0] is not load:
        between = [_between(level) for level in levels]
        tree["load"] = {"type": "stages", "stages": levels} | between[0]


def _between(load: dict[str, Any]) -> dict[str, Any]:
    """Take the settings for what happens between levels out of a load. Overloaded levels are cut short if the next one waits."""
    drain = load.pop("drain", True)
    pause = {"pause": load.pop("pause")} if "pause" in load else {}
    return {"drain": drain, "cut_short": load.pop("cut_short", drain)} | pause


def level_key(stage: Any) -> str:
    """The key that has the level of a stage; empty if its load has none. Without a `type`, the keys decide."""
    if not isinstance(stage, dict) or "stages" in stage:
        return ""
    kind = stage.get("type", "poisson" if "rate" in stage else "closed")
    return "concurrency" if kind == "closed" else "rate" if kind in _RATES else ""


def take_adaptive(tree: dict[str, Any]) -> Adaptive | None:
    """The adaptive range of the load, if it has one; in the tree, its first level replaces it."""
    load = tree.get("load")
    key = level_key(load)
    text = load.get(key) if isinstance(load, dict) else None
    if not isinstance(load, dict) or not isinstance(text, str) or not text.endswith(_ADAPTIVE):
        return None
    is_whole = key == "concurrency"
    start, end, step = _bounds(text.removesuffix(_ADAPTIVE), f"load.{key}", is_whole)
    if step:
        raise UserError(f"{text!r}: an adaptive range has no step", "write start:end:adaptive", f"load.{key}")
    load[key] = start
    return Adaptive("concurrency" if is_whole else "rate", start, end)


def level_name(key: str, value: float) -> str:
    """The name of a level: `concurrency 8`, `20/s`."""
    return f"concurrency {value}" if key == "concurrency" else f"{format_number(value, 6)}/s"


def _levels(stage: Any, section: str) -> list[Any]:
    """One stage per level; the stage itself if it has no list or range."""
    key = level_key(stage)
    given = stage.get(key) if key else None
    if isinstance(given, list):
        values = _listed(given, f"{section}.{key}", is_whole=key == "concurrency")
    elif isinstance(given, str) and ":" in given:
        values = _range(given, f"{section}.{key}", is_whole=key == "concurrency")
    else:
        return [stage]
    prefix = f"{stage['name']} " if stage.get("name") else ""
    return [stage | {key: value, "name": prefix + level_name(key, value)} for value in values]


def _listed(values: list[Any], key: str, is_whole: bool) -> list[float]:
    kind = "whole numbers" if is_whole else "numbers"
    if not values:
        raise UserError("the list of levels is empty", f"write {kind}, such as [1, 8, 64]", key)
    for value in values:
        is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise UserError(f"levels are {kind} of more than 0, got {value!r}", "write a list such as [1, 8, 64]", key)
    _check_count(len(values), "the list", "use fewer levels", key)
    return values


def _range(text: str, key: str, is_whole: bool) -> list[float]:
    start, end, step = _bounds(text, key, is_whole)
    if step.startswith("x"):
        return _geometric(text, start, end, _number(step[1:], text, key, is_whole=False), key, is_whole)
    width = _number(step, text, key, is_whole) if step else 1
    if width <= 0:
        raise UserError(f"{text!r}: start, end and step must be more than 0", f"write {_SHAPE}", key)
    count = math.floor((end - start) / width + 1e-9) + 1
    _check_count(count, text, "use a larger step", key)
    return [round(start + index * width, 9) for index in range(count)]


def _geometric(text: str, start: float, end: float, factor: float, key: str, is_whole: bool) -> list[float]:
    """Levels that grow by a factor; whole levels that rounding makes equal are one."""
    if factor <= 1:
        raise UserError(f"{text!r}: the factor must be more than 1", "write for example 1:64:x2", key)
    count = math.floor(math.log(end / start) / math.log(factor) + 1e-9) + 1
    _check_count(count, text, "use a larger factor", key)
    exact = [start * factor**index for index in range(count)]
    return list(dict.fromkeys(round(value) if is_whole else round(value, 9) for value in exact))


def _bounds(text: str, key: str, is_whole: bool) -> tuple[float, float, str]:
    """The two ends of a range, and what follows them."""
    parts = text.split(":")
    if len(parts) > 3:
        raise UserError(f"{text!r} is not a range: it has {len(parts)} parts", f"write {_SHAPE}", key)
    if parts[2:] == [""]:
        raise UserError(f"{text!r}: the step is missing", f"write {_SHAPE}", key)
    if parts[2:] == [_ADAPTIVE[1:]]:
        raise UserError(
            f"{text!r}: an adaptive range is only for `inferometer run`, and not for one of several stages",
            f"write {_SHAPE}",
            key,
        )
    start, end = (_number(part, text, key, is_whole) for part in (*parts, "")[:2])
    if start <= 0 or end <= 0:
        raise UserError(f"{text!r}: start, end and step must be more than 0", f"write {_SHAPE}", key)
    if end < start:
        raise UserError(f"{text!r} ends below its start", "put the smaller number first: levels go up", key)
    return start, end, "".join(parts[2:])


def _number(part: str, text: str, key: str, is_whole: bool) -> float:
    try:
        number = int(part) if is_whole else float(part)
    except ValueError:
        kind = "whole numbers" if is_whole else "numbers"
        raise UserError(f"{text!r} is not a range of {kind}", f"write {_SHAPE}", key) from None
    if not math.isfinite(number):
        raise UserError(f"{text!r}: start, end and step must be finite and more than 0", f"write {_SHAPE}", key)
    return number


def _check_count(count: int, what: str, remedy: str, key: str) -> None:
    if count > _MAX_LEVELS:
        raise UserError(f"{what} has {count:,} levels, more than {_MAX_LEVELS:,}", remedy, key)
