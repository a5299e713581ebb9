"""Prompts from the config and from JSONL files, and the errors for bad ones."""

import json
from pathlib import Path

import pytest

from inferometer import workload
from inferometer.config.data import Jsonl, Prompts
from inferometer.errors import UserError
from inferometer.types import Request
from inferometer.workload.tokenizer import load

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sea salty?"}]
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {}}]}
]


def lines(tmp_path: Path, *rows: object) -> Jsonl:
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return Jsonl(path=str(file), output=50)


def test_prompts_are_used_in_turn() -> None:
    spec = Prompts(prompts=["one", "two words"], output=5)
    assert workload.build(spec, 0, [0, 1, 2, 7]) == [
        Request(0, "one", load().count("one"), 5),
        Request(1, "two words", load().count("two words"), 5),
        Request(2, "one", load().count("one"), 5),
        Request(7, "two words", load().count("two words"), 5),
    ]
    assert workload.distinct(spec) == 2


def test_a_file_may_mix_prompts_and_messages_with_their_own_lengths(tmp_path: Path) -> None:
    spec = lines(
        tmp_path,
        {"prompt": "Hello, wörld"},
        "",
        {"messages": CHAT, "output": 7, "id": "x"},
        {"messages": PARTS, "output": 0},
        "",
    )
    count = load().count
    assert workload.build(spec, 0, range(4)) == [
        Request(0, "Hello, wörld", count("Hello, wörld"), 50),
        Request(1, CHAT, count("Be brief.") + count("Why is the sea salty?"), 7),
        Request(2, PARTS, count("What is this?"), 0),
        Request(3, "Hello, wörld", count("Hello, wörld"), 50),
    ]
    assert workload.build(spec, 0, [2])[0] == workload.build(spec, 9, range(5))[2]
    assert workload.distinct(spec) == 3


def test_byte_order_mark_and_crlf_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n{"prompt": "b"}\r\n')
    requests = workload.build(Jsonl(path=str(tmp_path / "a.jsonl")), 0, range(2))
    assert [request.payload for request in requests] == ["a", "b"]
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    spec = Jsonl(path=str(tmp_path / "a.jsonl"))
    assert workload.distinct(spec) == 1
    assert workload.notes(spec)["skipped"]["first"].startswith("line 2: not ")


def test_input_is_another_name_for_the_prompt_as_in_requests_for_embeddings(tmp_path: Path) -> None:
    (request,) = workload.build(lines(tmp_path, {"model": "m", "input": "hi"}), 0, [0])
    assert (request.payload, request.n_in) == ("hi", load().count("hi"))
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": []}]
    assert workload.build(lines(tmp_path, {"messages": messages}), 0, [0])[0].n_in == load().count("hi")
    workload.build(lines(tmp_path, {"prompt": "before"}), 0, [0])
    assert workload.build(lines(tmp_path, {"prompt": "afterw"}), 0, [0])[0].payload == "afterw"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "not JSON: "),
        ('{"prompt": "a"} x', "not JSON: "),
        ("[1]", "expected an object, got a list"),
        ('"a"', "expected an object, got a string"),
        ({}, "it has no prompt, messages, conversations or turns (its keys: none)"),
        ({"promt": "a", "id": 1}, "it has no prompt, messages, conversations or turns (its keys: id, promt)"),
        ({"prompt": 5}, "prompt must be a string, got a number"),
        ({"prompt": None}, "prompt must be a string, got null"),
        ({"prompt": ["a"]}, "prompt must be a string, got a list"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": "a", "output": -1}, "output must be a number of tokens, got -1"),
        ({"prompt": "a", "output": True}, "output must be a number of tokens, got True"),
        ({"prompt": "a", "output": 1.5}, "output must be a number of tokens, got 1.5"),
        ({"messages": "a"}, "messages must be a list, got a string"),
        ({"messages": []}, "messages is empty"),
        ({"messages": ["a"]}, "messages.0 has no role"),
        ({"messages": [{"content": "a"}]}, "messages.0 has no role"),
        ({"messages": [CHAT[0], {"role": "user"}]}, "messages.1.content must be a string or a list, got null"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content must be a string or a list, got a number"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages.0.content is a list of something other than objects"),
    ],
)  # fmt: skip
def test_bad_lines_are_skipped_counted_and_reported_with_their_number(tmp_path: Path, line: object, what: str) -> None:
    spec = lines(tmp_path, {"prompt": "fine"}, "", line, {"prompt": "also fine"}, line)
    assert [request.payload for request in workload.build(spec, 0, range(2))] == ["fine", "also fine"]
    noted = workload.notes(spec)
    assert (noted["skipped"]["rows"], noted["skipped"]["of"]) == (2, 4)
    assert noted["skipped"]["first"].startswith(f"line 3: {what}")
    (note,) = noted["notes"]
    assert note.startswith(f"2 of 4 rows were skipped; the first is line 3: {what}")


def test_a_file_of_bad_lines_is_an_error_with_the_first_reason(tmp_path: Path) -> None:
    spec = lines(tmp_path, "", {"promt": "a"}, "{")
    with pytest.raises(UserError, match=r"none of its 2 rows can be used; the first is line 2: it has no") as error:
        workload.build(spec, 0, [0])
    assert error.value.remedy.startswith('write each line as {"prompt": "..."}, {"messages":')
    with pytest.raises(UserError, match=r"requests\.jsonl, line 1: prompt is empty"):
        workload.distinct(lines(tmp_path, {"prompt": ""}))


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_an_empty_file_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(UserError, match=r"requests\.jsonl contains no requests \(write each line as"):
        workload.build(lines(tmp_path, content), 0, [0])


def test_a_missing_file_or_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"data\.path: .*none cannot be read: No such file or directory \(check the path"
    ):
        workload.build(Jsonl(path=str(tmp_path / "none")), 0, [0])
    with pytest.raises(UserError, match=r"has no \.parquet and no \.arrow files"):
        workload.build(Jsonl(path=str(tmp_path)), 0, [0])
    with pytest.raises(UserError, match=r"data\.prompts\.1 is empty"):
        workload.build(Prompts(prompts=["a", ""]), 0, [0])
