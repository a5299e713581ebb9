"""inference-perf's distributions of lengths, as ours."""

import math
from typing import Any

from inferometer.errors import UserError

_SPREAD = ("normal", "skew_normal", "lognormal")


def length(value: Any, key: str) -> int | dict[str, Any]:
    """Our length for a number, or for a Distribution with its defaults; raises UserError with their key."""
    if not isinstance(value, dict):
        return _count(value, key)
    kind = value.get("type") or "normal"
    least, most = max(int(_given(value, "min", 10)), 1), int(_given(value, "max", 1024))
    mean = float(_given(value, "mean", 512))
    if kind == "fixed":
        return _count(mean, f"{key}.mean")
    if most < least:
        raise UserError(f"must be at least {least}, got {most}", "raise it", f"{key}.max")
    if kind == "uniform":
        return {"type": "uniform", "min": least, "max": most}
    if not mean > 0:
        raise UserError(f"must be more than 0, got {mean:g}", "give the mean length", f"{key}.mean")
    bounds = {"min": least, "max": most}
    if kind == "poisson":
        return {"type": "poisson", "mean": mean, **bounds}
    if kind not in _SPREAD:
        raise UserError(
            f"{kind!r} is not a distribution", f"use fixed, uniform, poisson, {', '.join(_SPREAD)}", f"{key}.type"
        )
    std = deviation(value)
    if std == 0:
        return min(max(round(mean), least), most)
    skew = {"skew": float(_given(value, "skew", 0))} if kind == "skew_normal" else {}
    return {"type": kind, "mean": mean, "std": std, **skew, **bounds}


def deviation(value: dict[str, Any]) -> float:
    """The standard deviation of a Distribution, which may have its variance instead."""
    variance = value.get("variance")
    return float(_given(value, "std_dev", 200)) if variance is None else math.sqrt(float(variance))


def is_nothing(value: Any) -> bool:
    """Whether a length is missing or always 0."""
    if isinstance(value, dict):
        return value.get("mean") == 0 and (
            value.get("type") == "fixed" or deviation(value) == 0 or value.get("max") == 0
        )
    return not value


def _count(value: Any, key: str) -> int:
    count = int(value)
    if count < 1:
        raise UserError(f"must be at least 1, got {count}", "give a number of tokens", key)
    return count


def _given(value: dict[str, Any], name: str, default: float) -> Any:
    given = value.get(name)
    return default if given is None else given
