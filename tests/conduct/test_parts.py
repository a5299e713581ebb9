"""Which part of a run a command measures, and when it starts."""

from datetime import UTC, datetime
from typing import Any

import pytest

from inferometer.conduct import parts
from inferometer.conduct.catalog import _NAME
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.prepare.plans import part_plan, whole_plan
from inferometer.prepare.setup import Part
from inferometer.units import NS

NOON = datetime(2026, 11, 17, 12, 0, 0, tzinfo=UTC)
NOON_NS = int(NOON.timestamp()) * NS


def config(**sections: Any) -> Any:
    return from_mapping({"server": {"url": "http://x"}} | sections)


def test_a_part_is_counted_from_zero() -> None:
    assert parts.parse_part("2/3", {}) == Part(2, 3)


def test_a_pod_of_an_indexed_job_takes_its_own_number() -> None:
    assert parts.parse_part("auto/16", {"JOB_COMPLETION_INDEX": "7"}) == Part(7, 16)


@pytest.mark.parametrize(
    ("text", "environment", "error"),
    [
        ("3/3", {}, "there is no part 3 of 3.*the last one is 2/3"),
        ("auto/3", {}, "JOB_COMPLETION_INDEX is not set"),
        ("auto/3", {"JOB_COMPLETION_INDEX": "3"}, "there is no part 3 of 3"),
        ("0/0", {}, "not a part of a run"),
        ("1", {}, "not a part of a run"),
        ("-1/3", {}, "not a part of a run"),
        ("a/b", {}, "not a part of a run"),
    ],
)
def test_other_words_for_a_part_are_errors(text: str, environment: dict[str, str], error: str) -> None:
    with pytest.raises(UserError, match=error):
        parts.parse_part(text, environment)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("2026-11-17T12:00:00Z", NOON_NS),
        ("2026-11-17T13:00:00.25+01:00", NOON_NS + NS // 4),
        ("20261117T120000Z", NOON_NS),
        ("+30s", NOON_NS - NS + 30 * NS),
        ("+1m30s", NOON_NS - NS + 90 * NS),
    ],
)
def test_the_start_is_a_time_of_day_or_a_time_from_now(text: str, start: int) -> None:
    assert parts.parse_start(text, NOON_NS - NS) == start


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("2026-11-17T12:00:00Z", r"this was 90 s ago by the clock of this machine"),
        ("2026-11-17T12:05:00", "the time has no time zone.*Z for UTC"),
        ("noon", "not a time"),
        ("+soon", "not a time"),
        ("30s", "not a time"),
    ],
)
def test_a_start_that_has_passed_or_cannot_be_read_is_an_error(text: str, error: str) -> None:
    with pytest.raises(UserError, match=error):
        parts.parse_start(text, NOON_NS + 90 * NS)


def test_a_part_needs_a_start() -> None:
    with pytest.raises(UserError, match="--shard needs --start-at"):
        parts.part_and_start("0/2", None, {}, NOON_NS)
    assert parts.part_and_start(None, None, {}, NOON_NS) == (None, 0)
    assert parts.part_and_start(None, "+1s", {}, NOON_NS) == (None, NOON_NS + NS)


def test_the_parts_of_a_run_share_their_word_and_the_start_of_their_folders() -> None:
    tags = {parts.tag_of(Part(number, 3), NOON_NS, seed=7) for number in range(3)}
    assert len(tags) == 1
    assert parts.tag_of(Part(0, 3), NOON_NS + NS, seed=7) not in tags
    (tag,) = tags
    stem = parts.folder_stem(Part(1, 3), NOON_NS, tag)
    assert stem.endswith(f"-{tag}-part1")
    assert _NAME.fullmatch(f"{stem}-3f9c")  # `inferometer runs` knows it for a run even if it was killed at its start


@pytest.mark.parametrize(
    ("load", "error"),
    [
        (
            {"type": "stages", "drain": True, "stages": [{"type": "constant", "rate": 5, "duration": "1s"}] * 2},
            "load.drain",
        ),
        ({"type": "constant", "rate": 5, "stable": 0.1, "window": "1s"}, "load.stable"),
    ],
)
def test_loads_that_parts_would_have_to_agree_on_are_errors(load: dict[str, Any], error: str) -> None:
    given = config(load=load)
    parts.check_part(given, None)
    parts.check_part(given, Part(0, 1))
    with pytest.raises(UserError, match=error):
        parts.check_part(given, Part(0, 2))


def test_a_load_cannot_have_more_parts_than_users() -> None:
    given = config(load={"type": "closed", "concurrency": 4, "duration": "1s"})
    with pytest.raises(UserError, match=r"cannot be divided into 5 parts.*at most 4"):
        part_plan(given, whole_plan(given), Part(0, 5))
