"""Lengths have the promised distributions, are whole numbers within their bounds, and are the same on every machine."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from inferometer import workload
from inferometer.config.data import Synthetic
from inferometer.config.lengths import (
    Empirical,
    Exponential,
    Histogram,
    Length,
    LengthPairs,
    LogNormal,
    Mixture,
    MixturePart,
    Normal,
    PoissonLength,
    Ratio,
    SkewNormal,
    Uniform,
)
from inferometer.errors import UserError
from inferometer.workload import lengths

N = 50_000
Cdf = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def drawn(spec: Length, n: int = N, seed: int = 1) -> NDArray[np.int64]:
    return lengths.sample(spec, seed, range(n), "input")


# --- goodness of fit ---------------------------------------------------------------------------------------------------


def rounded(distribution: Any) -> Cdf:
    """The cumulative distribution of a continuous distribution's values, rounded."""
    return lambda k: distribution.cdf(k + 0.5)


def lognormal(mean: float, std: float) -> Any:
    variance = np.log(1 + (std / mean) ** 2)
    return stats.lognorm(s=np.sqrt(variance), scale=mean / np.exp(variance / 2))


def skew_normal(mean: float, std: float, skew: float) -> Any:
    standard = stats.skewnorm(skew)
    scale = std / standard.std()
    return stats.skewnorm(skew, loc=mean - scale * standard.mean(), scale=scale)


PARTS = [
    MixturePart(length=PoissonLength(mean=20), weight=3),
    MixturePart(length=Uniform(50, 99)),
    MixturePart(length=200, weight=0.5),
]
CASES: list[tuple[Length, Cdf]] = [
    (Uniform(3, 40), stats.randint(3, 41).cdf),
    (Ratio(100, 0.1), stats.randint(90, 111).cdf),
    (Ratio(7, 0.5), stats.randint(3, 12).cdf),
    (Normal(mean=500, std=100), rounded(stats.norm(500, 100))),
    (Normal(mean=4.3, std=0.4), rounded(stats.norm(4.3, 0.4))),
    (LogNormal(mean=512, std=256), rounded(lognormal(512, 256))),
    (LogNormal(mean=40, std=400), rounded(lognormal(40, 400))),
    (SkewNormal(mean=500, std=100, skew=4), rounded(skew_normal(500, 100, 4))),
    (SkewNormal(mean=500, std=100, skew=-1.5), rounded(skew_normal(500, 100, -1.5))),
    (SkewNormal(mean=500, std=100, skew=0), rounded(stats.norm(500, 100))),
    (SkewNormal(mean=5000, std=1000, skew=800), rounded(skew_normal(5000, 1000, 800))),
    (Exponential(mean=300), rounded(stats.expon(scale=300))),
    (PoissonLength(mean=3), stats.poisson(3).cdf),
    (PoissonLength(mean=137.5), stats.poisson(137.5).cdf),
    (PoissonLength(mean=1e6), stats.poisson(1e6).cdf),
    (Empirical(values=[9, 5, 1], weights=[5, 0, 3]), lambda k: 3 / 8 * (k >= 1) + 5 / 8 * (k >= 9)),
    (Histogram(bins=[1, 11, 101], weights=[3, 1]), lambda k: np.interp(k, [0, 10, 100], [0, 0.75, 1])),
    (
        Mixture(parts=PARTS),
        lambda k: (3 * stats.poisson(20).cdf(k) + stats.randint(50, 100).cdf(k) + 0.5 * (k >= 200)) / 4.5,
    ),
]


def fit(values: NDArray[np.int64], cdf: Cdf) -> float:
    """The p-value of a chi-square test, with bins of whole numbers that are about equally likely."""
    support = np.arange(values.min() - 2, values.max() + 3)
    below = cdf(support.astype(np.float64))
    edges = support[np.unique(np.searchsorted(below, np.linspace(0, 1, 60)[1:-1]))]
    probabilities = np.diff(np.concatenate(([0.0], cdf(edges.astype(np.float64)), [1.0])))
    observed = np.bincount(np.searchsorted(edges, values), minlength=len(probabilities))
    possible = probabilities * len(values) > 5
    assert observed[~possible].sum() <= 20
    expected = probabilities[possible] * observed[possible].sum() / probabilities[possible].sum()
    return float(stats.chisquare(observed[possible], expected).pvalue)


@pytest.mark.parametrize(("spec", "cdf"), CASES, ids=lambda case: str(case) if not callable(case) else "")
def test_lengths_fit_their_distribution(spec: Length, cdf: Cdf) -> None:
    def clamped_below(k: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(k < 1, 0.0, cdf(k))

    assert fit(drawn(spec), clamped_below) > 1e-3


@pytest.mark.parametrize(
    ("spec", "cdf"),
    [
        (Normal(mean=500, std=100, min=450, max=620), rounded(stats.norm(500, 100))),
        (LogNormal(mean=512, std=256, min=256, max=1024), rounded(lognormal(512, 256))),
        (Exponential(mean=300, min=100, max=900), rounded(stats.expon(scale=300))),
        (PoissonLength(mean=30, min=28, max=36), stats.poisson(30).cdf),
        (SkewNormal(mean=500, std=100, skew=4, min=400, max=600), rounded(skew_normal(500, 100, 4))),
    ],
)
def test_clamped_lengths_fit_and_pile_up_at_the_bounds(spec: Any, cdf: Cdf) -> None:
    def clamped(k: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(k < spec.min, 0.0, np.where(k >= spec.max, 1.0, cdf(k)))

    values = drawn(spec)
    assert fit(values, clamped) > 1e-3
    assert (values.min(), values.max()) == (spec.min, spec.max)


def test_a_wrong_distribution_fails_the_test_of_fit() -> None:
    assert fit(drawn(Normal(mean=500, std=100)), rounded(stats.norm(500, 103))) < 1e-6


# --- bounds, determinism, portability ------------------------------------------------------------------------------------

MEANS = st.floats(0.5, 1e5)
STDS = st.floats(0, 1e5)
SPECS: st.SearchStrategy[Any] = st.one_of(
    st.builds(Normal, mean=MEANS, std=STDS),
    st.builds(LogNormal, mean=MEANS, std=STDS),
    st.builds(SkewNormal, mean=MEANS, std=STDS, skew=st.floats(-1e4, 1e4)),
    st.builds(Exponential, mean=MEANS),
    st.builds(PoissonLength, mean=MEANS),
    st.builds(Empirical, values=st.lists(st.floats(-1e6, 1e6), min_size=1)),
    st.just(Histogram(bins=[0, 5, 1000], weights=[0, 1])),
    st.just(Mixture(parts=PARTS)),
)


@given(SPECS, st.integers(1, 2000), st.integers(0, 2000), st.integers(0, 2**64), st.integers(0, 2**62))
def test_any_length_is_within_its_bounds_and_depends_on_its_id_alone(
    spec: Any, low: int, more: int, seed: int, first: int
) -> None:
    spec.min, spec.max = low, low + more
    ids = range(first, first + 20)
    values = lengths.sample(spec, seed, ids, "input")
    assert ((values >= low) & (values <= low + more)).all()
    assert lengths.sample(spec, seed, ids[3:5], "input").tolist() == values[3:5].tolist()


def test_seeds_and_purposes_give_other_lengths() -> None:
    spec = Uniform(1, 10**6)
    samples = [lengths.sample(spec, seed, range(100), purpose) for seed in (1, 2) for purpose in ("input", "output")]
    assert len({tuple(sample) for sample in samples}) == 4
    assert set(drawn(77, 5)) == {77}
    assert lengths.mean(77) == 77


@pytest.mark.parametrize(("spec", "cdf"), CASES, ids=lambda case: str(case) if not callable(case) else "")
def test_the_mean_is_that_of_the_lengths(spec: Length, cdf: Cdf) -> None:
    values = drawn(spec)
    assert lengths.mean(spec) == pytest.approx(values.mean(), abs=5 * values.std() / np.sqrt(N))


def test_lengths_are_the_same_on_every_machine() -> None:
    """These values were computed once. They must never change: a seed stands for the same workload in every release."""
    specs = [spec for spec, _ in CASES]
    assert [drawn(spec, 4, 42).tolist() for spec in specs] == GOLDEN
    everything = np.concatenate([drawn(spec, 20_000, 42) for spec in specs]).astype("<i8")
    assert hashlib.sha256(everything.tobytes()).hexdigest() == GOLDEN_DIGEST


GOLDEN: list[list[int]] = [
    [26, 20, 4, 8],
    [103, 99, 91, 92],
    [8, 7, 3, 4],
    [531, 493, 336, 389],
    [4, 4, 4, 4],
    [530, 443, 211, 271],
    [8, 3, 1, 1],
    [517, 477, 365, 396],
    [535, 498, 327, 388],
    [531, 493, 336, 389],
    [5135, 4722, 3781, 3954],
    [291, 191, 15, 43],
    [3, 3, 1, 1],
    [141, 136, 119, 124],
    [1000308, 999928, 998358, 998887],
    [9, 9, 1, 1],
    [9, 7, 1, 2],
    [27, 22, 14, 16],
]
GOLDEN_DIGEST = "57c4f337231ae2cae2063c88d920f7db94f13f4c394d5055eddc4425152f3f75"


# --- input and output together -------------------------------------------------------------------------------------------

LONG = LogNormal(mean=512, std=256)
SHORT = Exponential(mean=100)


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.6, 1.0])
def test_lengths_are_correlated_as_requested_and_keep_their_distributions(correlation: float) -> None:
    inputs, outputs = lengths.pairs(LONG, SHORT, 3, range(N), correlation=correlation)
    of_copula = 6 / np.pi * np.arcsin(correlation / 2)
    assert stats.spearmanr(inputs, outputs).statistic == pytest.approx(of_copula, abs=0.015)
    assert fit(inputs, rounded(lognormal(512, 256))) > 1e-3
    assert fit(outputs, lambda k: np.where(k < 1, 0.0, rounded(stats.expon(scale=100))(k))) > 1e-3


def test_a_correlation_does_not_change_the_inputs() -> None:
    (plain, _), (correlated, _) = (lengths.pairs(LONG, SHORT, 3, range(100), correlation=rho) for rho in (0, 0.6))
    assert plain.tolist() == correlated.tolist()


def test_pairs_are_drawn_together_by_their_weights() -> None:
    joint = LengthPairs(pairs=[(10, 1), (20, 2), (30, 3)], weights=[1, 0, 3])
    inputs, outputs = lengths.pairs(1, 1, 0, range(10_000), joint=joint)
    assert (inputs == 10 * outputs).all()
    assert set(inputs) == {10, 30}
    assert (inputs == 30).mean() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        ("input,output\n10,1\n20,2\n", {}),
        (
            "time,ContextTokens,GeneratedTokens\n0,10,1\n1,20,2\n",
            {"input": "ContextTokens", "output": "GeneratedTokens"},
        ),
        ("[[10, 1], [20, 2]]", {}),
        ('[{"input": 10, "output": 1}, {"input": 20, "output": 2}]', {}),
        ('{"input": 10, "output": 1}\n{"input": 20, "output": 2}\n', {}),
        ("[10, 1]\n[20, 2]\n", {}),
    ],
)
def test_pairs_from_a_file(tmp_path: Path, content: str, keys: dict[str, str]) -> None:
    (tmp_path / "pairs").write_text(content)
    spec = Synthetic(lengths=LengthPairs(path=str(tmp_path / "pairs"), **keys))
    requests = workload.build(spec, 0, range(40))
    assert {(request.n_in, request.n_out) for request in requests} == {(10, 1), (20, 2)}


# --- empirical lengths in files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        ("5\n5\n9\n5\n", {}),
        ("\ufefflength\n5\n5\n5\n9\n", {}),
        ("id,length\n1,5\n2,9\n3,5\n4,5\n", {"column": "length"}),
        ("length,count\n5,30\n9,10\n", {"column": "length", "weight_column": "count"}),
        ("[5, 5, 9, 5]", {}),
        ('[{"n": 5, "w": 3}, {"n": 9, "w": 1}]', {"column": "n", "weight_column": "w"}),
        ('{"n": 5}\n{"n": 5}\n{"n": 5}\n{"n": 9}\n', {}),
    ],
)
def test_empirical_lengths_from_a_file(tmp_path: Path, content: str, keys: dict[str, str]) -> None:
    (tmp_path / "lengths").write_text(content)
    values = drawn(Empirical(path=str(tmp_path / "lengths"), **keys))
    assert set(values) == {5, 9}
    assert (values == 5).mean() == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(
    ("content", "keys", "message"),
    [
        (None, {}, r"lengths cannot be read: No such file.*\(give a file with one number per line"),
        (b"\xff\xfe", {}, r"lengths is not a text file"),
        (b"", {}, r"lengths contains no numbers"),
        (b"length\n5\nmany\n", {}, r"lengths, line 3: 'many' is not a number"),
        (b"[5, null]", {}, r"lengths, entry 2: None is not a number"),
        (b"id,length\n1,5\n", {}, r"lengths, line 2: there are several columns \(name one of: id, length\)"),
        (b"id,length\n1,5\n", {"column": "tokens"}, r"line 2: there is no column tokens \(name one of: id, length\)"),
        (b"1,5\n", {}, r"lengths, line 1: there are 2 numbers"),
        (b'{"n": 5', {}, r"lengths is not JSON"),
    ],
)
def test_files_without_lengths_are_an_error(
    tmp_path: Path, content: bytes | None, keys: dict[str, str], message: str
) -> None:
    if content is not None:
        (tmp_path / "lengths").write_bytes(content)
    with pytest.raises(UserError, match=message):
        drawn(Empirical(path=str(tmp_path / "lengths"), **keys))


def test_the_digest_depends_on_the_content_of_such_files_and_not_on_their_path(tmp_path: Path) -> None:
    for name, content in (("one", "[5, 7]"), ("same", "[5, 7]"), ("other", json.dumps([5] * 10_000 + [7]))):
        (tmp_path / name).write_text(content)
    one, same, other = (
        workload.digest(Synthetic(input=Empirical(path=str(tmp_path / name)), output=3), 0)
        for name in ("one", "same", "other")
    )
    assert one == same != other
