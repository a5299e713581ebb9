"""Lengths in the config: a number of tokens (or turns), or a distribution of such numbers."""

from typing import Annotated

from msgspec import Meta

from inferometer.config.fields import Count, Positive, Section

_LEAST = Meta(description="Smallest value; smaller ones are raised to it.")
_MOST = Meta(description="Largest value; larger ones are lowered to it. 0: no limit.", ge=0)


class _Clamped(Section, kw_only=True):
    min: Annotated[Count, _LEAST] = 1
    max: Annotated[int, _MOST] = 0


class Uniform(Section, tag_field="type", tag="uniform"):
    """Every whole number from `min` to `max` is equally likely."""

    min: Annotated[Count, Meta(description="Smallest value.")]
    max: Annotated[Count, Meta(description="Largest value.")]


class Ratio(Section, tag_field="type", tag="ratio"):
    """Uniform between `mean * (1 - ratio)` and `mean * (1 + ratio)`."""

    mean: Annotated[Count, Meta(description="The middle.")]
    ratio: Annotated[float, Meta(description="Half of the range, as a share of the mean.", ge=0, le=1)]


class Normal(_Clamped, tag_field="type", tag="normal"):
    """A normal distribution, rounded and clamped."""

    mean: Annotated[Positive, Meta(description="Mean before clamping.")]
    std: Annotated[float, Meta(description="Standard deviation before clamping.", ge=0)]


class LogNormal(_Clamped, tag_field="type", tag="lognormal"):
    """A lognormal distribution, rounded and clamped."""

    mean: Annotated[Positive, Meta(description="Mean of the values, not of their logarithms, before clamping.")]
    std: Annotated[float, Meta(description="Standard deviation of the values before clamping.", ge=0)]


class SkewNormal(_Clamped, tag_field="type", tag="skew_normal"):
    """A skew-normal distribution, rounded and clamped."""

    mean: Annotated[Positive, Meta(description="Mean before clamping.")]
    std: Annotated[float, Meta(description="Standard deviation before clamping.", ge=0)]
    skew: Annotated[
        float, Meta(description="Shape parameter: 0 is a normal distribution, above 0 the upper tail is longer.")
    ]


class Exponential(_Clamped, tag_field="type", tag="exponential"):
    """An exponential distribution, rounded and clamped."""

    mean: Annotated[Positive, Meta(description="Mean before clamping.")]


class PoissonLength(_Clamped, tag_field="type", tag="poisson"):
    """A Poisson distribution, clamped."""

    mean: Annotated[Positive, Meta(description="Mean before clamping.")]


Distribution = Uniform | Ratio | Normal | LogNormal | SkewNormal | Exponential | PoissonLength
Length = Count | Distribution
"""A number, or a distribution of numbers."""
