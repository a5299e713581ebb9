"""Settings of the simulator: a frozen struct that is passed from the command line, a test or a benchmark to the server.

Durations are seconds here and nanoseconds inside. serve/settings.py checks the limits that the types have.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
AtLeastOne = Annotated[int, Meta(ge=1)]
AtLeastZero = Annotated[int, Meta(ge=0)]


class Fixed(msgspec.Struct, frozen=True, kw_only=True, tag="fixed"):
    """Fixed timing: each request's first token after `ttft`, each further one `itl` later, whatever the load."""

    ttft: Seconds = 0.05
    itl: Seconds = 0.01
    jitter: Share = 0.0
    """Share by which TTFT and each gap vary, uniformly in both directions."""
    service: Literal["constant", "exponential", "lognormal"] = "constant"
    """How all times of a request vary together from request to request, with the same mean (see timing.py)."""
    max_batch: AtLeastZero = 0
    """Maximum requests served at a time; others queue, and their TTFT starts when they are admitted. 0: no limit."""


class Batch(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """A step-synchronous engine. The duration of a step is

    (prefill_overhead + prefill tokens / prefill_rate, if it prefills) + (decode_step + sequences x decode_per_seq, if
    it decodes)
    """

    prefill_rate: Annotated[float, Meta(gt=0, le=1e12)] = 20_000.0
    """Tokens per second."""
    prefill_overhead: Seconds = 0.0
    decode_step: Seconds = 0.01
    decode_per_seq: Seconds = 0.0
    jitter: Share = 0.0
    """Share by which a step's duration varies, uniformly in both directions."""
    max_batch: AtLeastOne = 64
    kv_tokens: AtLeastOne = 524_288
    """Size of the KV cache in tokens; at the limit, the latest sequence is preempted and recomputed."""
    block: AtLeastOne = 16
    """Tokens per KV block."""
    chunked_prefill: bool = True
    """Prefill in chunks within the step's token budget; off: whole prompts at once, which stall decoding."""
    token_budget: AtLeastOne = 2048
    prefix_cache: bool = False


class Sim(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the simulator."""

    timing: Fixed | Batch = Fixed()
    model: str = "sim"
    lora: tuple[str, ...] = ()
    """Names of LoRA adapters: requests for them are served like those for the model."""
    seed: int = 0
    """Seed of the jitter and of random faults."""
    tokens_per_chunk: AtLeastOne = 1
    max_queue: AtLeastZero | None = None
    """Maximum queued requests; further ones are refused with 503. None: no limit."""
    max_len: AtLeastOne = 131_072
    """Maximum tokens of prompt and response together."""
    truth: str | None = None
    """File for the ground truth, one JSON line per request."""
    faults: tuple[str, ...] = ()
    """Faults to inject; see faults.py for the syntax."""
    allow_fault_header: bool = False
