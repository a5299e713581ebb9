"""The quantities that a model server may report: one name for each, whatever the server calls it."""

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram", "info"]
"""`info`: only tells which server it is; there is no figure of it."""


class Quantity(NamedTuple):
    """One quantity."""

    kind: Kind
    unit: str
    """requests, tokens, s, share (0 to 1), W, J, bytes, C, MHz, or "" for a plain number."""
    definition: str
    is_additive: bool = True
    """Gauges: whether the value of several replicas is the sum of theirs (else it is the mean)."""


QUANTITIES: dict[str, Quantity] = {
    "server_info": Quantity("info", "", "tells which server it is"),
    # the queue
    "running": Quantity("gauge", "requests", "requests that the server is processing"),
    "waiting": Quantity("gauge", "requests", "requests that wait in the server's queue"),
    "swapped": Quantity("gauge", "requests", "requests whose KV cache is swapped out to the CPU"),
    # the cache
    "kv_cache_use": Quantity("gauge", "share", "share of the KV cache that is in use", is_additive=False),
    "prefix_cache_queries": Quantity("counter", "tokens", "prompt tokens that were looked up in the prefix cache"),
    "prefix_cache_hits": Quantity("counter", "tokens", "prompt tokens that were found in the prefix cache"),
    "prefix_cache_hit_rate": Quantity(
        "gauge", "share", "share of the prompt tokens found in the prefix cache", is_additive=False
    ),
    "preemptions": Quantity("counter", "requests", "requests that were interrupted to make room in the KV cache"),
    # speculative decoding
    "spec_drafted": Quantity("counter", "tokens", "tokens that the draft model proposed"),
    "spec_accepted": Quantity("counter", "tokens", "proposed tokens that the model accepted"),
    "spec_acceptance": Quantity(
        "gauge", "share", "share of the proposed tokens that the model accepted", is_additive=False
    ),
    # totals
    "requests": Quantity("counter", "requests", "requests that the server has completed"),
    "failures": Quantity("counter", "requests", "requests that failed at the server"),
    "aborted": Quantity(
        "counter", "requests", "requests that were abandoned, mostly because the client closed the connection"
    ),
    "input_tokens": Quantity("counter", "tokens", "prompt tokens processed"),
    "output_tokens": Quantity("counter", "tokens", "tokens generated"),
    "inferences": Quantity("counter", "inferences", "inferences; a batch of n counts n"),
    "executions": Quantity("counter", "executions", "executions of the model; a batch counts once"),
    # times
    "ttft": Quantity("histogram", "s", "time to first token, by the server's clock"),
    "itl": Quantity("histogram", "s", "time between two tokens, by the server's clock"),
    "tpot": Quantity("histogram", "s", "mean time per output token of a request, by the server's clock"),
    "e2e": Quantity(
        "histogram", "s", "time from a request's arrival to the end of its response, by the server's clock"
    ),
    "queue_time": Quantity("histogram", "s", "time that requests waited in the server's queue"),
    "inference_time": Quantity("histogram", "s", "time that requests were being processed, without the queue"),
    "prefill_time": Quantity("histogram", "s", "time of the prefill phase"),
    "decode_time": Quantity("histogram", "s", "time of the decode phase"),
    "e2e_seconds": Quantity("counter", "s", "sum of the times from arrival to the end of the response"),
    "queue_seconds": Quantity("counter", "s", "sum of the times that requests waited in the server's queue"),
    "prefill_seconds": Quantity("counter", "s", "sum of the times of the prefill phase"),
    "decode_seconds": Quantity("counter", "s", "sum of the times of the decode phase"),
    "compute_seconds": Quantity("counter", "s", "sum of the times that requests spent in the model"),
    # GPUs, as exporters report them
    "gpu_use": Quantity("gauge", "share", "share of the time in which the GPU was busy", is_additive=False),
    "gpu_memory": Quantity("gauge", "bytes", "GPU memory in use"),
    "gpu_power": Quantity("gauge", "W", "power that the GPUs draw"),
    "gpu_energy": Quantity("counter", "J", "energy that the GPUs have used"),
    "gpu_temperature": Quantity("gauge", "C", "temperature of the GPU", is_additive=False),
    "gpu_clock": Quantity("gauge", "MHz", "clock of the GPU's multiprocessors", is_additive=False),
}
