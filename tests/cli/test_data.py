"""`inferometer data`: what a workload consists of, without a server."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import cli
from hypothesis import given
from hypothesis import strategies as st

from inferometer import preview, workload
from inferometer.config.data import Jsonl
from inferometer.preview.prefixes import SharedPrefixes
from inferometer.serve.background import serving
from inferometer.serve.settings import Settings
from inferometer.serve.sim.settings import Fixed, Sim
from inferometer.types import Request, RequestOptions, Turn, TurnResponse
from inferometer.wire.history import history
from inferometer.workload.session import converse

SYNTHETIC = "data: {type: synthetic, input: 40, output: 7, salt: none}\n"


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


@pytest.fixture
def spec(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return path

    return write


def figures(*arguments: str | Path) -> dict[str, Any]:
    result = cli("data", *arguments, "--json", "-")
    assert result.status == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def rows(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_samples_lengths_and_duplicates_are_shown(spec: Any) -> None:
    result = cli("data", spec(SYNTHETIC), "--samples", "2")
    assert result.status == 0
    assert "synthetic, seed 0, digest" in result.out
    assert "every one different; the figures are of the first 1,000" in result.out
    assert "0 of 1,000 prompts repeat an earlier one" in result.out
    assert "request 1, 40 tokens in, 7 out" in result.out
    assert "request 2" not in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_a_mix_with_repeated_prompts_does_not_claim_that_every_request_is_different(spec: Any) -> None:
    few = "{name: few, data: {type: prompts, prompts: [a, b], output: 8}}"
    fresh = "{name: fresh, data: {type: synthetic, input: 8, output: 8}}"
    out = cli("data", spec(f"data: {{type: mix, classes: [{few}, {fresh}]}}"), "--count", "80").out
    assert "repeat an earlier one (" in out and "every one different" not in out


def test_figures_are_those_of_the_requests(spec: Any, tmp_path: Path) -> None:
    path = rows(tmp_path, *({"prompt": "word " * n, "output": n} for n in (1, 2, 2, 10)))
    found = figures(spec(f"data: {{type: jsonl, path: {path}}}"))
    assert found["requests"] == found["distinct"] == 4
    assert found["duplicates"] == 1
    output = found["output"]
    assert (output["total"], output["min"], output["p50"], output["p99"], output["max"]) == (15, 1, 2, 10, 10)
    assert sum(count for _, _, count in output["histogram"]) == 4
    assert output["histogram"][0][0] == 1
    assert output["histogram"][-1][1] == 10
    assert found["digest"] == workload.digest(Jsonl(path=str(path)), 0)


def test_the_load_gives_the_number_of_requests_and_the_curve_of_arrivals(spec: Any) -> None:
    path = spec(SYNTHETIC + "load: {type: ramp, start: 0, end: 20, duration: 30s}\n")
    found = figures(path)
    assert found["planned"] == found["requests"] == sum(found["arrivals"]["counts"]) == 300
    assert found["arrivals"]["interval"] == 0.5
    counts = found["arrivals"]["counts"]
    assert sum(counts[:30]) < sum(counts[30:])
    assert "arrivals: 300 in 30 s" in cli("data", path).out
    assert figures(spec(SYNTHETIC))["arrivals"] is None


def test_keys_can_be_set_and_the_number_be_given(spec: Any) -> None:
    found = figures(spec(SYNTHETIC), "--set", "data.input=9", "--count", "5", "--set", "seed=3")
    assert (found["requests"], found["input"]["total"], found["seed"]) == (5, 45, 3)


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(SYNTHETIC))
    assert figures("-")["type"] == "synthetic"


def test_the_workload_is_written_as_jsonl_which_is_read_back(spec: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    path = spec(SYNTHETIC + "load: {type: constant, rate: 100, duration: 21s}\n")
    assert cli("data", path, "--jsonl", out).status == 0
    from_config = preview.read({"data": {"type": "synthetic", "input": 40, "output": 7, "salt": "none"}}, (), "")[0]
    expected = workload.build(from_config.data, 0, range(2100))
    read_back = workload.build(Jsonl(path=str(out)), 0, range(2100))
    assert [(each.payload, each.n_in, each.n_out) for each in read_back] == [
        (each.payload, each.n_in, each.n_out) for each in expected
    ]


def test_messages_and_turns_are_read_back(spec: Any, tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}], "output": 3},
        {"turns": ["one", "two"], "think": 0.25, "output": 5},
        {"prompt": "plain", "output": 0},
    ]
    path, out = rows(tmp_path, *lines), tmp_path / "out.jsonl"
    result = cli("data", spec(f"data: {{type: jsonl, path: {path}}}"), "--jsonl", out)
    assert result.status == 0, result.err
    assert "2 turns" in result.out

    def built(file: Path) -> list[Request]:
        return workload.build(Jsonl(path=str(file)), 0, range(3))

    assert built(out) == built(path)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (Request(0, [1, 2, 3], 3, 1), "token ids"),
        (Request(0, (), 0, 0), "tensors"),
        (Request(0, [b"x"], 0, 0), "gRPC"),
        (
            Request(0, "a", 1, 1, later=(Turn([user("b")], 1, 1, response="c"), Turn([user("d")], 1, 1))),
            "some recorded responses",
        ),
    ],
)
def test_what_a_line_cannot_express_is_an_error(request_: Request, reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        preview.line(request_)


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9).filter(str.strip)
thinks = st.integers(0, 10**10)
tokens = st.integers(0, 99)
tools = [{"type": "function", "function": {"name": "f"}}]
options = st.builds(
    RequestOptions,
    model=st.sampled_from(["", "m"]),
    headers=st.sampled_from([{}, {"X-A": "1"}]),
    body=st.sampled_from([{}, {"temperature": 0.5, "tools": tools}, {"max_tokens": 3}]),
)
messages = st.lists(
    st.one_of(
        st.builds(user, words),
        st.builds(lambda text: {"role": "assistant", "content": text}, words),
        st.builds(lambda text: {"role": "tool", "tool_call_id": "c", "content": text}, words),
        st.just({"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}),
    ),
    max_size=3,
).map(lambda more: [{"role": "system", "content": "s"}, user("u"), *more])
live_turns = st.lists(
    st.builds(lambda text, out, think: Turn([user(text)], 1, out, think), words, tokens, thinks), max_size=3
)
recorded_turns = st.lists(
    st.builds(
        lambda text, out, think, response: Turn([user(text)], 1, out, think, response), words, tokens, thinks, words
    ),
    max_size=3,
)
whole_turns = st.lists(
    st.builds(lambda out, think, prompt: Turn([], 1, out, think, payload=prompt), tokens, thinks, words | messages), max_size=3
)  # fmt: skip
requests = st.builds(
    lambda payload, out, options, later: Request(0, payload, 1, out, options=options, later=tuple(later)),
    st.one_of(words, messages),
    tokens,
    options,
    st.one_of(live_turns, recorded_turns, whole_turns),
)


def sent(request: Request) -> list[Any]:
    """All that the turns of a session send, with live responses that are always the same."""
    session = converse(request, history("messages"))
    made, turn = [], next(session)
    while True:
        payload = turn.payload if turn.turn < 1 else json.loads(bytes(turn.payload))  # type: ignore[arg-type]
        prompt = [user(payload)] if isinstance(payload, str) else payload
        made.append((prompt, turn.n_out, turn.think, turn.options))
        try:
            turn = session.send(TurnResponse("live", -1, -1))
        except StopIteration:
            return made


@given(requests)
def test_every_request_is_read_back(tmp_path_factory: pytest.TempPathFactory, request_: Request) -> None:
    path = tmp_path_factory.getbasetemp() / "read_back.jsonl"
    path.write_bytes(preview.line(request_))
    (read_back,) = workload.build(Jsonl(path=str(path)), 0, [0])
    assert sent(read_back) == sent(request_)


@pytest.mark.parametrize(
    "text",
    [
        "{type: conversation, turns: 3, system: 9, input: {type: uniform, min: 2, max: 9}, output: {type: uniform, min: 2, max: 9}, think: 1.5s}",
        "{type: conversation, turns: 3, system: 9, output: 5, history: recorded, think: 290ms, think_distribution: exponential}",
        "{type: openai-batch, path: PATH, model: file}",
    ],
)
def test_a_workload_is_the_same_after_it_was_written(spec: Any, tmp_path: Path, text: str) -> None:
    body = {"model": "m", "messages": [user("hi")], "temperature": 0.5, "tools": tools, "max_tokens": 7}
    more = {"model": "m", "prompt": [1, 2, 3]}
    path = rows(tmp_path, *({"custom_id": "1", "url": "/v1/chat/completions", "body": each} for each in (body, more)))
    out = tmp_path / "out.jsonl"
    file = spec(f"data: {text.replace('PATH', str(path))}")
    result = cli("data", file, "--count", "2", "--jsonl", out)
    assert result.status == 0, result.err
    data = workload.salted(preview.read(yaml.safe_load(file.read_text()), (), "")[0].data, "none", None)
    read_back = workload.build(Jsonl(path=str(out)), 0, range(2))
    for before, after in zip(workload.build(data, 0, range(2)), read_back, strict=True):
        assert sent(after) == sent(before)


def test_shared_prefixes_are_counted_in_whole_blocks() -> None:
    shared = SharedPrefixes()
    first = list(range(100))
    shared.add(first)
    assert shared.shared == 0
    shared.add(first[:40] + [7] * 60)  # two blocks and a half
    assert shared.shared == 32
    shared.add([5, *first])  # the same blocks elsewhere are not a prefix
    assert (shared.shared, shared.tokens, shared.requests) == (32, 301, 3)


def test_shared_prefixes_of_prompts_are_shown(spec: Any, tmp_path: Path) -> None:
    system = "the same long instruction again " * 20
    path = rows(tmp_path, *({"prompt": f"{system} question {n}"} for n in range(10)))
    found = figures(spec(f"data: {{type: jsonl, path: {path}}}"))["prefixes"]
    assert 0.7 < found["shared"] / found["tokens"] < 0.9
    assert found["shared"] % 16 == 0


SHORT = "input: 20, output: 2"
KINDS = {
    "synthetic": f"{{type: synthetic, {SHORT}}}",
    "random": f"{{type: random, {SHORT}}}",
    "shared_prefix": "{type: shared_prefix, groups: 2, prompts: 2, prefix: 32, question: 8, output: 2}",
    "conversation": f"{{type: conversation, turns: 2, system: 8, {SHORT}}}",
    "mix": f"{{type: mix, classes: [{{name: a, data: {{type: synthetic, {SHORT}}}}}, {{name: b, data: {{type: random, {SHORT}}}}}]}}",
}


@pytest.mark.parametrize(
    "kind", [kind if kind in ("conversation", "mix") else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_the_digest_is_that_of_a_run(spec: Any, tmp_path: Path, kind: str) -> None:
    with serving(Settings(sim=Sim(timing=Fixed(ttft=0.001, itl=0)), http=0, grpc=0)) as server:
        path = spec(
            f"data: {KINDS[kind]}\nserver: {{url: '{server.url}'}}\nload: {{type: closed, concurrency: 1, requests: 2}}\n"
        )
        cli("run", path, "-q", "--set", f"output={tmp_path}", "--set", "client.processes=0")
    manifest = json.loads((tmp_path / "LATEST" / "manifest.json").read_text())
    assert figures(path)["digest"] == manifest["workload"]["digest"]


@pytest.mark.parametrize(
    "load",
    ["{type: constant, rate: 20, duration: 2s, unit: requests}", "{concurrency: 1, requests: 40, unit: requests}"],
)
def test_a_load_in_requests_has_fewer_sessions(spec: Any, load: str) -> None:
    data = f"data: {KINDS['conversation']}\n"
    assert figures(spec(f"{data}load: {load}\n"))["planned"] == 20
    assert figures(spec(data + f"load: {load}\n".replace("unit: requests", "unit: sessions")))["planned"] == 40


def test_tokens_of_sessions_are_those_that_a_turn_adds(spec: Any) -> None:
    text = "data: {type: conversation, turns: 3, system: 32, input: 10, output: 5}"
    found = figures(spec(text), "--count", "4")
    assert (found["input"]["total"], found["prefixes"]["tokens"]) == (4 * (32 + 3 * 10), 4 * (32 + 10))
    shown = cli("data", spec(text), "--count", "4").out
    assert "sessions" in shown and "added tokens" in shown and "turns per session" in shown


def test_tensors_show_names_and_shapes(spec: Any) -> None:
    inputs = "inputs: [{name: A, datatype: FP32, shape: [1, 3]}]"
    assert "A FP32 [1, 3]" in cli("data", spec(f"data: {{type: tensors, {inputs}}}"), "--count", "2").out
    result = cli("data", spec("data: {type: tensors}"))
    assert result.status == 2
    assert cli("data", spec("data: {type: images, path: x.png}")).err == result.err
    assert "data.inputs: the model's inputs are not known without a server" in result.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {type: synthetic, input: -1}", "data.input"),
        ("data: {type: nonsense}", "data.type"),
        ("data: {type: jsonl, path: /nowhere.jsonl}", "/nowhere.jsonl"),
        ("nothing", "there are no sections"),
    ],
)
def test_bad_input_is_an_error(spec: Any, text: str, message: str) -> None:
    result = cli("data", spec(text))
    assert result.status == 2
    assert message in result.err


def test_a_url_is_an_error() -> None:
    result = cli("data", "http://127.0.0.1:1")
    assert result.status == 2
    assert "is a URL" in result.err


def test_two_outputs_cannot_both_be_standard_output(spec: Any) -> None:
    result = cli("data", spec(SYNTHETIC), "--json", "-", "--jsonl", "-")
    assert result.status == 2
    assert "standard output" in result.err
