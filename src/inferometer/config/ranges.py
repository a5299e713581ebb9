"""Ranges of load: `1:8:2` (start:end[:step], the end included) becomes a stage for each level, as perf_analyzer has it.

This happens to the plain tree, before the schema sees it: whatever else the stage says holds for every level.
"""

import math
from typing import Any

from inferometer.errors import UserError
from inferometer.units import format_number

_RATES = ("constant", "poisson", "gamma")
_MOST = 1000


def expand(tree: dict[str, Any], source: str) -> None:
    """Replace each load that has a range by its levels, in place."""
    load = tree.get("load")
    if not isinstance(load, dict):
        return
    stages = load.get("stages")
    if isinstance(stages, list):
        load["stages"] = [
            level for number, stage in enumerate(stages) for level in _levels(stage, f"{source}: load.stages.{number}")
        ]
    elif len(levels := _levels(load, f"{source}: load")) > 1 or levels[0] is not load:
        tree["load"] = {"type": "stages", "stages": levels}


def _levels(stage: Any, where: str) -> list[Any]:
    """One stage a level; the stage itself where it has no range."""
    if not isinstance(stage, dict):
        return [stage]
    kind = stage.get("type")
    key = "concurrency" if kind == "closed" else "rate" if kind in _RATES else ""
    text = stage.get(key)
    if not isinstance(text, str) or ":" not in text:
        return [stage]
    start, end, step = _bounds(text, f"{where}.{key}", whole=kind == "closed")
    count = math.floor((end - start) / step + 1e-9) + 1
    if count > _MOST:
        raise UserError(f"{where}.{key}: {text} has {count:,} levels", f"at most {_MOST:,}: take a wider step")
    values = [round(start + place * step, 9) for place in range(count)]
    return [stage | {key: value, "name": _name(stage, key, value)} for value in values]


def _bounds(text: str, where: str, whole: bool) -> tuple[float, float, float]:
    shape = "start:end or start:end:step, such as 1:8:2"
    try:
        numbers = [int(part) if whole else float(part) for part in text.split(":")]
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise UserError(f"{where}: {text!r} is no range of {kind}", f"write {shape}") from None
    if len(numbers) > 3:
        raise UserError(f"{where}: {text!r} is no range: it has {len(numbers)} parts", f"write {shape}")
    start, end, step = (*numbers, 1)[:3]
    if not all(math.isfinite(number) and number > 0 for number in (start, end, step)):
        raise UserError(f"{where}: {text!r}: start, end and step are to be more than 0", f"write {shape}")
    if end < start:
        raise UserError(f"{where}: {text!r} ends below its start", "levels go up: put the smaller one first")
    return start, end, step


def _name(stage: dict[str, Any], key: str, value: float) -> str:
    level = f"concurrency {value}" if key == "concurrency" else f"{format_number(value, 6)}/s"
    given = stage.get("name")
    return f"{given} {level}" if given else level
