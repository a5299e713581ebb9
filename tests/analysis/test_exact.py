"""Exact sums against Python's fractions and statistics, and every digit of the reports on processors with narrower vectors."""

import math
import os
import statistics
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis import exact

ROOT = Path(__file__).parents[2]
seconds = st.floats(-1e9, 1e9, allow_subnormal=True)
floats = st.lists(seconds, min_size=1, max_size=200)
SIZES = {np.uint32: (0, 2**32 - 1), np.int32: (-(2**31), 2**31 - 1), np.int64: (-(2**63), 2**63 - 1)}


@given(floats)
def test_float_sum_is_exact(numbers: list[float]) -> None:
    assert exact.total(np.array(numbers)) == sum(map(Fraction, numbers))


@given(st.data(), st.sampled_from(list(SIZES)))
def test_integer_sum_is_exact_even_if_it_does_not_fit_64_bits(data: st.DataObject, kind: type) -> None:
    numbers = data.draw(st.lists(st.integers(*SIZES[kind]), min_size=1, max_size=200))
    assert exact.total(np.array(numbers, kind)) == sum(numbers)


@pytest.mark.parametrize("kind", SIZES)
def test_many_extreme_integers_do_not_overflow(kind: type) -> None:
    for extreme in SIZES[kind]:
        assert exact.total(np.full(200_000, extreme, kind)) == 200_000 * extreme


def test_sum_over_several_blocks_is_exact() -> None:
    values = np.random.default_rng(0).exponential(1.0, 150_000)
    assert float(exact.total(values)) == math.fsum(values.tolist())


@given(floats)
def test_mean_is_rounded_correctly(numbers: list[float]) -> None:
    assert exact.mean(np.array(numbers)) == float(sum(map(Fraction, numbers)) / len(numbers))


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=200))
def test_deviation_is_that_of_the_standard_library(numbers: list[float]) -> None:
    values = np.array(numbers)
    assert exact.deviation(values, exact.mean(values)) == pytest.approx(
        statistics.stdev(numbers), rel=1e-12, abs=1e-150
    )


@given(st.lists(st.integers(*SIZES[np.uint32]), min_size=2, max_size=200))
def test_deviation_of_gaps_is_that_of_the_standard_library(numbers: list[int]) -> None:
    values = np.array(numbers, np.uint32)
    assert exact.deviation(values, exact.mean(values)) == pytest.approx(statistics.stdev(numbers), rel=1e-15)


@given(st.lists(seconds, min_size=2, max_size=50), st.data())
def test_order_makes_no_difference(numbers: list[float], data: st.DataObject) -> None:
    values, shuffled = np.array(numbers), np.array(data.draw(st.permutations(numbers)))
    mean = exact.mean(values)
    assert exact.mean(shuffled) == mean
    assert exact.deviation(shuffled, mean) == exact.deviation(values, mean)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_mean_of_a_value_that_is_not_finite_is_nan(odd: float) -> None:
    values = np.array([1.0, odd])
    assert math.isnan(exact.mean(values)) and math.isnan(exact.deviation(values, exact.mean(values)))


def _dispatched() -> list[str]:
    """The processor features beyond its baseline that numpy uses on this machine, from narrow to wide vectors."""
    from numpy._core import _multiarray_umath as core  # noqa: PLC0415

    return [name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name)]


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_reports_are_the_same_with_narrower_vectors(kept: int) -> None:
    """Keep numpy from using the wider vector instructions: none beyond its baseline, or only the first set."""
    try:
        without = _dispatched()[kept:]
    except (ImportError, AttributeError):
        pytest.skip("this numpy does not say which processor features it uses")
    if not without:
        pytest.skip(f"numpy uses no more than {kept} sets of processor features beyond its baseline here")
    library = {
        "OPENBLAS_NUM_THREADS": "1",
        "OPENBLAS_CORETYPE": "Nehalem",
    }  # as for numpy's linear algebra on an old processor
    environment = os.environ | library | {"NPY_DISABLE_CPU_FEATURES": " ".join(without)}
    environment.pop("INFEROMETER_UPDATE_GOLDEN", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "golden", "tests/report"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
