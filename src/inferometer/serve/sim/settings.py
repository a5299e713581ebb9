"""Settings of the simulator: a frozen struct that is passed from the command line, a test or a benchmark to the server.

Durations are seconds here and nanoseconds inside. `check` raises UserError for invalid settings.
"""

import math
from typing import Literal

import msgspec

from inferometer.errors import UserError
from inferometer.serve.sim.faults import parse_rule
from inferometer.units import format_seconds

_HELP = "run `inferometer serve --help` for the accepted values"


class Fixed(msgspec.Struct, frozen=True, kw_only=True, tag="fixed"):
    """Fixed timing: each request's first token after `ttft`, each further one `itl` later, whatever the load."""

    ttft: float = 0.05
    itl: float = 0.01
    jitter: float = 0.0
    """Share by which TTFT and each gap vary, uniformly in both directions."""
    service: Literal["constant", "exponential", "lognormal"] = "constant"
    """How all times of a request vary together from request to request, with the same mean (see fixed.py)."""
    max_batch: int = 0
    """Maximum requests served at a time; others queue, and their TTFT starts when they are admitted. 0: no limit."""


class Batch(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """A step-synchronous engine. The duration of a step is

    (prefill_overhead + prefill tokens / prefill_rate, if it prefills) + (decode_step + sequences x decode_per_seq, if
    it decodes)
    """

    prefill_rate: float = 20_000.0
    """Tokens per second."""
    prefill_overhead: float = 0.0
    decode_step: float = 0.01
    decode_per_seq: float = 0.0
    jitter: float = 0.0
    """Share by which a step's duration varies, uniformly in both directions."""
    max_batch: int = 64
    kv_tokens: int = 524_288
    """Size of the KV cache in tokens; at the limit, the latest sequence is preempted and recomputed."""
    block: int = 16
    """Tokens per KV block."""
    chunked_prefill: bool = True
    """Prefill in chunks within the step's token budget; off: whole prompts at once, which stall decoding."""
    token_budget: int = 2048
    prefix_cache: bool = False


class Sim(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the simulator."""

    timing: Fixed | Batch = Fixed()
    model: str = "sim"
    lora: tuple[str, ...] = ()
    """Names of LoRA adapters: requests for them are served like those for the model."""
    seed: int = 0
    """Seed of the jitter and of random faults."""
    tokens_per_chunk: int = 1
    max_queue: int | None = None
    """Maximum queued requests; further ones are refused with 503. None: no limit."""
    max_len: int = 131_072
    """Maximum tokens of prompt and response together."""
    truth: str | None = None
    """File for the ground truth, one JSON line per request."""
    faults: tuple[str, ...] = ()
    """Faults to inject; see faults.py for the syntax."""
    allow_fault_header: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a request may have as its model."""
        return self.model, *self.lora


def check(settings: Sim) -> None:
    """Raise UserError for invalid settings."""
    timing = settings.timing
    for name in timing.__struct_fields__:
        value = getattr(timing, name)
        if isinstance(value, float | int) and not (math.isfinite(value) and value >= 0):
            raise UserError(f"{_option(name)} must be at least 0 (got {value})", _HELP)
    if timing.jitter > 1:
        raise UserError(f"--jitter must be at most 100% (got {timing.jitter:.0%})", _HELP)
    if isinstance(timing, Batch):
        _at_least_one(timing, ("max_batch", "kv_tokens", "block", "token_budget"))
        if not timing.prefill_rate > 0:
            raise UserError("--prefill-rate must be greater than 0 (got 0)", "set tokens per second, such as 20000")
        if timing.kv_tokens < timing.block:
            what = f"--kv-tokens must be at least one block, {timing.block} (got {timing.kv_tokens})"
            raise UserError(what, "raise --kv-tokens or lower --block-size")
    for fault in settings.faults:
        parse_rule(fault)
    if len(set(settings.names)) < len(settings.names):
        raise UserError(f"--lora: {', '.join(settings.names)} has a name twice", "give each adapter a name of its own")
    _at_least_one(settings, ("tokens_per_chunk", "max_len"))
    if settings.max_queue is not None and settings.max_queue < 0:
        raise UserError(f"--max-queue must be at least 0 (got {settings.max_queue})", "omit it for no limit")


def _at_least_one(struct: msgspec.Struct, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(struct, name) < 1:
            raise UserError(f"{_option(name)} must be at least 1 (got {getattr(struct, name)})", _HELP)


def _option(name: str) -> str:
    return "--block-size" if name == "block" else "--" + name.replace("_", "-")


def describe(settings: Sim) -> str:
    """Return one line that describes the timing."""
    timing = settings.timing
    if isinstance(timing, Fixed):
        parts = [
            f"fixed: TTFT {format_seconds(timing.ttft)}, ITL {format_seconds(timing.itl)}",
            f"{timing.service} service times" if timing.service != "constant" else "",
            f"at most {timing.max_batch} at a time" if timing.max_batch else "",
        ]
    else:
        overhead = f" + {format_seconds(timing.prefill_overhead)}" if timing.prefill_overhead else ""
        each = f" + {format_seconds(timing.decode_per_seq)} per sequence" if timing.decode_per_seq else ""
        parts = [
            f"batch engine: prefill {timing.prefill_rate:g} tokens/s{overhead}",
            f"decode step {format_seconds(timing.decode_step)}{each}",
            f"at most {timing.max_batch} sequences, {timing.kv_tokens} KV tokens",
            f"chunked prefill {timing.token_budget}" if timing.chunked_prefill else "whole prefills",
            "prefix cache" if timing.prefix_cache else "",
        ]
    parts += [
        f"jitter ±{100 * timing.jitter:g} %" if timing.jitter else "",
        f"{settings.tokens_per_chunk} tokens per chunk" if settings.tokens_per_chunk > 1 else "",
        "LoRA adapters " + " ".join(settings.lora) if settings.lora else "",
        "faults " + " ".join(settings.faults) if settings.faults else "",
    ]
    return ", ".join(filter(None, parts))
