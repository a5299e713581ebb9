"""Traffic classes: their shares, their data, and that neither depends on who builds which ids."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import workload
from inferometer.config.data import Conversation, Data, Mix, Synthetic, TrafficClass
from inferometer.errors import UserError
from inferometer.types import Request
from inferometer.workload import mix

PROMPTS = {"type": "prompts", "prompts": ["one", "two", "three"], "output": 5}
TEXT = {"type": "synthetic", "input": 8, "output": 4, "salt": "none"}


def mixed(*classes: dict[str, Any]) -> Mix:
    tree = {"type": "mix", "classes": [{"name": f"c{n}", "data": TEXT} | each for n, each in enumerate(classes)]}
    made = msgspec.convert(tree, Data)  # type: ignore[arg-type]
    assert isinstance(made, Mix)
    return made


WEIGHTS = st.lists(
    st.one_of(st.integers(1, 1000).map(float), st.floats(0.001, 1000, allow_nan=False)), min_size=1, max_size=5
)


@given(WEIGHTS, st.integers(0, 10), st.integers(0, 1 << 40))
@settings(deadline=None, max_examples=60)
def test_shares_are_exact_wherever_a_run_starts(weights: list[float], seed: int, start: int) -> None:
    spec = mixed(*({"weight": weight} for weight in weights))
    start -= start % mix.BLOCK
    count = 40 * mix.BLOCK
    classes, _ = mix.assign(spec, seed, range(start, start + count))
    for index, weight in enumerate(weights):
        expected = count * weight / sum(weights)
        assert abs((classes == index).sum() - expected) <= 2 * len(weights)


@given(WEIGHTS, st.integers(0, 10))
@settings(deadline=None, max_examples=30)
def test_a_request_has_the_rank_that_it_has_in_its_class(weights: list[float], seed: int) -> None:
    classes, ranks = mix.assign(mixed(*({"weight": weight} for weight in weights)), seed, range(500))
    seen: Counter[int] = Counter()
    for class_, rank in zip(classes.tolist(), ranks.tolist(), strict=True):
        assert rank == seen[class_]
        seen[class_] += 1


@given(st.integers(1, 5), st.integers(0, 3))
@settings(deadline=None, max_examples=20)
def test_requests_do_not_depend_on_the_number_of_shards(shards: int, seed: int) -> None:
    spec = mixed({"weight": 3.0}, {"data": PROMPTS, "model": "lora", "body": {"priority": 1}})
    whole = workload.build(spec, seed, range(200))
    by_id = {
        request.id: request for k in range(shards) for request in workload.build(spec, seed, range(k, 200, shards))
    }
    assert [by_id[id] for id in range(200)] == whole
    assert [request.id for request in whole] == list(range(200))


def test_a_class_uses_the_rows_of_its_file_in_order(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(f'{{"prompt": "row {n}"}}\n' for n in range(40)))
    spec = mixed({"data": {"type": "jsonl", "path": str(path)}}, {"weight": 2.0})
    own = [request.payload for request in workload.build(spec, 0, range(3 * 64)) if request.class_ == 0]
    assert own == [f"row {n % 40}" for n in range(len(own))]
    assert len(own) == 64


def test_a_class_has_its_own_model_and_body() -> None:
    spec = mixed({"model": "lora", "body": {"priority": 1}}, {})
    for request in workload.build(spec, 0, range(20)):
        own = ("lora", {"priority": 1}) if request.class_ == 0 else ("", {})
        assert (request.options.model, request.options.body) == own
    texts = {request.payload for request in workload.build(mixed({}, {}), 0, range(100))}
    assert len(texts) == 100


def test_sessions_of_a_class_keep_its_class_and_options(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_text('{"turns": ["a", "b"]}\n')
    spec = mixed({"data": {"type": "jsonl", "path": str(path)}, "model": "lora"}, {})
    assert workload.has_sessions(spec) and not workload.has_sessions(mixed({}))
    first: Request = next(each for each in workload.build(spec, 0, range(20)) if each.later)
    assert (first.class_, first.options.model) == (0, "lora")


def test_the_digest_tells_what_is_different() -> None:
    specs = (
        mixed({}, {}),
        mixed({"weight": 2.0}, {}),
        mixed({"model": "m"}, {}),
        mixed({"body": {"a": 1}}, {}),
        mixed({"data": PROMPTS}, {}),
        mixed({"name": "other"}, {}),
    )
    digests = [workload.digest(spec, 0) for spec in specs] + [workload.digest(specs[0], 1)]
    assert len(set(digests)) == len(digests)
    salted = workload.salted(mixed({"data": TEXT | {"salt": "run"}}, {}), "word")
    assert workload.digest(salted, 0) == workload.digest(specs[0], 0)


def test_an_error_in_the_data_of_a_class_names_the_class() -> None:
    spec = mixed({}, {"name": "bad", "data": {"type": "jsonl", "path": "/missing.jsonl"}})
    for look in (lambda: workload.build(spec, 0, range(64)), lambda: workload.has_sessions(spec)):
        with pytest.raises(UserError) as caught:
            look()
        assert "class bad" in caught.value.line or "data.classes.1.data" in caught.value.line


@pytest.mark.parametrize(("names", "expected"), [((None, None), None), (("a", "a"), "a"), (("a", None), None)])
def test_tokens_are_counted_by_a_tokenizer_that_all_classes_share(names: tuple[str | None, ...], expected: str) -> None:
    spec = mixed(*({"data": TEXT | {"tokenizer": name}} for name in names))
    assert workload.tokenizer_of(spec) == expected


def test_tensors_repeat() -> None:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [2]}]
    zeros = {"type": "tensors", "fill": "zeros", "inputs": inputs}
    spec = mixed({"data": zeros}, {"data": zeros | {"fill": "random"}, "weight": 0.5})
    distinct = workload.distinct(spec)
    assert distinct is not None and distinct % mix.BLOCK == 0
    assert workload.distinct(mixed({})) is None


def test_mean_turns_are_weighed_without_building_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    talks = [("long", Conversation(turns=6), 1.0), ("short", Conversation(turns=2), 2.0), ("one", Synthetic(), 1.0)]
    spec = Mix([TrafficClass(name, data, weight) for name, data, weight in talks])
    monkeypatch.setattr(workload, "build", None)
    assert workload.mean_turns(spec, 0) == (6 + 2 * 2 + 1) / 4
