"""What a load costs and how well the hardware is used: rates per GPU and per user, cost per million tokens, tokens per joule."""

from typing import Literal

import msgspec

Interval = tuple[float | None, float | None]


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its 95 % confidence interval; null ends if it has none."""

    value: float
    ci: Interval = (None, None)


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Null for what is not known: without `gpus`, a price or energy, or for requests without tokens."""

    gpus: int | None = None
    price_per_hour: float | None = None
    """Of everything that was measured together: all servers, all GPUs."""
    currency: str = "USD"
    output_tokens_per_user: Estimate | None = None
    """Tokens per second that one user sees."""
    output_tokens_per_gpu: Estimate | None = None
    """Tokens per second and GPU; likewise below."""
    total_tokens_per_gpu: Estimate | None = None
    inferences_per_gpu: Estimate | None = None
    cost_per_million: dict[
        Literal["input_tokens", "output_tokens", "total_tokens", "inferences", "requests"], Estimate
    ] = {}
    """What a million of each costs, when all of the price is charged to it."""
    output_tokens_per_joule: Estimate | None = None
