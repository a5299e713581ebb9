"""Conditions of --fail-if: the grammar, and errors that point at the column."""

import math

import pytest

from inferometer.analysis.fail_if import FailIf, parse
from inferometer.errors import UserError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft.p99 worse by 5%", FailIf("ttft.p99", 0.05)),
        ("  e2e.mean   worse by 2.5 % ", FailIf("e2e.mean", 0.025)),
        ("goodput worse", FailIf("goodput")),
        ("itl.p999 worse by 150%", FailIf("itl.p99.9", 1.5)),
        ("throughput.requests worse by .5%", FailIf("throughput.requests", 0.005)),
        ("failure_rate worse by 1%", FailIf("failure_rate", 0.01)),
    ],
)
def test_conditions_parse_and_print_as_they_are_written(text: str, expected: FailIf) -> None:
    assert parse(text) == expected
    assert parse(str(expected)) == expected


def test_the_limit_of_a_rate_is_what_is_lost() -> None:
    assert parse("e2e.p50 worse by 10%").limit == pytest.approx(math.log(1.1))
    assert parse("goodput worse by 10%").limit == pytest.approx(-math.log(0.9))


def test_the_limit_of_the_failure_rate_is_a_difference() -> None:
    assert parse("failure_rate worse by 1%").limit == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "expected a metric"),
        ("ttfft.p99 worse by 5%", 1, "did you mean ttft.p99?"),
        ("ttft worse by 5%", 1, "ttft.p"),
        ("failure_rat worse", 1, "did you mean failure_rate?"),
        ("failure_rate worse by 100%", 23, "cannot become worse"),
        ("zzz worse", 1, "with a statistic"),
        ("ttft.p99 better by 5%", 10, "expected 'worse'"),
        ("ttft.p99", 9, "expected 'worse', got nothing"),
        ("ttft.p99 worse than 5%", 16, "expected 'by'"),
        ("ttft.p99 worse by much", 19, "expected a number"),
        ("ttft.p99 worse by 5", 20, "percent sign"),
        ("ttft.p99 worse by 5% or more", 22, "expected the end"),
        ("goodput worse by 100%", 18, "cannot become worse"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert f"(column {column} of" in caught.value.line and words in str(caught.value)
    assert caught.value.line.startswith("--fail-if: ") and caught.value.next_step
