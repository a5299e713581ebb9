"""Traces: exact instants, exact lengths, shared prefixes by hash ids, sessions, and errors that name the line."""

import csv
import gzip
import json
import subprocess
import sys
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import small_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import needs_shared
from workload.trace_files import OTHERS, TRACES

from inferometer import workload
from inferometer.config import from_mapping
from inferometer.config.data import Trace
from inferometer.config.fields import Seconds
from inferometer.errors import UserError
from inferometer.prepare.plans import whole_plan
from inferometer.types import OpenStage, Request
from inferometer.units import NS
from inferometer.wire.history import history
from inferometer.workload import text, tokenizer, traces
from inferometer.workload.traces import blocks


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def plan_of(data: dict[str, Any], **load: Any) -> OpenStage:
    tree = {"server": {"url": "http://x"}, "data": {"type": "trace"} | data}
    if load:
        tree["load"] = {"type": "trace"} | load
    (stage,) = whole_plan(from_mapping(tree)).stages
    assert isinstance(stage, OpenStage)
    return stage


# --- arrivals --------------------------------------------------------------------------------------------------------


def azure_ns(text: str) -> int:
    """The time of an Azure timestamp, without any float."""
    whole, _, fraction = text.partition(".")
    seconds = (datetime.fromisoformat(whole) - datetime(1970, 1, 1)).total_seconds()
    return int(seconds) * NS + int(fraction.ljust(9, "0"))


@pytest.mark.parametrize("speed", [1, 60, 0.1, 7.3])
def test_an_azure_trace_is_planned_at_its_own_instants_and_lengths(speed: float) -> None:
    check_azure(TRACES / "azure.csv", speed)


@needs_shared
def test_the_whole_azure_trace_is_planned_at_its_own_instants_and_lengths() -> None:
    for speed in (1, 60, 0.1, 7.3):
        check_azure(OTHERS / "AzureLLMInferenceTrace_conv.csv", speed)


def check_azure(path: Path, speed: float) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    times = [azure_ns(row["TIMESTAMP"]) for row in rows]
    exact = [Fraction(time - times[0]) / Fraction(str(speed)) for time in times]
    stage = plan_of({"path": str(path), "speed": speed})
    assert len(stage.instants) == len(rows)
    assert all(abs(instant - at) <= Fraction(1, 2) for instant, at in zip(stage.instants.tolist(), exact, strict=True))
    assert stage.duration > stage.instants[-1]
    lengths = traces._table(Trace(path=str(path)))
    assert lengths.input.tolist() == [int(row["ContextTokens"]) for row in rows]
    assert lengths.output.tolist() == [int(row["GeneratedTokens"]) for row in rows]


@given(
    st.lists(st.integers(0, 10**15), min_size=1, max_size=30).map(sorted),
    st.floats(1e-3, 1e6),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.integers(1, 3),
)
def test_instants_are_exact_for_every_unit_and_speed(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], speed: float, unit: str, loop: int
) -> None:
    digits = {"s": 9, "ms": 6, "us": 3, "ns": 0}[unit]
    texts = [f"{time // 10**digits}.{time % 10**digits:0{digits}d}" if digits else str(time) for time in times]
    path = write(
        tmp_path_factory.mktemp("trace"), "trace.csv", "time,input,output\n" + "".join(f"{at},3,2\n" for at in texts)
    )
    spec = Trace(path=path, unit=unit, speed=speed, loop=loop)  # type: ignore[arg-type]
    arrivals = workload.arrivals(spec)
    assert arrivals is not None
    span = times[-1] - times[0]
    length = span + (round(span / (len(times) - 1)) if len(times) > 1 else NS)
    exact = [Fraction(r * length + time - times[0]) / Fraction(repr(speed)) for r in range(loop) for time in times]
    assert all(abs(one - other) <= Fraction(1, 2) for one, other in zip(arrivals.tolist(), exact, strict=True))
    assert np.all(np.diff(arrivals) >= 0)


@pytest.mark.parametrize(
    ("stamps", "gap"),
    [
        (("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690"), 4_314_579_000),
        (("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.010001+00:00"), 71_000),
        (("2024-05-10T00:00:00Z", "2024-05-10T02:00:01+02:00"), NS),
        (("1715299200.000000001", "1715299200.000000003"), 2),
        (("1.5", "2.50000000049"), NS),
    ],
)
def test_times_are_read_to_the_nanosecond(tmp_path: Path, stamps: tuple[str, str], gap: int) -> None:
    path = write(tmp_path, "t.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{stamps[0]},5,5\n{stamps[1]},5,5\n")
    arrivals = workload.arrivals(Trace(path=path))
    assert arrivals is not None
    assert arrivals.tolist() == [0, gap]


def test_a_window_starts_with_its_first_arrival_and_loops_by_its_length(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "time,input,output\n" + "".join(f"{100 + t},{t + 1},1\n" for t in range(10)))
    spec = Trace(path=path, start=Seconds(2.5), end=Seconds(6), loop=2)
    arrivals = workload.arrivals(spec)
    assert arrivals is not None
    assert (arrivals / NS).tolist() == [0, 1, 2, 3.5, 4.5, 5.5]
    assert [request.n_in for request in workload.build(spec, 0, range(6))] == [4, 5, 6, 4, 5, 6]
    first, again = workload.build(spec, 0, [0, 3])
    assert first.payload == again.payload


@pytest.mark.parametrize(
    ("load", "count", "seconds"),
    [({}, 4, 4.0), ({"requests": 2}, 2, 2.0), ({"duration": "1.5s"}, 2, 1.5), ({"duration": "1m"}, 4, 4.0)],
)
def test_a_replay_ends_with_the_trace_or_earlier(tmp_path: Path, load: Any, count: int, seconds: float) -> None:
    path = write(tmp_path, "t.csv", "time,input,output\n0,1,1\n1,1,1\n2,1,1\n3,1,1\n")
    stage = plan_of({"path": path}, **(load or {"max_concurrency": 3}))
    assert (len(stage.instants), stage.duration) == (count, round(seconds * NS))


# --- the load section ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "load", "kind"),
    [
        ("time,input,output", None, "trace"),
        ("time,input,output", {"requests": 5}, "trace"),
        ("time,input,output", {"rate": 5, "requests": 5}, "poisson"),
        ("input,output", None, "closed"),
        ("input,output", {"requests": 5}, "closed"),
    ],
)
def test_the_default_load_of_a_trace_is_the_trace_if_it_has_times(
    tmp_path: Path, header: str, load: dict[str, Any] | None, kind: str
) -> None:
    path = write(tmp_path, "t.csv", f"{header}\n{','.join('1' * (header.count(',') + 1))}\n")
    tree: dict[str, Any] = {"server": {"url": "http://x"}, "data": {"type": "trace", "path": path}}
    config = from_mapping(tree | ({"load": load} if load else {}))
    assert type(config.load).__struct_config__.tag == kind


def test_a_replay_needs_a_trace_with_times(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "input,output\n1,1\n")
    with pytest.raises(UserError, match=r"load.type: the trace has no times"):
        plan_of({"path": path}, max_concurrency=1)
    tree: dict[str, Any] = {"server": {"url": "http://x"}, "load": {"type": "trace"}}
    with pytest.raises(UserError, match=r"load.type: there is no trace"):
        from_mapping(tree)
    mix = {"type": "mix", "classes": [{"name": "a", "data": {"type": "trace", "path": path}}]}
    with pytest.raises(UserError, match=r"load.type: a trace within a mix has no arrivals of its own"):
        from_mapping(tree | {"data": mix})
    stages = {"stages": [{"type": "closed", "requests": 1}, {"type": "trace"}]}
    with pytest.raises(UserError, match=r"load.stages.1.type: a trace cannot be one of several stages"):
        from_mapping(tree | {"load": stages, "data": {"type": "trace", "path": path}})


# --- hash ids --------------------------------------------------------------------------------------------------------


def token_blocks(request: Request, block: int) -> list[tuple[int, ...]]:
    """The prompt's whole blocks of tokens."""
    assert isinstance(request.payload, str)
    ids = tokenizer.load().encode(request.payload)
    assert len(ids) == request.n_in
    return [tuple(ids[i : i + block]) for i in range(0, len(ids) // block * block, block)]


def hits(rows: list[list[Any]]) -> list[int]:
    """For each row, how many of its first blocks an unlimited prefix cache has from the rows before."""
    known: set[tuple[Any, ...]] = set()
    counts = []
    for row in rows:
        prefixes = [tuple(row[: n + 1]) for n in range(len(row))]
        counts.append(sum(prefix in known for prefix in prefixes))
        known.update(prefixes)
    return counts


def test_block_reuse_of_mooncake_equals_the_traces() -> None:
    check_mooncake(TRACES / "mooncake.jsonl", 6)


@needs_shared
@pytest.mark.slow
def test_block_reuse_of_published_traces_of_mooncake_equals_theirs() -> None:
    for name, rows in (("conversation_trace", 30), ("synthetic_trace", 60), ("arxiv_trace_first1000", 30)):
        check_mooncake(OTHERS / f"mooncake_{name}.jsonl", rows)


def check_mooncake(path: Path, rows: int) -> None:
    """Compare the tokens of the first rows with the trace's blocks, and the keys of the blocks of a thousand."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:1000]]
    in_trace = hits([line["hash_ids"][: line["input_length"] // 512] for line in lines])
    assert sum(in_trace[:rows]) > 0
    requests = workload.build(Trace(path=str(path), rows=rows), 0, range(rows))
    assert [request.n_in for request in requests] == [line["input_length"] for line in lines[:rows]]
    assert hits([token_blocks(request, 512) for request in requests]) == in_trace[:rows]
    table = traces._table(Trace(path=str(path), rows=1000))
    assert table.hash_ids is not None
    made = blocks._block_texts(None, 0, "", table.hash_ids.block)
    of_rows = [blocks.Row(table.hash_ids.of(n), int(table.input[n]), n, continues=False) for n in range(len(lines))]
    keys = [made._keys(row) for row in of_rows]  # a block's text is a function of its key
    assert hits([row[: line["input_length"] // 512] for row, line in zip(keys, lines, strict=True)]) == in_trace


TREES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=2, max_size=8)


@given(TREES, st.sampled_from([16, 64]), st.integers(1, 16), st.integers(0, 5), st.sampled_from(["none", "x"]))
def test_prompts_share_exactly_the_blocks_whose_ids_they_share(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[int]], block: int, rest: int, seed: int, salt: str
) -> None:
    # An id stands for all blocks up to its own, as in the published traces.
    known: dict[tuple[int, ...], int] = {}
    ids = [[known.setdefault(tuple(path[: n + 1]), len(known)) for n in range(len(path))] for path in paths]
    rows = [
        {"timestamp": 0, "input_length": (len(row) - 1) * block + rest, "output_length": 1, "hash_ids": row}
        for row in ids
    ]
    path = write(tmp_path_factory.mktemp("trace"), "t.jsonl", json_lines(rows))
    spec = Trace(path=path, salt=salt, block=block)
    requests = workload.build(spec, seed, range(len(rows)))
    assert hits([token_blocks(request, block) for request in requests]) == hits(
        [row["hash_ids"][: row["input_length"] // block] for row in rows]  # type: ignore[index, operator]
    )
    assert [workload.build(spec, seed, [n])[0].payload for n in range(len(rows))] == [one.payload for one in requests]


def test_the_salt_and_the_seed_change_every_block(tmp_path: Path) -> None:
    path = write(tmp_path, "t.jsonl", json_lines([{"input_length": 48, "output_length": 1, "hash_ids": [7, 8, 9]}]))

    def blocks(seed: int, salt: str) -> list[tuple[int, ...]]:
        (request,) = workload.build(Trace(path=path, salt=salt, block=16), seed, [0])
        return token_blocks(request, 16)

    for other in (blocks(0, "b"), blocks(1, "a")):
        assert not set(blocks(0, "a")) & set(other)


def test_tokens_after_the_last_hash_id_are_the_rows_own(tmp_path: Path) -> None:
    rows = [{"input_length": 40, "output_length": 1, "hash_ids": [1, 2]}] * 2 + [
        {"input_length": 40, "output_length": 1}
    ]
    requests = workload.build(Trace(path=write(tmp_path, "t.jsonl", json_lines(rows)), block=16), 0, range(3))
    one, other, alone = (tokenizer.load().encode(str(request.payload)) for request in requests)
    assert len(one) == len(other) == len(alone) == 40
    assert one[:32] == other[:32]
    assert one[32:] != other[32:]
    assert alone[0] != one[0]


def test_the_block_size_is_found_by_the_number_of_ids(tmp_path: Path) -> None:
    rows = [{"input_length": 130, "output_length": 1, "hash_ids": [1, 2, 3]}]
    path = write(tmp_path, "t.jsonl", json_lines(rows))
    assert workload.build(Trace(path=path), 0, [0])[0].n_in == 130
    with pytest.raises(UserError, match=r"data.block: .*line 1: 3 hash ids do not fit 130 tokens in blocks of 512"):
        workload.build(Trace(path=path, block=512), 0, [0])


# --- sessions --------------------------------------------------------------------------------------------------------


def test_later_turns_wait_for_their_delay_and_add_their_tokens(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"session_id": "a", "timestamp": 0, "input_length": 30, "output_length": 4, "hash_ids": [1, 2]},
        {"session_id": "b", "timestamp": 500.5, "input_length": 10, "output_length": 5, "hash_ids": [3]},
        {"session_id": "a", "delay": 12.5, "input_length": 20, "output_length": 6, "hash_ids": [4, 5]},
    ]
    spec = Trace(path=write(tmp_path, "t.jsonl", json_lines(rows)), speed=2)
    assert workload.has_sessions(spec)
    assert workload.distinct(spec) == 2
    arrivals = workload.arrivals(spec)
    assert arrivals is not None
    assert arrivals.tolist() == [0, 250_250_000]
    first, second = workload.build(spec, 0, range(2))
    (turn,) = first.later
    assert not second.later
    assert (turn.think, turn.n_in, turn.n_out, turn.payload) == (6_250_000, 20, 6, None)
    assert tokenizer.load().count(str(turn.messages[0]["content"])) == 20


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_turns_of_a_session_add_their_tokens_over_every_api(tmp_path: Path, api: str) -> None:
    for has_ids in (True, False):
        rows = [
            {"session_id": "a", "input_length": 30, "output_length": 4},
            {"session_id": "a", "delay": 12.5, "input_length": 20, "output_length": 6},
            {"session_id": "a", "delay": 12.5, "input_length": 25, "output_length": 6},
        ]
        data = {
            "type": "trace",
            "path": write(
                tmp_path, "t.jsonl", json_lines([row | {"hash_ids": [n] * has_ids} for n, row in enumerate(rows)])
            ),
        }
        config = from_mapping({"server": {"url": "http://x", "api": api}, "data": data, "load": {"requests": 1}})
        (request,) = workload.build(config.data, 0, [0])
        sent = history("text" if api == "completions" else "messages")
        sent.begin(str(request.payload))
        for turn in request.later:
            sent.respond(" the server's response", is_live=True)
            sent.add(turn.messages)
        payload = msgspec.json.decode(sent.json())
        texts = [payload] if isinstance(payload, str) else [message["content"] for message in payload]
        count = tokenizer.load().count
        assert sum(map(count, texts)) == 30 + 20 + 25 + 2 * count(" the server's response")


def test_whole_prompts_of_later_turns_start_with_the_blocks_of_the_turn_before(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"session_id": "a", "input_length": 40, "output_length": 4, "hash_ids": [1, 2, 3]},
        {"session_id": "a", "delay": 10, "input_length": 64, "output_length": 6, "hash_ids": [1, 2, 4, 5]},
    ]
    spec = Trace(path=write(tmp_path, "t.jsonl", json_lines(rows)))
    (first,) = workload.build(spec, 0, [0])
    (turn,) = first.later
    assert workload.arrivals(spec) is None
    assert turn.n_in == 64
    one, other = (tokenizer.load().encode(str(each)) for each in (first.payload, turn.payload))
    assert one[:32] == other[:32]
    assert len(other) == 64


def test_rows_of_a_session_with_times_are_requests_of_their_own_unless_sessions_are_wanted(tmp_path: Path) -> None:
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "100.0,s,4,GPT-4,50,10,60,Conversation log\n"
        "101.0,,1,GPT-4,5,0,5,API log\n"
        "102.0,,1,GPT-4,7,3,10,API log\n"
        "110.0,s,2,GPT-4,90,20,110,Conversation log\n"
        "115.0,s,2,GPT-4,30,20,50,Conversation log\n"
    )
    path = write(tmp_path, "t.csv", text)
    alone = Trace(path=path)
    assert [request.n_in for request in workload.build(alone, 0, range(4))] == [50, 7, 90, 30]
    assert traces.notes(alone)["skipped"] == {"rows": 1, "of": 5, "first": f"{path}, line 3: there are no tokens"}
    together = Trace(path=path, sessions=True)
    first, second = workload.build(together, 0, range(2))
    assert (first.n_in, second.n_in, len(second.later)) == (50, 7, 0)
    assert [(turn.n_in, turn.think // NS) for turn in first.later] == [(90 - 50 - 10, 6), (30, 3)]
    assert [turn.payload is None for turn in first.later] == [True, False]  # the second is shorter than its history


def test_chats_of_bailian_are_sessions_by_their_parents(tmp_path: Path) -> None:
    rows = [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20, "output_length": 2, "turn": 1},
        {"chat_id": 2, "parent_chat_id": -1, "timestamp": 1.0, "input_length": 21, "output_length": 2, "turn": 1},
        {"chat_id": 3, "parent_chat_id": 1, "timestamp": 2.25, "input_length": 30, "output_length": 2, "turn": 2},
        {"chat_id": 4, "parent_chat_id": 3, "timestamp": 4.0, "input_length": 40, "output_length": 2, "turn": 3},
    ]
    path = write(tmp_path, "t.jsonl", json_lines(rows))
    arrivals = workload.arrivals(Trace(path=path))
    assert arrivals is not None
    assert (arrivals / NS).tolist() == [0, 0.5, 1.75, 3.5]
    first, second = workload.build(Trace(path=path, sessions=True), 0, range(2))
    assert [len(first.later), len(second.later)] == [2, 0]
    assert [turn.think / NS for turn in first.later] == [1.75, 1.75]


# --- plain files and errors ------------------------------------------------------------------------------------------


def test_columns_can_be_named_and_files_compressed(tmp_path: Path) -> None:
    text = "time,input,output\n0,5,5\n1,6,6\n"
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    one, other = Trace(path=write(tmp_path, "t.csv", text)), Trace(path=str(packed))
    assert workload.build(one, 0, range(2)) == workload.build(other, 0, range(2))
    assert (
        from_mapping({"server": {"url": "http://x"}, "data": {"type": "trace", "path": str(packed)}}).load is not None
    )
    path = write(tmp_path, "t.tsv", "when\tprompt len\tanswer\n1\t10\t0\n3\t20\t7\n")
    spec = Trace(path=path, columns={"time": "when", "input": "Prompt len", "output": "answer"})
    assert [(request.n_in, request.n_out) for request in workload.build(spec, 0, range(2))] == [(10, 1), (20, 7)]
    with pytest.raises(
        UserError, match=r"data.columns.input: .*t.tsv has no column 'tokens' \(it has when, prompt len"
    ):
        workload.build(Trace(path=path, columns={"input": "tokens"}), 0, [0])


def test_an_unordered_trace_is_an_error_unless_it_is_sorted(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "time,input,output\n0,1,1\n5,2,1\n3,3,1\n4,4,1\n")
    with pytest.raises(UserError, match=r"t.csv, line 4: the trace is not in order: this row is 2 s earlier") as raised:
        workload.arrivals(Trace(path=path))
    assert raised.value.key == "data.path"
    assert "data.sort: true" in raised.value.next_step
    spec = Trace(path=path, sort=True)
    arrivals = workload.arrivals(spec)
    assert arrivals is not None
    assert (arrivals / NS).tolist() == [0, 3, 4, 5]
    assert [request.n_in for request in workload.build(spec, 0, range(4))] == [1, 3, 4, 2]


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("t.csv", "", "t.csv is empty"),
        ("t.csv", "time,input,output\n", "no rows with tokens"),
        ("t.csv", "time,input,output\n0,0,0\n", "line 2: there are no tokens"),
        ("t.csv", "a,b\n1,2\n", "does not have a column with the prompts' lengths; its columns are a, b"),
        ("t.csv", "time,input,output\n0,0,0\n0,x,0\n", "none of its 2 rows can be used; the first is .*line 2: there are no tokens"),
        ("t.jsonl", '{"input\n[1]', "none of its 2 rows can be used; the first is .*line 1: not JSON"),
        ("t.jsonl", '{"input_length": 5, "output_length": 1, "hash_ids": ["x"]}', "line 1: hash_ids are not whole numbers"),
        ("t.json", '{"id": 1, "requests": [],\n "block_size": 64, "hash_id_scope": "local"}', "agentic graphs are not supported yet"),
        ("t.jsonl", '{"session_id": "a", "turns": [{"text": "Hi", "spawns": ["b"]}]}', "agentic graphs are not supported yet"),
    ],
)  # fmt: skip
def test_errors_name_the_line(tmp_path: Path, name: str, text: str, error: str) -> None:
    with pytest.raises(UserError, match=error) as raised:
        workload.build(Trace(path=write(tmp_path, name, text)), 0, [0])
    assert raised.value.next_step
    assert raised.value.key == "data.path"


IDS = '{"input_length": 600, "output_length": 1, "hash_ids": '


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("t.csv", "time,input,output\n0,5,1\nsoon,5,1\n", "line 3: time is not a time: 'soon'"),
        ("t.csv", "time,input,output\n2024-05-10 00:00:00,5,1\n2024-15-10 00:00:00,5,1\n", "line 3: time is not a time: '2024-15-10 00:00:00'"),
        ("t.csv", "time,input,output\n0,5,1\n1,many,1\n", "line 3: input is not a number of tokens: 'many'"),
        ("t.csv", "time,input,output\n0,5,1\n1,2.5,1\n", "line 3: input is not a number of tokens: '2.5'"),
        ("t.csv", "time,input,output\n0,5,1\n,5,1\n", "line 3: there is no time"),
        ("t.csv", "time,input,output\n0,5\n1,5,1\n", "line 2: there are 2 columns instead of 3"),
        ("t.jsonl", '{"input_length": 5, "output_length": 1}\n{"input', "line 2: not JSON; write one JSON object per line"),
        ("t.jsonl", '{"input_length": 5, "output_length": 1}\n\n[1]\n', "line 3: not a JSON object"),
        ("t.jsonl", '{"time": 0, "input": [1, 2], "output": 3}\n{"time": 0, "input": 5, "output": 3}', "line 1: input is a list"),
        ("t.jsonl", f"{IDS}[1, 2]}}\n{IDS}[1, -2]}}", "line 2: hash_ids are not whole numbers"),
        ("t.jsonl", f"{IDS}[1, 2]}}\n{IDS}[1, 2]}}\n{IDS}[1]}}\n{IDS}[1, 2, 3, 4]}}", "line 4: 4 hash ids do not fit 600 tokens in blocks of 512"),
    ],
)  # fmt: skip
def test_broken_rows_are_skipped_and_counted(tmp_path: Path, name: str, text: str, reason: str) -> None:
    path = write(tmp_path, name, text)
    spec = Trace(path=path)
    count = workload.distinct(spec)
    assert count
    assert len(workload.build(spec, 0, range(count))) == count
    noted = workload.notes(spec)
    assert noted["skipped"] == {"rows": 1, "of": count + 1, "first": f"{path}, {reason}"}
    assert noted["notes"] == [f"1 of {count + 1} rows were skipped; the first is {path}, {reason}"]


NAMES = ["time", "timestamp", "input", "input_length", "output", "output_length", "session_id", "delay", "hash_ids",
         "prompt", "chat_id", "parent_chat_id", "turns", "text", "ContextTokens", "GeneratedTokens"]  # fmt: skip
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3),
    st.sampled_from(["2024-05-10", "1e5", "1e-40", "2024-05-10T00:00:00Z", "2024-05-10 00:00:00", "nan"]),
    st.lists(st.one_of(st.integers(-1, 5), st.floats(), st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), max_size=2)), max_size=3),
    st.dictionaries(st.sampled_from(NAMES), st.integers(), max_size=1),
)  # fmt: skip
ROWS = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6), min_size=1, max_size=4)


@given(
    rows=ROWS,
    as_csv=st.booleans(),
    kind=st.sampled_from(["auto", "bailian", "mooncake", "aiperf", "azure", "csv", "tracelab"]),
    sessions=st.sampled_from(["auto", True, False]),
    sort=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_malformed_trace_is_never_an_internal_error(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], as_csv: bool, kind: Any, sessions: Any, sort: bool
) -> None:  # fmt: skip
    text = json_lines(rows)
    if as_csv:
        lines = [list(rows[0]), *(row.values() for row in rows)]
        text = "".join(",".join(map(str, line)) + "\n" for line in lines)
    path = tmp_path_factory.mktemp("trace") / "t.txt"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    spec = Trace(path=str(path), format=kind, sessions=sessions, sort=sort)
    try:
        table = traces._table(spec)
        workload.arrivals(spec)
        workload.notes(spec)
        if max(table.input) < 1000:
            workload.build(spec, 0, range(2))
    except UserError as error:
        assert error.next_step


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", pytest.param("csv", marks=pytest.mark.slow)])
def test_a_large_trace_takes_little_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"t.{kind}"
    ids = list(range(20))
    with path.open("w", encoding="utf-8") as file:
        file.write("time,input,output\n" * (kind == "csv"))
        for n in range(100_000):
            row = {"timestamp": n, "input_length": 10_000, "output_length": 9, "hash_ids": ids}
            file.write(f"{json.dumps(row)}\n" if kind == "jsonl" else f"{n}.25,10000,9\n")
    script = (
        "import resource, sys; from inferometer import workload; from inferometer.config.data import Trace\n"
        "from inferometer.workload.traces import table\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); assert workload.distinct(Trace(path=sys.argv[1])) == 100_000; print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 80 << 10  # KiB; the hash ids alone are 16 MB


def test_sessions_of_aiperf_have_their_turns_in_one_row(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"session_id": "a", "turns": [{"text": "Hello there", "delay": 0}, {"text": "And now?", "delay": 100}]},
        {"turns": [{"texts": ["Good morning"]}, {"text": "What else?"}, {"text": "Thanks"}]},
        {"session_id": "c", "turns": [{"image": "a.png"}]},
    ]
    spec = Trace(path=write(tmp_path, "t.jsonl", json_lines(rows)), output=16)
    first, second = workload.build(spec, 0, range(2))
    assert workload.distinct(spec) == 2
    assert workload.arrivals(spec) is None
    assert (first.payload, second.payload, first.n_out) == ("Hello there", "Good morning", 16)
    count = tokenizer.load().count
    assert first.n_in == count("Hello there")
    assert [(turn.messages, turn.n_in, turn.think) for turn in first.later] == [
        ([{"role": "user", "content": "And now?"}], count("And now?"), 100_000_000)
    ]
    assert [turn.messages[0]["content"] for turn in second.later] == ["What else?", "Thanks"]
    assert workload.notes(spec)["skipped"]["first"].endswith("line 3: a turn does not have a text")


def test_turns_with_a_text_and_turns_with_a_length_may_be_in_one_file(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"turns": [{"text": "Hello there", "input_length": 9}, {"input_length": 20}, {"text": "And now?"}]},
        {"turns": [{"input_length": 600, "hash_ids": [1, 2]}]},
        {"turns": [{"input_length": 700, "hash_ids": [1, 3]}]},
    ]
    spec = Trace(path=write(tmp_path, "t.jsonl", json_lines(rows)), output=16)
    first, second, third = workload.build(spec, 0, range(3))
    count = tokenizer.load().count
    texts = [first.payload, *(turn.messages[0]["content"] for turn in first.later)]
    assert (texts[0], texts[2]) == ("Hello there", "And now?")
    lengths = [first.n_in, *(turn.n_in for turn in first.later)]
    assert lengths == [count(str(text)) for text in texts] == [count("Hello there"), 20, count("And now?")]
    assert (second.n_in, third.n_in) == (600, 700)
    assert str(second.payload)[:1500] == str(third.payload)[:1500]  # the block with the id 1
    assert "skipped" not in workload.notes(spec)


def test_sessions_of_aiperf_with_times_are_replayed_at_them(tmp_path: Path) -> None:
    rows = [
        {"session_id": n, "turns": [{"text": "Hi", "timestamp": at}, {"text": "Ho", "timestamp": at + 300}]}
        for n, at in enumerate((1000, 1500))
    ]
    stage = plan_of({"path": write(tmp_path, "t.jsonl", json_lines(rows))})
    assert stage.instants.tolist() == [0, 500_000_000]
    (request,) = workload.build(Trace(path=str(tmp_path / "t.jsonl")), 0, [0])
    assert [turn.think for turn in request.later] == [300_000_000]


def test_a_missing_file_and_an_empty_window_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.path: .*nowhere.csv cannot be read: No such file"):
        workload.build(Trace(path=str(tmp_path / "nowhere.csv")), 0, [0])
    path = write(tmp_path, "t.csv", "time,input,output\n0,5,1\n10,5,1\n")
    with pytest.raises(UserError, match=r"data.start: nothing arrives between .* is 10 s long"):
        workload.build(Trace(path=path, start=Seconds(11)), 0, [0])
    lengths = write(tmp_path, "l.csv", "input,output\n5,1\n")
    with pytest.raises(UserError, match=r"data.end: .*l.csv has no times"):
        workload.build(Trace(path=lengths, end=Seconds(11)), 0, [0])
    with pytest.raises(UserError, match=r"data.sessions: .*l.csv has no sessions"):
        workload.build(Trace(path=lengths, sessions=True), 0, [0])
    path = write(tmp_path, "t.csv", "chat_id,timestamp,input_length,output_length\n1,0,5,1\n")
    with pytest.raises(UserError, match=r"data.sessions: .*t.csv has no sessions"):
        workload.build(Trace(path=path, format="bailian", sessions=True), 0, [0])
    path = write(tmp_path, "t.csv", "time,input,output\n0,1,1\n")
    with pytest.raises(UserError, match=r"load.unit: the arrivals of a trace are those of its sessions"):
        plan_of({"path": path}, unit="requests")


# --- other tokenizers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", small_tokenizers.NAMES[1:])
@pytest.mark.parametrize("seed", range(2))
def test_prompts_share_their_blocks_with_every_tokenizer(tmp_path: Path, name: str, seed: int) -> None:
    rows = [
        {"input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]},
        {"input_length": 160, "output_length": 1, "hash_ids": [1, 2, *range(10, 18)]},
        {"input_length": 41, "output_length": 1, "hash_ids": [1, 2]},
        {"input_length": 16, "output_length": 1, "hash_ids": [6]},
        {"input_length": 33, "output_length": 1},
    ]
    path = write(tmp_path, "t.jsonl", json_lines(rows))
    spec = Trace(path=path, block=16, tokenizer=small_tokenizers.saved(name))
    chosen = tokenizer.load(spec.tokenizer)
    ids = [chosen.encode(str(request.payload)) for request in workload.build(spec, seed, range(len(rows)))]
    assert [len(each) for each in ids] == [row["input_length"] for row in rows]
    assert ids[0][:32] == ids[1][:32] == ids[2][:32]
    assert ids[0][32:] != ids[1][32:40]
    assert ids[1][32:41] != ids[2][32:]
    assert ids[3] != ids[0][:16]


BEFORE = (
    " prototypes cancel hire Not every violin plays its music lesson, because records are sensible. Both "
    "the solemn and the soft music lessons were recorded, when they had composed a guitar. The house love"
    "s the aunt, which miss"
)
PART = (
    " hunts edit formula Henrik washed the current and dived the underwater bays a generation ago. Betwee"
    "n Lima and Valparaiso lie fifty dollars of tropical bays. Without the submarine, the young woman wou"
    "ld have s"
)


@pytest.mark.slow
def test_a_block_fits_although_most_tokens_end_with_a_space() -> None:
    chosen = tokenizer.load(small_tokenizers.saved("spanning"))
    (fitted,) = text.fit(chosen, [BEFORE], [PART], [64])
    start, whole = chosen.encode(BEFORE), chosen.encode(BEFORE + fitted)
    assert whole[: len(start)] == start
    assert len(whole) == len(start) + 64
