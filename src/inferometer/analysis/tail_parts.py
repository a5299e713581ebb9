"""The parts of a request's time, by cause. They add up to its time to first token, or to its end-to-end time.

Until the send: `client` and `connection` (open loop; in closed loop latencies count from the send). From the send to the first token, or to
the end of a response that is not streamed, in this order:

    queue, compute    as the server reports them for each request; what remains of a response that is not streamed is `network`,
                      without the `protocol` if the server reports how long it had the request
    long_prompt       input tokens that were not cached x the time per input token
    server_stall      a stall of the whole server (or of the client), as far as it makes the wait longer than usual. A long prompt
                      may stall the whole server itself, so it comes first
    connection        until the response begins, if responses usually begin well before their first token
    typical           what usually remains
    the rest          `retry` if it was sent twice, `queue` if requests waited in the server in that time, else `queue_or_prefill`;
                      of a response that is not streamed, `unexplained`

The time per input token comes from requests that were sent while few others were in flight: the median of the slopes between the
median prompt and prompts that are at least half again as long or at most two thirds as long. If there are none, prompts are too
similar for their length to matter. Output tokens of responses that are not streamed count in the same way (`long_output`).

From the first to the last token: stalls, then `long_output` (gaps x the typical gap), and the rest is `slow_decode`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.stalls import Stalls, Waiting
from inferometer.records import MISSING, Columns
from inferometer.units import NS

Parts = dict[str, NDArray[np.float64]]
"""Seconds per request, by cause."""
Indices = NDArray[np.int64]


class Cause(NamedTuple):
    phrase: str
    """What follows `78 %` in a sentence."""
    label: str
    definition: str


CAUSES = {
    "client": Cause("late sends or reads of the client", "client", "the client sent it late, or did not read while its event loop stalled"),
    "connection": Cause("waiting for a connection, the concurrency cap or the start of the response", "connection", "waiting at the concurrency cap or for a connection, and until the response began"),
    "retry": Cause("requests that were sent twice", "retry", "the wait for the first token of a request whose first attempt the server closed or refused"),
    "queue": Cause("queueing at the server", "queue", "waiting in the server: as it reports for each request, or what is left of the wait for the first token while its metrics show requests waiting"),
    "queue_or_prefill": Cause("queue or prefill at the server, which does not tell them apart", "queue or prefill", "what is left of the wait for the first token, if the server does not show whether requests waited"),
    "long_prompt": Cause("long prompts", "prompt length", "input tokens x the time per input token at low load"),
    "compute": Cause("longer computing", "compute", "computing, as the server reports it for each request"),
    "protocol": Cause("the server outside of its queue and the model", "protocol", "the time that the server had the request, as it reports it, minus queue and compute"),
    "network": Cause("network and protocol", "network", "what is left beside queue, compute and protocol, if the server reports queue and compute"),
    "server_stall": Cause("stalls of the whole server", "server stall", "gaps that at least half of the open streams had at the same instant"),
    "preemption": Cause("preemptions", "preemption", "gaps of this stream alone, while the server counted a preemption"),
    "own_stall": Cause("stalls of single streams", "stall of this stream", "gaps of this stream alone"),
    "long_output": Cause("longer responses", "response length", "gaps between chunks x the typical gap; not streamed: output tokens x the time per output token"),
    "slow_decode": Cause("slower decoding throughout", "slow decoding", "gaps that are longer than the typical one, but no stalls"),
    "unexplained": Cause("unexplained", "unexplained", "what no other cause accounts for"),
}  # fmt: skip
"""In the order in which they happen."""
TYPICAL = "typical"
"""The part of the wait for the first token that every request has. It is not a cause."""
_ORDER = ("client", "connection", TYPICAL, *(cause for cause in CAUSES if cause not in ("client", "connection")))

_FEW_LONG = 3
_LONGER, _SHORTER = 1.5, 1 / 1.5
"""Prompts that tell the time per input token, in median prompts."""
_QUEUED = 0.5
"""Mean number of waiting requests from which on a wait is blamed on the queue."""
_HEADERS_FIRST = 0.5
"""Responses begin well before their first token if the headers usually come within this share of the wait."""


class Norms(NamedTuple):
    """What is usual for the requests of a stage. Times are in ns."""

    wait: float
    """The wait for the first token, or for a response that is not streamed."""
    headers_first: bool
    per_input: float
    per_output: float
    base: float
    """What usually remains of the wait."""


def norms(rows: Columns, own: Indices, stalls: Stalls) -> Norms:
    """What is usual for the rows `own`."""
    stage = rows[own]
    sent, end = stage["sent"], _wait_end(stage)
    known = end != MISSING
    wait = np.where(known, end - sent, 0).astype(np.float64)
    if not known.any():
        return Norms(0.0, False, 0.0, 0.0, 0.0)
    usual = float(np.median(wait[known]))
    first = stage["first_byte"]
    streamed = stage["first_token"] != MISSING
    both = streamed & (first != MISSING)
    headers_first = bool(both.any() and np.median((first - sent)[both]) < _HEADERS_FIRST * usual)
    low = known & (_in_flight(stage) <= np.median(_in_flight(stage)[known]))
    per_input = _slope(_prompt(stage), wait, known, low)
    per_output = 0.0
    if not streamed.any():
        rest = wait - per_input * np.maximum(_prompt(stage), 0)
        per_output = _slope(stage["n_out"].astype(np.float64), rest, known, low)
    made = Norms(usual, headers_first, per_input, per_output, np.inf)
    return made._replace(base=float(np.median(_wait_parts(stage, end, stalls, made)[TYPICAL][known])))


def parts_of(name: str, rows: Columns, indices: Indices, stalls: Stalls, waiting: Waiting, usual: Norms) -> Parts:
    """The parts of the rows' time to first token (`ttft`), or of their end-to-end time (`e2e`), in seconds."""
    chosen = rows[indices]
    parts = {cause: np.zeros(len(indices)) for cause in _ORDER}
    is_open = chosen["open_loop"] != 0
    parts["client"] += np.where(is_open, chosen["sent"] - chosen["intended"] - chosen["held"], 0)
    parts["connection"] += np.where(is_open, chosen["held"], 0)
    end = _wait_end(chosen)
    known = np.where(end == MISSING, chosen["sent"], end)
    waits = _wait_parts(chosen, known, stalls, usual)
    rest = waits.pop("rest")
    for cause, part in waits.items():
        parts[cause] += part
    for cause, which in _blame(chosen, known, waiting).items():
        parts[cause] += np.where(which, rest, 0.0)
    if name == "e2e":
        _add_decoding(parts, chosen, indices, known, stalls)
    return {cause: part / NS for cause, part in parts.items()}


def _wait_end(rows: Columns) -> NDArray[np.int64]:
    """When the wait ended: at the first token, or at the end of a response that is not streamed."""
    return np.where(rows["first_token"] != MISSING, rows["first_token"], rows["done"])


def _prompt(rows: Columns) -> NDArray[np.float64]:
    """Input tokens that had to be prefilled; -1: not known."""
    return np.where(rows["n_in"] < 0, -1, rows["n_in"] - np.maximum(rows["cached"], 0)).astype(np.float64)


def _in_flight(rows: Columns) -> NDArray[np.int64]:
    """How many requests were in flight when each was sent."""
    sent, done = rows["sent"], np.sort(rows["done"])
    return np.searchsorted(np.sort(sent), sent) - np.searchsorted(done, sent)


def _slope(
    size: NDArray[np.float64], time: NDArray[np.float64], known: NDArray[np.bool_], low: NDArray[np.bool_]
) -> float:
    """Time per token; 0 if the sizes are too similar, or longer ones take no longer."""
    known = known & (size >= 0)
    if not known.any():
        return 0.0
    centre = float(np.median(size[known]))
    near = known & (size >= _SHORTER * centre) & (size <= _LONGER * centre)
    far = known & ((size > _LONGER * centre) | (size < _SHORTER * centre)) & (size != centre)
    near = near & low if (near & low).any() else near
    far = far & low if np.count_nonzero(far & low) >= _FEW_LONG else far
    if not far.any() or not near.any():
        return 0.0
    slopes = (time[far] - np.median(time[near])) / (size[far] - centre)
    return max(float(np.median(slopes)), 0.0)


def _wait_parts(rows: Columns, end: NDArray[np.int64], stalls: Stalls, usual: Norms) -> Parts:
    """The parts of the wait, in ns; `rest` is what is left."""
    sent, first = rows["sent"], rows["first_byte"]
    rest = (end - sent).astype(np.float64)
    parts: Parts = {}

    def take(amount: NDArray[np.float64]) -> NDArray[np.float64]:
        nonlocal rest
        part: NDArray[np.float64] = np.minimum(np.maximum(amount, 0.0), rest)
        rest = rest - part
        return part

    parts["queue"] = take(rows["queue"].astype(np.float64))
    whole = rows["first_token"] == MISSING
    parts["compute"] = take(np.where(whole, rows["compute"], -1).astype(np.float64))
    reported = whole & (rows["queue"] >= 0) & (rows["compute"] >= 0)
    parts["protocol"] = take(np.where(reported, rows["server_total"] - rows["queue"] - rows["compute"], 0.0))
    parts["network"] = take(np.where(reported, rest, 0.0))
    parts["long_prompt"] = take(usual.per_input * _prompt(rows))
    parts["long_output"] = take(usual.per_output * rows["n_out"])
    room = np.maximum(end - sent - usual.wait, 0.0)
    parts["client"] = take(np.minimum(stalls.client.overlap(rows["replica"], sent, end), room))
    parts["server_stall"] = take(np.minimum(stalls.server.overlap(rows["replica"], sent, end), room - parts["client"]))
    begun = usual.headers_first & (first != MISSING) & (rows["first_token"] != MISSING)
    stalled = stalls.client.overlap(rows["replica"], sent, first) + stalls.server.overlap(rows["replica"], sent, first)
    parts["connection"] = take(np.where(begun, first - sent - stalled, 0.0))
    parts[TYPICAL] = take(np.full(len(rows), usual.base))
    return parts | {"rest": rest}


def _blame(rows: Columns, end: NDArray[np.int64], waiting: Waiting) -> dict[str, NDArray[np.bool_]]:
    """Which cause gets the rest of the wait."""
    streamed = rows["first_token"] != MISSING
    retried = rows["attempts"] > 1
    queued = ~retried & (rows["queue"] < 0) & (np.nan_to_num(waiting.during(rows["sent"], end)) >= _QUEUED)
    unknown = ~retried & ~queued
    return {
        "retry": retried,
        "queue": queued,
        "queue_or_prefill": unknown & streamed,
        "unexplained": unknown & ~streamed,
    }


def _add_decoding(parts: Parts, rows: Columns, indices: Indices, wait_end: NDArray[np.int64], stalls: Stalls) -> None:
    """Add the parts from the first token to the end, in ns."""
    first, last, done = rows["first_token"], rows["last_token"], rows["done"]
    decoded = (first != MISSING) & (last != MISSING) & (rows["chunk_count"] > 1)
    span = np.where(decoded, last - first, 0).astype(np.float64)
    stalled = np.minimum(np.where(decoded, stalls.excess[indices], 0.0), span)
    client = np.minimum(stalls.client.overlap(rows["replica"], first, np.where(decoded, last, MISSING)), stalled)
    server = np.minimum(
        stalls.server.overlap(rows["replica"], first, np.where(decoded, last, MISSING)), stalled - client
    )
    preempted = np.minimum(stalls.preempted[indices], stalled - client - server)
    usual = np.where(decoded, stalls.typical[indices] * (rows["chunk_count"] - 1), 0.0)
    parts["client"] += client
    parts["server_stall"] += server
    parts["preemption"] += preempted
    parts["own_stall"] += stalled - client - server - preempted
    parts["long_output"] += usual
    parts["slow_decode"] += span - stalled - usual
    ended = np.where(decoded, last, wait_end)
    parts["unexplained"] += np.where(done == MISSING, 0, done - ended)
