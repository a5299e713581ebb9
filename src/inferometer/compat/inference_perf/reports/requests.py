"""The requests of a run as inference-perf counts them: which of them take part, when they started and ended, and their tokens."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import store
from inferometer.analysis.gaps import gather
from inferometer.analysis.tool_definitions import Seconds, inference_perf_latencies, starts
from inferometer.compat.inference_perf.spec import Spec
from inferometer.records import CANCELLED, COUNTED_BY, DROPPED, LOST, MISSING, Body, Columns, Run
from inferometer.units import NS

Mask = NDArray[np.bool_]

NOT_STARTED = frozenset((DROPPED, CANCELLED, LOST))
"""Failures of requests that may not have been sent. If they were not, inference-perf has no record of them."""
SUCCESS_IN_EXACT = frozenset(("error_body", "error_frame", "truncated", "empty"))
"""Failures that inference-perf counts as successes."""
SERVER = COUNTED_BY.index("server")
_ALL_GAPS = 0


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that took part. All arrays have one value per request; times are in seconds since t=0, and NaN is missing."""

    run: Run
    is_exact: bool
    is_streamed: bool
    index: NDArray[np.int64]
    """Where each request is in the run's records."""
    rows: Columns
    ok: Mask
    start: Seconds
    end: Seconds
    schedule_delay: Seconds
    n_in: NDArray[np.float64]
    n_out: NDArray[np.float64]
    """Output tokens that latencies and throughput use."""
    server_out: NDArray[np.float64]
    """The server's count, else the client's."""
    size: NDArray[np.float64]
    """Bytes of the request."""
    token_times: NDArray[np.int64]
    latencies: dict[str, Seconds]
    """By inference-perf's names; NaN for failures. `inter_token_latency` is the mean of each request."""
    retried: Mask
    """Whether load.request_retries repeated the request."""
    wasted: Seconds
    """From the first attempt to the last one."""
    bodies: dict[int, Body]
    """The kept texts by id."""

    @property
    def stage(self) -> NDArray[np.int16]:
        return np.asarray(self.rows["stage"])


class Gaps:
    """Gaps between tokens of successful requests, by group."""

    def __init__(self, requests: Requests, group: NDArray[np.integer[Any]] | None = None) -> None:
        """`group` divides the requests; -1: left out. None: they are all in group 0."""
        rows = requests.run.records.rows
        of_row = np.zeros(len(rows), np.int64)
        if group is not None:
            of_row[requests.index] = group
        counted = np.zeros(len(rows), np.bool_)
        counted[requests.index[requests.ok & requests.is_streamed]] = True
        counted &= of_row >= 0
        of_row = np.maximum(of_row, 0)
        found = gather(requests.run, counted, of_row)
        self._values, self._slices = found.values, found.stages
        own, chosen = of_row[requests.index], counted[requests.index]
        repeated = np.where(chosen, np.maximum(requests.token_times - requests.rows["chunk_count"], 0), 0)
        self._zeros = {each: int(repeated[own == each].sum()) for each in self._slices}

    def of(self, group: int = _ALL_GAPS) -> NDArray[Any]:
        """Nanoseconds, in any order."""
        values = self._values[self._slices.get(group, slice(0, 0))]
        zeros = self._zeros.get(group, 0)
        return np.concatenate([values, np.zeros(zeros, values.dtype)]) if zeros else values


def collect(run: Run, spec: Spec) -> Requests:
    """Collect the requests of the run that inference-perf would have a record of."""
    is_exact, is_streamed = spec.get("compat") == "exact", bool(spec["api"]["streaming"])
    rows, codes = run.records.rows, [failure.code for failure in run.records.failures]
    index = np.flatnonzero((rows["sent"] != MISSING) | ~_has_code(rows, codes, NOT_STARTED))
    rows = rows[index]
    ok = rows["failure"] == 0
    if is_exact:
        ok |= _has_code(rows, codes, SUCCESS_IN_EXACT)
    plan = run.manifest.plan
    capped = np.array([stage.open and stage.concurrency > 0 for stage in plan] or [False])
    start = starts(rows, capped[np.clip(rows["stage"], 0, len(capped) - 1)])
    end = np.where(rows["done"] == MISSING, start, rows["done"] / NS)
    bodies = store.bodies_of(run.folder, set(rows["id"].tolist()))
    server_out = _known(rows["n_out"], is_exact)
    n_out = _client_counts(run, rows, bodies, server_out, ok) if _counts_text(spec, is_exact) else server_out
    token_times = _token_times(rows, spec, is_exact) * is_streamed
    retried, wasted = _retries(rows, spec)
    return Requests(
        run=run,
        is_exact=is_exact,
        is_streamed=is_streamed,
        index=index,
        rows=rows,
        ok=ok,
        start=start,
        end=end,
        schedule_delay=np.round(start - _scheduled(rows, is_exact), 9),  # times are whole nanoseconds
        n_in=np.where(ok | ~np.array(is_exact), _known(rows["n_in"], is_exact), 0.0),
        n_out=n_out,
        server_out=server_out,
        size=_sizes(rows, bodies),
        token_times=token_times,
        latencies=_latencies(rows, start, n_out, token_times, ok, is_exact, is_streamed),
        retried=retried,
        wasted=wasted,
        bodies=bodies,
    )


def _has_code(rows: Columns, codes: list[str], wanted: frozenset[str]) -> Mask:
    table = np.array([False, *(code in wanted for code in codes)])
    found: Mask = table[rows["failure"]]
    return found


def _known(column: NDArray[Any], is_exact: bool) -> NDArray[np.float64]:
    """A column of tokens as floats, with what is not known as NaN; exact: as 0."""
    return np.where(column < 0, 0.0 if is_exact else np.nan, column)


def _scheduled(rows: Columns, is_exact: bool) -> Seconds:
    """When each request was due. inference-perf queues all requests of a concurrent stage when the stage starts."""
    intended: Seconds = rows["intended"] / NS
    if is_exact:
        for stage in np.unique(rows["stage"][rows["open_loop"] == 0]):
            own = (rows["stage"] == stage) & (rows["open_loop"] == 0)
            intended[own] = intended[own].min()
    return intended


def _counts_text(spec: Spec, is_exact: bool) -> bool:
    return is_exact and not spec["report"]["request_lifecycle"].get("use_server_output_tokens")


def _client_counts(
    run: Run, rows: Columns, bodies: dict[int, Body], known: NDArray[np.float64], ok: Mask
) -> NDArray[np.float64]:
    """Count the tokens of the kept texts with the tokenizer of the run; `known` for requests without a text."""
    texts = {
        at: body.response for at, id in enumerate(rows["id"].tolist()) if (body := bodies.get(id)) and body.response
    }
    data = run.manifest.config.get("data")
    name = data.get("tokenizer") if isinstance(data, dict) else None
    if not texts or name == "server":
        return known
    from inferometer.workload import tokenizer  # noqa: PLC0415 - it is needed only here

    counted = known.copy()
    counted[ok & (rows["n_out"] < 0)] = 0.0
    counted[list(texts)] = tokenizer.load(name).count_batch(texts.values())
    return counted


def _token_times(rows: Columns, spec: Spec, is_exact: bool) -> NDArray[np.int64]:
    """How many token times each response has: one per chunk, or one per token of each chunk."""
    chunks = rows["chunk_count"].astype(np.int64)
    if not (is_exact and spec.get("tokenizer")):
        return chunks
    return np.where(rows["streamed_tokens"] < 0, chunks, np.maximum(rows["streamed_tokens"], chunks))


def _retries(rows: Columns, spec: Spec) -> tuple[Mask, Seconds]:
    """Which requests were retried, and the time that it took. A second attempt on a stale connection is not a retry of theirs."""
    if not spec["load"].get("request_retries"):
        return np.zeros(len(rows), np.bool_), np.zeros(len(rows))
    return rows["wasted"] > 0, rows["wasted"] / NS


def _sizes(rows: Columns, bodies: dict[int, Body]) -> NDArray[np.float64]:
    sizes = rows["bytes_out"].astype(np.float64)
    if bodies:
        for at, id in enumerate(rows["id"].tolist()):
            if (body := bodies.get(id)) is not None:
                sizes[at] = len(body.request.encode())
    return sizes


def _latencies(
    rows: Columns,
    start: Seconds,
    n_out: NDArray[np.float64],
    token_times: NDArray[np.int64],
    ok: Mask,
    is_exact: bool,
    is_streamed: bool,
) -> dict[str, Seconds]:
    found = inference_perf_latencies(rows, start, n_out, token_times, is_exact=is_exact)
    streamed_time = (rows["last_token"] - rows["first_token"]) / NS
    found["inter_token_latency"] = np.where(token_times > 1, streamed_time / np.maximum(token_times - 1, 1), np.nan)
    if not is_streamed:
        for name in ("time_to_first_token", "time_per_output_token", "inter_token_latency"):
            found[name] = np.full(len(ok), np.nan)
    return {name: np.where(ok, values, np.nan) for name, values in found.items()}
