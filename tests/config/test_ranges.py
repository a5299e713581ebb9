"""Ranges of load: `1:8:2` is one stage per level, in the file and on the command line."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.config import from_mapping, read_tree
from inferometer.config.loads import Closed, Constant, Poisson, Stages
from inferometer.errors import UserError

SERVER = {"server": {"url": "http://127.0.0.1:8000"}}


def stages(load: dict[str, Any], *overrides: str) -> list[Any]:
    found = from_mapping(SERVER | {"load": load}, overrides).load
    assert isinstance(found, Stages)
    return found.stages


def error(load: dict[str, Any], *overrides: str) -> UserError:
    with pytest.raises(UserError) as caught:
        from_mapping(SERVER | {"load": load}, overrides)
    assert caught.value.next_step
    return caught.value


def test_each_level_is_a_named_stage_with_the_other_keys_of_the_load() -> None:
    found = stages({"type": "closed", "concurrency": "1:8:2", "duration": "5s", "think": "1ms"})
    assert [stage.concurrency for stage in found] == [1, 3, 5, 7]
    assert [stage.name for stage in found] == ["concurrency 1", "concurrency 3", "concurrency 5", "concurrency 7"]
    assert {(type(stage), stage.duration, stage.think) for stage in found} == {(Closed, 5.0, 0.001)}


def test_the_end_of_a_range_of_rates_is_included() -> None:
    found = stages({"type": "poisson", "rate": "100:500:100", "duration": "1s"})
    assert [(type(stage), stage.rate, stage.name) for stage in found] == [
        (Poisson, rate, f"{rate}/s") for rate in (100, 200, 300, 400, 500)
    ]
    tenths = stages({"type": "constant", "rate": "0.1:0.7:0.1", "requests": 1})
    assert [stage.rate for stage in tenths] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]


@given(start=st.integers(1, 50), more=st.integers(0, 60), step=st.integers(1, 9))
def test_levels_are_those_of_pythons_range(start: int, more: int, step: int) -> None:
    found = stages({"type": "closed", "concurrency": f"{start}:{start + more}:{step}", "requests": 1})
    assert [stage.concurrency for stage in found] == list(range(start, start + more + 1, step))


def test_the_default_step_is_1() -> None:
    assert [stage.concurrency for stage in stages({"concurrency": "2:4", "requests": 1})] == [2, 3, 4]
    assert [stage.concurrency for stage in stages({"concurrency": "4:4", "requests": 1})] == [4]


def test_ranges_within_stages_keep_the_order_and_the_name() -> None:
    load = [
        {"type": "closed", "concurrency": 8, "requests": 5, "name": "first"},
        {"type": "constant", "rate": "10:20:10", "requests": 5, "name": "second"},
        {"type": "closed", "requests": 9},
    ]
    found = stages({"type": "stages", "stages": load})
    assert [type(stage) for stage in found] == [Closed, Constant, Constant, Closed]
    assert [stage.name for stage in found] == ["first", "second 10/s", "second 20/s", ""]


def test_overrides_reach_every_level(tmp_path: Path) -> None:
    found = stages({"type": "closed", "concurrency": 1, "requests": 1}, "load.concurrency=1:3", "load.requests=7")
    assert [(stage.concurrency, stage.requests) for stage in found] == [(1, 7), (2, 7), (3, 7)]


def test_an_unquoted_range_is_not_a_base_60_number(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text("server: {url: http://x}\nload: {type: closed, concurrency: 1:8:2, requests: 3}\nseed: 12\n")
    found = from_mapping(read_tree(str(path)))
    assert found.seed == 12
    assert isinstance(found.load, Stages)
    assert [stage.concurrency for stage in found.load.stages if isinstance(stage, Closed)] == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a:b", "is not a range of whole numbers"),
        ("1:", "is not a range of whole numbers"),
        (":4", "is not a range of whole numbers"),
        ("1:8:2:3", "it has 4 parts"),
        ("1.5:3", "is not a range of whole numbers"),
        ("0:4", "more than 0"),
        ("1:4:0", "more than 0"),
        ("1:4:-1", "more than 0"),
        ("8:1", "ends below its start"),
        ("1:100000", "100,000 levels"),
    ],
)
def test_a_bad_range_is_an_error_with_its_key(text: str, what: str) -> None:
    found = error({"type": "closed", "concurrency": text, "requests": 1})
    assert "load.concurrency" in found.line
    assert what in found.line


@pytest.mark.parametrize("text", ["nan:5", "1:inf", "1:5:nan", "-1:5"])
def test_rates_are_finite_and_more_than_0(text: str) -> None:
    assert "more than 0" in error({"type": "poisson", "rate": text, "requests": 1}).line


def test_other_text_is_left_to_the_schema() -> None:
    assert "whole number" in error({"type": "closed", "concurrency": "many", "requests": 1}).line
    assert "unknown key" in error({"type": "closed", "rate": "1:2", "requests": 1}).line


# --- drain ----------------------------------------------------------------------------------------------------------


def drains(load: dict[str, Any], *overrides: str) -> bool:
    found = from_mapping(SERVER | {"load": load}, overrides).load
    assert isinstance(found, Stages)
    return found.drain


RATES = {"type": "poisson", "rate": "10:50:10", "duration": "10s"}


def test_range_drains_between_its_levels_unless_told_otherwise() -> None:
    assert drains(RATES)
    assert drains({"concurrency": "1:3", "requests": 5})
    assert not drains(RATES | {"drain": False})
    assert drains(RATES | {"drain": True})
    assert not drains(RATES, "load.drain=false")


def test_range_within_stages_makes_them_drain_by_default() -> None:
    handwritten = {"type": "stages", "stages": [{"type": "constant", "rate": 5, "requests": 9}]}
    assert not drains(handwritten)
    assert drains(handwritten | {"stages": [*handwritten["stages"], RATES]})
    assert not drains(handwritten | {"stages": [*handwritten["stages"], RATES], "drain": False})


def test_pause_can_be_set_beside_a_range() -> None:
    found = from_mapping(SERVER | {"load": RATES | {"pause": "15s"}}).load
    assert isinstance(found, Stages) and (found.pause, found.drain) == (15.0, True)
    assert "load.pause: unknown key" in error({"type": "poisson", "rate": 10, "duration": 1, "pause": 1}).line
    assert "load.pause" in error(RATES | {"pause": "-1s"}).line


def test_drain_needs_several_stages() -> None:
    assert "load.drain: unknown key" in error({"type": "poisson", "rate": 10, "duration": 1, "drain": False}).line
    assert "load.drain" in error(RATES | {"drain": "later"}).line


# --- stable ----------------------------------------------------------------------------------------------------------


def one(**load: Any) -> Any:
    return from_mapping(SERVER | {"load": load}).load


def test_a_stage_that_ends_when_stable_may_take_ten_windows_by_default() -> None:
    assert one(concurrency=1, stable=0.1).duration == 50
    assert one(concurrency=1, stable=0.1, window="2s").duration == 20
    assert one(concurrency=1, stable=0.1, window="2s", duration="7s").duration == 7
    assert one(concurrency=1, stable=0.1, requests=9).duration == 0
    assert [stage.duration for stage in stages({"concurrency": "1:2", "stable": 0.1})] == [50, 50]


@pytest.mark.parametrize(
    ("load", "what"),
    [
        ({"type": "ramp", "end": 5, "duration": 60}, "a load that changes cannot be stable"),
        ({"type": "bursts", "rate": 5, "on": 1, "off": 1, "duration": 60}, "a load that changes cannot be stable"),
        ({"concurrency": 1, "window": 0}, "too short"),
        ({"concurrency": 1, "duration": "14s"}, "shorter than three windows"),
        ({"concurrency": 1, "stable": -0.1}, "at least 0"),
    ],
)
def test_loads_that_cannot_become_stable_are_refused(load: dict[str, Any], what: str) -> None:
    assert what in error({"stable": 0.1} | load).line


@pytest.mark.parametrize(
    ("more", "drain", "cut_short"),
    [({}, True, True), ({"cut_short": False}, True, False), ({"drain": False}, False, False)],
)
def test_overloaded_levels_are_cut_short_unless_the_next_does_not_wait(
    more: dict[str, bool], drain: bool, cut_short: bool
) -> None:
    level = {"type": "poisson", "rate": "1:3", "duration": "1s"}
    for load in (level | more, {"type": "stages", "stages": [level], **more}):
        found = from_mapping(SERVER | {"load": load}).load
        assert isinstance(found, Stages) and (found.drain, found.cut_short) == (drain, cut_short)


def test_stages_that_are_written_out_run_to_their_end() -> None:
    level = {"type": "poisson", "rate": 1, "duration": "1s"}
    found = from_mapping(SERVER | {"load": {"type": "stages", "stages": [level, level], "drain": True}}).load
    assert isinstance(found, Stages) and not found.cut_short


def test_cutting_short_needs_drain() -> None:
    found = error({"type": "poisson", "rate": "1:3", "duration": "1s", "drain": False, "cut_short": True})
    assert found.key == "load.cut_short" and "load.drain" in found.next_step
