"""From what Python code gives (a path, a URL or a mapping, and overrides) to a Config."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from inferometer.apis import is_url
from inferometer.config import Config, from_mapping, read_tree
from inferometer.config.convert import copied
from inferometer.config.load import put
from inferometer.errors import UserError
from inferometer.probe.scheme import DISCOVERY
from inferometer.units import parse_seconds

Source = str | PathLike[str] | Mapping[str, Any]
"""The path of a YAML file, a URL, or the same tree as a mapping."""
Overrides = Mapping[str, Any]
"""Values by dotted keys: {"load.rate": 50}."""


def config_of(config: Source, *overrides: Overrides | None, without: str = "") -> tuple[Config, str]:
    """Make the Config, leaving out a section, and what errors call its source. Raises UserError with the key at fault."""
    tree, source = _tree(config)
    tree.pop(without, None)
    for each in overrides:
        for key, value in (each or {}).items():
            put(tree, key, plain(value), key)
    return from_mapping(tree, source=source, discovery=DISCOVERY), source


def _tree(config: Source) -> tuple[dict[str, Any], str]:
    if isinstance(config, Mapping):
        tree: dict[str, Any] = copied(plain(config))
        return tree, "config"
    if not isinstance(config, str | PathLike):
        raise UserError(
            f"config is of the type {type(config).__name__}", "give the path of a YAML file, a URL, or a mapping"
        )
    name = str(config)
    if isinstance(config, str) and is_url(name):
        return {"server": {"url": name}}, "config"
    return read_tree(name, or_url=True), name


def plain(value: Any) -> Any:
    """The value as YAML would have it: tuples as lists, paths as text, and numpy's numbers as Python's."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


def objectives(slo: str | Sequence[str]) -> list[str]:
    """One objective or several, as a list."""
    return [slo] if isinstance(slo, str) else list(slo)


def seconds(value: float | str, name: str) -> float:
    """A duration: a number of seconds, or text such as `2m`."""
    try:
        return float(parse_seconds(value))
    except ValueError as error:
        raise UserError(f"{name}: {error}", "give seconds, or text such as '2m'") from None
