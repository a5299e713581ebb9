"""The section `cost`: what the measured servers cost, and how many GPUs they have."""

import math
from typing import Annotated, Literal

from msgspec import Meta, field

from inferometer.config.fields import Count, Positive, Section
from inferometer.errors import UserError


class Cost(Section):
    price_per_hour: Annotated[
        Positive | None,
        Meta(
            description="What the hardware costs per hour. With it, the report has the cost per million tokens, or per million inferences."
        ),
    ] = None
    per: Annotated[
        Literal["server", "gpu"],
        Meta(
            description="What `price_per_hour` is the price of: one server (each URL in `server.url` counts), or one GPU."
        ),
    ] = "server"
    gpus: Annotated[
        Count | None,
        Meta(
            description="Number of GPUs that serve the model, of all servers together: rates are then also given per GPU. Default: the GPUs of this machine that worked during the run, if the server is on it and `observe.gpu` recorded them."
        ),
    ] = None
    currency: Annotated[str, Meta(description="Currency of the price, as reports print it.", min_length=1)] = "USD"
    cheapest_at: Annotated[
        Annotated[float, Meta(gt=0)] | list[Positive],
        Meta(
            description="Output tokens per second that every user should see, such as `50`, or a list of them. The report then says at which of the measured loads that is cheapest, interpolated between neighbouring loads."
        ),
    ] = field(default_factory=list)

    @property
    def user_rates(self) -> list[float]:
        return self.cheapest_at if isinstance(self.cheapest_at, list) else [self.cheapest_at]


def check_cost(cost: Cost, is_text: bool, is_streamed: bool) -> None:
    """Raise UserError when a price is infinite, or when responses cannot have the tokens per user that are asked for."""
    if cost.price_per_hour is not None and not math.isfinite(cost.price_per_hour):
        raise UserError("must be a finite number", "give the price of an hour, such as 12.5", "cost.price_per_hour")
    if cost.user_rates and not all(map(math.isfinite, cost.user_rates)):
        raise UserError("must be a finite number", "give tokens per second and user, such as 50", "cost.cheapest_at")
    if cost.user_rates and not is_text:
        raise UserError(
            "responses without output tokens have no tokens per second and user",
            "leave it out; the cost per million inferences or input tokens needs only a price",
            "cost.cheapest_at",
        )
    if cost.user_rates and not is_streamed:
        raise UserError(
            "responses that are not streamed have no tokens per second and user",
            "leave it out, or use {server.stream} true",
            "cost.cheapest_at",
        )
