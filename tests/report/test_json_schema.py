"""The JSON files fit their published schemas, and the schemas describe all that is in them."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import made_campaign
import made_capacity
import msgspec
import pytest
from html_runs import plain, staged, tensors
from json_schema import SCHEMAS
from synthetic_run import closed_rows, fail, manifest, run

from inferometer.analysis.comparison import Side, compare
from inferometer.analysis.engine_results import summarise_campaign
from inferometer.analysis.repeats import list_runs, summarise_repeats
from inferometer.analysis.summary import Summary, summarise
from inferometer.analysis.sweep import Knee, Point, Sweep
from inferometer.capacity_search.result import as_json
from inferometer.conduct.saving import changed
from inferometer.records import Failure, Run
from inferometer.report import compare as compare_report
from inferometer.report.json import encode, with_words

SCHEMA_FILES = Path(__file__).parents[2] / "docs" / "reference" / "schema"
GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


def failed() -> Run:
    """A run in which every second request failed: its percentiles are infinite."""
    rows, chunks = closed_rows()
    fail(rows, slice(0, None, 2))
    return run(rows, chunks, failures=(Failure("http_500", "broken"),), config=manifest().config | {"measure": {}})


def with_more() -> Run:
    """A run with further percentiles, some of them of too few values."""
    made = plain()
    return changed(made, {"report": {"percentiles": [5, 75, 99.99]}})


def measured(made: Run) -> tuple[Run, Summary]:
    return made, summarise(made)


def outputs(name: str) -> Iterator[Any]:
    """Files of this kind, decoded."""
    match name:
        case "summary":
            for made in (plain(), staged(), tensors(), failed(), with_more()):
                yield json.loads(encode(summarise(made)))
        case "compare":
            a, b = Side("a", (measured(plain()),)), Side("b", (measured(plain()),))
            yield json.loads(compare_report.encode([compare(a, b)]))
            yield json.loads(compare_report.encode([compare(a, b), compare(a, b)]))
        case "repeats":
            yield with_words(msgspec.to_builtins(summarise_repeats([measured(plain()), measured(plain())])))
        case "runs":
            yield json.loads(encode(list_runs([measured(plain()), measured(staged()), measured(failed())])))
        case "engines":
            yield json.loads(encode(made_campaign.generators().results()))
            yield json.loads(encode(summarise_campaign(made_campaign.encoders(), {})))
        case "sweep":
            yield with_words(msgspec.to_builtins(swept()))
        case "capacity":
            for by in ("rate", "concurrency", "users"):
                found = made_capacity.text(by=by)
                yield json.loads(msgspec.json.encode(as_json(found, "holds 4.2")))
            yield json.loads(msgspec.json.encode(as_json(made_capacity.nothing(), "nothing was shown")))


def swept() -> Sweep:
    summary = summarise(plain())
    point = Point(
        run="1",
        stage=0,
        name="",
        settings={"data.input": 1024},
        by="rate",
        level=5.0,
        is_quotable=True,
        is_overloaded=False,
        counts=summary.counts,
        throughput=summary.throughput,
        metrics=summary.metrics,
    )
    knee = Knee(settings={}, by="rate", level=5.0, throughput=4.9, reason="latency grows")
    return Sweep(folder="runs/x", keys=("data.input",), points=(point,), knees=(knee,))


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMA_FILES / f"{name}.schema.json").read_bytes())
    return found


def strict(name: str) -> dict[str, Any]:
    """The schema, with unknown fields refused."""
    tree = copy.deepcopy(schema(name))
    for definition in tree["$defs"].values():
        if "properties" in definition and "additionalProperties" not in definition:
            definition["additionalProperties"] = False
    return tree


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_valid_and_has_a_version(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(name))
    assert schema(name)["properties"]["schema"]["const"] >= 1


@pytest.mark.parametrize("name", SCHEMAS)
def test_files_fit_their_schema_and_have_no_fields_that_it_does_not_describe(name: str) -> None:
    for tree in outputs(name):
        jsonschema.Draft202012Validator(schema(name)).validate(tree)
        jsonschema.Draft202012Validator(strict(name)).validate({k: v for k, v in tree.items() if k != "comparisons"})


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_summaries_of_earlier_versions_fit(path: Path) -> None:
    jsonschema.Draft202012Validator(schema("summary")).validate(json.loads(path.read_bytes()))


def test_infinite_and_missing_numbers_are_allowed() -> None:
    tree = json.loads(encode(summarise(failed())))
    assert tree["metrics"]["e2e"]["p90"] == "inf"
    assert tree["metrics"]["queue"]["p99"] is None
    jsonschema.Draft202012Validator(schema("summary")).validate(tree)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("schema",), 99),
        (("verdict",), None),
        (("counts", "ok"), "many"),
        (("metrics", "e2e", "p99"), "fast"),
        (("metrics", "e2e", "ci", "p99"), [1.0]),
        (("checks", 0, "status"), 3),
    ],
)
def test_what_is_wrong_does_not_fit(path: tuple[str | int, ...], wrong: object) -> None:
    tree = json.loads(encode(summarise(plain())))
    *parents, last = path
    node = tree
    for key in parents:
        node = node[key]
    node[last] = wrong
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema("summary")).validate(tree)


def test_fields_have_the_descriptions_of_the_structs() -> None:
    field = schema("summary")["$defs"]["Distribution"]["properties"]["percentiles"]
    assert field["description"].startswith("Further percentiles, on request")
