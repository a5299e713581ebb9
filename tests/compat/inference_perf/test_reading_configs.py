"""inference-perf's config files are read as it reads them: keys, spellings, overrides, and errors that name the key."""

import json
from pathlib import Path
from typing import Any

import inference_perf_keys as key_table
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from shared_data import SHARED, needs_shared

from inferometer.compat.inference_perf import reading, translating
from inferometer.compat.inference_perf.kinds import (
    REQUIRED,
    Choice,
    Either,
    Flag,
    Items,
    Key,
    Kind,
    Map,
    Number,
    Section,
    Text,
)  # fmt: skip
from inferometer.compat.inference_perf.schema import SCHEMA
from inferometer.compat.inference_perf.spec import Spec
from inferometer.errors import UserError

OWN = sorted((Path(__file__).parent / "configs").glob("*.yml"))
MINIMAL = {"server": {"base_url": "http://127.0.0.1:8000"}, "load": {"stages": [{"rate": 1, "duration": 2}]}}


def read(tmp_path: Path, tree: dict[str, Any], lenient: bool = False, **options: str) -> Spec:
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump(tree))
    return reading.read(path, {key.replace("__", "."): text for key, text in options.items()}, lenient)[0]


def refused(tmp_path: Path, tree: dict[str, Any], **options: str) -> UserError:
    with pytest.raises(UserError) as caught:
        read(tmp_path, tree, **options)
    return caught.value


@needs_shared
def test_every_example_config_of_inference_perf_loads() -> None:
    files = sorted((SHARED / "inference-perf-configs").glob("*.y*ml"))
    assert len(files) == 24
    for path in files:
        spec, notes = reading.read(path, {}, False)
        assert spec["server"]["base_url"] and not notes, path.name


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_config_of_our_own_loads(path: Path) -> None:
    spec, _ = reading.read(path, {})
    assert spec["server"]["base_url"]


def test_configs_and_refused_keys_cover_the_schema() -> None:
    trees = [yaml.safe_load(path.read_text()) for path in OWN]
    seen = {path for tree in trees for path in _paths(tree, ())}
    spelled = {short: name for name, short in ((path[-1], key.short) for path, key in key_table.all_keys()) if short}
    seen = {tuple(spelled.get(part, part) for part in path) for path in seen}
    in_distributions = {
        path[-1] for path in seen if path[-2:-1] and path[-2].endswith(("distribution", "_sec", "_turn"))
    }
    for path, key in key_table.all_keys():
        is_used = path[-1] in in_distributions if path[0] == "DISTRIBUTION" else path in seen
        is_stage = path[:2] == ("load", "stages[]")
        assert is_used or key.refused or (is_stage and "error" in key.runs), path


def _paths(tree: Any, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    if isinstance(tree, dict):
        return [entry for name, value in tree.items() for entry in [(*path, name), *_paths(value, (*path, name))]]
    if isinstance(tree, list):
        return [entry for value in tree for entry in _paths(value, (*path[:-1], f"{path[-1]}[]"))]
    return []


def _sample(kind: Kind) -> Any:
    """A value that fits the kind."""
    if isinstance(kind, Section):
        return {name: _sample(key.kind) for name, key in kind.keys.items() if key.default is REQUIRED}
    if isinstance(kind, Items):
        return [_sample(kind.of)]
    if isinstance(kind, Either):
        return _sample(kind.kinds[0])
    return {
        Number: 1,
        Text: "text",
        Flag: True,
        Map: {"a": 1 if isinstance(kind, Map) and isinstance(kind.of, Number) else "b"},
    }.get(type(kind), kind.names[-1] if isinstance(kind, Choice) else None)


def _other(key: Key) -> Any:
    """A value that is not the default."""
    value = _sample(key.kind)
    if value == key.default_value():
        value = 2 if value == 1 else not value
    return value


OUTERMOST = [
    (path, key)
    for path, key in key_table.all_keys()
    if key.refused and not any("[]" in part for part in path) and path[0] != "DISTRIBUTION"
    if not any(outer.refused for place, outer in key_table.all_keys() if place == path[:-1])
]


@pytest.mark.parametrize(("path", "key"), OUTERMOST, ids=[".".join(path) for path, _ in OUTERMOST])
def test_refused_key_is_an_error_that_names_it(tmp_path: Path, path: tuple[str, ...], key: Key) -> None:
    tree: dict[str, Any] = json.loads(json.dumps(MINIMAL))
    if path[:2] == ("data", "shared_prefix"):
        tree["data"] = {"type": "shared_prefix"}
    node = tree
    for name in path[:-1]:
        node = node.setdefault(name, {})
    node[path[-1]] = _other(key)
    if path[:2] == ("metrics", "prometheus") and path[-1] != "google_managed":
        node["url"] = "http://127.0.0.1:9090"
    spec = read(tmp_path, tree)
    with pytest.raises(UserError) as caught:
        translating.translate(spec)
    assert caught.value.key == ".".join(path)
    assert key.refused in caught.value.what


def test_unknown_key_names_the_likely_one(tmp_path: Path) -> None:
    error = refused(tmp_path, MINIMAL | {"data": {"type": "random", "input_distribution": {"std": 3}}})
    assert (error.key, error.what) == ("data.input_distribution.std", "unknown key")
    assert "data.input_distribution.std_dev" in error.remedy
    error = refused(tmp_path, MINIMAL | {"tokenizer": {"data": {}}})
    assert error.key == "tokenizer.data" and "data" in error.remedy
    error = refused(tmp_path, MINIMAL | {"multimodal": {}})
    assert "data.multimodal? check the indentation" in error.remedy


def test_lenient_drops_unknown_keys_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump(MINIMAL | {"data": {"type": "random", "input_distribution": {"std": 3}}}))
    spec, notes = reading.read(path, {}, lenient=True)
    assert spec["data"]["input_distribution"]["std_dev"] == 200
    assert len(notes) == 1 and "data.input_distribution.std: unknown key, dropped" in notes[0]


def test_unknown_keys_of_breakers_are_dropped_as_upstream_does(tmp_path: Path) -> None:
    breaker = {"name": "a", "metrics": {"matches": ["error"]}, "triggers": [], "note": "x"}
    spec = read(tmp_path, MINIMAL | {"circuit_breakers": [breaker]})
    assert "note" not in spec["circuit_breakers"][0]


@pytest.mark.parametrize(("value", "number"), [("30", 30), (30.0, 30), (30, 30)])
def test_whole_numbers_may_be_text_or_decimal(tmp_path: Path, value: object, number: int) -> None:
    spec = read(tmp_path, MINIMAL | {"load": {"stages": [{"rate": 1, "duration": value}]}})
    assert spec["load"]["stages"][0]["duration"] == number


@pytest.mark.parametrize(
    ("tree", "key", "word"),
    [
        ({"load": {"stages": [{"rate": 1, "duration": 30.5}]}}, "load.stages.0.duration", "whole number"),
        ({"load": {"stages": [{"rate": 0, "duration": 3}]}}, "load.stages.0.rate", "number"),
        ({"load": {"stages": None}}, "load.stages", "null"),
        ({"api": None}, "api", "null"),
        ({"data": {"type": "sharegpt"}}, "data.type", "sharegpt"),
        ({"server": {"model_name": "x"}}, "server.base_url", "missing"),
        ({"server": {"base_url": "x", "model_name": 3}}, "server.model_name", "text"),
        ({"load": {"stages": [{"rate": 1, "duration": 3, "num_requests": 5}]}}, "load.stages.0.num_requests", "constant"),
        ({"load": {"type": "concurrent", "stages": [{"rate": 1}]}}, "load.stages.0.num_requests", "missing"),
        ({"load": {"type": "concurrent", "sweep": {"type": "linear"}}}, "load.sweep", "concurrent"),
        ({"load": {"lora_traffic_split": [{"name": "a", "split": 0.9}]}}, "load.lora_traffic_split", "1.0"),
        ({"data": {"type": "mock", "input_distribution": {}}}, "data.input_distribution", "mock"),
        ({"data": {"type": "random", "shared_prefix": {}}}, "data.shared_prefix", "random"),
        ({"data": {"type": "random", "input_distribution": {"min": 9, "max": 3}}}, "data.input_distribution", "min"),
        ({"data": {"type": "random", "input_distribution": {"variance": 9}}}, "data.input_distribution.variance", "std_dev"),
        ({"data": {"type": "shared_prefix", "shared_prefix": {"question_len": {}, "question_distribution": {}}}}, "data.shared_prefix.question_distribution", "already"),
        ({"metrics": {"type": "prometheus", "prometheus": {}}}, "metrics.prometheus", "url"),
        ({"server": {"base_url": "x", "cert_path": "a"}}, "server.cert_path", "key_path"),
        ({"server": {"base_url": "x", "api_key": "[REDACTED]"}}, "server.api_key", "[REDACTED]"),
        ({"api": {"headers": {"authorization": "[REDACTED]"}}}, "api.headers", "[REDACTED]"),
    ],
)  # fmt: skip
def test_bad_value_is_an_error_with_its_key(tmp_path: Path, tree: dict[str, Any], key: str, word: str) -> None:
    error = refused(tmp_path, MINIMAL | tree)
    assert error.key == key
    assert word in f"{error.what} {error.remedy}"
    assert error.remedy and error.source.endswith("config.yml")


@pytest.mark.parametrize("section", ["storage", "server", "metrics", "tokenizer", "circuit_breakers"])
def test_some_sections_may_be_null(tmp_path: Path, section: str) -> None:
    assert read(tmp_path, MINIMAL | {section: None})[section] is None


def test_short_and_long_names_are_one_key(tmp_path: Path) -> None:
    prefixes = {"type": "shared_prefix", "shared_prefix": {"num_groups": 3}}
    assert read(tmp_path, MINIMAL | {"data": prefixes})["data"]["shared_prefix"]["num_unique_system_prompts"] == 3
    both = {"type": "shared_prefix", "shared_prefix": {"num_groups": 3, "num_unique_system_prompts": 3}}
    assert "num_groups" in refused(tmp_path, MINIMAL | {"data": both}).what
    over = read(tmp_path, MINIMAL | {"data": prefixes}, data__shared_prefix__num_unique_system_prompts="5")
    assert over["data"]["shared_prefix"]["num_unique_system_prompts"] == 5


def test_values_are_rewritten_as_upstream_does(tmp_path: Path) -> None:
    load = {"type": "concurrent", "stages": [{"num_requests": 40, "concurrency_level": 4}]}
    lengths = {"type": "random", "input_distribution": {"total_count": 3}, "output_distribution": {}}
    spec = read(
        tmp_path,
        MINIMAL | {"load": load, "data": lengths, "storage": {"local_storage": {"path": "r-{timestamp}"}}}
        | {"metrics": {"type": "prometheus", "prometheus": {"url": "http://x"}}, "report": {"prometheus": {"per_stage": True}}},
    )  # fmt: skip
    stage = {"num_requests": 40, "concurrency_level": 4, "rate": 40.0, "duration": 1}
    assert spec["load"]["stages"] == [stage]
    assert (spec["load"]["worker_max_concurrency"], spec["load"]["interval"]) == (0, 15.0)
    assert spec["data"]["input_distribution"]["total_count"] == 41
    assert "{" not in spec["storage"]["local_storage"]["path"]
    assert read(tmp_path, MINIMAL)["storage"]["local_storage"]["path"].startswith("reports-20")


def test_options_override_the_file_deeply(tmp_path: Path) -> None:
    spec = read(
        tmp_path,
        MINIMAL | {"api": {"headers": {"a": "1"}}, "data": {"type": "shared_prefix"}},
        load__stages='[{"rate": 5, "duration": 1}, {"rate": 6, "duration": 1}]',
        server__base_url="http://other",
        api__streaming="YES",
        api__headers='{"b": "2"}',
        report__request_lifecycle__per_stage="nope",
        data__shared_prefix__question_len="33",
        load__request_timeout="null",
    )
    assert [stage["rate"] for stage in spec["load"]["stages"]] == [5.0, 6.0]
    assert (spec["server"]["base_url"], spec["api"]["streaming"]) == ("http://other", True)
    assert spec["api"]["headers"] == {"a": "1", "b": "2"}
    assert spec["report"]["request_lifecycle"]["per_stage"] is False
    assert spec["data"]["shared_prefix"]["question_len"] == 33


@pytest.mark.parametrize(
    ("option", "text", "word"),
    [
        ("server.base_urk", "x", "server.base_url"),
        ("load.stages", "[{rate", "JSON"),
        ("load.interval", "soon", "a number"),
        ("load.interval.x", "1", "value of its own"),
        ("load.type", "Constant", "constant"),
    ],
)
def test_bad_option_is_an_error_of_the_option(tmp_path: Path, option: str, text: str, word: str) -> None:
    with pytest.raises(reading.OptionError) as caught:
        reading.read(None, {option: text})
    assert f"--{option}" in caught.value.line and word in str(caught.value)


LEAVES = [(path, key) for path, key in key_table.all_keys() if isinstance(key.kind, Number | Flag | Items) and "[]" not in "".join(path)
          and path[0] != "DISTRIBUTION"]  # fmt: skip


@given(st.sampled_from(LEAVES), st.text(max_size=12) | st.integers().map(str) | st.floats().map(str))
def test_any_text_of_an_option_is_read_or_refused(leaf: tuple[tuple[str, ...], Key], text: str) -> None:
    try:
        spec, _ = reading.read(None, {".".join(leaf[0]): text})
    except UserError as error:
        assert error.remedy
    else:
        assert set(spec) >= {"api", "data", "load", "report"}


def test_schema_says_what_each_key_does() -> None:
    assert all(bool(key.runs) != bool(key.refused) for _, key in key_table.all_keys())
    assert {"api", "data", "load", "metrics", "report", "storage", "server", "tokenizer", "circuit_breakers"} <= set(
        SCHEMA.keys
    )
