"""Who counts tokens, and how prompts of exact lengths arrive at the simulator: its own tokenizer, token ids, its context."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Client, http_response, measure, scripted

from inferometer.errors import UserError
from inferometer.records import COUNTED_BY
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed
from inferometer.workload.encodings import server as server_tokenizer
from inferometer.workload.tokenizer import load


@pytest.fixture(autouse=True)
def no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_tokenizer.ServerTokenizer, "provided", None)


def counts(run: Any) -> set[tuple[int, str, int, str]]:
    """Input and output tokens of all requests, each with who counted them."""
    columns = [run.records.rows[name].tolist() for name in ("n_in", "in_counted_by", "n_out", "counted_by")]
    return {(n_in, COUNTED_BY[a], n_out, COUNTED_BY[b]) for n_in, a, n_out, b in zip(*columns, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("usage", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_servers_own_tokenizer_makes_prompts_of_exact_length(tmp_path: Path, sim: str, usage: bool) -> None:
    data = {"type": "synthetic", "input": 40, "output": 3, "tokenizer": "server"}
    run, summary = measure(tmp_path, sim, server={"model": "sim", "usage": usage}, data=data)
    assert summary.counts.ok == 6
    by = ("server", "server") if usage else ("tokenizer", "chunks")
    assert counts(run) == {(40, by[0], 3, by[1])}


@pytest.mark.parametrize("data", [{"type": "random", "of": "ids"}, {"type": "synthetic", "prompt_as": "ids"}])
@pytest.mark.parametrize("api", ["completions", "embeddings"])
def test_prompts_of_token_ids_have_exactly_these_lengths(
    tmp_path: Path, sim: str, api: str, data: dict[str, Any]
) -> None:
    run, summary = measure(tmp_path, sim, server={"model": "sim", "api": api}, data=data | {"input": 33, "output": 2})
    assert summary.counts.ok == 6
    assert {n_in for n_in, *_ in counts(run)} == {33}


def test_random_words_have_exactly_these_lengths(tmp_path: Path, sim: str) -> None:
    run, _ = measure(tmp_path, sim, server={"model": "sim"}, data={"type": "random", "input": 50, "output": 2})
    assert counts(run) == {(50, "server", 2, "server")}


# --- /tokenize of other servers --------------------------------------------------------------------------------------


def _tokenizing(field: str) -> Any:
    """A server that takes the text in this field, and is otherwise polite."""

    def script(client: Client) -> None:
        while (request := client.request()) is not None:
            first, _, body = request
            if not first.startswith("POST /tokenize"):
                client.send(http_response())
                continue
            given = json.loads(body)
            tokens = load().encode(given.get(field, ""))
            client.send(http_response(json.dumps({"tokens": tokens}).encode()))

    return script


@pytest.mark.slow
@pytest.mark.parametrize("field", ["prompt", "content"], ids=["vLLM", "llama.cpp"])
def test_servers_take_the_text_in_different_fields(tmp_path: Path, field: str) -> None:
    with scripted(_tokenizing(field)) as url:
        _, summary = measure(tmp_path, url, data={"type": "synthetic", "input": 20, "tokenizer": "server"})
    assert summary.counts.ok == 6


def test_a_server_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        while client.request():
            client.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with (
        scripted(script) as url,
        pytest.raises(
            UserError, match=r"data\.tokenizer: .*POST /tokenize: status 404: .*does not offer its tokenizer"
        ),
    ):
        measure(tmp_path, url, data={"type": "synthetic", "input": 20, "tokenizer": "server"})


def test_the_servers_tokenizer_counts_the_rows_of_a_filtered_dataset(tmp_path: Path, sim: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": "word " * n}) + "\n" for n in (2, 20, 200)))
    data = {"type": "jsonl", "path": str(path), "tokenizer": "server", "min_input": 10, "max_input": 100, "output": 2}
    run, summary = measure(tmp_path / "runs", sim, server={"model": "sim"}, data=data)
    assert summary.counts.ok == 6
    assert run.manifest.workload["filtered"] == 2


@pytest.mark.slow
def test_the_servers_tokenizer_counts_sessions_with_a_context(tmp_path: Path, sim: str) -> None:
    data = {"type": "conversation", "turns": 2, "input": 20, "output": 2, "tokenizer": "server"}
    _, summary = measure(tmp_path, sim, server={"model": "sim"}, data=data, sessions={"context": 200})
    assert not summary.counts.failed


# --- the context -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short() -> Iterator[str]:
    """The URL of a simulator with a short context."""
    with running(simulator(timing=Fixed(ttft=0.001, itl=0.001), max_len=2_000)) as url:
        yield url


@pytest.mark.parametrize("model", ["sim", None])
def test_a_prompt_longer_than_the_context_is_an_error(tmp_path: Path, short: str, model: str | None) -> None:
    data = {"type": "synthetic", "input": 4_000, "output": 3}
    message = r"data\.input: prompt 0 has 4,000 tokens and requests 3 more, but the context of the model sim has only 2,000 \(lower data\.input or data\.output, or start .* name its tokenizer: data\.tokenizer\)"
    with pytest.raises(UserError, match=message):
        measure(tmp_path, short, server={"model": model}, data=data)
    assert not list(tmp_path.iterdir())


def test_a_prompt_of_a_list_is_checked_if_the_models_tokenizer_counts_it(tmp_path: Path, short: str) -> None:
    data = {"type": "prompts", "prompts": ["the " * 4_000], "output": 3}
    with pytest.raises(UserError, match=r"data: prompt 0 has .* \(use shorter prompts or responses"):
        measure(tmp_path, short, server={"model": "sim"}, data=data | {"tokenizer": "builtin"})
    _, summary = measure(tmp_path, short, server={"model": "sim"}, data=data)
    assert summary.counts.failed == 6


def test_embeddings_have_no_output_that_must_fit(tmp_path: Path, short: str) -> None:
    data = {"type": "synthetic", "input": 1_800, "output": 1000}
    _, summary = measure(tmp_path, short, server={"model": "sim", "api": "embeddings"}, data=data)
    assert summary.counts.ok == 6


@pytest.fixture(scope="module")
def tiny() -> Iterator[str]:
    """The URL of a simulator with a context shorter than that of any real model."""
    with running(simulator(timing=Fixed(ttft=0.001, itl=0.0001), max_len=200)) as url:
        yield url


CONVERSATION = {"type": "conversation", "turns": 4, "system": 16, "input": 20, "output": 40}
TOO_LONG: dict[str, tuple[dict[str, Any], str]] = {
    "synthetic": ({"type": "synthetic", "input": 300, "output": 3}, r"data\.input: prompt 0 has 300 tokens"),
    "shared_prefix": (
        {"type": "shared_prefix", "groups": 2, "prefix": 180, "question": 20, "output": 3},
        r"data: prompt 0 has 200 tokens",
    ),
    "conversation": (CONVERSATION, r"turn 4 of session 0 has 216 tokens and requests 40 .* set sessions\.context"),
    "recorded": (CONVERSATION | {"history": "recorded"}, r"turn 4 of session 0 has 216 tokens and requests 40"),
    "mix": (
        {
            "type": "mix",
            "classes": [
                {"name": "short", "data": {"type": "synthetic", "input": 20, "output": 3}},
                {"name": "long", "data": {"type": "synthetic", "input": 300, "output": 3}},
            ],
        },
        r"data\.classes\.1\.data\.input: prompt 0 has 300 tokens",
    ),
}


@pytest.mark.parametrize("kind", TOO_LONG)
def test_every_generated_kind_is_checked_against_the_context(tmp_path: Path, tiny: str, kind: str) -> None:
    data, message = TOO_LONG[kind]
    with pytest.raises(UserError, match=message):
        measure(tmp_path, tiny, server={"model": "sim"}, data=data)


def test_a_trace_is_checked_beyond_its_first_rows(tmp_path: Path, tiny: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,input,output\n" + "".join(f"{n / 1000},{300 if n == 400 else 20},3\n" for n in range(500)))
    with pytest.raises(UserError, match=r"prompt 400 has 300 tokens"):
        measure(
            tmp_path, tiny, server={"model": "sim"}, data={"type": "trace", "path": str(path)}, load={"type": "trace"}
        )


@pytest.mark.slow
def test_sessions_that_drop_their_oldest_turns_fit(tmp_path: Path, tiny: str) -> None:
    _, summary = measure(tmp_path, tiny, server={"model": "sim"}, data=CONVERSATION, sessions={"context": 200})
    assert not summary.counts.failed
