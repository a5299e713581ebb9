"""Generates docs/reference/config.md and docs/reference/engines.md from the schemas, so that they document what the code accepts."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from inferometer.config.engines import Campaign
from inferometer.config.fields import RampUp, Seconds, Window
from inferometer.config.lengths import Length
from inferometer.config.schema import Config

INTRO = """# The configuration file

<!-- Written by `make docs` from src/inferometer/config/schema.py. Do not edit by hand. -->

`inferometer run bench.yaml` reads this file. Every key can also be set on the command line: `--set load.rate=50`,
`--set server.tls.verify=false`, `--set load.stages.0.rate=50`. Durations have units (`250ms`, `10s`, `1m30s`; a number without
a unit is seconds). An unknown key is an error that suggests the nearest valid one.

```yaml
server: {url: "http://127.0.0.1:8000", model: sim, api: completions, stream: true}
data:   {type: synthetic, input: 64, output: 100}
load:   {type: poisson, rate: 500, duration: 10s}
```
"""


ENGINES_INTRO = """# The file of a comparison of engines

<!-- Written by `make docs` from src/inferometer/config/engines.py. Do not edit by hand. -->

`inferometer engines engines.yaml` reads this file; `--set repeat=3` sets any of its keys. [Choosing an engine](../how-to/choose-an-engine.md)
explains how to use it.

"""


def engines_markdown() -> str:
    """The reference of the file of `inferometer engines`."""
    return ENGINES_INTRO + "\n".join(_section("", Campaign, 2))


def markdown() -> str:
    """The reference of the configuration file."""
    return INTRO + "".join(f"\n{part}" for part in (*_section("", Config, 2), *_lengths())) + "\n"


def _section(path: str, kind: type[msgspec.Struct], level: int) -> Iterator[str]:
    hints = get_type_hints(kind, include_extras=True)
    deeper = []
    rows = []
    for field in msgspec.structs.fields(kind):
        bare, notes = _unwrapped(hints[field.name])
        name = f"{path}.{field.name}" if path else field.name
        variants = _variants(bare)
        if variants == _LENGTHS:
            rows.append(
                f"| `{name}` | a whole number, or a [distribution](#lengths) | {_default(field)} | {_description(notes)} |"
            )
        elif variants:
            deeper.append((name, notes, variants))
        else:
            rows.append(f"| `{name}` | {_type_text(bare, notes)} | {_default(field)} | {_description(notes)} |")
            rows += _entry_rows(name, bare)
    if rows:
        yield "| key | value | default | description |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    for name, notes, variants in deeper:
        yield f"{'#' * level} `{name}`\n\n{_description(notes)}\n"
        for variant in variants:
            tag = variant.__struct_config__.tag
            if tag:
                yield f"{'#' * (level + 1)} `{name}: {{type: {tag}}}`\n\n{variant.__doc__}\n"
            yield from _section(name, variant, level + 1 + bool(tag)) if tag != "stages" else _stages(name, variant)


def _entry_rows(name: str, hint: Any) -> Iterator[str]:
    """The keys of each entry of a list of sections, of which N is the number."""
    entries = _variants(get_args(hint)[0]) if get_origin(hint) is list else []
    for kind in entries:
        hints = get_type_hints(kind, include_extras=True)
        for field in msgspec.structs.fields(kind):
            bare, notes = _unwrapped(hints[field.name])
            value = f"a `{field.name}` section" if _variants(bare) else _type_text(bare, notes)
            yield f"| `{name}.N.{field.name}` | {value} | {_default(field)} | {_description(notes)} |"


def _stages(name: str, kind: type[msgspec.Struct]) -> Iterator[str]:
    """The section for several loads; the loads themselves are described in the sections before it."""
    rows = []
    for field in msgspec.structs.fields(kind):
        bare, notes = _unwrapped(get_type_hints(kind, include_extras=True)[field.name])
        value = "a list of loads" if field.name == "stages" else _type_text(bare, notes)
        rows.append(f"| `{name}.{field.name}` | {value} | {_default(field)} | {_description(notes)} |")
    yield "| key | value | default | description |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _lengths() -> Iterator[str]:
    """The distributions of lengths, once for all keys that take one."""
    yield "## Lengths\n\nA length is a number of tokens (or of turns): a whole number, or one of these distributions.\n"
    for variant in _LENGTHS:
        yield f"### `{{type: {variant.__struct_config__.tag}}}`\n\n{variant.__doc__}\n"
        yield from _section("", variant, 4)


def _unwrapped(hint: Any) -> tuple[Any, list[msgspec.Meta]]:
    notes: list[msgspec.Meta] = []
    while get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        notes += [note for note in more if isinstance(note, msgspec.Meta)]
    return hint, notes


def _variants(hint: Any) -> list[type[msgspec.Struct]]:
    hint, _ = _unwrapped(hint)
    if get_origin(hint) in (Union, UnionType):
        return [variant for part in get_args(hint) for variant in _variants(part)]
    return [hint] if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else []


_LENGTHS = _variants(Length)

_NAMES: dict[Any, str] = {
    Seconds: "a duration",
    RampUp: "a duration or `auto`",
    Window: "`0`, a number of requests, a duration or `auto`",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "`true` or `false`",
}


def _type_text(hint: Any, notes: list[msgspec.Meta]) -> str:
    hint, more = _unwrapped(hint)
    origin = get_origin(hint)
    if hint in _NAMES:
        words = _NAMES[hint]
    elif origin is Literal:
        words = " \\| ".join(f"`{value}`" for value in get_args(hint))
    elif origin in (Union, UnionType):
        words = " or ".join(_type_text(part, []) for part in get_args(hint) if part is not type(None))
    elif origin is list:
        words = f"a list, each {_type_text(get_args(hint)[0], [])}"
    elif origin is tuple:
        words = "a pair"
    else:
        words = "a mapping"
    bounds = [
        f"{sign} {bound:g}"
        for note in [*more, *notes]
        for sign, bound in ((">", note.gt), ("≥", note.ge), ("<", note.lt), ("≤", note.le))
        if bound is not None
    ]
    return ", ".join([words, *bounds])


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
        if value is None:
            return ""
        return (
            f"`{value:g}s`"
            if isinstance(value, Seconds)
            else f"`{str(value).lower() if isinstance(value, bool) else value}`"
        )
    return "required" if field.default_factory is msgspec.NODEFAULT else ""


def _description(notes: list[msgspec.Meta]) -> str:
    return " ".join(note.description for note in notes if note.description).replace("|", "\\|")
