"""`inferometer data convert`: datasets into batches for offline engines, and back."""

import json
from pathlib import Path
from typing import Any

import pytest
import small_tokenizers
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from inferometer import workload
from inferometer.cli.data_convert import command
from inferometer.config.data import Jsonl, OpenAiBatch
from inferometer.errors import UserError
from inferometer.workload.datasets.convert import Conversion, convert
from inferometer.workload.tokenizer import load

CSV = "question,answer\nWhat is a queue?,A line.\nWhy?,Because it is so.\nHow long is the longest river of Europe?,Very.\n"


def run(folder: Path, *arguments: str | Path, to: str, source: str = CSV, name: str = "in.csv") -> Result:
    (folder / name).write_text(source)
    return CliRunner().invoke(
        command,
        [str(folder / name), str(folder / "out.jsonl"), "--to", to, *map(str, arguments)],
        catch_exceptions=True,
    )


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_rows_become_requests_of_a_batch_api(tmp_path: Path) -> None:
    result = run(tmp_path, "--model", "m", "--max-tokens", "reference", to="openai-batch")
    assert result.output.startswith("3 requests written to ")
    first, *_ = lines(tmp_path / "out.jsonl")
    assert first == {
        "custom_id": "request-0",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "m",
            "messages": [{"role": "user", "content": "What is a queue?"}],
            "max_completion_tokens": load().count("A line."),
        },
    }
    spec = OpenAiBatch(path=str(tmp_path / "out.jsonl"))
    assert [request.payload for request in workload.build(spec, 0, range(2))] == ["What is a queue?", "Why?"]


def test_a_batch_size_divides_a_batch_api_into_files(tmp_path: Path) -> None:
    result = run(tmp_path, "--batch", 2, "--api", "completions", to="vllm-batch")
    assert "written to 2 files: " in result.output
    parts = [lines(tmp_path / f"out-000{number}.jsonl") for number in (0, 1)]
    assert [[line["body"] for line in part] for part in parts] == [
        [{"prompt": "What is a queue?"}, {"prompt": "Why?"}],
        [{"prompt": "How long is the longest river of Europe?"}],
    ]


def test_columns_and_a_template_make_the_prompt(tmp_path: Path) -> None:
    run(tmp_path, "--template", "Q: {question}\\nA:", "--columns", "response=question", "--rows", 1, to="jsonl")
    assert lines(tmp_path / "out.jsonl") == [{"prompt": "Q: What is a queue?\nA:", "response": "What is a queue?"}]
    run(tmp_path, "--columns", "prompt=answer", "--rows", 1, "--api", "embeddings", to="openai-batch")
    assert lines(tmp_path / "out.jsonl")[0]["body"] == {"input": "A line."}


def test_batches_are_sorted_by_length_and_padded(tmp_path: Path) -> None:
    tokenizer = small_tokenizers.save("byte_level", tmp_path)
    run(
        tmp_path,
        *["--batch", "2", "--sort", "length", "--pad", "left", "--pad-id", "7", "--tokenizer"],
        tokenizer,
        to="batches",
    )
    short, long = lines(tmp_path / "out.jsonl")
    assert (short["index"], long["index"]) == ([1, 0], [2])
    assert short["prompts"] == ["Why?", "What is a queue?"]
    encode = load(tokenizer).encode
    for batch in (short, long):
        assert len({len(ids) for ids in batch["input_ids"]}) == 1
        for ids, mask, prompt in zip(batch["input_ids"], batch["attention_mask"], batch["prompts"], strict=True):
            own = encode(prompt)
            padding = len(ids) - len(own)
            assert ids == [7] * padding + own
            assert mask == [0] * padding + [1] * len(own)
    run(tmp_path, "--pad", "--tokenizer", tokenizer, to="batches")
    (whole,) = lines(tmp_path / "out.jsonl")
    assert whole["input_ids"][1][: len(encode("Why?"))] == encode("Why?")
    assert whole["attention_mask"][1][-1] == 0


def test_responses_of_a_batch_api_become_rows(tmp_path: Path) -> None:
    body = {
        "choices": [{"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 3},
    }
    output = [
        {"id": "b", "custom_id": "request-0", "response": {"status_code": 200, "body": body}, "error": None},
        {"id": "c", "custom_id": "request-1", "response": None, "error": {"message": "too long"}},
    ]
    run(tmp_path, to="jsonl", source="\n".join(map(json.dumps, output)), name="output.jsonl")
    assert lines(tmp_path / "out.jsonl") == [
        {"custom_id": "request-0", "response": "Yes.", "output": 3, "finish_reason": "stop"},
        {"custom_id": "request-1", "error": {"message": "too long"}},
    ]


def test_broken_rows_are_reported(tmp_path: Path) -> None:
    result = run(tmp_path, to="jsonl", source='{"prompt": "a"}\n{\n', name="in.jsonl")
    assert "1 request written" in result.output
    assert "1 of 2 rows were skipped; the first is line 2: not JSON" in result.output


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--to", "batches", "--pad"), "--pad needs the tokenizer"),
        (("--to", "jsonl", "--columns", "promt=question"), "--columns promt=question: not of the form"),
        (("--to", "jsonl", "--columns", "prompt=x"), "--columns prompt: "),
        (("--to", "jsonl", "--max-tokens", "many"), "--max-tokens many: not a number"),
        (("--to", "openai-batch", "--batch", "50001"), "at most 50,000 requests"),
    ],
)
def test_bad_options_are_errors(tmp_path: Path, arguments: tuple[str, ...], what: str) -> None:
    result = run(tmp_path, *arguments[2:], to=arguments[1])
    assert isinstance(result.exception, UserError)
    assert what in str(result.exception)
    assert not (tmp_path / "out.jsonl").exists()


def test_the_input_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}')
    result = CliRunner().invoke(command, [str(tmp_path / "a.jsonl"), str(tmp_path / "a.jsonl"), "--to", "jsonl"])
    assert "is the file to convert" in str(result.exception)


TALK = [
    {"from": "human", "value": "One?"},
    {"from": "gpt", "value": "1."},
    {"from": "human", "value": "Two?"},
    {"from": "gpt", "value": "2."},
]


def test_a_recorded_conversation_becomes_one_request_per_turn(tmp_path: Path) -> None:
    source = json.dumps({"conversations": TALK}) + "\n" + json.dumps({"prompt": "plain"})
    result = run(tmp_path, to="openai-batch", source=source, name="in.jsonl")
    assert result.output.startswith("3 requests written to ")
    written = lines(tmp_path / "out.jsonl")
    assert [line["custom_id"] for line in written] == ["request-0", "request-1", "request-2"]
    assert [[message["content"] for message in line["body"]["messages"]] for line in written] == [
        ["One?"],
        ["One?", "1.", "Two?"],
        ["plain"],
    ]
    run(tmp_path, "--sort", "length", "--batch", 2, to="batches", source=source, name="in.jsonl")
    assert [batch["index"] for batch in lines(tmp_path / "out.jsonl")] == [[0, 2], [1]]


def test_turns_that_are_lost_are_counted(tmp_path: Path) -> None:
    source = json.dumps({"turns": ["One?", "Two?"]})
    result = run(tmp_path, to="vllm-batch", source=source, name="in.jsonl")
    assert result.output.startswith("1 request written to ")
    assert "1 conversation lost the turns after the first one without a recorded response" in result.output


def test_turns_are_kept_in_jsonl(tmp_path: Path) -> None:
    row = {"turns": ["a", {"content": "b", "output": 3, "think": 0.5}], "body": {"model": "m"}, "headers": {"X-A": "1"}}
    run(tmp_path, to="jsonl", source=json.dumps(row), name="in.jsonl")
    assert lines(tmp_path / "out.jsonl") == [row]


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
rows = st.one_of(
    st.fixed_dictionaries({"prompt": words}, optional={"output": st.integers(1, 99), "response": words}),
    st.fixed_dictionaries(
        {"messages": st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": words}), max_size=4)
         .map(lambda more: [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, *more])},
        optional={"output": st.integers(1, 99), "tools": st.just([{"type": "function", "function": {"name": "f"}}])},
    ),
)  # fmt: skip


@given(st.lists(rows, min_size=1, max_size=5), st.sampled_from(["openai-batch", "batches", "jsonl"]), st.integers(1, 4))
def test_requests_survive_the_way_there_and_back(
    tmp_path_factory: pytest.TempPathFactory, given_rows: list[Any], to: str, batch: int
) -> None:
    folder = tmp_path_factory.mktemp("convert")
    source, there, back = folder / "source.jsonl", folder / "there.jsonl", folder / "back.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in given_rows))
    convert(str(source), str(there), Conversion(to=to, batch=batch if to == "batches" else 0, sort=to == "batches"))
    convert(str(there), str(back), Conversion(to="jsonl"))
    ids = range(len(given_rows))
    before, after = (workload.build(Jsonl(path=str(path), output=0), 0, ids) for path in (source, back))
    assert [(request.payload, request.n_out) for request in after] == [(each.payload, each.n_out) for each in before]
    if to != "batches":  # which have no room for tools
        assert [request.options for request in after] == [request.options for request in before]
