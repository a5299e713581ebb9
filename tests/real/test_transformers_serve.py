"""Against `transformers serve`, plain and with continuous batching: a second LLM server that we did not write.

It behaves differently from others in several ways: its streams end without [DONE]; it refuses unknown fields with 422, and
ignores some known ones (max_completion_tokens); an error after the first byte is a 200 with an error in the stream;
/v1/models lists its download cache, not the served model; and continuous batching identifies requests by X-Request-Id.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from plain_client import stream_request
from real_server import check_times, in_a_row, inferometer, measure, most_in_flight, started

from inferometer.apis import APIS
from inferometer.records import COUNTED_BY

pytestmark = pytest.mark.transformers_server

CLOSED = {"type": "closed", "concurrency": 4, "requests": 16}
OPEN = {"type": "poisson", "rate": 20, "requests": 16}
PROMPTS = ["dego mika", "la la la", "€uro, naïve, 猫"]
BATCHING = ("--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512")
"""With limits: by default it takes most of the machine's memory, and a minute to do so."""
MODES = {"plain": (), "continuous batching": BATCHING}


@pytest.fixture(scope="module", params=MODES)
def server(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    with started("transformers", *MODES[request.param]) as ready:
        yield ready


@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unstreamed"])
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_all_responses_are_complete_and_counted_by_the_server(
    tmp_path: Path, server: dict[str, Any], api: str, stream: bool, load: dict[str, Any]
) -> None:
    how = {"model": server["model"], "api": api, "stream": stream}
    run, summary = measure(tmp_path, server["url"], load, server=how)
    rows = run.records.rows
    assert (summary.counts.ok, summary.counts.failed) == (16, 0), summary.failures
    assert set(rows["n_out"]) == {12}
    assert set(rows["counted_by"]) == {COUNTED_BY.index("server")}
    assert set(rows["chunk_count"]) == ({12} if stream else {0})
    assert set(rows["attempts"]) == {1}
    check_times(run, stream)
    if load is CLOSED:
        assert most_in_flight(run) <= 4


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_plain_client_sees_the_same_counts_and_no_done(tmp_path: Path, server: dict[str, Any], api: str) -> None:
    def body(prompt: str) -> dict[str, object]:
        prompt_fields = {"messages": [{"role": "user", "content": prompt}]} if api == "chat" else {"prompt": prompt}
        return {"model": server["model"], "max_tokens": 12, **prompt_fields}

    plain = [stream_request(server["url"], APIS[api].path, body(prompt)) for prompt in PROMPTS]
    data = {"type": "prompts", "prompts": PROMPTS, "output": 12}
    run, _ = measure(tmp_path, server["url"], in_a_row(3), server={"model": server["model"], "api": api}, data=data)
    rows = run.records.rows
    assert [(response.finish, response.done) for response in plain] == [("length", False)] * 3
    assert rows["n_in"].tolist() == [response.usage["prompt_tokens"] for response in plain]
    assert rows["n_out"].tolist() == [response.usage["completion_tokens"] for response in plain]
    assert rows["chunk_count"].tolist() == [len(response.pieces) for response in plain]


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ({"ignore_eos": True}, "http_422", "Unexpected fields in the request: {'ignore_eos'}"),
        ({"model": "no-such-model"}, "http_400", "requested 'no-such-model'"),
    ],
    ids=["field that it does not know", "model that it does not have"],
)
def test_a_refusal_is_a_failure_with_the_servers_message(
    tmp_path: Path, server: dict[str, Any], how: dict[str, Any], code: str, words: str
) -> None:
    run, summary = measure(tmp_path, server["url"], in_a_row(2), server={"model": server["model"]} | how)
    assert summary.counts.by_failure == {code: 2}
    assert words in run.records.failures[0].message


def test_a_limit_that_the_server_ignores_shows_in_the_count(tmp_path: Path, server: dict[str, Any]) -> None:
    how = {"model": server["model"], "max_tokens_field": "max_completion_tokens"}
    run, summary = measure(tmp_path, server["url"], in_a_row(1), server=how, data={"input": 8, "output": 4})
    assert summary.counts.ok == 1, summary.failures
    assert run.records.rows["n_out"][0] > 4


def test_without_a_model_the_error_has_a_remedy(tmp_path: Path, server: dict[str, Any]) -> None:
    done = inferometer(tmp_path, "run", server["url"], "--quiet", "--requests", "1")
    assert done.returncode == 2
    assert "the server does not list any model" in done.stderr


def test_an_error_after_the_headers_is_a_failure_with_the_servers_message(tmp_path: Path) -> None:
    with started("transformers") as ready:
        how = {"model": ready["model"], "body": {"logit_bias": {"5": 100}}}  # it does not accept an integer as a number
        run, summary = measure(tmp_path, ready["url"], in_a_row(2), server=how)
    assert summary.counts.by_failure == {"error_frame": 2}
    assert set(run.records.rows["status"]) == {200}
    assert "has to be a dict with floats" in run.records.failures[0].message


def test_concurrent_runs_do_not_affect_each_other(tmp_path: Path) -> None:
    def run_beside_another(number: int) -> set[int]:
        how = {"model": ready["model"], "timeouts": {"total": 20}}
        data = {"input": 8, "output": 64}
        run, _ = measure(tmp_path / str(number), ready["url"], {"concurrency": 2, "requests": 4}, server=how, data=data)
        return set(run.records.rows["n_out"].tolist())

    with started("transformers", *BATCHING) as ready, ThreadPoolExecutor() as pool:
        assert list(pool.map(run_beside_another, range(2))) == [{64}, {64}]
