"""JSON Schemas of the JSON files, made from the structs that define their layout (docs/reference/schema/).

A number may always be null (it is not known) or "inf" (report/json.py). Objects may get further fields within a version, so unknown ones are
allowed, and only fields that every version of the layout has are required. The comments below a struct's fields become their descriptions.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from inferometer.analysis.comparison import Comparison
from inferometer.analysis.engine_results import EngineResults
from inferometer.analysis.repeats import Repeats, RunList
from inferometer.analysis.summary import SCHEMA as SUMMARY_VERSION
from inferometer.analysis.summary import Summary
from inferometer.analysis.sweep import Sweep
from inferometer.capacity_search.result import SCHEMA as CAPACITY_VERSION
from inferometer.capacity_search.result import Capacity

Tree = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NUMBER = {
    "description": 'A number; "inf" or "-inf" if it is infinite, null if it is not known.',
    "anyOf": [{"type": "number"}, {"enum": ["inf", "-inf"]}, {"type": "null"}],
}
_REFERENCE = "#/$defs/"
_WIDTH = 120


def summary() -> Tree:
    """`summary.json` and `--json` of run and report."""
    return _document("The summary of a run", Summary, SUMMARY_VERSION)


def compare() -> Tree:
    """`--json` of compare and ab."""
    tree = _document("Runs compared with each other", Comparison, _default_version(Comparison))
    tree["properties"]["comparisons"] = {
        "description": "All comparisons, if there are several; the fields beside it are those of the first.",
        "type": "array",
        "items": {"$ref": f"{_REFERENCE}Comparison"},
    }
    return tree


def repeats() -> Tree:
    """`--json` of run --repeat, and of report for such runs."""
    return _document("The variation between repeated runs", Repeats, _default_version(Repeats))


def runs() -> Tree:
    """`--json` of report for several runs that are not repeats of each other."""
    return _document("The figures of several runs", RunList, _default_version(RunList))


def sweep() -> Tree:
    """`--json` of a sweep."""
    return _document("A sweep over loads and settings", Sweep, _default_version(Sweep))


def capacity() -> Tree:
    """`--json` of capacity, and capacity.json in its folder (capacity_search/result.py: as_json)."""
    tree = _document("The capacity of a server", Capacity, CAPACITY_VERSION)
    definitions = tree["$defs"]
    answer = definitions["Capacity"]
    for name in ("by", "bracket"):
        del answer["properties"][name]
        answer["required"].remove(name)
    interval = {"$ref": f"{_REFERENCE}Interval"}
    answer["properties"] = {
        "rate": interval | {"description": "In requests per second; likewise if another level was searched for."},
        "concurrency": interval,
        "users": interval,
        "unit": {"description": "What was searched for.", "enum": ["rate", "concurrency", "users"]},
        "basis": {"$ref": f"{_REFERENCE}Basis"},
        "confirmed": {"description": "A fresh run confirmed the lower end.", "type": "boolean"},
        "non_monotone": {"description": "A level held above one that failed.", "type": "boolean"},
        "people": {"description": "How many people the server holds.", "anyOf": [{"type": "integer"}, {"type": "null"}]},
        "words": {"description": "The answer in a sentence.", "type": "string"},
        **answer["properties"],
    }  # fmt: skip
    answer["required"] = ["rate", "unit", "basis", "confirmed", "people", "words", *answer["required"]]
    number = {"$ref": f"{_REFERENCE}Number"}
    definitions["Interval"] = {
        "title": "Interval",
        "description": "low: the highest level that holds; high: the lowest above it that fails; estimate: where the capacity probably is.",
        "type": "object",
        "properties": {"low": number, "high": number, "estimate": number},
        "required": ["low", "high", "estimate"],
    }
    end = {"enum": ["shown", "likely", "estimated"]}
    definitions["Basis"] = {
        "title": "Basis",
        "description": "What the ends of the interval are: shown by a probe with 95 % confidence, likely, or estimated: no probe showed it.",
        "type": "object",
        "properties": {"low": end, "high": end},
        "required": ["low", "high"],
    }
    del definitions["Bracket"], tree["$ref"]
    tree["properties"]["capacity"] = {"$ref": f"{_REFERENCE}Capacity"}
    tree["required"] = ["schema", "inferometer", "capacity"]
    return tree


def engines() -> Tree:
    """`--json` of engines, and of report for such a folder."""
    return _document("A comparison of engines", EngineResults, _default_version(EngineResults))


SCHEMAS: dict[str, Callable[[], Tree]] = {
    "summary": summary,
    "compare": compare,
    "capacity": capacity,
    "repeats": repeats,
    "runs": runs,
    "sweep": sweep,
    "engines": engines,
}
"""By the name of the file: NAME.schema.json."""


def encode(tree: Tree) -> str:
    """The schema as text: what fits into a line has one line."""
    return _layout(tree, 0) + "\n"


def _layout(tree: Any, indent: int) -> str:
    short = json.dumps(tree, ensure_ascii=False)
    if not isinstance(tree, dict | list) or len(short) + indent <= _WIDTH or not tree:
        return short
    margin = " " * (indent + 2)
    if isinstance(tree, list):
        lines = [margin + _layout(item, indent + 2) for item in tree]
    else:
        lines = [f"{margin}{json.dumps(name)}: {_layout(value, indent + 2)}" for name, value in tree.items()]
    first, last = "[]" if isinstance(tree, list) else "{}"
    return "\n".join([first, ",\n".join(lines), " " * indent + last])


def _document(title: str, kind: type[msgspec.Struct], version: int) -> Tree:
    (reference,), components = msgspec.json.schema_components([kind], ref_template=_REFERENCE + "{name}")
    descriptions = _descriptions(kind)
    definitions = {}
    for name, component in components.items():
        component.pop("title", None)
        for field, text in descriptions.get(name, {}).items():
            component.get("properties", {}).get(field, {})["description"] = text
        definitions[name] = {"title": name, **_adapted(component)}
    return {
        "$schema": _DIALECT,
        "title": title,
        "description": f"Version {version}. docs/reference/json.md explains the versions.",
        "type": "object",
        **reference,
        "properties": {"schema": {"const": version}},
        "$defs": {"Number": _NUMBER, **definitions},
    }


def _default_version(kind: type[msgspec.Struct]) -> int:
    version: int = next(field.default for field in msgspec.structs.fields(kind) if field.name == "schema")
    return version


def _adapted(tree: Any) -> Any:
    """The schema with numbers that may be null or "inf", and without defaults: files have all fields."""
    if isinstance(tree, list):
        return [_adapted(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.get("type") == "number":
        return {"$ref": f"{_REFERENCE}Number"} | {name: tree[name] for name in tree if name == "description"}
    choices = tree.get("anyOf")
    if choices is not None and {"type": "number"} in choices:
        others = [each for each in choices if each not in ({"type": "number"}, {"type": "null"})]
        number = {"$ref": f"{_REFERENCE}Number"}
        described = {name: tree[name] for name in tree if name == "description"}
        return described | ({"anyOf": [number, *map(_adapted, others)]} if others else number)
    return {
        name: {key: _adapted(each) for key, each in value.items()} if name == "properties" else _adapted(value)
        for name, value in tree.items()
        if name != "default"
    }


def _descriptions(kind: type[msgspec.Struct]) -> Mapping[str, Mapping[str, str]]:
    """The comments below the fields of a struct and of the structs within it, by the name of the struct and of the field in JSON."""
    found: dict[str, dict[str, str]] = {}

    def visit(info: Any) -> None:
        if isinstance(info, msgspec.inspect.StructType) and info.cls.__name__ not in found:
            comments = _comments(info.cls)
            found[info.cls.__name__] = {
                field.encode_name: comments[field.name] for field in info.fields if field.name in comments
            }
            for field in info.fields:
                visit(field.type)
        elif isinstance(info, msgspec.inspect.UnionType):
            for each in info.types:
                visit(each)
        else:
            for part in ("item_type", "key_type", "value_type", "type"):
                if hasattr(info, part):
                    visit(getattr(info, part))

    visit(msgspec.inspect.type_info(kind))
    return found


def _comments(kind: type) -> dict[str, str]:
    """The strings below the fields of a class, on one line each."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    comments = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            comments[field.target.id] = " ".join(str(after.value.value).split())
    return comments
