"""What is wrong with a tree that does not fit the schema: msgspec's message in the terms of the file, with the nearest valid key."""

import difflib
import re
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from inferometer.config.convert import convert, copied
from inferometer.config.schema import Config
from inferometer.config.secret import is_secret
from inferometer.errors import UserError

_MAX_SHOWN = 80
_AT = re.compile(r" - at `\$(.*)`$")
_BOUNDS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
_TYPES = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "object": "a section",
          "array": "a list", "null": "nothing"}  # fmt: skip


def explain(error: msgspec.ValidationError, tree: dict[str, Any]) -> UserError:
    """The user's version of a validation error of `tree`."""
    message = str(error)
    path = _path_to(message, tree)
    what = _AT.sub("", message)
    if unknown := re.search(r"unknown field `(.*)`", what):
        return _unknown_key(unknown[1], path, tree)
    if missing := re.search(r"missing required field `(.*)`", what):
        return UserError(
            "missing", "add it; `inferometer docs config` says what it takes", key=".".join([*path, missing[1]])
        )
    key = ".".join(path)
    if tag := re.search(r"Invalid (?:enum )?value '?(.*?)'?$", what):
        choices = _choices(path, tree)
        near = difflib.get_close_matches(tag[1], choices, 1, 0.5)
        suggestion = f"did you mean {near[0]}? " if near else ""
        return UserError(f"there is no {tag[1]!r}", f"{suggestion}it takes {' | '.join(choices)}", key)
    value, remedy = value_at(path, tree), ""
    if what.startswith("Expected `str") and isinstance(value, int | float):
        remedy = f'quote it: {key}: "...", or --set \'{key}="..."\''
    elif what.startswith("Expected `array") and isinstance(value, int | float):
        remedy = f"put it in brackets: {key}: [{value}], or --set '{key}=[{value}]'"
    elif what.endswith("got `array`") and isinstance(value, list) and len(value) > 1:
        remedy = "give one value; only `inferometer run` takes a list here, and measures each of its values"
    return UserError(f"{_expectation(what)}{_shown(path, tree)}", remedy, key or "the file")


def _unknown_key(name: str, path: list[str], tree: dict[str, Any]) -> UserError:
    """Suggest the nearest key: the same one in another section (`rate` is `load.rate`), or a similar one in this section, also of
    its other types: `load.rat` may be the rate of a load without a type."""
    section, key = ".".join(path), ".".join([*path, name])
    known, everywhere = _keys_at(path, tree), _keys_at(path, {})
    near = difflib.get_close_matches(name, everywhere, 1, 0.5)
    elsewhere = [f"{other}.{name}" for other in Config.__struct_encode_fields__ if name in _keys_at([other], {})]
    if elsewhere and near[:1] != [name]:
        return UserError("unknown key", f"did you mean {elsewhere[0]}?", key)
    if not near:
        return UserError("unknown key", f"known here: {', '.join(sorted(known))}", key)
    meant = ".".join([*path, near[0]])
    if near[0] in known:
        return UserError("unknown key", f"did you mean {meant}?", key)
    suggestion = "" if near[0] == name else f"did you mean {meant}? "
    types = ", ".join(everywhere[near[0]])
    return UserError("unknown key", f"{suggestion}it is a key of {section}.type: {types}", key)


def _path_to(message: str, tree: dict[str, Any]) -> list[str]:
    """The keys that lead to the error. For a free-form mapping msgspec says `[...]`: take the first entry that fails by itself."""
    found = _AT.search(message)
    path: list[str] = []
    for part in re.findall(r"[^.\[\]]+|(?<=\[)\.\.\.(?=\])", found[1] if found else ""):
        if part != "...":
            path.append(part)
        elif isinstance(entries := value_at(path, tree), dict):
            path += [key for key in entries if _fails_with(path, {key: entries[key]}, tree, message)][:1]
    return path


def _fails_with(path: list[str], entry: dict[str, Any], tree: dict[str, Any], message: str) -> bool:
    """Whether the same error occurs if the mapping at `path` has this entry only."""
    tree = copied(tree)
    *parents, last = path
    parent = value_at(parents, tree)
    parent[int(last) if isinstance(parent, list) else last] = entry
    try:
        convert(tree)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


def _expectation(what: str) -> str:
    """`must be at least 1`, `must be text`, from msgspec's wording."""
    if bound := re.match(r"Expected `(\w+)` (>=|>|<=|<) ([\d.]+)", what):
        return f"must be {_BOUNDS[bound[2]]} {float(bound[3]):g}"
    if length := re.match(r"Expected `array` of length (>=|>|<=|<) (\d+)", what):
        return f"must have {_BOUNDS[length[1]]} {length[2]} {'entry' if length[2] == '1' else 'entries'}"
    if kinds := re.match(r"Expected `(.*)`, got `(.*)`", what):
        names = [kind.strip() for kind in kinds[1].split("|")]
        return "must be " + " or ".join(_TYPES.get(name, name) for name in names if name != "null")
    return re.sub(r", got .*", "", what)


def _shown(path: list[str], tree: Any) -> str:
    """The value, unless it may be a secret."""
    if any(name in ("headers", "body") or is_secret(name) for name in path):
        return ""
    text = repr(value_at(path, tree))
    return f", got {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'}"


def value_at(path: list[str], tree: Any) -> Any:
    """The value at `path`; None if there is none."""
    for name in path:
        try:
            tree = tree[int(name)] if isinstance(tree, list) else tree[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return tree


# --- what the schema has at a path -----------------------------------------------------------------------------------


def _keys_at(path: list[str], tree: dict[str, Any]) -> dict[str, list[str]]:
    """The keys of a section, each with the types that have it; without a `type` in the tree, those of all its types."""
    keys: dict[str, list[str]] = {}
    for kind in _structs_at(path, tree):
        for field in msgspec.structs.fields(kind):
            keys.setdefault(field.encode_name, []).append(str(kind.__struct_config__.tag))
    return keys


def _choices(path: list[str], tree: dict[str, Any]) -> list[str]:
    """The values of the literal or type at `path`."""
    if path[-1] == "type":
        return sorted({kind.__struct_config__.tag for kind in _structs_at(path[:-1], {})})
    for kind in _structs_at(path[:-1], tree):
        hint = get_type_hints(kind).get(path[-1])
        literals = [arg for part in (get_args(hint) or ()) for arg in get_args(part)] or list(get_args(hint))
        if literals:
            return [str(value) for value in literals] + ([_TYPES["int"]] if int in get_args(hint) else [])
    return []


def types_at(path: list[str], tree: dict[str, Any]) -> list[Any]:
    """The types of the key at `path`, one for each section class that has it; empty if it is unknown, or a key of the user's own."""
    return [hint for kind in _structs_at(path[:-1], tree) if (hint := get_type_hints(kind).get(path[-1])) is not None]


def _structs_at(path: list[str], tree: Any) -> list[Any]:
    """The section classes that are valid at `path`; the tree's own `type` keys choose among variants."""
    kinds: list[Any] = [Config]
    is_mapping = False
    for name in path:
        if name.isdecimal():
            tree = tree[int(name)] if isinstance(tree, list) and int(name) < len(tree) else None
        else:
            tree = tree.get(name) if isinstance(tree, dict) else None
            if is_mapping:  # the name is a key of the user's own
                is_mapping = False
                continue
            hints = [hint for kind in kinds if (hint := get_type_hints(kind).get(name))]
            kinds = [s for hint in hints for s in _structs_in(hint)]
            is_mapping = any(dict in (get_origin(part) for part in (hint, *get_args(hint))) for hint in hints)
        tag = tree.get("type") if isinstance(tree, dict) else None
        chosen = [kind for kind in kinds if tag is not None and kind.__struct_config__.tag == tag]
        kinds = chosen or kinds
    return kinds


def _structs_in(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, UnionType, Annotated, list, dict):
        return [s for part in get_args(hint) for s in _structs_in(part)]
    return [hint] if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else []
