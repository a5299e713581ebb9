"""Ranges of load: `1:8:2` (start:end[:step], end included) becomes one stage per level, as in perf_analyzer.

Ranges are expanded in the plain tree, before it is validated: the other keys of the stage apply to every level. The levels are
measured apart from each other: each starts when all requests of the level before have ended, unless `drain` is false.
"""

import math
from typing import Any

from inferometer.errors import UserError
from inferometer.units import format_number

_RATES = ("constant", "poisson", "gamma")
_MAX_LEVELS = 1000


def expand(tree: dict[str, Any]) -> None:
    """Replace each load that has a range by its levels, in place."""
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
    return {"drain": drain, "cut_short": load.pop("cut_short", drain)}


def _levels(stage: Any, section: str) -> list[Any]:
    """One stage per level; the stage itself if it has no range."""
    if not isinstance(stage, dict):
        return [stage]
    kind = stage.get("type")
    key = "concurrency" if kind == "closed" else "rate" if kind in _RATES else ""
    text = stage.get(key)
    if not isinstance(text, str) or ":" not in text:
        return [stage]
    start, end, step = _bounds(text, f"{section}.{key}", whole=kind == "closed")
    count = math.floor((end - start) / step + 1e-9) + 1
    if count > _MAX_LEVELS:
        raise UserError(
            f"{text} has {count:,} levels, more than {_MAX_LEVELS:,}", "use a larger step", f"{section}.{key}"
        )
    values = [round(start + index * step, 9) for index in range(count)]
    return [stage | {key: value, "name": _name(stage, key, value)} for value in values]


def _bounds(text: str, key: str, whole: bool) -> tuple[float, float, float]:
    shape = "start:end or start:end:step, such as 1:8:2"
    try:
        numbers = [int(part) if whole else float(part) for part in text.split(":")]
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise UserError(f"{text!r} is not a range of {kind}", f"write {shape}", key) from None
    if len(numbers) > 3:
        raise UserError(f"{text!r} is not a range: it has {len(numbers)} parts", f"write {shape}", key)
    start, end, step = (*numbers, 1)[:3]
    if not all(math.isfinite(number) and number > 0 for number in (start, end, step)):
        raise UserError(f"{text!r}: start, end and step must be more than 0", f"write {shape}", key)
    if end < start:
        raise UserError(f"{text!r} ends below its start", "put the smaller number first: levels go up", key)
    return start, end, step


def _name(stage: dict[str, Any], key: str, value: float) -> str:
    level = f"concurrency {value}" if key == "concurrency" else f"{format_number(value, 6)}/s"
    given = stage.get("name")
    return f"{given} {level}" if given else level
