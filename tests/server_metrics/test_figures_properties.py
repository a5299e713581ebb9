"""Properties of figures: replicas and windows add up, resets never make a delta negative, quantiles lie in their bucket."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_metrics.pages import A, B, Sample, scraped, window

TOKENS, TTFT = "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds"
EDGES = (0.01, 0.1, 0.5, 1.0, 5.0)

steps = st.lists(st.integers(0, 1000), min_size=2, max_size=12)
times = st.floats(0.0001, 10, allow_nan=False)


def _tokens(value: float) -> list[Sample]:
    return [(TOKENS, {"engine": "0"}, float(value))]


def _observed(values: list[float]) -> list[Sample]:
    """A histogram of these observations."""
    counts = {str(edge): sum(value <= edge for value in values) for edge in EDGES} | {"+Inf": len(values)}
    buckets = [(f"{TTFT}_bucket", {"le": edge}, float(count)) for edge, count in counts.items()]
    return [*buckets, (f"{TTFT}_sum", {}, math.fsum(values)), (f"{TTFT}_count", {}, float(len(values)))]


@given(steps, st.data())
def test_deltas_of_adjacent_windows_add_up(grown: list[int], data: st.DataObject) -> None:
    series = scraped({at: _tokens(value) for at, value in enumerate(np.cumsum(grown).tolist())})
    end = len(grown) - 1
    middle = data.draw(st.floats(1, end - 1)) if end > 1 else 0
    whole = window(series, 0, end).counters["output_tokens"].delta
    assert whole == sum(grown[1:])
    if end > 1 and int(middle) not in (0, end):
        parts = [window(series, *part).counters["output_tokens"].delta for part in ((0, middle), (middle, end))]
        assert sum(parts) == whole


@given(steps, steps)
def test_replicas_count_as_much_as_one_server_that_did_all_of_it(a: list[int], b: list[int]) -> None:
    length = min(len(a), len(b))
    own = [np.cumsum(each[:length]).tolist() for each in (a, b)]
    replicas = [scraped({at: _tokens(value) for at, value in enumerate(values)}, url) for values, url in zip(own, (A, B), strict=True)]  # fmt: skip
    merged = scraped({at: _tokens(x + y) for at, (x, y) in enumerate(zip(*own, strict=True))})
    both = window((*replicas[0], *replicas[1]), 0, length - 1)
    assert both.counters == window(merged, 0, length - 1).counters


@given(st.lists(times, max_size=40), st.lists(times, min_size=1, max_size=40))
def test_histograms_of_replicas_are_that_of_all_their_observations(a: list[float], b: list[float]) -> None:
    replicas = [scraped({0: [], 1: _observed(values)}, url) for values, url in ((a, A), (b, B))]
    both = window((*replicas[0], *replicas[1]), 0, 1).histograms["ttft"]
    one = window(scraped({0: [], 1: _observed([*a, *b])}), 0, 1).histograms["ttft"]
    assert both.quantiles == {label: pytest.approx(value) for label, value in one.quantiles.items()}
    assert (both.count, both.mean) == (one.count, pytest.approx(one.mean))


@given(st.lists(st.integers(0, 100), min_size=2, max_size=4))
def test_resets_are_counted_and_never_make_a_delta_negative(values: list[int]) -> None:
    found = window(scraped({at: _tokens(value) for at, value in enumerate(values)}), 0, len(values) - 1)
    counter = found.counters["output_tokens"]
    assert counter.resets == sum(after < before for before, after in pairwise(values))
    assert counter.delta == sum(after - before if after >= before else after for before, after in pairwise(values))


@given(st.lists(times, max_size=40), st.lists(times, min_size=1, max_size=200))
def test_quantiles_lie_in_the_bucket_of_the_observation(before: list[float], during: list[float]) -> None:
    series = scraped({0: _observed(before), 1: _observed(before + during)})
    found = window(series, 0, 1).histograms["ttft"]
    assert found.count == len(during)
    assert found.mean == pytest.approx(math.fsum(during) / len(during), rel=1e-6)
    for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        exact = np.quantile(during, share, method="inverted_cdf")
        bucket = int(np.searchsorted(EDGES, exact, "left"))
        value = found.quantiles[label]
        if bucket == 0:
            assert (value, found.below[label]) == (None, EDGES[0])
        elif bucket == len(EDGES):
            assert value is None
        else:
            assert value is not None and EDGES[bucket - 1] <= value <= EDGES[bucket] * (1 + 1e-12)
