"""Samples of a Prometheus server: which of them are stored, and when a series counts as gone."""

from inferometer.observe.prometheus_api import Result
from inferometer.observe.raw_samples import RawSamples

RUNNING = "vllm:num_requests_running"


def result(name: str, values: dict[int, float], **labels: str) -> Result:
    metric = {"__name__": name, "instance": "a:80", "job": "j"} | labels
    return Result(metric, [(float(second), str(value)) for second, value in values.items()])


def every(begin: int, end: int, value: float = 1) -> dict[int, float]:
    return dict.fromkeys(range(begin, end), value)


def stored(*reads: list[Result]) -> dict[str, str]:
    """Return the values by second of each series of running requests, by engine."""
    samples = RawSamples("http://p", 0)
    for read in reads:
        samples.add(read)
    return {
        each.labels.get("engine", ""): str(dict(zip((each.at // 1000).tolist(), each.value.tolist(), strict=True)))
        for each in samples.series()
        if each.name == RUNNING
    }


def test_a_series_without_a_sample_at_a_later_scrape_is_gone() -> None:
    found = stored(
        [
            result(RUNNING, every(1, 4, 8), engine="a"),
            result(RUNNING, every(4, 9, 8), engine="b"),
            result("up", every(1, 9)),
        ]
    )
    assert found == {"a": "{1: 8.0, 4: nan}", "b": "{4: 8.0}"}


def test_a_series_that_comes_back_has_a_value_again() -> None:
    first = [result(RUNNING, every(1, 3, 8) | every(5, 7, 8)), result("up", every(1, 7))]
    second = [result(RUNNING, every(9, 10, 8)), result("up", every(1, 10))]
    assert stored(first, second) == {"": "{1: 8.0, 3: nan, 5: 8.0, 7: nan, 9: 8.0}"}


def test_a_scrape_that_failed_does_not_end_a_series() -> None:
    assert stored([result(RUNNING, every(1, 3, 8)), result("up", every(1, 3) | {3: 0})]) == {"": "{1: 8.0}"}


def test_scrapes_by_another_job_do_not_end_a_series() -> None:
    other = {2: 1.0, 4: 1.0, 6: 1.0}
    read = [
        result("up", {1: 1, 3: 1, 5: 1}),
        result("up", other, job="k"),
        result(RUNNING, {1: 8, 3: 8, 5: 8}, engine="a"),
        result(RUNNING, other, job="k", engine="b"),
    ]
    assert stored(read) == {"a": "{1: 8.0}", "b": "{2: 1.0}"}


def test_samples_with_their_own_times_do_not_end() -> None:
    own = {1: 8.0, 4: 8.0, 7: 8.0}
    assert stored([result("up", {2: 1, 3: 1, 5: 1, 6: 1, 8: 1}), result(RUNNING, own)]) == {"": "{1: 8.0}"}
