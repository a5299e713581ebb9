"""Against llama.cpp's own server: real batching, a real tokenizer, real HTTP, none of it written by us.

It behaves differently from our server in several ways: it closes the connection after each stream although it promised to
keep it for 5 s; a token may be a part of a character, so a chunk carries none or several; it accepts any model name; and its
/metrics count every token that it read or wrote, which is compared with the sums of the records.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from command import cli
from plain_client import get, post, stream_request
from real_server import check_times, in_a_row, inferometer, measure, most_in_flight, started

from inferometer import workload
from inferometer.apis import APIS
from inferometer.config import from_mapping
from inferometer.records import COUNTED_BY, MISSING
from inferometer.types import Messages, Received
from inferometer.wire.openai import EXTRACTOR
from inferometer.wire.text_body import body_decoder
from inferometer.workload import tokenizer

pytestmark = pytest.mark.llama_cpp

CLOSED = {"type": "closed", "concurrency": 4, "requests": 40}
OPEN = {"type": "poisson", "rate": 80, "requests": 40}
GREEDY = {"temperature": 0}
PROMPTS = ["dego mika", "la la la", "The captain repaired the rusty anchor.", "€uro, naïve, 猫", "1 + 1 ="]


@pytest.fixture(scope="module")
def llama() -> Iterator[dict[str, Any]]:
    with started("llama_cpp") as ready:
        yield ready


@pytest.fixture
def url(llama: dict[str, Any]) -> str:
    return str(llama["url"])


# --- every kind of request ends well ----------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unstreamed"])
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_all_responses_are_complete_and_counted_by_the_server(
    tmp_path: Path, llama: dict[str, Any], api: str, stream: bool, load: dict[str, Any]
) -> None:
    run, summary = measure(tmp_path, llama["url"], load, server={"api": api, "stream": stream, "body": GREEDY})
    rows = run.records.rows
    assert (summary.counts.ok, summary.counts.failed, summary.counts.dropped) == (40, 0, 0), summary.failures
    assert sorted(rows["id"]) == list(range(40))
    assert set(rows["status"]) == {200}
    assert set(rows["n_out"]) == {12}
    assert set(rows["counted_by"]) == {COUNTED_BY.index("server")}
    assert set(rows["chunk_count"]) == ({12} if stream else {0})
    assert set(rows["open_loop"]) == {int(load is OPEN)}
    check_times(run, stream)
    if load is CLOSED:
        assert most_in_flight(run) <= 4
    assert run.manifest.config["server"]["model"] == llama["model"]  # type: ignore[index]  # found through /v1/models


def test_the_servers_token_counts_match_the_records(tmp_path: Path, url: str) -> None:
    """No request reached the model twice, although the connection of each stream was stale when the next request was due."""
    before = _counters(url)
    run, _ = measure(tmp_path, url, in_a_row(40))
    after = _counters(url)
    rows = run.records.rows
    assert after["tokens_predicted_total"] - before["tokens_predicted_total"] == rows["n_out"].sum() == 40 * 12
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == rows["n_in"].sum() - rows["cached"].sum()
    assert after["prompt_tokens_cached_total"] - before["prompt_tokens_cached_total"] == rows["cached"].sum()


def _counters(url: str) -> dict[str, int]:
    return {
        name: int(value) for name, value in re.findall(r"(?m)^llamacpp:(\w+) (\d+)$", get(url, "/metrics").decode())
    }


def test_connections_that_close_after_each_stream_are_soon_no_longer_reused(tmp_path: Path, url: str) -> None:
    run, _ = measure(tmp_path, url, in_a_row(40))
    assert (run.records.rows["attempts"] > 1).sum() <= 3


def test_connections_that_are_kept_are_reused_beyond_the_servers_limit_of_100(tmp_path: Path, url: str) -> None:
    run, summary = measure(tmp_path, url, in_a_row(230), server={"stream": False}, data={"input": 4, "output": 2})
    assert summary.counts.ok == 230, summary.failures
    assert (run.records.rows["attempts"] > 1).sum() <= 2


# --- what is seen is what was sent --------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_plain_client_sees_the_same_counts(tmp_path: Path, url: str, api: str) -> None:
    plain = [stream_request(url, APIS[api].path, _body(api, prompt)) for prompt in PROMPTS]
    run, _ = measure(tmp_path, url, in_a_row(5), server={"api": api, "body": GREEDY}, data=_given(PROMPTS))
    rows = run.records.rows
    assert [response.finish for response in plain] == ["length"] * 5
    assert rows["n_in"].tolist() == [response.usage["prompt_tokens"] for response in plain]
    assert rows["n_out"].tolist() == [response.usage["completion_tokens"] for response in plain]
    assert rows["chunk_count"].tolist() == [len(response.pieces) for response in plain]


def test_a_plain_client_sees_the_same_text(tmp_path: Path, url: str) -> None:
    """Records hold no text; but if the server reports no usage, the tokens of the text are counted with the given tokenizer."""
    plain = [stream_request(url, APIS["chat"].path, _body("chat", prompt)) for prompt in PROMPTS]
    own = {"tokenizer": tokenizer.BUILTIN_NAME}
    run, _ = measure(tmp_path, url, in_a_row(5), server={"usage": False, "body": GREEDY}, data=_given(PROMPTS) | own)
    rows = run.records.rows
    assert rows["n_out"].tolist() == tokenizer.load(None).count_batch([response.text for response in plain])
    assert set(rows["counted_by"]) == {COUNTED_BY.index("tokenizer")}


@pytest.mark.parametrize("n", [5, 30])
@pytest.mark.parametrize(("prompt_as", "special"), [("text", 1), ("ids", 0)])
def test_the_servers_own_tokenizer_makes_prompts_of_exact_length(
    tmp_path: Path, url: str, n: int, prompt_as: str, special: int
) -> None:
    """The server puts a special token before a text, but not before token ids."""
    data = {"type": "synthetic", "input": n, "output": 3, "tokenizer": "server", "prompt_as": prompt_as}
    run, summary = measure(tmp_path, url, in_a_row(10), server={"api": "completions"}, data=data)
    assert summary.counts.ok == 10, summary.failures
    assert set(run.records.rows["n_in"]) == {n + special}
    assert set(run.records.rows["in_counted_by"]) == {COUNTED_BY.index("server")}


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_the_decoder_reads_the_same_text_from_the_same_bytes(url: str, api: str, size: int) -> None:
    plain = stream_request(url, APIS[api].path, _body(api, PROMPTS[0]))
    body, received = body_decoder(EXTRACTOR, True), Received()
    pieces = [plain.body[start : start + size] for start in range(0, len(plain.body), size)]
    assert body.feed(pieces, range(len(pieces)), received) is None
    assert body.finish(received) is None
    assert received.text == plain.text
    assert len(received.arrivals) == len(plain.pieces) == 12


def test_tokens_that_are_parts_of_characters_make_fewer_chunks_than_tokens(tmp_path: Path, url: str) -> None:
    """The three bytes of the euro sign, in any order: a chunk is sent when a character, or an invalid sequence, is complete."""
    bias = {str(3 + octet): 100 for octet in "€".encode()}
    body = {"logit_bias": bias, "temperature": 1, "seed": 7}
    plain = stream_request(url, APIS["completions"].path, {"prompt": "la", "max_tokens": 30, **body})
    server = {"api": "completions", "body": body}
    run, summary = measure(tmp_path, url, in_a_row(3), server=server, data=_given(["la"], output=30))
    rows = run.records.rows
    assert summary.counts.ok == 3, summary.failures
    assert set(rows["n_out"]) == {30}
    assert set(rows["chunk_count"]) == {len(plain.pieces)}
    assert 0 < len(plain.pieces) < 30


def _body(api: str, prompt: str) -> dict[str, object]:
    prompt_fields = {"messages": [{"role": "user", "content": prompt}]} if api == "chat" else {"prompt": prompt}
    return {**prompt_fields, "max_tokens": 12, **GREEDY}


def _given(prompts: list[str], output: int = 12) -> dict[str, Any]:
    return {"type": "prompts", "prompts": prompts, "output": output}


# --- settings that a server acts upon ------------------------------------------------------------------------------------


def test_ignore_eos_and_extra_body_fields_reach_the_server(tmp_path: Path, llama: dict[str, Any]) -> None:
    """If EOS is certain, a response is one token long and has no text; if EOS is ignored, it has the requested length."""
    body = {"logit_bias": {str(llama["eos"]): 100}, **GREEDY}
    run, summary = measure(tmp_path, llama["url"], in_a_row(4), server={"body": body})
    rows = run.records.rows
    assert summary.counts.ok == 4, summary.failures
    assert (set(rows["n_out"]), set(rows["chunk_count"]), set(rows["first_token"])) == ({1}, {0}, {MISSING})
    run, summary = measure(tmp_path, llama["url"], in_a_row(4), server={"body": body, "ignore_eos": True})
    rows = run.records.rows
    assert summary.counts.ok == 4, summary.failures
    assert (set(rows["n_out"]), set(rows["chunk_count"])) == ({12}, {12})


def test_max_completion_tokens(tmp_path: Path, url: str) -> None:
    run, _ = measure(tmp_path, url, in_a_row(2), server={"max_tokens_field": "max_completion_tokens"})
    assert set(run.records.rows["n_out"]) == {12}


def test_cached_tokens_are_recorded(tmp_path: Path, url: str) -> None:
    run, _ = measure(tmp_path, url, in_a_row(2), data=_given(["a prompt that nobody has sent before"]))
    rows = run.records.rows
    assert rows["cached"][0] < rows["cached"][1] < rows["n_in"][1]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_shared_prefixes_are_cached(tmp_path: Path, url: str, api: str) -> None:
    """Three groups in turn, one per slot of the server: from the second round on, it computes little more than the questions."""
    data = {
        "type": "shared_prefix",
        "groups": 3,
        "prompts": 4,
        "prefix": 40,
        "question": 6,
        "popularity": "round_robin",
    }
    run, summary = measure(tmp_path, url, in_a_row(12), server={"api": api}, data=data | {"output": 4})
    rows = run.records.rows
    assert summary.counts.ok == 12, summary.failures
    prefixes = np.array([_tokens(url, text) for text in _prefixes(data, str(run.manifest.workload["salt"]))] * 4)
    n_in, cached = rows["n_in"], rows["cached"]
    assert (cached[:3] < 0.5 * prefixes[:3]).all()
    assert (cached[3:] >= prefixes[3:] - 2).all()  # its tokens may span the seam between prefix and question
    assert (cached[3:] < n_in[3:]).all()


def _prefixes(data: dict[str, Any], salt: str) -> list[str]:
    """The prefixes of three groups, which are the system messages if a chat has some."""
    config = from_mapping({"server": {"url": "http://127.0.0.1:1", "api": "chat"}, "data": data})
    requests = workload.build(workload.salted(config.data, salt), config.seed, range(3))
    return [str(cast("Messages", request.payload)[0]["content"]) for request in requests]


def _tokens(url: str, text: str) -> int:
    return len(json.loads(post(url, "/tokenize", {"content": text}))["tokens"])


@pytest.mark.parametrize("history", ["live", "recorded"])
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_later_turns_of_a_conversation_find_the_earlier_ones_in_the_cache(
    tmp_path: Path, url: str, api: str, history: str
) -> None:
    """One conversation at a time, so that no other one takes over the slot that has its prompt. With recorded responses, the prompt
    of the turn before is cached; with live ones, so are the tokens that the server generated, unless the text of the response has
    other tokens than were generated."""
    data = {"type": "conversation", "turns": 3, "system": 20, "input": 8, "output": 6, "history": history}
    run, summary = measure(tmp_path, url, in_a_row(3), server={"api": api, "body": GREEDY}, data=data)
    rows = run.records.rows
    assert summary.counts.ok == 9, summary.failures
    assert summary.sessions is not None and summary.sessions.ok == 3
    for session in range(3):
        own = rows[rows["session"] == session]
        for turn in (1, 2):
            before = own["turn"] == turn - 1
            now = own["turn"] == turn
            assert own["n_in"][before][0] < own["n_in"][now][0]
            assert own["cached"][now][0] >= 0.9 * own["n_in"][before][0]
            assert own["cached"][now][0] < own["n_in"][now][0]
    assert (summary.sessions.metrics["cached_share"].mean or 0) > 0.3


def test_an_unknown_model_name_is_accepted(tmp_path: Path, url: str) -> None:
    _, summary = measure(tmp_path, url, in_a_row(2), server={"model": "no-such-model"})
    assert summary.counts.ok == 2


# --- failures, in the server's own words --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "data", "code", "words"),
    [
        ({}, {"input": 400, "output": 8}, "http_400", r"request \(\d+ tokens\) exceeds the available context size \(512 tokens\)"),
        ({"body": {"temperature": "hot"}}, {"input": 8, "output": 8}, "http_400", "Field 'temperature': .* must be number"),
        ({"url": "/nowhere", "model": "tiny-llama"}, {"input": 8, "output": 8}, "http_404", "File Not Found"),
    ],
    ids=["prompt too long", "field of the wrong type", "no such path"],
)  # fmt: skip
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unstreamed"])
def test_a_refusal_is_a_failure_with_the_servers_message(
    tmp_path: Path, url: str, server: dict[str, Any], data: dict[str, Any], code: str, words: str, stream: bool
) -> None:
    where = {"url": url + server.get("url", "")}
    run, summary = measure(tmp_path, url, in_a_row(2), server=server | where | {"stream": stream}, data=data)
    assert (summary.counts.ok, summary.counts.by_failure) == (0, {code: 2})
    assert summary.verdict == "INVALID"
    assert all(re.search(words, failure.message) for failure in run.records.failures), run.records.failures
    assert set(run.records.rows["status"]) == {int(code[5:])}


def test_a_key_is_sent_and_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEY", "sesame-opens")
    few = ("--concurrency", "1", "--requests", "2", "--input", "16", "--output", "4", "--quiet")
    with started("llama_cpp", "--api-key", "sesame-opens") as ready:
        command = ("run", ready["url"], *few)
        unnamed = cli(*command)
        refused = cli(*command, "--model", ready["model"])
        let_in = cli(*command, "--set", "server.api_key_env=KEY")
    assert unnamed.status == 2 and "the server requires an API key" in unnamed.err, unnamed
    assert refused.status == 2 and "Invalid API Key" in refused.err, refused
    assert "2 ok" in let_in.out, let_in
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert stored and not any(b"sesame-opens" in path.read_bytes() for path in stored)


# --- the command --------------------------------------------------------------------------------------------------------


def test_the_command_finds_the_model_and_its_report_is_reproducible(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ("--concurrency", "4", "--requests", "40", "--input", "16", "--output", "8")
    live = inferometer(tmp_path, "run", url, "--quiet", *load, "--json", "live.json", "--csv", "live.csv")
    assert live.returncode in (0, 1), live  # on a shared machine it may be INVALID
    assert "tiny-llama" in live.stdout and "40 ok" in live.stdout, live
    monkeypatch.chdir(tmp_path)
    again = cli("report", "runs/LATEST", "--json", "again.json", "--csv", "again.csv")
    assert (again.out, again.status) == (live.stdout, live.returncode)
    for kind in ("json", "csv"):
        assert (tmp_path / f"again.{kind}").read_bytes() == (tmp_path / f"live.{kind}").read_bytes()
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "runs/LATEST/summary.json").read_bytes()


def test_the_command_from_a_file(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bench.yaml").write_text(
        f"server: {{url: '{url}', api: completions, body: {{temperature: 0}}}}\n"
        "data: {type: synthetic, input: 16, output: 8}\n"
        "load: {type: constant, rate: 80, duration: 500ms}\n"
    )
    done = cli("run", "bench.yaml")
    assert done.status in (0, 1), done
    assert "40 ok" in done.out and "0 failed" in done.out, done
