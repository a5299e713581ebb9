"""Grids: a list of values at a key that takes one value makes a run for each of them, and several such lists one for each combination.

    data: {input: [1024, 8192], output: 64}
    load: {rate: [5, 10, 20], duration: 30s}

makes two runs, each with three stages: levels of load are stages of a run (ranges.py). Which keys take a list anyway, such as
`server.url`, is what the schema says; the section `sweep` has lists for those, and may have them for any key.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from inferometer.config.convert import copied
from inferometer.config.explain import types_at
from inferometer.config.load import Discovery, from_mapping, overridden, put
from inferometer.config.loads import Constant, Gamma, Poisson, StageSpec, stages_of
from inferometer.config.ranges import Adaptive, level_key, level_name, take_adaptive
from inferometer.config.schema import Config
from inferometer.config.secret import is_secret, without_password
from inferometer.errors import UserError, named

MAX_RUNS = 200
_SWEEP = "sweep"
_SHARED = ("output", "report")
"""Keys and sections that are the same for all runs of a sweep."""


class Cell(msgspec.Struct, frozen=True):
    """One combination of settings."""

    settings: dict[str, Any]
    """The values of the grid's keys, without passwords in URLs."""
    config: Config
    """With an adaptive range: at its first level."""


class Grid(msgspec.Struct, frozen=True):
    """The runs that a config describes: one per cell; with an adaptive range, several."""

    keys: tuple[str, ...]
    cells: tuple[Cell, ...]
    adaptive: Adaptive | None = None

    @property
    def is_sweep(self) -> bool:
        """Whether there is more than one run."""
        return bool(self.keys) or self.adaptive is not None


def grid_from_mapping(
    tree: dict[str, Any],
    overrides: Iterable[str] = (),
    source: str = "config",
    discovery: Discovery | None = None,
) -> Grid:
    """Like `from_mapping`, for a tree that may have lists: the product of all lists, in the order of the file."""
    with named(source=source, fallback="see `inferometer docs config`"):
        tree = overridden(tree, overrides)
        explicit = _explicit(tree)
        axes = {key: values for key, values in _lists(tree, [], tree) if key not in explicit} | explicit
        for key, choices in axes.items():
            _check_axis(key, choices)
        runs = math.prod(map(len, axes.values()))
        if runs > MAX_RUNS:
            sizes = " x ".join(f"{len(values):,} of {key}" for key, values in axes.items())
            raise UserError(
                f"the grid has {runs:,} runs ({sizes}), more than {MAX_RUNS}", "use fewer values, or several sweeps"
            )
        adaptive = take_adaptive(tree)
    cached = Discovery(*map(functools.cache, discovery)) if discovery is not None else None
    cells = []
    for values in itertools.product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        config = _cell(tree, settings, source, cached)
        cells.append(Cell({key: _shown(value) for key, value in settings.items()}, config))
    return Grid(tuple(axes), tuple(cells), adaptive)


def _cell(tree: dict[str, Any], settings: dict[str, Any], source: str, discovery: Discovery | None) -> Config:
    tree = copied(tree)
    for key, value in settings.items():
        put(tree, key, copied(value), source)
    return from_mapping(tree, (), source, discovery)


def at_level(config: Config, adaptive: Adaptive, level: float) -> Config:
    """The config with one level of its adaptive range."""
    load: Any = config.load
    name = f"{load.name} {level_name(adaptive.by, level)}" if load.name else level_name(adaptive.by, level)
    return msgspec.structs.replace(config, load=msgspec.structs.replace(load, name=name, **{adaptive.by: level}))


def projected_seconds(config: Config) -> float | None:
    """How long the load of a config takes at most, without the wait for the last responses; None if only a number of requests ends it."""
    found = [_projected(stage) for stage in stages_of(config.load)]
    return None if None in found else math.fsum(each for each in found if each is not None)


def _projected(stage: StageSpec) -> float | None:
    if stage.duration:
        return float(stage.duration)
    if isinstance(stage, Constant | Poisson | Gamma) and not isinstance(stage.rate, str):
        return stage.requests / stage.rate
    return None


# --- which lists are axes --------------------------------------------------------------------------------------------


def override_sweep(tree: dict[str, Any], keys: Iterable[str]) -> None:
    """Take keys out of the section `sweep`, in place: those that the command line sets to one value."""
    given = tree.get(_SWEEP)
    if isinstance(given, dict):
        set_elsewhere = set(keys)
        tree[_SWEEP] = {key: values for key, values in _by_key(given) if key not in set_elsewhere}


def _by_key(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The entries of the section `sweep` by dotted key; `{data: {input: [...]}}` is the same as `{data.input: [...]}`."""
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from _by_key(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _explicit(tree: dict[str, Any]) -> dict[str, list[Any]]:
    """Take the section `sweep` out of the tree. Levels of the load go to the load."""
    given = tree.pop(_SWEEP, None)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise UserError("must be a mapping of keys to lists", "write {data.input: [1024, 8192]}", _SWEEP)
    axes = {}
    for key, values in _by_key(given):
        _check_public(key, values)
        if not isinstance(values, list) or not values:
            raise UserError(f"must be a list of values, got {values!r}", f"write {{{key}: [...]}}", f"{_SWEEP}.{key}")
        section, _, name = key.rpartition(".")
        if section == "load" and name in ("rate", "concurrency"):
            put(tree, key, values, _SWEEP)
        else:
            axes[key] = values
    return axes


def _check_axis(key: str, values: Any) -> None:
    if key.partition(".")[0] in _SHARED:
        raise UserError("all runs of a sweep share this setting", "give it one value", key)
    _check_public(key, values)


def _check_public(key: str, values: Any) -> None:
    """Raise UserError for a key with secret values, also within sections: the values of a grid are stored and shown."""
    if any(name == "headers" or is_secret(name) for name in key.split(".")):
        raise UserError(
            "secrets cannot be swept: the values of a sweep are stored", "measure them in separate runs", key
        )
    if isinstance(values, dict):
        for name, value in values.items():
            _check_public(f"{key}.{name}", value)
    elif isinstance(values, list):
        for value in values:
            _check_public(key, value)


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return without_password(value) if isinstance(value, str) and "://" in value else value


def _lists(node: Any, path: list[str], tree: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Each key that takes no list but has one, and its values, in the order of the tree."""
    if isinstance(node, list):
        for number, entry in enumerate(node):
            yield from _lists(entry, [*path, str(number)], tree)
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        key = [*path, name]
        if not isinstance(value, list):
            yield from _lists(value, key, tree)
        elif path[:1] == ["load"] and name == level_key(node):
            continue  # levels: the stages of a run
        elif any(map(_takes_list, types := types_at(key, tree))) or not types:
            yield from _lists(value, key, tree)
        elif not value:
            raise UserError("the list is empty", "give a value, or several for a sweep", ".".join(key))
        else:
            yield ".".join(key), value


def _takes_list(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType, Annotated):
        return any(map(_takes_list, get_args(kind)))
    return kind is Any or get_origin(kind) in (list, tuple)
