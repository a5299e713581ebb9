"""The truth log and /metrics."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from raw_client import RawClient, request
from waiting import until

from inferometer.errors import UserError
from inferometer.serve.background import running, serving
from inferometer.serve.settings import simulator
from inferometer.serve.sim import truth
from inferometer.serve.sim.settings import Batch, Fixed

MS = 1_000_000


def body_of(tokens: int, stream: bool = True, prompt: Any = "hello") -> dict[str, Any]:
    return {"prompt": prompt, "stream": stream, "max_tokens": tokens}


def read_a_token(client: RawClient) -> None:
    came = b""
    while b"data: " not in came:
        more = client.sock.recv(65536)
        assert more, came
        came += more


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL and the truth log of a server that serves one request at a time and refuses others."""
    path = tmp_path_factory.mktemp("truth") / "truth.jsonl"
    timing = Fixed(ttft=0.02, itl=0.005, max_batch=1)
    with running(simulator(timing=timing, max_queue=0, truth=str(path))) as url:
        yield url, path


def row(path: Path, name: str) -> truth.Row:
    """Return the row of the request with this id, which is written soon after its end."""
    until(lambda: name in [each.id for each in truth.read(path)])
    return next(each for each in truth.read(path) if each.id == name)


def test_a_row_has_ordered_timestamps_and_the_configured_times(logged: tuple[str, Path]):
    url, path = logged
    with RawClient(url) as client:
        before = time.monotonic_ns()
        client.request("/v1/completions", body_of(5), x_request_id="one")
        client.request("/v1/completions", body_of(3, stream=False, prompt=[1, 2]), x_request_id="two")
        after = time.monotonic_ns()
    one, two = row(path, "one"), row(path, "two")
    assert (one.n_out, one.fault, one.aborted) == (5, None, False)
    assert (two.n, two.n_in, two.n_out, len(two.chunks)) == (one.n + 1, 2, 3, 1)
    assert before <= one.arrived < one.chunks[0] <= one.chunks[-1] <= after
    assert (one.first, one.last, one.done) == (one.chunks[0], one.chunks[-1], one.chunks[-1])
    for k, stamp in enumerate(one.chunks):
        assert stamp >= one.arrived + 20 * MS + k * 5 * MS
    assert two.first is not None
    assert two.first >= two.arrived + 30 * MS


def test_a_disconnected_client_is_aborted_and_frees_its_slot_and_a_full_queue_is_a_503(logged: tuple[str, Path]):
    url, path = logged
    with RawClient(url) as client, RawClient(url) as other:
        client.send(request("/v1/completions", body_of(100_000), x_request_id="gone"))
        read_a_token(client)
        refused = other.request("/v1/completions", body_of(1), x_request_id="refused")
        assert (refused.status, refused.json["error"]["code"]) == (503, "queue_full")
        so_far = samples(url)["generation_tokens_total"]
        until(lambda: samples(url)["generation_tokens_total"] > so_far, "the admitted request continues")
    with RawClient(url) as client:
        until(lambda: client.request("/v1/completions", body_of(1), x_request_id="served").status == 200)
    gone = row(path, "gone")
    assert gone.aborted
    assert 1 <= gone.n_out < 100_000
    assert not row(path, "served").aborted
    assert row(path, "refused").fault == "queue_full"


def test_metrics_of_fixed_timing(logged: tuple[str, Path]):
    url, path = logged
    before = samples(url)
    with RawClient(url) as client:
        for i in range(3):
            body = body_of(4, prompt=[1, 2, 3, 4, 5])
            until(lambda: client.request("/v1/completions", body, x_request_id=f"metrics {i}").status == 200)  # noqa: B023
        client.send(request("/v1/completions", body_of(100_000)))
        read_a_token(client)
        after = samples(url)
    found = {name: value - before[name] for name, value in after.items()}
    gaps = [each.chunks[-1] - each.chunks[0] for each in (row(path, f"metrics {i}") for i in range(3))]
    assert (after["num_requests_running"], after["num_requests_waiting"]) == (1, 0)
    assert found["prompt_tokens_total"] == 15
    assert found["generation_tokens_total"] > 12
    assert found["request_success_total.length"] == 3
    assert found["time_to_first_token_seconds_count"] == 3
    assert found["time_to_first_token_seconds_bucket.+Inf"] == 3
    assert found["time_to_first_token_seconds_bucket.0.02"] == 0
    assert found["inter_token_latency_seconds_count"] == 9
    assert found["inter_token_latency_seconds_sum"] == pytest.approx(sum(gaps) / 1e9)
    assert found["e2e_request_latency_seconds_count"] == 3
    assert found["request_queue_time_seconds_count"] == 3


def test_faults_and_refusals_are_logged(truth_file: str):
    faults = ("reset@#1", "reject=500@#2", "abort@#3", "stall=10ms@#4")
    with running(simulator(timing=Fixed(ttft=0, itl=0), truth=truth_file, faults=faults)) as url:
        for _ in range(4):
            with RawClient(url) as client:  # the header has no effect unless it is allowed
                client.request("/v1/completions", body_of(4), x_sim_fault="html")
    rows = truth.read(truth_file)
    assert [(row.n, row.fault, row.n_out, row.aborted) for row in rows] == [
        (1, "reset", 0, False),
        (2, "reject", 0, False),
        (3, "abort", 2, True),
        (4, "stall", 4, False),
    ]
    assert rows[0].first is None


def test_responses_in_progress_at_the_stop_are_logged(truth_file: str):
    server = serving(simulator(timing=Fixed(ttft=0.01, itl=0.01), truth=truth_file))
    with RawClient(server.url) as client:
        client.send(request("/v1/completions", body_of(10_000)))
        client.sock.recv(1)
        time.sleep(0.05)
        server.stop()
    (row,) = truth.read(truth_file)
    assert row.aborted


def test_an_unwritable_truth_log_is_reported_at_the_start(tmp_path: Path):
    with pytest.raises(UserError, match="truth log"):
        serving(simulator(truth=str(tmp_path / "missing" / "truth.jsonl")))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_reported_at_the_end():
    server = serving(simulator(timing=Fixed(ttft=0, itl=0), truth="/dev/full"))
    with RawClient(server.url) as client:
        client.request("/v1/completions", body_of(1))
    with pytest.raises(UserError, match="incomplete"):
        server.stop()


def samples(url: str) -> dict[str, float]:
    with RawClient(url) as client:
        page = client.request("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(page.body.decode()):
        for sample in family.samples:
            if not sample.name.startswith("vllm:"):
                continue
            assert sample.labels["model_name"] == "sim"
            extra = [value for name, value in sorted(sample.labels.items()) if name != "model_name"]
            found[".".join([sample.name.removeprefix("vllm:"), *extra])] = sample.value
    return found


def test_metrics_of_the_batch_engine_and_cached_tokens_in_usage(truth_file: str):
    timing = Batch(prefill_rate=1e6, decode_step=0.001, prefix_cache=True, kv_tokens=96, block=4)
    with running(simulator(timing=timing, truth=truth_file)) as url, RawClient(url) as client:
        body = body_of(2, stream=False, prompt=list(range(40)))
        first = client.request("/v1/completions", body).json["usage"]
        second = client.request("/v1/completions", body).json["usage"]
        too_long = client.request("/v1/completions", body_of(90, prompt=list(range(40))))
        pairs = 0

        def preempted() -> bool:
            """Two of 60 tokens do not go into 96, if they meet there: a client that is held up comes when the other is over."""
            nonlocal pairs
            pairs += 1
            with RawClient(url) as other:
                other.send(request("/v1/completions", body_of(40, prompt=list(range(100, 120)))))
                client.request("/v1/completions", body_of(40, prompt=list(range(200, 230))))
                assert other.response().complete
            return samples(url)["num_preemptions_total"] >= 1

        until(preempted)
        found = samples(url)
    assert (first["prompt_tokens_details"], second["prompt_tokens_details"]) == (
        {"cached_tokens": 0},
        {"cached_tokens": 36},
    )
    assert too_long.status == 400
    assert [row.cached for row in truth.read(truth_file)][:2] == [0, 36]
    assert found["prefix_cache_hits_total"] >= 36
    assert found["prefix_cache_queries_total"] >= 80
    assert found["kv_cache_usage_perc"] == 0
    assert found["generation_tokens_total"] == 4 + 80 * pairs
