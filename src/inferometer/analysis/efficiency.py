"""What a load costs and how well the hardware is used: rates per GPU and per user, cost per million tokens, tokens per joule.

Every figure is a rate of throughput.py, divided or inverted, so its interval is that of the rate. Cost falls as the rate grows: the
upper end of the rate gives the lower end of the cost. Price and energy are taken as exact.

What a user sees is the median of `tps_user`, the output tokens per second while a response is streamed. That is the interactivity of
InferenceMAX's charts, 1 / median TPOT (on their other axis are input and output tokens together per second and GPU, here
`total_tokens_per_gpu`).
"""

from typing import Literal

import msgspec

from inferometer.analysis import settings
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.resources import EnergyUse, ResourceUse
from inferometer.analysis.throughput import Throughput
from inferometer.records import Manifest

Interval = tuple[float | None, float | None]
Commodity = Literal["input_tokens", "output_tokens", "total_tokens", "inferences", "requests"]

COMMODITIES: tuple[Commodity, ...] = ("input_tokens", "output_tokens", "total_tokens", "inferences", "requests")
"""What has a cost per million, in the order in which reports print it."""
_MILLION = 1e6
_HOUR = 3600.0

DEFINITIONS = {
    "efficiency.output_tokens_per_user": "output tokens per second that one user sees while a response is streamed: the median of tps_user, which is 1 / median tpot; null for an overloaded stage",
    "efficiency.output_tokens_per_gpu": "throughput.output_tokens / number of GPUs",
    "efficiency.total_tokens_per_gpu": "throughput.total_tokens (input and output) / number of GPUs",
    "efficiency.inferences_per_gpu": "throughput.inferences / number of GPUs",
    "efficiency.price_per_hour": "price of all measured servers together, or of all of their GPUs",
    "efficiency.cost_per_million": "price_per_hour / (throughput per hour), x 1,000,000: what a million input tokens, output tokens, tokens of both kinds, inferences or requests cost if all of the price is charged to these alone; the costs of input and output tokens do not add up",
    "efficiency.output_tokens_per_joule": "throughput.output_tokens / mean power of all GPUs of the machine; the interval is that of the rate",
    "efficiency.inferences_per_joule": "throughput.inferences / mean power of all GPUs of the machine; the interval is that of the rate",
}
"""By their names in summary.json."""


class Estimate(msgspec.Struct, frozen=True):
    """A figure with its 95 % confidence interval; null ends if it has none."""

    value: float
    ci: Interval = (None, None)


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Null for what is not known: without `gpus`, a price or energy, or for requests without tokens."""

    gpus: int | None = None
    is_observed: bool = False
    """Whether `gpus` was not given, but observed: the GPUs of the machine that worked."""
    price_per_hour: float | None = None
    """Of everything that was measured together: all servers, all GPUs."""
    currency: str = "USD"
    output_tokens_per_user: Estimate | None = None
    """Tokens per second that one user sees."""
    output_tokens_per_gpu: Estimate | None = None
    """Tokens per second and GPU; likewise below."""
    total_tokens_per_gpu: Estimate | None = None
    inferences_per_gpu: Estimate | None = None
    cost_per_million: dict[Commodity, Estimate] = {}
    """What a million of each costs, when all of the price is charged to it."""
    output_tokens_per_joule: Estimate | None = None
    inferences_per_joule: Estimate | None = None
    reason: str = ""
    """Why a figure that was asked for is missing."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What the measured servers are and cost, all of them together."""

    gpus: int | None
    is_observed: bool
    price_per_hour: float | None
    currency: str
    reason: str = ""
    """Why there is no price, although one was given."""


def hardware(manifest: Manifest, used: ResourceUse | None) -> Hardware | None:
    """What is known about the servers' hardware; None if nothing is: no price, no GPUs."""
    cost = settings.cost(manifest)
    observed = _working_gpus(used)
    gpus = cost.gpus or observed
    if gpus is None and cost.price_per_hour is None:
        return None
    units = settings.server_count(manifest) if cost.per == "server" else gpus
    price = None if cost.price_per_hour is None or units is None else cost.price_per_hour * units
    return Hardware(
        gpus=gpus,
        is_observed=cost.gpus is None and gpus is not None,
        price_per_hour=price,
        currency=cost.currency,
        reason="the price is per GPU, but the number of GPUs is not known" if cost.price_per_hour and not units else "",
    )


def _working_gpus(used: ResourceUse | None) -> int | None:
    """How many GPUs of the server's machine did any work during the run; None if it is not known."""
    if used is None or not used.is_servers_machine:
        return None
    return sum((gpu.use or 0.0) > 0 for gpu in used.gpus.values()) or None


def efficiency(
    known: Hardware | None,
    throughput: Throughput,
    tps_user: Distribution | None,
    is_overloaded: bool,
    energy: EnergyUse | None,
) -> Efficiency | None:
    """The efficiency of a stage or a run; None if neither price, GPUs nor energy are known."""
    per_token = None if energy is None else energy.per_output_token
    per_request = None if energy is None else energy.per_request
    if known is None and not per_request:
        return None
    known = known or Hardware(gpus=None, is_observed=False, price_per_hour=None, currency="USD")
    rates = {name: rate(throughput, name) for name in COMMODITIES}
    per_gpu = {name: _per(rates[name], known.gpus) for name in COMMODITIES}
    reason = known.reason
    if not reason and throughput.reason and (known.price_per_hour or known.gpus):
        reason = "there are no rates (see throughput)"
    return Efficiency(
        gpus=known.gpus,
        is_observed=known.is_observed,
        price_per_hour=known.price_per_hour,
        currency=known.currency,
        output_tokens_per_user=None if is_overloaded else user_rate(tps_user),
        output_tokens_per_gpu=per_gpu["output_tokens"],
        total_tokens_per_gpu=per_gpu["total_tokens"],
        inferences_per_gpu=per_gpu["inferences"],
        cost_per_million={
            name: cost_per_million(known.price_per_hour, each)
            for name, each in rates.items()
            if each is not None and known.price_per_hour is not None
        },
        output_tokens_per_joule=_per_joule(rates["output_tokens"], per_token),
        inferences_per_joule=_per_joule(rates["inferences"], _per_inference(per_request, throughput)),
        reason=reason,
    )


def rate(throughput: Throughput, name: str) -> Estimate | None:
    """A rate with its interval; None if it is not known, or 0."""
    value: float | None = getattr(throughput, name)
    return Estimate(value, throughput.ci.get(name, (None, None))) if value else None


def user_rate(tps_user: Distribution | None) -> Estimate | None:
    """What one user sees: the median of `tps_user`; None if there is no value. An end that too few values cannot bound is null."""
    median = None if tps_user is None else tps_user.value("p50")
    if tps_user is None or median is None:
        return None
    return Estimate(median, tps_user.ci.get("p50", (None, None)))


def cost_per_million(price_per_hour: float, rate: Estimate) -> Estimate:
    """The cost of a million units that are produced at `rate` per second."""

    def cost(per_second: float | None) -> float | None:
        return _MILLION * price_per_hour / (_HOUR * per_second) if per_second is not None and per_second > 0 else None

    low, high = rate.ci
    return Estimate(_MILLION * price_per_hour / (_HOUR * rate.value), (cost(high), cost(low)))


def _per(figure: Estimate | None, count: float | None) -> Estimate | None:
    """The figure, divided by `count`."""
    if figure is None or not count:
        return None
    low, high = (None if end is None else end / count for end in figure.ci)
    return Estimate(figure.value / count, (low, high))


def _per_joule(rate: Estimate | None, joules_per_unit: float | None) -> Estimate | None:
    """Units per joule; the energy of a unit gives the mean power, which divides the rate."""
    return None if rate is None or not joules_per_unit else _per(rate, rate.value * joules_per_unit)


def _per_inference(per_request: float | None, throughput: Throughput) -> float | None:
    if not per_request or not throughput.requests or not throughput.inferences:
        return None
    return per_request * throughput.requests / throughput.inferences
