"""Lists of values in the config: levels of load, grids of settings, and adaptive ranges."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.config import from_mapping
from inferometer.config.grid import Grid, at_level, grid_from_mapping, override_sweep, projected_seconds
from inferometer.config.loads import Closed, Poisson, Stages, stages_of
from inferometer.errors import UserError

SERVER = {"server": {"url": "http://127.0.0.1:8000"}}


def grid(tree: dict[str, Any], *overrides: str) -> Grid:
    return grid_from_mapping(SERVER | tree, overrides)


def error(tree: dict[str, Any], *overrides: str) -> UserError:
    with pytest.raises(UserError) as caught:
        grid(tree, *overrides)
    assert caught.value.next_step
    return caught.value


def settings(found: Grid) -> list[dict[str, Any]]:
    return [cell.settings for cell in found.cells]


# --- levels of load --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([1, 8, 64], [1, 8, 64]),
        ([64, 1], [64, 1]),
        ([3], [3]),
        ("1:64:x2", [1, 2, 4, 8, 16, 32, 64]),
        ("1:60:x2", [1, 2, 4, 8, 16, 32]),
        ("1:4:x1.2", [1, 2, 3, 4]),
    ],
)
def test_lists_and_geometric_ranges_are_stages_of_one_run(levels: Any, expected: list[int]) -> None:
    found = grid({"load": {"concurrency": levels, "requests": 1}})
    assert not found.is_sweep
    stages = stages_of(found.cells[0].config.load)
    assert [stage.concurrency for stage in stages if isinstance(stage, Closed)] == expected
    assert [stage.name for stage in stages] == [f"concurrency {level}" for level in expected]


@given(start=st.floats(0.1, 50), span=st.floats(1, 1000), factor=st.floats(1.1, 10))
def test_geometric_levels_grow_by_the_factor_up_to_the_end(start: float, span: float, factor: float) -> None:
    load = from_mapping(SERVER | {"load": {"rate": f"{start}:{start * span}:x{factor}", "requests": 1}}).load
    assert isinstance(load, Stages)
    rates = [stage.rate for stage in load.stages if isinstance(stage, Poisson) and not isinstance(stage.rate, str)]
    assert rates[0] == pytest.approx(start, abs=1e-9)
    assert all(b / a == pytest.approx(factor, rel=1e-6) for a, b in itertools.pairwise(rates))
    assert start * span / factor * (1 - 1e-6) < rates[-1] <= start * span * (1 + 1e-6)


@pytest.mark.parametrize(
    ("levels", "what"),
    [
        ([], "the list of levels is empty"),
        ([1, "a"], "levels are whole numbers of more than 0, got 'a'"),
        ([1, 0], "got 0"),
        ([1, 1.5], "got 1.5"),
        ([True], "got True"),
        (list(range(1, 1002)), "1,001 levels"),
        ("1:8:x1", "the factor must be more than 1"),
        ("1:8:x", "is not a range"),
        ("1:8:", "the step is missing"),
        ("1:adaptive", "is not a range"),
        ("1:8:2:adaptive", "an adaptive range has no step"),
        ("8:1:adaptive", "ends below its start"),
    ],
)
def test_bad_levels_are_errors_with_their_key(levels: Any, what: str) -> None:
    found = error({"load": {"concurrency": levels, "requests": 1}})
    assert found.key == "load.concurrency"
    assert what in found.line


# --- grids -----------------------------------------------------------------------------------------------------------


@given(
    inputs=st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True),
    outputs=st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True),
    levels=st.lists(st.integers(1, 99), min_size=1, max_size=4),
)
def test_grid_is_the_product_of_all_lists_in_the_order_of_the_file(
    inputs: list[int], outputs: list[int], levels: list[int]
) -> None:
    load = {"concurrency": levels, "requests": 1}
    found = grid({"data": {"input": inputs, "output": outputs}, "load": load})
    assert found.keys == ("data.input", "data.output")
    assert settings(found) == [{"data.input": a, "data.output": b} for a in inputs for b in outputs]
    for cell in found.cells:
        assert (cell.config.data.input, cell.config.data.output) == tuple(cell.settings.values())  # type: ignore[union-attr]
        assert len(stages_of(cell.config.load)) == len(levels)


def test_keys_that_take_a_list_make_no_grid() -> None:
    found = grid({"server": {"url": ["http://a", "http://b"]}, "slo": ["ttft.p99 < 1s", "e2e.p99 < 2s"]})
    assert (found.keys, len(found.cells)) == ((), 1)
    assert found.cells[0].config.server.urls == ["http://a", "http://b"]


def test_section_sweep_has_lists_for_any_key() -> None:
    found = grid(
        {
            "sweep": {"server.url": ["http://me:pw@a", "http://b"], "server.body.temperature": [0, 1]},
            "load": {"requests": 1},
        }
    )
    assert settings(found)[1] == {"server.url": "http://a", "server.body.temperature": 1}  # without the password
    assert [cell.config.server.url for cell in found.cells][::2] == ["http://me:pw@a", "http://b"]
    assert found.cells[3].config.server.body == {"temperature": 1}
    assert not any(cell.config.sweep for cell in found.cells)


def test_section_sweep_may_be_nested_like_the_config() -> None:
    found = grid({"sweep": {"data": {"input": [8, 16]}}})
    assert found.keys == ("data.input",)
    assert [cell.settings["data.input"] for cell in found.cells] == [8, 16]


def test_passwords_in_lists_of_urls_are_not_among_the_settings() -> None:
    found = grid({"sweep": {"server.url": [["http://u:hush@127.0.0.1:1"], ["http://127.0.0.1:2"]]}})
    assert [cell.settings["server.url"] for cell in found.cells] == [["http://127.0.0.1:1"], ["http://127.0.0.1:2"]]


def test_command_line_overrides_the_section_sweep() -> None:
    tree = {"sweep": {"data.input": [8, 16], "data": {"output": [1, 2]}, "seed": [0, 1]}}
    override_sweep(tree, ["data.input", "data.output"])
    assert tree == {"sweep": {"seed": [0, 1]}}


def test_levels_in_the_section_sweep_are_stages() -> None:
    found = grid({"sweep": {"load.rate": [5, 10]}, "load": {"duration": "1s"}})
    assert not found.is_sweep
    assert [stage.name for stage in stages_of(found.cells[0].config.load)] == ["5/s", "10/s"]


def test_overrides_make_grids_of_any_key() -> None:
    api = {"server": {"url": "grpc://127.0.0.1:8001", "model": "m"}}
    assert settings(grid(api, "data.batch=[1, 2]", "load.requests=3")) == [{"data.batch": 1}, {"data.batch": 2}]
    found = grid({"load": {"stages": [{"type": "closed", "requests": 1}]}}, "load.stages.0.think=[0, 1s]")
    assert found.keys == ("load.stages.0.think",)
    assert grid({}, "server.api=[chat, completions]", "load.duration=1s").keys == ("server.api",)


@pytest.mark.parametrize(
    ("tree", "key", "what"),
    [
        ({"sweep": 3}, "sweep", "must be a mapping"),
        ({"sweep": {"data.input": 3}}, "sweep.data.input", "must be a list of values, got 3"),
        ({"sweep": {"data.inpt": [1, 2]}}, "data.inpt", "unknown key"),
        ({"data": {"input": []}}, "data.input", "the list is empty"),
        ({"data": {"input": [1, "many"]}}, "data.input", "must be a whole number"),
        ({"data": {"inpt": [1, 2]}}, "data.inpt", "unknown key"),
        (
            {"seed": list(range(15)), "data": {"input": list(range(1, 15))}},
            "",
            "210 runs (15 of seed x 14 of data.input)",
        ),
        ({"sweep": {"server.headers.x": ["a", "b"]}}, "server.headers.x", "secrets cannot be swept"),
        ({"sweep": {"server.headers.x": "hush"}}, "server.headers.x", "secrets cannot be swept"),
        ({"report": {"json": ["a.json", "b.json"]}}, "report.json", "all runs of a sweep share"),
        ({"sweep": {"data": [{"a": {"password": "hush"}}]}}, "data.a.password", "secrets cannot be swept"),
    ],
)
def test_bad_grids_are_errors_with_their_key(tree: dict[str, Any], key: str, what: str) -> None:
    found = error(tree)
    assert found.key == key
    assert what in found.line
    assert "hush" not in str(found)


def test_other_commands_measure_one_setting() -> None:
    for tree, what in (
        ({"sweep": {"data.input": [1, 2]}}, "only the command `inferometer run`"),
        ({"load": {"rate": "1:8:adaptive", "duration": 1}}, "only for `inferometer run`"),
        ({"data": {"input": [1, 2]}}, "must be a whole number"),
    ):
        with pytest.raises(UserError) as caught:
            from_mapping(SERVER | tree)
        assert what in caught.value.line


# --- adaptive ranges -------------------------------------------------------------------------------------------------


def test_adaptive_range_makes_a_run_for_each_level() -> None:
    found = grid({"load": {"rate": "1:64:adaptive", "duration": "5s", "name": "chat"}, "data": {"input": [8, 16]}})
    assert found.is_sweep
    assert found.adaptive is not None
    assert (found.adaptive.by, found.adaptive.start, found.adaptive.end) == ("rate", 1.0, 64.0)
    load = at_level(found.cells[1].config, found.adaptive, 12.5).load
    assert isinstance(load, Poisson)
    assert (load.rate, load.duration, load.name) == (12.5, 5.0, "chat 12.5/s")


def test_projection_adds_up_all_levels() -> None:
    assert projected_seconds(grid({"load": {"rate": [5, 10], "duration": "5s"}}).cells[0].config) == 10
    seconds = projected_seconds(grid({"load": {"rate": [5, 10], "requests": 10}}).cells[0].config)
    assert seconds is not None
    assert math.isclose(seconds, 3)
    assert projected_seconds(grid({"load": {"concurrency": 5, "requests": 10}}).cells[0].config) is None
