"""Lengths in the config: what they take, and the errors that name the key at fault."""

from typing import Any

import pytest

from inferometer.config import from_mapping
from inferometer.config.data import Synthetic
from inferometer.config.lengths import LogNormal, Mixture, Normal
from inferometer.errors import UserError


def parsed(**data: Any) -> Synthetic:
    tree = {"server": {"url": "http://127.0.0.1:1"}, "data": {"type": "synthetic"} | data}
    section = from_mapping(tree).data
    assert isinstance(section, Synthetic)
    return section


def test_a_length_is_a_number_or_a_distribution() -> None:
    data = parsed(input={"type": "lognormal", "mean": 512, "std": 256, "min": 16, "max": 4096}, output=128)
    assert data.input == LogNormal(mean=512.0, std=256.0, min=16, max=4096)
    assert data.output == 128


def test_parts_of_a_mixture_are_lengths_themselves() -> None:
    parts = [{"weight": 3, "length": 10}, {"length": {"type": "mixture", "parts": [{"length": {"type": "normal", "mean": 5, "std": 1}}]}}]  # fmt: skip
    data = parsed(input={"type": "mixture", "parts": parts})
    assert isinstance(data.input, Mixture)
    inner = data.input.parts[1].length
    assert isinstance(inner, Mixture)
    assert inner.parts[0].length == Normal(mean=5.0, std=1.0)


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ({"type": "lognormal", "mean": 512}, r"data\.input\.std: missing \(add it"),
        ({"type": "normal", "mean": 512, "std": -1}, r"data\.input\.std: must be at least 0, got -1"),
        ({"type": "normal", "mean": 5, "std": 1, "min": 10, "max": 5}, r"data\.input\.max: must be at least data\.input\.min, which is 10, got 5"),
        ({"type": "uniform", "min": 10, "max": 5}, r"data\.input\.max: must be at least"),
        ({"type": "lognorml", "mean": 5, "std": 1}, r"there is no 'lognorml' \(did you mean lognormal\? it takes empirical \| exponential \| histogram"),
        ({"type": "normal", "men": 5, "std": 1}, r"data\.input\.men: unknown key \(did you mean data\.input\.mean\?\)"),
        ({"mean": 5}, r"data\.input\.type: missing"),
        (0, r"data\.input: must be at least 1, got 0"),
        ("long", r"data\.input: must be a whole number or a section, got 'long'"),
        ({"type": "normal", "mean": float("inf"), "std": 1}, r"data\.input\.mean: must be a finite number"),
        ({"type": "empirical", "values": [float("nan")]}, r"data\.input\.values: must be a finite number"),
        ({"type": "empirical"}, r"data\.input: needs either values or path, and not both"),
        ({"type": "empirical", "values": [1], "path": "x"}, r"data\.input: needs either values or path, and not both"),
        ({"type": "empirical", "values": [1, 2], "weights": [1]}, r"data\.input\.weights: there are 1 weights for 2 values"),
        ({"type": "empirical", "values": [1, 2], "weights": [0, 0]}, r"data\.input\.weights: weights must be at least 0, and not all 0"),
        ({"type": "empirical", "values": [1, 2], "column": "n"}, r"data\.input\.column: there is no file"),
        ({"type": "histogram", "bins": [1, 5, 3], "weights": [1, 2]}, r"data\.input\.bins: the edges do not ascend"),
        ({"type": "histogram", "bins": [1, 5, 9], "weights": [1]}, r"data\.input\.weights: there are 1 weights for 2 bins"),
        ({"type": "mixture", "parts": []}, r"data\.input\.parts: must have at least 1 entry"),
        ({"type": "mixture", "parts": [{"length": {"type": "uniform", "min": 4, "max": 2}}]}, r"data\.input\.parts\.0\.length\.max: must be at least"),
        ({"type": "mixture", "parts": [{"length": 3, "weight": 0}]}, r"data\.input\.parts\.0\.weight: must be more than 0"),
    ],
)  # fmt: skip
def test_errors_name_the_key(length: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parsed(input=length)


def test_pairs_come_from_one_source() -> None:
    with pytest.raises(UserError, match=r"data\.lengths: needs either pairs or path"):
        parsed(lengths={})
    with pytest.raises(UserError, match=r"data\.lengths\.weights: the weights of a file stand in the file"):
        parsed(lengths={"path": "x", "weights": [1]})
    with pytest.raises(UserError, match=r"data\.correlation: must be at most 1"):
        parsed(correlation=1.5)
