"""Datasets: their formats and columns, what is sent of conversations, lengths, filters, and broken rows."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer import workload
from inferometer.config import from_mapping
from inferometer.config.data import Csv, Jsonl, Parquet, ShareGpt
from inferometer.config.data.datasets import Columns
from inferometer.errors import UserError
from inferometer.types import Request
from inferometer.workload.datasets import selection
from inferometer.workload.tokenizer import load

TALK = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "Name a river."},
    {"from": "gpt", "value": "The Loire."},
    {"from": "human", "value": "Another one."},
    {"from": "gpt", "value": "The Po."},
]
ROWS: list[dict[str, Any]] = [
    {"prompt": "one, two", "output": "3"},
    {"prompt": 'with "quotes"\nand lines', "output": "4"},
]


def count(*texts: str) -> int:
    return sum(load().count(text) for text in texts)


def jsonl(folder: Path, *rows: Any, name: str = "rows.jsonl") -> str:
    path = folder / name
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def first(folder: Path, row: Any, **settings: Any) -> Request:
    return workload.build(Jsonl(path=jsonl(folder, row), **settings), 0, [0])[0]


# --- formats ---------------------------------------------------------------------------------------------------------


def write_csv(path: Path) -> None:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "output"])
        writer.writeheader()
        writer.writerows(ROWS)


def write_ipc(path: Path, new: Any) -> None:
    table = pa.Table.from_pylist(ROWS)
    with path.open("wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, 1)


def write_folder(path: Path) -> None:
    path.mkdir()
    write_ipc(path / "data-00000-of-00001.arrow", pa.ipc.new_stream)
    (path / "state.json").write_text("{}")


FORMATS = {
    "a.jsonl": lambda path: path.write_text("\n\n".join(json.dumps(row) for row in ROWS)),
    "a.json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "object.json": lambda path: path.write_text(json.dumps({"version": 1, "data": ROWS}, indent=1)),
    "no-ending": lambda path: path.write_text(json.dumps(ROWS)),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode())),
    "a.csv": write_csv,
    "a.parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path),
    "parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path),
    "a.arrow": lambda path: write_ipc(path, pa.ipc.new_file),
    "stream.arrow": lambda path: write_ipc(path, pa.ipc.new_stream),
    "folder": write_folder,
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", [Jsonl, Csv, Parquet, ShareGpt])
def test_the_format_follows_from_the_file(name: str, kind: Any, tmp_path: Path) -> None:
    if name == "no-ending" and kind in (Csv, Parquet):
        pytest.skip("without an ending, the type decides")
    FORMATS[name](tmp_path / name)
    requests = workload.build(kind(path=str(tmp_path / name)), 0, [1, 0, 3])
    texts = [row["prompt"] for row in ROWS]
    assert [request.payload for request in requests] == [texts[1], texts[0], texts[1]]
    assert [request.n_out for request in requests] == [4, 3, 4]
    assert [request.n_in for request in requests] == [count(texts[1]), count(texts[0]), count(texts[1])]


def test_a_tsv_file_has_a_byte_order_mark_and_bare_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b'\xef\xbb\xbfid\t#1 String\r\n1\t" a bare quote\r\n2\tplain\r\n')
    spec = Csv(path=str(tmp_path / "a.tsv"), columns=Columns(prompt="#1 String"))
    assert [request.payload for request in workload.build(spec, 0, range(2))] == ['" a bare quote', "plain"]


def test_lines_of_a_text_file_are_prompts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first\r\n\n  \nsecond")
    spec = Jsonl(path=str(tmp_path / "a.txt"))
    assert [request.payload for request in workload.build(spec, 0, range(2))] == ["first", "second"]


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1, max_size=20)


@given(st.lists(texts.filter(str.strip), min_size=1, max_size=5))
def test_every_text_survives_csv_jsonl_and_parquet(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["prompt"], *([text] for text in prompts)])
    pq.write_table(pa.table({"prompt": prompts}), folder / "a.parquet")
    paths = [folder / "a.csv", folder / "a.parquet", jsonl(folder, *({"prompt": text} for text in prompts))]
    for path in paths:
        requests = workload.build(Jsonl(path=str(path)), 0, range(len(prompts)))
        assert [request.payload for request in requests] == prompts


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "prompt", "response"),
    [
        ({"instruction": "Add.", "input": "1, 2", "output": "3"}, "Add.\n\n1, 2", "3"),
        ({"instruction": "Say hi.", "input": "", "output": "Hi."}, "Say hi.", "Hi."),
        ({"instruction": "Who?", "context": "Ada.", "response": "Ada", "category": "qa"}, "Who?\n\nAda.", "Ada"),
        ({"article": "Long.", "highlights": "Short."}, "Summarize the following article.\n\nLong.", "Short."),
        ({"document": "Long.", "summary": "S."}, "Summarize the following article.\n\nLong.", "S."),
        ({"text": "A bill.", "summary": "S.", "title": "T"}, "Summarize the following text.\n\nA bill.", "S."),
        (
            {"context": "Ada was here.", "question": "Who?", "answers": {"text": ["Ada"], "answer_start": [0]}},
            "Answer the question from the context.\n\nContext: Ada was here.\n\nQuestion: Who?",
            "Ada",
        ),
        ({"question": "Why?", "answer": "Because."}, "Why?", "Because."),
        ({"Prompt": "Upper case", "Response": "yes"}, "Upper case", "yes"),
        ({"text": "Plain."}, "Plain.", None),
        ({"text_input": "Plain."}, "Plain.", None),
    ],
)
def test_columns_of_public_datasets_are_known(tmp_path: Path, row: Any, prompt: str, response: str | None) -> None:
    request = first(tmp_path, row, output="reference")
    assert request.payload == prompt
    assert request.n_out == (128 if response is None else count(response))


def test_columns_and_template_override_what_is_known(tmp_path: Path) -> None:
    row = {"prompt": "no", "body": "yes", "who": "You are kind.", "reply": "A reply.", "n": 7}
    columns = Columns(prompt="body", system="who", response="reply")
    request = first(tmp_path, row, columns=columns, output="reference")
    assert request.payload == [{"role": "system", "content": "You are kind."}, {"role": "user", "content": "yes"}]
    assert request.n_out == count("A reply.")
    assert first(tmp_path, row, columns=Columns(prompt="body", output="n")).n_out == 7
    template = "{{{n}}} Answer: {body}"
    assert first(tmp_path, row, template=template).payload == "{7} Answer: yes"


def test_several_requests_in_a_row_are_several_requests(tmp_path: Path) -> None:
    requests = [{"Prompt Length": 3, "Output Length": number, "prompt": f"number {number}"} for number in (5, 6)]
    spec = Jsonl(
        path=jsonl(tmp_path, {"timestamp": 0, "requests": requests}, {"timestamp": 9, "requests": requests[:1]})
    )
    made = workload.build(spec, 0, range(3))
    assert [(request.payload, request.n_out) for request in made] == [("number 5", 5), ("number 6", 6), ("number 5", 5)]


def test_a_missing_column_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,answer\na,b\n")
    path = str(tmp_path / "a.csv")
    with pytest.raises(
        UserError, match=r"there is no column 'qestion'.*question, answer; did you mean 'question'"
    ) as error:
        workload.distinct(Csv(path=path, columns=Columns(prompt="qestion")))
    assert error.value.key == "data.columns.prompt"
    with pytest.raises(UserError, match="there is no column 'text'") as error:
        workload.distinct(Csv(path=path, template="{text}"))
    assert error.value.key == "data.template"
    rows = jsonl(tmp_path, {"question": "a"}, {"question": "b"})
    with pytest.raises(
        UserError, match=r"none of its 2 rows.*line 1: there is no column 'qestion'.*did you mean 'question'"
    ):
        workload.distinct(Jsonl(path=rows, columns=Columns(prompt="qestion")))


def test_a_missing_key_of_json_lines_names_its_setting(tmp_path: Path) -> None:
    rows = jsonl(tmp_path, {"question": "a"}, {"question": "b"})
    with pytest.raises(UserError) as error:
        workload.distinct(Jsonl(path=rows, columns=Columns(prompt="qestion")))
    assert (error.value.key, error.value.remedy) == ("data.columns.prompt", "name a key that the rows have")
    with pytest.raises(UserError) as error:
        workload.distinct(Jsonl(path=jsonl(tmp_path, name="empty.jsonl")))
    assert error.value.key == "data.path"
    with pytest.raises(UserError, match=r"line 1: it has no prompt") as error:
        workload.distinct(Jsonl(path=jsonl(tmp_path, {"promt": "a"})))
    assert "{data.columns}" in error.value.remedy


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        ({"X-A": "€uro"}, "'X-A' is not a valid header"),
        ({"X-A": "a\r\nEvil: 1"}, "'X-A' is not a valid header"),
        ({"X A": "a"}, "'X A' is not a valid header"),
        ({"X-A": 1}, "headers.X-A must be a string, got a number"),
    ],
)
def test_a_row_with_headers_that_cannot_be_sent_is_skipped(tmp_path: Path, headers: Any, what: str) -> None:
    path = jsonl(tmp_path, {"prompt": "a", "headers": headers}, {"prompt": "b", "headers": {"X-A": "1"}})
    (request,) = workload.build(Jsonl(path=path), 0, [0])
    assert (request.payload, request.options.headers) == ("b", {"X-A": "1"})
    skipped = workload.notes(Jsonl(path=path))["skipped"]
    assert (skipped["rows"], skipped["first"].startswith(f"line 1: {what}")) == (1, True)


def test_a_model_in_the_body_of_a_row_is_that_of_the_request(tmp_path: Path) -> None:
    options = first(tmp_path, {"prompt": "a", "body": {"model": "m", "top_k": 1}}).options
    assert (options.model, options.body) == ("m", {"top_k": 1})


def test_a_table_without_a_known_column_names_its_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,sentence1\na,b\n")
    with pytest.raises(UserError, match=r"no column is known to be a prompt \(the columns: label, sentence1\)"):
        workload.distinct(Csv(path=str(tmp_path / "a.csv")))


def test_pictures_are_not_left_out_silently(tmp_path: Path) -> None:
    row = {"image": "a.jpg", "text": "What is this?"}
    with pytest.raises(UserError, match="it has a column 'image', which cannot be sent"):
        first(tmp_path, row)
    assert first(tmp_path, row, columns=Columns(prompt="text")).payload == "What is this?"


# --- conversations ---------------------------------------------------------------------------------------------------


def test_what_is_sent_of_a_conversation(tmp_path: Path) -> None:
    system, question = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a river."}
    response, following = {"role": "assistant", "content": "The Loire."}, {"role": "user", "content": "Another one."}
    row = {"conversations": TALK}
    default = first(tmp_path, row, output="reference")
    assert default.payload == [system, question]
    assert default.n_out == count("The Loire.")
    assert default == first(tmp_path, row, output="reference", turns="first")
    last = first(tmp_path, row, output="reference", turns="last")
    assert last.payload == [system, question, response, following]
    assert last.n_out == count("The Po.")
    live = first(tmp_path, row, output="reference", turns="all", think=0.25)
    assert live.payload == default.payload
    (turn,) = live.later
    assert (turn.messages, turn.payload, turn.think) == ([following], None, 250_000_000)
    assert (turn.n_in, turn.n_out) == (count("Another one."), count("The Po."))
    (recorded,) = first(tmp_path, row, turns="all", history="recorded").later
    assert recorded.payload == last.payload
    assert recorded.n_in == last.n_in
    assert workload.has_sessions(Jsonl(path=jsonl(tmp_path, row), turns="all"))
    assert not workload.has_sessions(Jsonl(path=jsonl(tmp_path, row)))


def test_turns_may_be_objects(tmp_path: Path) -> None:
    request = first(
        tmp_path, {"turns": [{"text": "a"}, {"text": "b", "delay": 100}, {"content": "c", "output": 7, "think": 2}]}
    )
    assert (request.payload, request.n_out) == ("a", 128)
    assert [(turn.messages[0]["content"], turn.think, turn.n_out) for turn in request.later] == [
        ("b", 100_000_000, 128),
        ("c", 2_000_000_000, 7),
    ]
    with pytest.raises(UserError, match=r"turns\.0 has no content, text, messages, prompt \(its keys: image\)"):
        first(tmp_path, {"turns": [{"image": "x.png"}]})


def test_messages_are_sent_up_to_their_last_response(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert first(tmp_path, {"messages": messages}).payload == messages
    finished = [*messages, {"role": "assistant", "content": "long response"}]
    request = first(tmp_path, {"messages": finished}, output="reference")
    assert (request.payload, request.n_out) == (messages, count("long response"))
    assert first(tmp_path, {"messages": finished}, turns="first").payload == "a"


def test_tools_and_their_calls_become_openai_messages(tmp_path: Path) -> None:
    talk = [
        {"from": "human", "value": "Weather?"},
        {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Ulm"}}'},
        {"from": "observation", "value": '{"sky": "blue"}'},
        {"from": "gpt", "value": "Blue."},
    ]
    request = first(tmp_path, {"conversations": talk, "tools": '[{"name": "weather", "parameters": {}}]'}, turns="all")
    assert request.options.body == {"tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}]}
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Ulm"}'}}
    (turn,) = request.later
    assert turn.payload == [  # recorded, although history is live: a result needs its call
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "blue"}'},
    ]
    assert first(tmp_path, {"conversations": talk, "tools": "[]"}).options.body == {}


def test_rows_with_one_message_each_become_a_conversation(tmp_path: Path) -> None:
    def row(name: str, turn: int, role: str, **more: Any) -> dict[str, Any]:
        return {"conversation_id": name, "turn": turn, "role": role} | more

    calls = [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": "{}"}}]
    rows = [
        row(
            "a",
            1,
            "user",
            content="Fix it.",
            system="You fix.",
            tools=[{"type": "function", "function": {"name": "ls"}}],
        ),
        row("b", 1, "user", content="Hello."),
        row("a", 2, "assistant", tool_calls=calls, reasoning_content="Look first."),
        row("a", 3, "tool", tool_results=[{"tool_call_id": "c", "content": "x.py"}], delay_seconds=0.5),
        row("a", 4, "assistant", content="Done."),
    ]
    spec = Jsonl(path=jsonl(tmp_path, *rows))
    long, short = workload.build(spec, 0, range(2))
    assert workload.distinct(spec) == 2
    assert short.payload == "Hello."
    assert isinstance(long.payload, list)
    assert [message["role"] for message in long.payload] == ["system", "user"]
    assert list(long.options.body) == ["tools"]
    (turn,) = long.later
    assert turn.think == 500_000_000
    assert isinstance(turn.payload, list)
    assert [message["role"] for message in turn.payload] == ["system", "user", "assistant", "tool"]
    (turn,) = workload.build(Jsonl(path=spec.path, think=0.0), 0, [0])[0].later  # type: ignore[arg-type]
    assert turn.think == 0


def test_nulls_of_arrow_structs_are_left_out(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
    pq.write_table(
        pa.Table.from_pylist([{"messages": [*messages, {"role": "user", "content": "b"}]}]), tmp_path / "a.parquet"
    )
    (request,) = workload.build(Parquet(path=str(tmp_path / "a.parquet")), 0, [0])
    assert request.payload == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
        {"role": "user", "content": "b"},
    ]


# --- which rows ------------------------------------------------------------------------------------------------------


def numbered(folder: Path, n: int = 40) -> str:
    return jsonl(folder, *({"prompt": "word " * (i + 1), "response": "yes " * (i % 4 + 1)} for i in range(n)))


def test_rows_limits_and_shuffle_reorders(tmp_path: Path) -> None:
    path = numbered(tmp_path)
    plain = [request.payload for request in workload.build(Jsonl(path=path, rows=10), 5, range(10))]
    assert workload.distinct(Jsonl(path=path, rows=10)) == 10
    mixed = Jsonl(path=path, rows=10, shuffle=True)
    shuffled = [request.payload for request in workload.build(mixed, 5, range(10))]
    assert shuffled != plain
    assert sorted(map(str, shuffled)) == sorted(map(str, plain))
    assert [request.payload for request in workload.build(mixed, 5, [12, 3])] == [shuffled[2], shuffled[3]]
    assert [request.payload for request in workload.build(mixed, 6, range(10))] != shuffled


def test_rows_are_filtered_by_length_and_the_note_says_who_counted(tmp_path: Path) -> None:
    path = numbered(tmp_path)
    spec = Jsonl(path=path, min_input=5, max_input=20, max_output=count("yes yes "), output="reference")
    requests = workload.build(spec, 0, range(workload.distinct(spec) or 0))
    assert requests
    assert all(5 <= request.n_in <= 20 and request.n_out <= count("yes yes ") for request in requests)
    noted = workload.notes(spec)
    assert noted["filtered"] == 40 - len(requests)
    assert noted["notes"][-1].endswith("left out because of their length, counted by the built-in tokenizer")
    with pytest.raises(UserError, match="none of the 40 rows has an accepted length"):
        workload.distinct(Jsonl(path=path, min_input=1000))


def test_rows_of_a_csv_file_with_too_many_cells_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"prompt,x\na,1\nb,2,3\n\xff,1\nc,1\n")
    spec = Csv(path=str(tmp_path / "a.csv"))
    assert [request.payload for request in workload.build(spec, 0, range(2))] == ["a", "c"]
    assert workload.notes(spec)["skipped"] == {"rows": 2, "of": 4, "first": "row 2: 3 cells instead of 2"}


def test_only_rows_that_were_looked_at_count_as_skipped(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"x": 1}, *({"prompt": str(i)} for i in range(5)), {"x": 2})
    assert workload.notes(Jsonl(path=path, rows=3))["skipped"] == {
        "rows": 1,
        "of": 4,
        "first": "line 1: it has no prompt, messages, conversations or turns (its keys: x)",
    }


plain_rows = st.one_of(
    st.fixed_dictionaries({"prompt": st.sampled_from(["", "a"])}, optional={"output": st.sampled_from([0, 5, -1, True])}),
    st.fixed_dictionaries(
        {"messages": st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": st.just("m")}), max_size=3)},
        optional={"id": st.just(1), "prompt": st.just("p"), "x": st.just(0)},
    ),
)  # fmt: skip


@given(st.lists(plain_rows, min_size=1, max_size=8), st.integers(0, 5), st.integers(1, 3))
def test_plain_rows_are_selected_as_all_others(
    tmp_path_factory: pytest.TempPathFactory, given_rows: list[Any], limit: int, block: int
) -> None:
    path = jsonl(tmp_path_factory.getbasetemp(), *given_rows)
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_BLOCK", block)
        for is_plain in (True, False):
            if not is_plain:
                patch.setattr(selection, "_takes_plain_rows", lambda spec: False)
            try:
                made = selection.Selection(Jsonl(path=path, rows=limit))
            except UserError as error:
                seen.append(str(error))
            else:
                counts = (made.total, made.skipped, made.first_skipped, made.has_turns, made.urls)
                seen.append((made.records(range(len(made))), counts))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.parquet", b"no", "is not a readable Parquet file"),
        ("a.arrow", b"no", "is not a readable Arrow file"),
        ("a.json", b"[1, ", "is not JSON"),
        ("a.jsonl.gz", gzip.compress(b'{"prompt": "a"}', mtime=0)[:-6], "is not a complete gzip file"),
        ("a.csv", b"", "is not CSV: Empty CSV file"),
        ("b.csv", b"prompt,x\n", "contains no requests"),
    ],
)
def test_an_unreadable_file_is_an_error(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=what) as error:
        workload.distinct(Jsonl(path=str(tmp_path / name)))
    assert error.value.remedy


def test_output_takes_a_number_reference_or_a_distribution() -> None:
    def output(value: Any) -> Any:
        tree = {"server": {"url": "http://x"}, "data": {"type": "csv", "path": "x", "output": value}}
        return from_mapping(tree).data.output  # type: ignore[union-attr]

    assert [output(0), output("reference")] == [0, "reference"]
    assert output({"type": "uniform", "min": 1, "max": 3}).max == 3
    with pytest.raises(UserError, match="did you mean reference"):
        output("referense")
