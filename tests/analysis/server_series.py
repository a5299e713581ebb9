"""Made-up scrapes of a vLLM server that counted exactly the requests of some rows, after three requests of a probe."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import synthetic_run as made

from inferometer.records import Run
from inferometer.series import TimeSeries
from inferometer.server_metrics.targets import SOURCE, STAGE, UP

TARGET = "http://127.0.0.1:8000/metrics"
PROBE = 3
NETWORK = 2 * made.MS
"""By how much the client's times are longer than the server's."""
_BOUNDS = (0.02, 0.04, 0.06, 0.1, 0.2)

Count = Callable[[int], float]
"""The value of a counter or gauge at an instant."""


def scrapes_of(rows: np.ndarray) -> list[int]:
    """Before the start, every second, and after the last request."""
    last = int(rows["done"].max())
    return [-made.SECOND // 10, *range(made.SECOND, last, made.SECOND), last + made.SECOND // 10]


def vllm(
    rows: np.ndarray,
    scrapes: Sequence[int],
    marks: Sequence[int] = (),
    target: str = TARGET,
    **changes: Count | float | None,
) -> tuple[TimeSeries, ...]:
    """The series of these scrapes. Buckets are scraped only at the first, at the last and at `marks`, when stages begin. A change is the value, or the
    function of the instant, of a metric without a label of its own; None leaves it out."""
    scrapes = sorted({*scrapes, *marks})
    done, first = rows["done"], rows["first_token"]
    counters: dict[str, Count] = {
        "request_success_total": lambda at: PROBE + int((done <= at).sum()),
        "prompt_tokens_total": lambda at: 64 * PROBE + int(rows["n_in"][done <= at].sum()),
        "generation_tokens_total": lambda at: 10 * PROBE + int(rows["n_out"][done <= at].sum()),
        "num_requests_running": lambda at: int(((rows["sent"] <= at) & (done > at)).sum()),
        "num_requests_waiting": lambda at: 0,
        "kv_cache_usage_perc": lambda at: 0.25,
        "num_preemptions_total": lambda at: 5,
        "prefix_cache_queries_total": lambda at: 64 * PROBE + int(rows["n_in"][done <= at].sum()),
        "prefix_cache_hits_total": lambda at: 64 * PROBE,
    }
    made_up = {
        name: value if callable(value) else _constant(value) for name, value in changes.items() if value is not None
    }
    counters = {name: count for name, count in (counters | made_up).items() if changes.get(name, 0) is not None}
    labels = {"model_name": "my-model", "target": target}
    series = [_series(UP, {"target": target}, scrapes, lambda at: 1)]
    if marks:
        series.append(_series(STAGE, {"target": target}, marks, lambda at: 1 + sorted(marks).index(at)))
    series += [_series(f"vllm:{name}", labels, scrapes, count) for name, count in counters.items()]
    edges = [scrapes[0], *marks, scrapes[-1]]
    for name, event in (("time_to_first_token_seconds", first), ("e2e_request_latency_seconds", done)):
        seconds = (event - rows["sent"] - NETWORK) / made.SECOND
        series += _histogram(f"vllm:{name}", labels, scrapes, edges, event, seconds)
    return tuple(series)


def _constant(value: float) -> Count:
    return lambda at: value


def _histogram(
    name: str,
    labels: Mapping[str, str],
    scrapes: Sequence[int],
    edges: Sequence[int],
    event: np.ndarray,
    seconds: np.ndarray,
) -> list[TimeSeries]:
    def below(bound: float) -> Count:
        return lambda at: PROBE + int(((event <= at) & (seconds <= bound)).sum())

    found = [
        _series(f"{name}_count", labels, scrapes, below(np.inf)),
        _series(f"{name}_sum", labels, scrapes, lambda at: 100 + float(seconds[event <= at].sum())),
    ]
    bounds = {f"{bound}": bound for bound in _BOUNDS} | {"+Inf": np.inf}
    return found + [
        _series(f"{name}_bucket", {**labels, "le": le}, edges, below(bound)) for le, bound in bounds.items()
    ]


def _series(name: str, labels: Mapping[str, str], scrapes: Sequence[int], value: Count) -> TimeSeries:
    """As it is stored: values that have not changed are left out, except for `up`."""
    values = np.array([value(at) for at in scrapes], np.float64)
    kept = np.array([name == UP or not index or values[index] != values[index - 1] for index in range(len(values))])
    return TimeSeries(SOURCE, name, dict(labels), np.array(scrapes, np.int64)[kept], values[kept])


def with_series(run: Run, series: tuple[TimeSeries, ...]) -> Run:
    return msgspec.structs.replace(run, series=lambda: series)
