"""The table of metrics: the name, unit and definition of each, and how it is computed from the columns.

Console, JSON, CSV and docs all read METRICS. Latencies count from `start`. In open loop that is the instant at which the plan
intended to send the request, so a request that had to wait is charged for the wait; in closed loop, which has no schedule to
be late for, it is the send. `*_service` metrics always count from the send. A value that is not known is NaN: it is left out
of the statistics, and never counts as 0.
"""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.records import COUNTED_BY, MISSING, Columns
from inferometer.units import NS

Column = NDArray[np.float64]

_BY_CHUNKS = COUNTED_BY.index("chunks")


class Metric(msgspec.Struct, frozen=True):
    name: str
    unit: Literal["s", "tokens", "tokens/chunk", "tokens/s"]
    definition: str
    values: Callable[[Columns], Column] | None
    """Compute one value per row, NaN if it is not known. None for `itl`, which has one value per gap: see gaps.py."""
    of: Literal["ok", "sent"] = "ok"
    """Which requests count: those that succeeded, or all that were sent."""
    estimated: Callable[[Columns], NDArray[np.bool_]] | None = None
    """Select the rows whose value is an estimate. None: no value is."""

    @property
    def can_fail(self) -> bool:
        """Whether a failed request may count as +inf: its first token and its last byte never came."""
        return self.name in ("ttft", "ttft_service", "ttft_content", "e2e", "e2e_service")


def _since(later: NDArray[np.int64], earlier: NDArray[np.int64]) -> Column:
    """Seconds between two timestamps of the records; NaN if one is missing."""
    return np.where((later == MISSING) | (earlier == MISSING), np.nan, (later - earlier) / NS)


def stages_of(column: NDArray[np.int16]) -> list[int]:
    """Stage numbers that occur in a column, in ascending order."""
    stages: list[int] = np.flatnonzero(np.bincount(column)).tolist()
    return stages


def start(rows: Columns) -> NDArray[np.int64]:
    """The instant from which a request's latency counts."""
    return np.where(rows["open_loop"] != 0, rows["intended"], rows["sent"])


def _known(column: NDArray[Any]) -> Column:
    return np.where(column < 0, np.nan, column.astype(np.float64))


def _at_least(column: NDArray[Any], least: int) -> Column:
    """Counts of at least `least`, NaN for the others, so that they can be divided by."""
    return np.where(column < least, np.nan, column.astype(np.float64))


def ttft(rows: Columns) -> Column:
    return _since(rows["first_token"], start(rows))


def ttft_service(rows: Columns) -> Column:
    return _since(rows["first_token"], rows["sent"])


def ttft_content(rows: Columns) -> Column:
    return _since(rows["first_content"], start(rows))


def decoded_tokens(rows: Columns) -> Column:
    """Output tokens that were streamed after the first chunk; NaN if there is one chunk, or if the number is not known.

    Tokens that were never streamed, such as hidden reasoning, do not count. If the tokens of the chunks are not known, the first
    chunk is taken to have as many as the average chunk. An engine without a server may report only when the first and the last token
    came: then there are tokens, and no chunks.
    """
    chunks = np.where((rows["chunk_count"] == 0) & (rows["first_tokens"] > 0), 2.0, _at_least(rows["chunk_count"], 2))
    n_out = _counted_output(rows)
    counted = _known(rows["streamed_tokens"]) - _known(rows["first_tokens"])
    tokens = np.where(_chunks_are_unknown(rows), np.where(n_out < 2, np.nan, n_out) * (1 - 1 / chunks), counted)
    return np.where((tokens > 0) & ~np.isnan(chunks), tokens, np.nan)


def _counted_output(rows: Columns) -> Column:
    """Output tokens, NaN if they are not known or only as a number of chunks, each of which may have several."""
    return np.where(rows["counted_by"] == _BY_CHUNKS, np.nan, _known(rows["n_out"]))


def _chunks_are_unknown(rows: Columns) -> NDArray[np.bool_]:
    """Whether it is not known how many tokens the first chunk has, and all of them."""
    unknown: NDArray[np.bool_] = (rows["streamed_tokens"] < 0) | (rows["first_tokens"] < 0)
    return unknown


def tpot(rows: Columns) -> Column:
    return _since(rows["last_token"], rows["first_token"]) / decoded_tokens(rows)


def tps_user(rows: Columns) -> Column:
    time = _since(rows["last_token"], rows["first_token"])
    return decoded_tokens(rows) / np.where(time > 0, time, np.nan)


def e2e(rows: Columns) -> Column:
    return _since(rows["done"], start(rows))


def e2e_service(rows: Columns) -> Column:
    return _since(rows["done"], rows["sent"])


def ntpot(rows: Columns) -> Column:
    tokens = _counted_output(rows)
    return e2e(rows) / np.where(tokens < 1, np.nan, tokens)


def lag(rows: Columns) -> Column:
    return _since(rows["sent"], rows["intended"])


def client_lag(rows: Columns) -> Column:
    return lag(rows) - rows["held"] / NS


def read_delay(rows: Columns) -> Column:
    return _known(rows["read_delay"]) / NS


def queue(rows: Columns) -> Column:
    return _known(rows["queue"]) / NS


def compute(rows: Columns) -> Column:
    return _known(rows["compute"]) / NS


def _queue_and_compute(rows: Columns) -> Column:
    """Those of the two that the server reports."""
    parts: Column = (np.maximum(rows["queue"], 0) + np.maximum(rows["compute"], 0)) / NS
    return parts


def overhead(rows: Columns) -> Column:
    is_known = (rows["queue"] >= 0) | (rows["compute"] >= 0)
    return np.where(is_known, e2e_service(rows) - _queue_and_compute(rows), np.nan)


def protocol(rows: Columns) -> Column:
    return _known(rows["server_total"]) / NS - _queue_and_compute(rows)


def network(rows: Columns) -> Column:
    return e2e_service(rows) - _known(rows["server_total"]) / NS


def rtt(rows: Columns) -> Column:
    return _known(rows["rtt"]) / NS


def tokens_per_chunk(rows: Columns) -> Column:
    return _counted_output(rows) / _at_least(rows["chunk_count"], 1)


def _count_of(name: str) -> Callable[[Columns], Column]:
    return lambda rows: _known(rows[name])


METRICS = {
    metric.name: metric
    for metric in (
        Metric("ttft", "s", "time to first token: first token - intended (closed loop: - sent)", ttft),
        Metric("ttft_service", "s", "time to first token from the send: first token - sent", ttft_service),
        Metric("ttft_content", "s", "time to the first token of the response itself, after any reasoning: first content or tool call - intended (closed loop: - sent)", ttft_content),
        Metric("itl", "s", "inter-token latency: each gap between consecutive chunks of a response", None),
        Metric("tpot", "s", "time per output token after the first chunk: (last token - first token) / (streamed tokens - tokens of the first chunk); no value for a response in one chunk; if the tokens of each chunk are not known, the first chunk is taken to have tokens / chunks, and the value is an estimate", tpot, estimated=_chunks_are_unknown),
        Metric("tps_user", "tokens/s", "output tokens per second that a user sees while a response is streamed: 1 / tpot", tps_user, estimated=_chunks_are_unknown),
        Metric("e2e", "s", "end-to-end latency: last byte of the response - intended (closed loop: - sent)", e2e),
        Metric("e2e_service", "s", "end-to-end latency from the send: last byte of the response - sent", e2e_service),
        Metric("ntpot", "s", "normalised time per output token: e2e / tokens", ntpot),
        Metric("lag", "s", "how late a request was sent: sent - intended, for all requests that were sent", lag, "sent"),
        Metric("client_lag", "s", "the part of lag that the client caused: lag - time spent waiting at the concurrency cap or for a connection", client_lag, "sent"),
        Metric("read_delay", "s", "the longest time that bytes of a response waited in the socket before the client read them (latencies do not include it if the kernel stamped the bytes)", read_delay),
        Metric("queue", "s", "how long a request waited in the server's queue, if the server reports it per request (in Server-Timing, or as `server.timing` says)", queue),
        Metric("compute", "s", "how long the server spent computing a request, if it reports it per request", compute),
        Metric("protocol", "s", "the server's time outside of its queue and the model: total - queue - compute, where total is from receiving the request to sending the response, if the server reports it per request; a queue or compute that it does not report counts as 0", protocol),
        Metric("network", "s", "the time outside of the server: e2e_service - total, if the server reports total per request; it may be slightly negative, because server and client round and stamp on their own", network),
        Metric("overhead", "s", "the remainder: e2e_service - queue - compute, of which the server reports at least one; network + protocol if it reports total", overhead),
        Metric("rtt", "s", "the shortest round trip of the request's connection up to the last sample before the send, as the kernel measured it (TCP_INFO, tcpi_min_rtt; Linux)", rtt),
        Metric("tokens_per_chunk", "tokens/chunk", "output tokens of a response / its chunks", tokens_per_chunk),
        Metric("input_tokens", "tokens", "tokens in the prompt", _count_of("n_in")),
        Metric("output_tokens", "tokens", "tokens in the response; if neither side counted them, its chunks, which is a lower bound", _count_of("n_out")),
        Metric("cached_tokens", "tokens", "prompt tokens that the server had cached, if it reports them", _count_of("cached")),
        Metric("reasoning_tokens", "tokens", "output tokens spent on reasoning, if the server reports them", _count_of("reasoning")),
    )
}  # fmt: skip
"""In the order in which reports print them."""

RATES = {
    "requests": "successful requests completed per second, leaving out the edges of the stage, when it fills and drains; in closed loop, a request that crosses an edge counts by the share of its time inside",
    "output_tokens": "output tokens per second, in the same time as requests; a token counts when its chunk arrives",
    "input_tokens": "prompt tokens per second, of the requests that throughput.requests counts",
    "total_tokens": "input_tokens + output_tokens",
    "inferences": "throughput.requests x batch size; null if requests carry no batches",
    "offered": "requests sent per second, from the first send in the window to the last",
    "in_flight": "mean number of requests in flight, in the same time as requests",
    "little": "in_flight / (requests x mean e2e_service), for successful requests; by Little's law it is 1 in a steady state",
    "decode": "output tokens per second of one response while it is streamed: tokens after the first chunk / (last token - first token), each summed over all responses",
    "span": "seconds over which these rates are counted; offered and decode cover the whole window",
}
"""The window starts at its first intended instant (at t=0 if there is no warm-up) and ends when its last response ends (with a
cool-down: at the first intended instant of that). The rates leave out the edges of a stage. Open loop: they count from the first
send plus the p90 of the end-to-end time of the first tenth of the requests until the last send, and are null, with a reason, if
less than half of the stage remains. Closed loop: from when all users have started until the last send. If a stage ended because
it was stable, its stable part counts."""

OTHER_TOOLS = (
    ("ttft", "-", "-", "-", "-", "TTFT (Server scenario)"),
    ("ttft_service", "TTFT, with waiting for a connection", "time_to_first_token, likewise; only of responses in two or more chunks", "Time to First Token", "Time to First Token", "-"),
    ("ttft_content", "-", "-", "Time to First Output Token", "-", "-"),
    ("itl", "ITL, with the gap after the chunk that has only the role", "inter_token_latency", "Inter Chunk Latency", "-", "-"),
    ("tpot", "TPOT, which divides by tokens - 1", "time_per_output_token, likewise", "Inter Token Latency, likewise", "Inter Token Latency, likewise", "TPOT, likewise"),
    ("ntpot", "-", "normalized_time_per_output_token, 0 without tokens", "-", "-", "-"),
    ("tps_user", "-", "-", "Output Token Throughput Per User", "Output Token Throughput Per User", "-"),
    ("e2e", "-", "-", "-", "-", "sample latency (Server scenario)"),
    ("e2e_service", "E2EL, until the last chunk with choices", "request_latency", "Request Latency, until the last content", "Request Latency, likewise", "-"),
    ("lag", "-", "schedule_delay", "-", "-", "-"),
    ("throughput.offered", "Request rate configured", "achieved_rate", "-", "-", "Scheduled samples per second"),
    ("throughput.requests", "Request throughput, with fill and drain", "requests_per_sec, likewise", "Request Throughput, likewise", "Request Throughput, likewise", "Completed samples per second, likewise"),
    ("throughput.output_tokens", "Output token throughput, likewise", "output_tokens_per_sec, likewise", "Output Token Throughput, likewise", "Output Token Throughput, likewise", "Completed tokens per second, likewise"),
)  # fmt: skip
"""What other tools call these figures: our name, then vLLM's (`vllm bench serve`), inference-perf's, AIPerf's, GenAI-Perf's and MLPerf
Inference's."""


class OtherFigure(msgspec.Struct, frozen=True):
    """A figure of another tool."""

    label: str
    """What it calls the figure."""
    ours: str
    """Our name of the figure that is closest to it; empty if there is none."""
    definition: str


TOOL_FIGURES: dict[str, tuple[OtherFigure, ...]] = {
    "vllm-bench": (
        OtherFigure("TTFT", "ttft", "first chunk with choices - start, where start is just before the HTTP client is called: waiting for a connection counts, waiting for the schedule or for --max-concurrency does not"),
        OtherFigure("TPOT", "tpot", "(E2EL - TTFT) / (output tokens - 1), of responses with at least two tokens"),
        OtherFigure("ITL", "itl", "each gap between consecutive chunks with choices, of all responses together"),
        OtherFigure("E2EL", "e2e", "last chunk with choices - start"),
        OtherFigure("Request throughput", "throughput.requests", "successful requests / (end of the last response - start of the benchmark)"),
        OtherFigure("Output token throughput", "throughput.output_tokens", "output tokens of successful requests / the same time"),
        OtherFigure("Total token throughput", "throughput.total_tokens", "input and output tokens of successful requests / the same time"),
    ),
    "inference-perf": (
        OtherFigure("time_to_first_token", "ttft", "first chunk with content - start, of responses with at least two timed tokens; start is just before the HTTP client is called, as in vllm bench"),
        OtherFigure("time_per_output_token", "tpot", "(last token - first token) / (output tokens - 1)"),
        OtherFigure("normalized_time_per_output_token", "ntpot", "request_latency / output tokens; 0 for a response without tokens"),
        OtherFigure("inter_token_latency", "itl", "each gap between timed tokens, of all responses together; without a `tokenizer` section a chunk counts as one token, with one its tokens share its time"),
        OtherFigure("request_latency", "e2e", "end of the response, after it was decoded - start"),
        OtherFigure("requests_per_sec", "throughput.requests", "successful requests / (last end - first start)"),
        OtherFigure("output_tokens_per_sec", "throughput.output_tokens", "output tokens of successful requests / the same time"),
        OtherFigure("input_tokens_per_sec", "throughput.input_tokens", "input tokens of successful requests / the same time"),
        OtherFigure("total_tokens_per_sec", "throughput.total_tokens", "input and output tokens of successful requests / the same time"),
        OtherFigure("achieved_rate", "throughput.offered", "requests / (last start - first start)"),
    ),
}  # fmt: skip
"""Other tools' definitions: vllm/benchmarks/serve.py and lib/endpoint_request_func.py of vLLM, and inference_perf/reportgen/base.py of
inference-perf 0.7. Both count every request of the run and interpolate percentiles (numpy's default)."""
