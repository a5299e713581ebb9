"""How a result is shown and exported, and how its time is split."""

import io
import json
from typing import Any

import click
import msgspec
import numpy as np
import pytest

from inferometer.errors import UserError
from inferometer.infer import classes, export, show, time_split, tokens
from inferometer.infer.flags import InferFlags
from inferometer.infer.result import ClassScore, InputTensor, Response, Result, ServerSide, TextOutput
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.roundtrip import Instants
from inferometer.tensors import Tensor, TensorSpec, from_numpy
from inferometer.types import ServerTiming, Usage
from inferometer.wire.kserve.control import ModelConfig, ModelMetadata, ServerMetadata

MS = 1_000_000
INSTANTS = Instants(
    connect_from=1000 * MS, connected=1001 * MS, written=1003 * MS, first_byte=1013 * MS, done=1020 * MS,
    bytes_out=2048, bytes_in=100, by_kernel=True,
)  # fmt: skip
FLOATS = from_numpy("OUT", np.array([[0.5, -1.5]], np.float32))


def result(**changes: Any) -> Result:
    kind = "text" if "output" in changes else "method" if "messages" in changes else "tensors"
    usual = Result(kind, "grpc://x:1", "KServe v2 over gRPC", "m", "2", INSTANTS)
    return msgspec.structs.replace(usual, **changes)


def tensors(*outputs: Tensor, **more: Any) -> Result:
    return result(inputs=(InputTensor(FLOATS, "given"),), responses=(Response(15 * MS, outputs, **more),))


def words(of: str) -> np.ndarray[Any, Any]:
    return np.array([of.encode()], object)


# --- time ------------------------------------------------------------------------------------------------------------


def test_the_four_parts_add_up_to_the_total() -> None:
    parts = time_split.parts(INSTANTS)
    assert [(part.name, part.start // MS, part.length // MS) for part in parts] == [
        ("connect", 0, 1), ("send", 1, 2), ("wait", 3, 10), ("receive", 13, 7),
    ]  # fmt: skip


def test_the_rest_is_what_the_server_does_not_account_for() -> None:
    assert time_split.outside_model(INSTANTS, ServerSide(2 * MS, 5 * MS, "its statistics")).rest == 12 * MS
    assert time_split.outside_model(INSTANTS, ServerSide(-1, 5 * MS, "its server-timing")).rest == 14 * MS
    assert time_split.outside_model(INSTANTS, ServerSide(0, 20 * MS, "its statistics")).rest is None


def test_a_total_splits_the_rest_into_protocol_and_network() -> None:
    server = ServerSide(2 * MS, 5 * MS, "its server-timing", total=9 * MS)
    text = show.render(result(server=server, instants=msgspec.structs.replace(INSTANTS, rtt=MS // 4)))
    rows = dict(line.split()[:2] for line in text.splitlines() if line.startswith("   "))
    assert (rows["protocol"], rows["network"], rows["RTT"]) == ("2.000", "10.00", "0.250") and "rest" not in rows
    found = json.loads(export.to_json(result(server=server)))["timing"]["server"]
    assert (found["protocol"], found["network"], found["rest"]) == (0.002, 0.01, 0.012)
    assert time_split.from_timing(ServerTiming(1, 2, 3), is_streamed=True) == ServerSide(1, 2, "its server-timing")


@pytest.mark.parametrize(
    ("part", "expected"),
    [((0, 36, 36), (0, 36)), ((0, 18, 36), (0, 18)), ((18, 18, 36), (18, 36)), ((35, 1, 36), (35, 36)),
     ((0, 1, 10_000), (0, 1)), ((9_999, 1, 10_000), (35, 36)), ((5, 0, 36), (0, 0)), ((0, 0, 0), (0, 0)),
     ((0, 99, 36), (0, 36))],
)  # fmt: skip
def test_a_bar_is_where_its_part_is(part: tuple[int, int, int], expected: tuple[int, int]) -> None:
    drawn = show.bar(*part)
    first, last = expected
    assert drawn == (" " * first + "█" * (last - first)).ljust(36)


def test_the_split_in_print() -> None:
    text = show.render(tensors(FLOATS))
    assert text.startswith(" grpc://x:1 · m, version 2 · KServe v2 over gRPC\n")
    rows = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith("   ") and line.strip()}
    assert {name: rows[name] for name in ("connect", "send", "wait", "receive", "total")} == {
        "connect": "1.000", "send": "2.000", "wait": "10.00", "receive": "7.000", "total": "20.00",
    }  # fmt: skip
    assert "stamps by the kernel" in text
    assert "2 KiB" in text and "100 B" in text
    assert "server" not in text


def test_the_servers_account_names_its_source_and_the_number_of_requests() -> None:
    alone = show.render(result(server=ServerSide(2 * MS, 5 * MS, "its server-timing")))
    assert "by its server-timing\n" in alone
    assert [line.split()[:2] for line in alone.splitlines()[-3:]] == [
        ["queue", "2.000"], ["compute", "5.000"], ["rest", "12.00"],
    ]  # fmt: skip
    crowd = show.render(result(server=ServerSide(2 * MS, 50 * MS, "its statistics", 3)))
    assert "by its statistics, the average of 3 requests" in crowd
    assert crowd.splitlines()[-1].split()[:3] == ["rest", "-", "none:"]
    assert max(map(len, (alone + crowd).splitlines())) <= 100


def test_missing_kernel_timestamps_are_mentioned() -> None:
    plain = msgspec.structs.replace(INSTANTS, by_kernel=False, tls=True)
    text = show.render(result(instants=plain))
    assert "not by the kernel" in text and "TCP and TLS" in text


# --- tensors ---------------------------------------------------------------------------------------------------------


def test_a_long_tensor_is_abbreviated_and_a_short_one_is_not() -> None:
    long = show.values(from_numpy("X", np.arange(100_000).reshape(10, -1)))
    assert "..." in "".join(long)
    assert len(long) < 20 and max(map(len, long)) <= 94
    assert show.values(FLOATS) == ["[[ 0.5 -1.5]]"]


def test_bytes_are_shown_as_text_if_they_are_text() -> None:
    assert show.values(from_numpy("X", np.array([b"one\ntwo", b"", "猫".encode()], object))) == [
        "one",
        "two",
        "''",
        "猫",
    ]
    assert show.values(from_numpy("X", np.array([b"\xff\x00"], object))) == [r"b'\xff\x00' (2 bytes)"]
    many = show.values(from_numpy("X", np.array([b"a"] * 20, object)))
    assert many == ["a"] * 8 + ["... 12 more"]
    assert show.values(from_numpy("X", words("x" * 5000)))[0].endswith("x ... (5,000 bytes)")


def test_control_characters_are_not_printed() -> None:
    evil = "\x1b[2J\x07bad"
    found = tensors(from_numpy("X", words(evil)), FLOATS, classes={"OUT": ((ClassScore(1.0, 0, evil),),)})
    assert "\x1b" not in show.render(found)


def test_lines_fit_into_100_columns() -> None:
    given = InputTensor(from_numpy("SOME_RATHER_LONG_INPUT_NAME", np.zeros((1, 2, 3, 4))), "a/very/long/path/" * 20)
    text = show.render(result(inputs=(given,), responses=(Response(0, (from_numpy("Y", np.arange(99.0)),)),)))
    assert max(map(len, text.splitlines())) <= 100


def test_the_values_of_several_outputs_are_aligned() -> None:
    outputs = (from_numpy("A", np.array([1], np.int8)), from_numpy("LONGER", np.array([2], np.uint16)))
    text = show.render(tensors(*outputs))
    assert " out  A       INT8 [1]    [1]\n      LONGER  UINT16 [1]  [2]\n" in text


def test_colours_only_on_request() -> None:
    found = tensors(FLOATS)
    assert "\x1b" not in show.render(found)
    assert click.unstyle(show.render(found, color=True)) == show.render(found)
    assert "\x1b" in show.render(found, color=True)


def test_all_responses_of_a_stream_are_shown_with_their_times() -> None:
    responses = tuple(Response(n * MS, (from_numpy("N", np.array([n])),)) for n in (1, 2))
    text = show.render(result(inputs=(InputTensor(FLOATS, "given"),), responses=responses))
    assert (
        " out  1  after 1.000 ms\n      N  INT64 [1]  [1]\n out  2  after 2.000 ms\n      N  INT64 [1]  [2]\n" in text
    )
    assert "no responses" in show.render(result(inputs=(InputTensor(FLOATS, "given"),)))


def test_a_methods_messages_are_shown_as_json() -> None:
    one = show.render(result(messages=((MS, {"text": "x\x1b"}),)))
    assert ' {\n   "text": "x\\u001b"\n }\n' in one
    assert "no responses" in show.render(result(messages=()))


# --- classes ---------------------------------------------------------------------------------------------------------


def test_the_top_classes_come_first_and_equal_ones_in_order() -> None:
    found = classes.from_scores(
        from_numpy("X", np.array([[0.1, 0.7, 0.7, np.nan], [9, 8, 7, 6]], np.float32)), 3, ["a", "b"]
    )
    assert [[(one.index, one.label) for one in row] for row in found] == [
        [(1, "b"), (2, ""), (0, "a")], [(0, "a"), (1, "b"), (2, "")],
    ]  # fmt: skip


def test_classes_in_tritons_format() -> None:
    made = from_numpy("X", np.array([[b"3.5:1:a: colon", b"-1.000000:9"]], object))
    assert classes.from_server(made) == ((ClassScore(3.5, 1, "a: colon"), ClassScore(-1.0, 9, "")),)
    with pytest.raises(UserError, match="not a class in Triton's format"):
        classes.from_server(from_numpy("X", words("nonsense")))


@pytest.mark.parametrize(
    ("datatype", "shape", "given", "expected"),
    [
        ("FP32", (1, 10), {"images": ("x",)}, True),
        ("FP32", (10,), {"labels": "x"}, True),
        ("FP32", (1, 10, 1, 1), {"images": ("x",)}, True),
        ("FP32", (1, 10), {}, False),
        ("FP32", (1, 10), {"images": ("x",), "classes": 0}, False),
        ("FP32", (1, 1), {"images": ("x",)}, False),
        ("FP32", (1, 10, 4), {"images": ("x",)}, False),
        ("INT32", (1, 10), {"images": ("x",)}, False),
        ("INT32", (1, 10), {"classes": 2}, True),
        ("BYTES", (1, 10), {"classes": 2}, False),
    ],
)
def test_what_looks_like_scores(datatype: str, shape: tuple[int, ...], given: dict[str, Any], expected: bool) -> None:
    assert classes.looks_like_scores(Tensor("X", datatype, shape, b""), InferFlags("grpc://x", **given)) is expected


@pytest.mark.parametrize(
    ("labels", "extensions", "given", "expected"),
    [
        ({"S": "l.txt"}, ("classification",), {}, ("S",)),
        ({"S": "l.txt"}, (), {}, ()),
        ({}, ("classification",), {}, ()),
        ({"S": "l.txt"}, ("classification",), {"classes": 0}, ()),
        ({"S": "l.txt"}, ("classification",), {"save": "x.npz"}, ()),
        ({"S": "l.txt"}, ("classification",), {"labels": "x"}, ()),
        ({"S": "l.txt"}, ("classification",), {"outputs": ("S",)}, ("S",)),
        ({"S": "l.txt"}, ("classification",), {"outputs": ("S", "T")}, ()),
    ],
)
def test_classes_are_requested_from_servers_that_have_labels(
    labels: dict[str, str], extensions: tuple[str, ...], given: dict[str, Any], expected: tuple[str, ...]
) -> None:
    metadata = ModelMetadata("m", outputs=(TensorSpec("S", "FP32", (-1, 10)),))
    facts = ModelFacts(ServerMetadata("s", extensions=extensions), metadata, ModelConfig("m", labels=labels))
    assert classes.classified_by_server(InferFlags("grpc://x", **given), facts) == expected


# --- text ------------------------------------------------------------------------------------------------------------


def test_tokens_and_their_times() -> None:
    output = TextOutput("one two", ((4 * MS, 1), (6 * MS, 1), (10 * MS, 2)), Usage(7, 4, 3))
    found = tokens.measured(result(output=output))
    assert found == {
        "input": 7, "output": 4, "cached": 3, "reasoning": None, "counted_by": "server", "chunks": 3, "ttft": 0.004,
        "itl_mean": 0.003, "itl_max": 0.004, "e2e": 0.019, "per_second": 4 / 0.019,
    }  # fmt: skip
    text = show.render(result(output=output))
    assert "tokens   7 in, 4 out, 3 cached  the server's count" in text
    assert "ttft 4.000 ms · itl 3.000 ms mean, 4.000 ms max · e2e 19.00 ms · 210.5 tokens/s" in text


def test_a_response_that_is_not_streamed_has_no_first_token() -> None:
    found = tokens.measured(result(output=TextOutput("text", ())))
    assert {name for name, value in found.items() if value is not None} == {"chunks", "e2e"}
    assert " latency  e2e 19.00 ms\n" in show.render(result(output=TextOutput("text", ())))
    assert tokens.measured(result(output=TextOutput("a", ((MS, 1),))))["counted_by"] == "chunks"


# --- for programs ----------------------------------------------------------------------------------------------------


def test_json_has_the_outputs_and_the_split_in_seconds() -> None:
    text = from_numpy("T", np.array([b"ok", b"\xff"], object))
    nan = from_numpy("F", np.array([np.nan, 1.0], np.float16))
    tree = json.loads(export.to_json(tensors(text, nan, classes={"F": ((ClassScore(1.0, 1, "b"),),)})))
    assert tree["responses"] == [{
        "at": 0.015,
        "outputs": [
            {"name": "T", "datatype": "BYTES", "shape": [2], "data": ["ok", {"b64": "/w=="}]},
            {"name": "F", "datatype": "FP16", "shape": [2], "data": [None, 1.0]},
        ],
        "classes": {"F": [[{"score": 1.0, "index": 1, "label": "b"}]]},
    }]  # fmt: skip
    assert tree["inputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [1, 2], "source": "given"}]
    assert tree["timing"] == {
        "connect": 0.001, "send": 0.002, "wait": 0.01, "receive": 0.007, "total": 0.02, "request": 0.019,
        "bytes_out": 2048, "bytes_in": 100, "tls": False, "stamps": "kernel",
        "rtt": None,
    }  # fmt: skip
    with_server = json.loads(export.to_json(result(server=ServerSide(-1, 5 * MS, "its server-timing"))))
    assert with_server["timing"]["server"] == {
        "queue": None, "compute": 0.005, "rest": 0.014, "protocol": None, "network": None, "source": "its server-timing", "requests": 1,
    }  # fmt: skip


def test_outputs_as_an_npz_file() -> None:
    text = from_numpy("T", np.array([b"ok", b"longer"], object))
    loaded = np.load(io.BytesIO(export.to_npz(tensors(FLOATS, text))))
    assert loaded["OUT"].tolist() == [[0.5, -1.5]]
    assert loaded["T"].tolist() == [b"ok", b"longer"]
    two = result(responses=(Response(0, (FLOATS,)), Response(1, (FLOATS,))))
    assert np.load(io.BytesIO(export.to_npz(two))).files == ["OUT.0", "OUT.1"]
    with pytest.raises(UserError, match="zero byte"):
        export.to_npz(tensors(from_numpy("T", np.array([b"a\0"], object))))
