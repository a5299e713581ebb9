"""The kinds of values that inference-perf's keys take, and how a value from a file or a flag becomes one.

Its own rules apply: "30" and 30.0 pass for a whole number, 30.5 does not; text is never made from a number; names of choices
are case-sensitive.
"""

import difflib
import json
import math
from collections.abc import Callable
from typing import Any, Union

import msgspec

from inferometer.errors import UserError

LATER = "not in any release of inference-perf"
"""Why a key of a version after the last release is refused."""
REQUIRED: Any = msgspec.UNSET
"""The default of a key that must be given."""


class Number(msgspec.Struct, frozen=True):
    """A number within limits."""

    whole: bool = False
    above: float = -math.inf
    least: float = -math.inf
    most: float = math.inf


class Text(msgspec.Struct, frozen=True):
    """Any text."""


class Flag(msgspec.Struct, frozen=True):
    """True or false."""


class Choice(msgspec.Struct, frozen=True):
    """One of several names."""

    names: tuple[str, ...]


class Items(msgspec.Struct, frozen=True):
    """A list."""

    of: "Kind"
    least: int = 0


class Map(msgspec.Struct, frozen=True):
    """Names that the user chooses, with a value each. `of` is None if the values are free."""

    of: "Kind | None" = None


class Section(msgspec.Struct, frozen=True):
    """Keys that the schema names."""

    keys: dict[str, "Key"]
    is_strict: bool = True
    """Whether an unknown key is an error. Otherwise it is dropped with a note."""


class Either(msgspec.Struct, frozen=True):
    """A value of one of several kinds; the first that fits."""

    kinds: tuple["Kind", ...]


Kind = Union[Number, Text, Flag, Choice, Items, Map, Section, Either]  # noqa: UP007 - msgspec structs refer to it by name


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the schema."""

    kind: Kind
    default: Any = None
    """REQUIRED; a value; or a function that makes one. `{}` is a section with the defaults of its keys."""
    takes_null: bool | None = None
    """Whether null can be given. None: if it is the default."""
    runs: str = ""
    """What the key does here."""
    refused: str = ""
    """Why the key cannot be used here; empty: it can."""
    short: str = ""
    """A shorter spelling, which is also accepted."""
    is_secret: bool = False

    @property
    def is_nullable(self) -> bool:
        return self.default is None if self.takes_null is None else self.takes_null

    def default_value(self) -> Any:
        value = self.default() if callable(self.default) else self.default
        return list(value) if isinstance(value, list | tuple) else value


# --- from what is written to a value -----------------------------------------------------------------------------------


class Reader(msgspec.Struct):
    """Checks a tree of values and completes it with the defaults."""

    schema: Section
    lenient: bool = False
    """Drop unknown keys instead of raising UserError."""
    notes: list[str] = msgspec.field(default_factory=list)

    def read(self, tree: Any, path: tuple[str, ...] = (), kind: Kind | None = None) -> Any:
        """The value with all defaults. Raises UserError with the dotted key when it does not fit."""
        return self._value(tree, kind or self.schema, path)

    def _value(self, value: Any, kind: Kind, path: tuple[str, ...]) -> Any:
        if isinstance(kind, Section):
            return self._section(value, kind, path)
        if isinstance(kind, Items):
            if not isinstance(value, list):
                raise _mismatch("a list", value, path)
            if len(value) < kind.least:
                raise UserError(f"needs at least {kind.least} entry", "add one", ".".join(path))
            return [self._value(each, kind.of, (*path, str(number))) for number, each in enumerate(value)]
        if isinstance(kind, Map):
            if not isinstance(value, dict):
                raise _mismatch("a map", value, path)
            each = kind.of
            return {
                name: entry if each is None else self._value(entry, each, (*path, name))
                for name, entry in value.items()
            }
        if isinstance(kind, Either):
            return self._first_that_fits(value, kind, path)
        return _PLAIN[type(kind)](value, kind, path)

    def _first_that_fits(self, value: Any, kind: Either, path: tuple[str, ...]) -> Any:
        """A map or a list is read as the kind that is one, so that an error names the key inside it."""
        for each in kind.kinds:
            if (isinstance(value, dict) and isinstance(each, Section | Map)) or (
                isinstance(value, list) and isinstance(each, Items)
            ):
                return self._value(value, each, path)
        for each in kind.kinds:
            try:
                return self._value(value, each, path)
            except UserError:
                continue
        raise _mismatch(" or ".join(describe(each) for each in kind.kinds), value, path)

    def _section(self, value: Any, kind: Section, path: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _mismatch("a section with keys", value, path)
        given = long_names(value, kind, path)
        for name in given.keys() - kind.keys.keys():
            error = unknown_key(name, path, self.schema, kind)
            if not self.lenient and kind.is_strict:
                raise error
            self.notes.append(f"{error.key}: unknown key, dropped ({error.remedy})")
        return {
            name: self._key(given, name, key, path)
            for name, key in kind.keys.items()
            if name in given or key.refused != LATER  # a stored config can be read by the last release
        }

    def _key(self, given: dict[str, Any], name: str, key: Key, path: tuple[str, ...]) -> Any:
        at = (*path, name)
        if name not in given:
            if key.default is REQUIRED:
                raise UserError("missing", "add it: it has no default", ".".join(at))
            value = key.default_value()
            return self._value(value, key.kind, at) if value == {} and isinstance(key.kind, Section) else value
        value = given[name]
        if value is None:
            if not key.is_nullable:
                raise UserError("null is not allowed here", "give a value, or leave the key out", ".".join(at))
            return None
        return self._value(value, key.kind, at)


def long_names(value: dict[str, Any], kind: Section, path: tuple[str, ...]) -> dict[str, Any]:
    """The keys in their long spelling. Raises UserError when a key is there in both."""
    spelled = {key.short: name for name, key in kind.keys.items() if key.short}
    renamed: dict[str, Any] = {}
    for name, entry in value.items():
        long = spelled.get(name, name)
        if long in renamed:
            short = kind.keys[long].short
            raise UserError(
                f"{short} and {long} are one key, and both are given", "leave one of them out", ".".join((*path, long))
            )
        renamed[long] = entry
    return renamed


def unknown_key(name: str, path: tuple[str, ...], schema: Section, kind: Section) -> UserError:
    """The error for an unknown key, with the likely right one: in the same section, or the same name elsewhere."""
    names = [spelling for known, key in kind.keys.items() for spelling in (known, key.short) if spelling]
    near = difflib.get_close_matches(name, names, 1, 0.5)
    at = ".".join((*path, name))
    if near:
        return UserError("unknown key", f"did you mean {'.'.join((*path, near[0]))}?", at)
    elsewhere = sorted((".".join(place) for place, _ in walk(schema) if place[-1] == name), key=len)
    if elsewhere:
        return UserError("unknown key", f"did you mean {elsewhere[0]}? check the indentation", at)
    return UserError("unknown key", f"known here: {', '.join(names)}", at)


def walk(kind: Kind, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Key]]:
    """All keys below a kind, with their paths; `[]` stands for the entries of a list."""
    if isinstance(kind, Section):
        return [
            entry for name, key in kind.keys.items() for entry in [((*path, name), key), *walk(key.kind, (*path, name))]
        ]
    if isinstance(kind, Items):
        return walk(kind.of, (*path[:-1], f"{path[-1]}[]")) if path else []
    if isinstance(kind, Either):
        seen: dict[tuple[str, ...], Key] = {}
        for each in kind.kinds:
            for place, key in walk(each, path):
                seen.setdefault(place, key)
        return list(seen.items())
    return []


def describe(kind: Kind) -> str:
    """What a value of this kind is, in a few words."""
    if isinstance(kind, Number):
        return "a whole number" if kind.whole else "a number"
    if isinstance(kind, Choice):
        return " | ".join(kind.names)
    if isinstance(kind, Either):
        return " or ".join(describe(each) for each in kind.kinds)
    words = {Text: "text", Flag: "true or false", Items: "a list", Map: "a map", Section: "a section with keys"}
    return words[type(kind)]


def from_text(text: str, key: Key, path: tuple[str, ...]) -> Any:
    """The value of a flag as the file would contain it: JSON for lists, maps and kinds that may be one; plain text otherwise."""
    if key.is_nullable and text == "null" and not isinstance(key.kind, Text):
        return None
    if isinstance(key.kind, Flag):
        return text.strip().lower() in ("true", "1", "yes")
    is_nested = isinstance(key.kind, Items | Map | Section)
    if not is_nested and not (isinstance(key.kind, Either) and text.lstrip()[:1] in ("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(
            f"not JSON: {error}",
            'lists and maps are given as JSON: --load.stages \'[{"rate": 1, "duration": 5}]\'',
            ".".join(path),
        ) from None


def _mismatch(expected: str, value: Any, path: tuple[str, ...]) -> UserError:
    shown = "null" if value is None else json.dumps(value, default=str)
    hint = f'quote it: "{value}"' if expected == "text" and isinstance(value, int | float) else f"give {expected}"
    return UserError(
        f"expected {expected}, got {shown if len(shown) <= 60 else shown[:57] + '...'}",
        hint,
        ".".join(path) or "the file",
    )


def _number(value: Any, kind: Number, path: tuple[str, ...]) -> int | float:
    number: int | float
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = (
            value
            if not isinstance(value, str)
            else int(value)
            if kind.whole and value.strip().lstrip("+-").isdigit()
            else float(value)
        )
        if not math.isfinite(number) or (kind.whole and number != int(number)):
            raise ValueError
    except ValueError:
        raise _mismatch(describe(kind), value, path) from None
    number = int(number) if kind.whole else float(number)
    limits = (
        (number > kind.above, f"more than {kind.above:g}"),
        (number >= kind.least, f"at least {kind.least:g}"),
        (number <= kind.most, f"at most {kind.most:g}"),
    )
    for holds, limit in limits:
        if not holds:
            raise UserError(f"must be {limit}, got {number:g}", f"give a value of {limit}", ".".join(path))
    return number


def _text(value: Any, kind: Text, path: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise _mismatch("text", value, path)
    return value


_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _flag(value: Any, kind: Flag, path: tuple[str, ...]) -> bool:
    known = _FLAGS.get(str(value).lower()) if isinstance(value, str | bool | int) else None
    if known is None:
        raise _mismatch("true or false", value, path)
    return known


def _choice(value: Any, kind: Choice, path: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in kind.names:
        return value
    if not isinstance(value, str):
        raise _mismatch(describe(kind), value, path)
    near = difflib.get_close_matches(value.lower(), [name.lower() for name in kind.names], 1, 0.5)
    right = next((name for name in kind.names if near and name.lower() == near[0]), "")
    suggestion = f"did you mean {right}? " if right else ""
    raise UserError(f"there is no {value!r}", f"{suggestion}it takes {describe(kind)}", ".".join(path))


_PLAIN: dict[type, Callable[[Any, Any, tuple[str, ...]], Any]] = {
    Number: _number,
    Text: _text,
    Flag: _flag,
    Choice: _choice,
}
