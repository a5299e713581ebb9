"""From what Python code gives (a path, a URL or a mapping, and overrides) to a Config."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from inferometer import options
from inferometer.apis import is_url
from inferometer.config import Config, from_mapping, read_tree
from inferometer.config.convert import copied
from inferometer.config.load import put
from inferometer.errors import UserError
from inferometer.probe.scheme import DISCOVERY

Source = str | PathLike[str] | Mapping[str, Any]
"""The path of a YAML file, a URL, or the same tree as a mapping."""
Function = TypeVar("Function", bound=Callable[..., Any])
Overrides = Mapping[str, Any]
"""Values by dotted keys: {"load.rate": 50}."""


def keywords_of(command: str, *others: str) -> Callable[[Function], Function]:
    """Give a function with `**settings` the keywords that the table of options has for a command: those that set keys, and `others`."""
    rows = {name: row for name, row in options.rows_of(command).items() if row.key or name in others}

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        *own, settings = signature.parameters.values()
        made = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=row.default) for name, row in rows.items()
        ]
        lines = [f"`{name}`{' ' * (15 - len(name))} {row.help_for(command)}" for name, row in rows.items()]
        function.__signature__ = signature.replace(parameters=[*own, *made, settings])  # type: ignore[attr-defined]
        function.__doc__ = "\n".join(
            [inspect.cleandoc(function.__doc__ or ""), "", "The options of the command are keywords:", "", *lines]
        )
        return function

    return decorate


def value_of(command: str, name: str, value: Any) -> Any:
    """The value of a keyword, as the option of a command reads it. Raises UserError when it is not right."""
    row = options.rows_of(command)[name]
    if isinstance(row.type, tuple) and not row.repeats and value not in row.type:
        raise UserError(f"{name} is {value!r}", f"use {', '.join(row.type)}")
    try:
        return options.read(row, plain(value), name)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: {error}", f"see `inferometer {command} --help`") from None


def config_of(
    config: Source,
    overrides: Overrides | None,
    settings: Overrides,
    more: Overrides | None = None,
    command: str = "run",
) -> tuple[Config, str]:
    """Make the Config from what a function is given, and what errors call its source. Raises UserError with the key at fault.

    `settings` are keywords: options of the command, and keys or whole sections of the config.
    """
    tree, source = _tree(config)
    if command == "capacity":
        tree.pop("load", None)
    rows = options.rows_of(command)
    chosen = {name for name in settings if name in rows and rows[name].key and not _is_section(name, settings[name])}
    keywords = {name: value_of(command, name, settings[name]) for name in chosen if settings[name] is not None}
    sections = {name: value for name, value in settings.items() if name not in chosen}
    for each in (overrides, sections, more):
        for key, value in (each or {}).items():
            put(tree, key, plain(value), key)
    options.put(tree, command, keywords, str)
    return from_mapping(tree, source=source, discovery=DISCOVERY), source


def _is_section(name: str, value: Any) -> bool:
    return isinstance(value, Mapping) and name in Config.__struct_fields__


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
