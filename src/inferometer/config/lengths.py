"""Lengths in the config: a number of tokens (or turns), or a distribution of such numbers. workload/lengths.py draws them."""

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, field

from inferometer.config.fields import Count, Positive, Section
from inferometer.errors import UserError

_LEAST = Meta(description="Smallest value; smaller ones are raised to it.")
_MOST = Meta(description="Largest value; larger ones are lowered to it. 0: no limit.", ge=0)
_MEAN = Meta(description="Mean before rounding and clamping.")
_STD = Meta(description="Standard deviation before rounding and clamping.", ge=0)
_WEIGHTS = Meta(description="How often each value occurs, in any unit. Default: all equally often.")


class _Clamped(Section, kw_only=True):
    min: Annotated[Count, _LEAST] = 1
    max: Annotated[int, _MOST] = 0


class Uniform(Section, tag_field="type", tag="uniform"):
    """Every whole number from `min` to `max` is equally likely."""

    min: Annotated[Count, Meta(description="Smallest value.")]
    max: Annotated[Count, Meta(description="Largest value.")]


class Ratio(Section, tag_field="type", tag="ratio"):
    """Uniform in a range around the mean: every whole number from `mean * (1 - ratio)`, rounded down, to `mean * (1 + ratio)`,
    rounded up, is equally likely (but none below 1)."""

    mean: Annotated[Count, Meta(description="The middle of the range.")]
    ratio: Annotated[float, Meta(description="Half of the range, as a share of the mean.", ge=0, le=1)]


class Normal(_Clamped, tag_field="type", tag="normal"):
    """A normal distribution, rounded and clamped."""

    mean: Annotated[Positive, _MEAN]
    std: Annotated[float, _STD]


class LogNormal(_Clamped, tag_field="type", tag="lognormal"):
    """A lognormal distribution, rounded and clamped. `mean` and `std` are those of the lengths, not of their logarithms."""

    mean: Annotated[Positive, _MEAN]
    std: Annotated[float, _STD]


class SkewNormal(_Clamped, tag_field="type", tag="skew_normal"):
    """A skew-normal distribution, rounded and clamped. `mean` and `std` are its own, whatever the skew is."""

    mean: Annotated[Positive, _MEAN]
    std: Annotated[float, _STD]
    skew: Annotated[
        float,
        Meta(
            description="The shape parameter, often called alpha. 0 is a normal distribution; above 0 the upper tail is longer."
        ),
    ]


class Exponential(_Clamped, tag_field="type", tag="exponential"):
    """An exponential distribution, rounded and clamped."""

    mean: Annotated[Positive, _MEAN]


class PoissonLength(_Clamped, tag_field="type", tag="poisson"):
    """A Poisson distribution, clamped."""

    mean: Annotated[Positive, Meta(description="Mean before clamping.", le=1e9)]


class Empirical(_Clamped, tag_field="type", tag="empirical"):
    """Values as they were observed, in the config or in a file, drawn at random by their weights; rounded and clamped."""

    values: Annotated[list[float], Meta(description="The values.")] = field(default_factory=list)
    weights: Annotated[list[float], _WEIGHTS] = field(default_factory=list)
    path: Annotated[
        str | None,
        Meta(
            description="A file with the values, instead of `values`: one number per line, a CSV file, a JSON list of numbers or of objects, or one JSON object per line."
        ),
    ] = None
    column: Annotated[
        str | None, Meta(description="Column or JSON key of the values, if the file has more than one.")
    ] = None
    weight_column: Annotated[
        str | None, Meta(description="Column or JSON key of the weights. Default: all values have the same.")
    ] = None


class Histogram(_Clamped, tag_field="type", tag="histogram"):
    """Bins of values. A bin is drawn by its weight; within it, every whole number is equally likely."""

    bins: Annotated[
        list[Annotated[int, Meta(ge=0)]],
        Meta(
            description="The bins' edges, ascending. The first bin has the numbers from the first edge up to the one below the second edge.",
            min_length=2,
        ),
    ]
    weights: Annotated[list[float], Meta(description="How often each bin occurs, in any unit: one fewer than edges.")]


class MixturePart(Section):
    """One of the distributions of a mixture."""

    length: Annotated["Length", Meta(description="A number, or a distribution of its own.")]
    weight: Annotated[Positive, Meta(description="How often this part is drawn, relative to the others.")] = 1.0


class Mixture(_Clamped, tag_field="type", tag="mixture"):
    """Several distributions, one of which is drawn for each value by its weight. If lengths are correlated, list the parts from
    short to long."""

    parts: Annotated[
        list[MixturePart],
        Meta(
            description="The parts: `[{weight: 3, length: 128}, {weight: 1, length: {type: normal, mean: 2000, std: 300}}]`.",
            min_length=1,
        ),
    ]


Distribution = (
    Uniform | Ratio | Normal | LogNormal | SkewNormal | Exponential | PoissonLength | Empirical | Histogram | Mixture
)  # fmt: skip
Length = Count | Distribution
"""A number, or a distribution of numbers."""


class LengthPairs(Section):
    """Pairs of an input and an output length as they were observed, drawn at random by their weights."""

    pairs: Annotated[
        list[tuple[Count, Count]], Meta(description="The pairs: `[[512, 64], [2048, 16]]`, input first.")
    ] = field(default_factory=list)
    weights: Annotated[list[float], Meta(description="How often each pair occurs. Default: all equally often.")] = (
        field(default_factory=list)
    )
    path: Annotated[
        str | None,
        Meta(
            description="A file with the pairs, instead of `pairs`: a CSV file with a header, a JSON list of pairs or of objects, or one JSON object per line."
        ),
    ] = None
    input: Annotated[str, Meta(description="Column or JSON key of the input length in the file.")] = "input"
    output: Annotated[str, Meta(description="Column or JSON key of the output length in the file.")] = "output"


JOINT = Meta(
    description="Input and output lengths together, as observed pairs. They replace `input`, `output` and `correlation`."
)
"""What `lengths` means in every kind of data that has it."""
CORRELATION = Meta(
    description="Correlation between the ranks of input and output lengths: a Gaussian copula's, from -1 to 1. It has no effect if either is a single number.",
    ge=-1,
    le=1,
)
"""What `correlation` means in every kind of data that has it."""


# --- checks that the types cannot express ------------------------------------------------------------------------------


def check_lengths(value: object, key: str) -> None:
    """Check every length in a section, also in the sections within it; raises UserError with the key at fault."""
    if isinstance(value, list):
        for index, entry in enumerate(value):
            check_lengths(entry, f"{key}.{index}")
    elif isinstance(value, msgspec.Struct):
        _check_length(value, key)
        for name in value.__struct_fields__:
            check_lengths(getattr(value, name), f"{key}.{name}")


def _check_length(spec: object, key: str) -> None:
    if isinstance(spec, _Clamped | Uniform):
        _check_numbers(spec, key)
        if spec.max < spec.min and (spec.max or isinstance(spec, Uniform)):
            raise UserError(
                f"must be at least {key}.min, which is {spec.min}, got {spec.max}", "raise it", f"{key}.max"
            )
    if isinstance(spec, Empirical):
        _check_source(spec.values, spec.path, spec.weights, key, "values")
        if spec.path is None and (spec.column or spec.weight_column):
            name = "column" if spec.column else "weight_column"
            raise UserError("there is no file", f"give {key}.path, or leave it out", f"{key}.{name}")
    elif isinstance(spec, LengthPairs):
        _check_source(spec.pairs, spec.path, spec.weights, key, "pairs")
    elif isinstance(spec, Histogram):
        if any(high <= low for low, high in zip(spec.bins, spec.bins[1:], strict=False)):
            raise UserError("the edges do not ascend", "list them from small to large", f"{key}.bins")
        _check_weights(spec.weights, len(spec.bins) - 1, "bins", f"{key}.weights")


def _check_numbers(spec: msgspec.Struct, key: str) -> None:
    """YAML has numbers that a length cannot be made of: `.inf` and `.nan`."""
    for name in spec.__struct_fields__:
        value = getattr(spec, name)
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise UserError("must be a finite number", "give a number", f"{key}.{name}")


def _check_source(values: Sequence[object], path: str | None, weights: list[float], key: str, name: str) -> None:
    if bool(values) == (path is not None):
        raise UserError(
            f"needs either {name} or path, and not both", f"give {key}.{name}, or a file as {key}.path", key
        )
    if weights:
        if path is not None:
            raise UserError("the weights of a file stand in the file", "leave it out", f"{key}.weights")
        _check_weights(weights, len(values), name, f"{key}.weights")


def _check_weights(weights: list[float], count: int, of: str, key: str) -> None:
    if len(weights) != count:
        raise UserError(f"there are {len(weights)} weights for {count} {of}", "give one weight for each", key)
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise UserError("weights must be at least 0, and not all 0", "correct them", key)
