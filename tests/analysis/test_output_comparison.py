"""`inferometer.compare_outputs`: whether outputs agree, and where they differ most."""

import math
from typing import Any

import numpy as np
import pytest

from inferometer.analysis.output_comparison import compare_outputs
from inferometer.errors import UserError


def test_the_largest_difference_is_found_and_named() -> None:
    exact = {"hidden": [np.zeros(3), np.array([[1.0, 2.0], [3.0, -10.0]])], "score": 0.5}
    other = {"hidden": [np.zeros(3), np.array([[1.0, 2.5], [3.0, -10.0]])], "score": 0.5}
    found = compare_outputs(exact, other, 0.1)
    assert found
    assert (found.where, found.expected, found.got) == ("hidden[1][0, 1]", 2.0, 2.5)
    assert (found.largest, found.relative) == (0.5, 0.05)
    assert found.mean == pytest.approx(0.5 / 8)
    assert not compare_outputs(exact, other, 0.04)


def test_equal_outputs_do_not_differ_anywhere() -> None:
    found = compare_outputs([1, 2.0], (1, 2.0), 0)
    assert (found.agrees, found.where, found.relative) == (True, "", 0.0)


def test_a_difference_counts_relative_to_its_own_array() -> None:
    exact, other = {"small": [0.001], "large": [1000.0]}, {"small": [0.002], "large": [1001.0]}
    found = compare_outputs(exact, other)
    assert (found.where, found.relative, found.largest) == ("small[0]", pytest.approx(1.0), 1.0)


@pytest.mark.parametrize(
    ("exact", "other", "relative"),
    [
        ([math.nan, 1.0], [math.nan, 1.0], 0.0),
        ([math.nan, 1.0], [0.0, 1.0], math.inf),
        ([1.0, 1.0], [math.nan, 1.0], math.inf),
        ([math.inf, 1.0], [math.inf, 1.0], 0.0),
        ([math.inf, 1.0], [-math.inf, 1.0], math.inf),
        ([0.0], [1e-9], math.inf),
    ],
)
def test_values_that_are_not_finite_agree_only_with_themselves(exact: Any, other: Any, relative: float) -> None:
    assert compare_outputs(exact, other).relative == relative


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": np.ones(2)}, "the output has no b"),
        ({"a": np.ones(2), "b": np.ones(1), "c": 1}, "the reference has no c"),
        ({"a": np.ones((1, 2)), "b": np.ones(1)}, r"the shapes of a differ: \[2\] and \[1, 2\]"),
        ({"a": "text", "b": np.ones(1)}, "a is str, which is not a number"),
    ],
)
def test_outputs_that_cannot_be_compared_are_errors(other: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare_outputs({"a": np.ones(2), "b": np.ones(1)}, other)


@pytest.mark.torch
def test_tensors_of_torch_are_compared_with_arrays() -> None:
    import torch  # noqa: PLC0415 - not installed everywhere

    exact = {"logits": np.array([1.0, 2.0, 4.0])}
    rounded = {"logits": torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16, requires_grad=True)}
    found = compare_outputs(exact, rounded, 0.3)
    assert (found.agrees, found.relative, found.where) == (True, 0.25, "logits[2]")
