"""Inference over HTTP: requests, responses in JSON, binary or both, and malformed responses."""

import contextlib
import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from responses import fed, http
from tensor_maker import random

from inferometer.errors import UserError
from inferometer.tensors import DATATYPES, Tensor, from_numpy, to_json, zeros
from inferometer.types import End, Fail, Received
from inferometer.wire.compression import compressed
from inferometer.wire.context import ShmRef
from inferometer.wire.http1 import ResponseDecoder
from inferometer.wire.kserve.http import CountedResponse, decode, encode, infer_path
from inferometer.wire.kserve.infer import InferOptions, InferResponse, ShmOutput

LENGTH = "Inference-Header-Content-Length"


def apart(headers: dict[str, str], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a request into its JSON and the bytes after it."""
    end = int(headers.get(LENGTH, len(body)))
    return json.loads(body[:end]), body[end:]


# --- requests --------------------------------------------------------------------------------------------------------

X = Tensor("X", "INT32", (2,), bytes([1, 0, 0, 0, 2, 0, 0, 0]))
Y = Tensor("Y", "BYTES", (1, 1), b"\2\0\0\0hi")


def test_binary_request_is_the_json_followed_by_the_tensors_in_order() -> None:
    headers, body = encode([X, Y], InferOptions(id="7"))
    tree, rest = apart(headers, body)
    assert headers["Content-Type"] == "application/octet-stream"
    assert rest == X.data + Y.data
    assert tree == {
        "id": "7",
        "inputs": [
            {"name": "X", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}},
            {"name": "Y", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": 6}},
        ],
        "parameters": {"binary_data_output": True},
    }


def test_json_request_has_values_and_no_extension_header() -> None:
    headers, body = encode([X, Y], InferOptions(binary=False, outputs=("A",)))
    assert headers == {"Content-Type": "application/json"}
    assert json.loads(body) == {
        "inputs": [
            {"name": "X", "datatype": "INT32", "shape": [2], "data": [1, 2]},
            {"name": "Y", "datatype": "BYTES", "shape": [1, 1], "data": ["hi"]},
        ],
        "outputs": [{"name": "A"}],
    }


def test_outputs_are_requested_by_name_and_parameters_pass_through() -> None:
    options = InferOptions(outputs=("A", "B"), classification=3, parameters={"sequence_id": 5, "sequence_start": True})
    tree, _ = apart(*encode([X], options))
    parameters = {"classification": 3, "binary_data": True}
    assert tree["outputs"] == [{"name": "A", "parameters": parameters}, {"name": "B", "parameters": parameters}]
    assert tree["parameters"] == {"sequence_id": 5, "sequence_start": True}


@pytest.mark.parametrize("binary", [True, False])
def test_shared_memory_replaces_data(binary: bool) -> None:
    options = InferOptions(
        binary=binary, shm_inputs={"X": ShmRef("in", 8)}, shm_outputs={"A": ShmRef("out", 64, 128)}, outputs=("B",)
    )
    tree, rest = apart(*encode([Tensor("X", "INT32", (2,), b"")], options))
    assert rest == b""
    assert tree["inputs"] == [
        {
            "name": "X",
            "datatype": "INT32",
            "shape": [2],
            "parameters": {"shared_memory_region": "in", "shared_memory_byte_size": 8},
        }
    ]
    region = {"shared_memory_region": "out", "shared_memory_byte_size": 64, "shared_memory_offset": 128}
    plain = {"name": "B", "parameters": {"binary_data": True}} if binary else {"name": "B"}
    assert tree["outputs"] == [plain, {"name": "A", "parameters": region}]


@pytest.mark.parametrize(
    ("tensor", "options", "words"),
    [
        (Tensor("X", "FP32", (2,), b""), InferOptions(), "8 bytes, but 0 were given"),
        (Tensor("X", "FP32", (-1,), b""), InferOptions(shm_inputs={"X": ShmRef("r", 4)}), "any size"),
        (Tensor("X", "FP99", (1,), b""), InferOptions(shm_inputs={"X": ShmRef("r", 4)}), "FP99"),
        (X, InferOptions(shm_inputs={"Z": ShmRef("r", 4)}), "Z"),
        (X, InferOptions(classification=2), "no output is named"),
        (X, InferOptions(classification=2, shm_outputs={"A": ShmRef("r", 4)}), "output A"),
        (zeros("X", "FP16", (1,)), InferOptions(binary=False), "FP16"),
    ],
)
def test_invalid_request_is_rejected_before_it_is_sent(tensor: Tensor, options: InferOptions, words: str) -> None:
    with pytest.raises(UserError) as error:
        encode([tensor], options)
    assert words in error.value.what


def test_paths_are_percent_encoded() -> None:
    assert infer_path("resnet") == "/v2/models/resnet/infer"
    assert infer_path("a/b é", "1?") == "/v2/models/a%2Fb%20%C3%A9/versions/1%3F/infer"


# --- responses --------------------------------------------------------------------------------------------------------


def response(outputs: list[tuple[Tensor, bool]], **more: Any) -> tuple[dict[str, str], bytes]:
    """A response as Triton sends it: each tensor in the JSON or after it."""
    trees: list[dict[str, Any]] = []
    raw = b""
    for tensor, binary in outputs:
        tree: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if binary:
            trees.append(tree | {"parameters": {"binary_data_size": len(tensor.data)}})
            raw += tensor.data
        else:
            trees.append(tree | {"data": to_json(tensor)})
    head = json.dumps({"model_name": "m", "model_version": "1", **more, "outputs": trees}, separators=(",", ":"))
    headers = {LENGTH: str(len(head.encode()))} if raw else {}
    return headers, head.encode() + raw


@given(st.lists(st.tuples(st.sampled_from(list(DATATYPES)), st.booleans(), st.integers(0, 4)), max_size=5))
def test_outputs_in_the_json_and_after_it_round_trip(
    wanted: list[tuple[str, bool, int]],
) -> None:
    chance = np.random.default_rng(1)
    outputs = [
        (random(f"O{n}", datatype, (size, 2), chance), binary or datatype in ("FP16", "BF16"))
        for n, (datatype, binary, size) in enumerate(wanted)
    ]
    headers, body = response(outputs, id="9")
    assert decode(200, headers, body) == InferResponse("m", "1", "9", [tensor for tensor, _ in outputs])


@given(st.lists(st.sampled_from(list(DATATYPES)), max_size=4))
def test_encoded_requests_follow_the_protocol(types: list[str]) -> None:
    chance = np.random.default_rng(2)
    tensors = [random(f"T{n}", datatype, (3,), chance) for n, datatype in enumerate(types)]
    tree, rest = apart(*encode(tensors, InferOptions()))
    for tensor, one in zip(tensors, tree["inputs"], strict=True):
        size = one["parameters"]["binary_data_size"]
        assert (tensor.name, tensor.datatype, rest[:size]) == (one["name"], one["datatype"], tensor.data)
        rest = rest[size:]
    assert rest == b""


@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_json_length_of_a_compressed_response_refers_to_the_decompressed_body(how: str) -> None:
    headers, body = response([(X, True)])
    sent = {name.upper(): value for name, value in (headers | {"Content-Encoding": how}).items()}
    assert decode(200, sent, compressed(body, how)).outputs == [X]


def test_an_output_may_be_in_shared_memory() -> None:
    one: dict[str, Any] = {"name": "A", "datatype": "INT32", "shape": [2]}
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": "16"}
    body = json.dumps({"outputs": [one | {"parameters": region}]}).encode()
    assert decode(200, {}, body).outputs == [ShmOutput("A", "INT32", (2,), ShmRef("r", 8, 16))]


def test_responses_of_other_servers_are_read() -> None:
    mlserver = b'{"model_name":"m","model_version":null,"id":"x","parameters":{},"outputs":[{"name":"o","shape":[1,2],"datatype":"FP32","parameters":null,"data":[0.5,null]}]}'
    read = decode(200, {"content-type": "application/json"}, mlserver)
    assert (read.version, read.outputs[0].shape) == ("", (1, 2))
    bare = b'{"outputs":[{"name":"o","shape":["2"],"datatype":"FP64","data":[NaN,-Infinity]}]}'
    assert decode(200, {}, bare).outputs == [from_numpy("o", np.array([np.nan, -np.inf]))]
    with_parameters = b'{"parameters":{"triton_final_response":true},"outputs":[]}'
    assert decode(200, {}, with_parameters).parameters == {"triton_final_response": True}


GOOD_HEADERS, GOOD = response([(X, True), (Y, False)])
END = int(GOOD_HEADERS[LENGTH])


def changed(old: bytes, new: bytes) -> tuple[int, dict[str, str], bytes]:
    assert old in GOOD
    head = GOOD[:END].replace(old, new)
    return 200, {LENGTH: str(len(head))}, head + GOOD[END:]


BAD_RESPONSES: dict[str, tuple[tuple[int, dict[str, str], bytes], list[str]]] = {
    "status 400": ((400, {}, b'{"error":"unexpected shape for input \'X\'"}'), ["400", "unexpected shape"]),
    "status 400, compressed": (
        (400, {"Content-Encoding": "gzip"}, gzip.compress(b'{"error":"no"}')),
        ["400: no"],
    ),
    "status 502 of a proxy": ((502, {}, b"<html>Bad Gateway</html>"), ["502", "Bad Gateway"]),
    "error in a 200": ((200, {}, b'{"error":"out of memory"}'), ["200", "out of memory"]),
    "binary part cut short": ((200, GOOD_HEADERS, GOOD[:-1]), ["output X", "8 bytes", "7 bytes"]),
    "binary part missing": ((200, GOOD_HEADERS, GOOD[:END]), ["8 bytes", "0 bytes"]),
    "bytes left over": ((200, GOOD_HEADERS, GOOD + b"!!"), ["2 bytes after its last output"]),
    "sizes that do not add up": (changed(b'"shape":[2]', b'"shape":[3]'), ["12 bytes", "8 were given"]),
    "negative size": (changed(b'"binary_data_size":8', b'"binary_data_size":-8'), ["-8"]),
    "size that is no number": (
        changed(b'"binary_data_size":8', b'"binary_data_size":"x"'),
        ["not an inference response"],
    ),
    "size with a fraction": (changed(b'"binary_data_size":8', b'"binary_data_size":8.5'), ["8.5"]),
    "datatype unknown": (changed(b'"INT32"', b'"INT33"'), ["INT33"]),
    "shape missing": (changed(b'"shape":[2],', b""), ["'shape' is missing"]),
    "shape of text": (changed(b'"shape":[2]', b'"shape":"ab"'), ["not an inference response"]),
    "shape negative": (changed(b'"shape":[2]', b'"shape":[-2]'), ["[-2]"]),
    "name missing": (changed(b'"name":"Y",', b""), ["'name' is missing"]),
    "data missing": (changed(b'"data"', b'"date"'), ["'data' is missing"]),
    "values too few": (changed(b'["hi"]', b"[]"), ["tensor Y", "0 were given"]),
    "values of another type": (changed(b'["hi"]', b"[5]"), ["tensor Y", "5"]),
    "half a surrogate": (changed(b'["hi"]', b'["\\ud800"]'), ["surrogate"]),
    "outputs missing": (changed(b'"outputs"', b'"inputs"'), ["'outputs' is missing"]),
    "outputs of another type": ((200, {}, b'{"outputs": 5}'), ["not an inference response"]),
    "output of another type": ((200, {}, b'{"outputs": [5]}'), ["not an inference response"]),
    "parameters of another type": ((200, {}, b'{"outputs": [], "parameters": 5}'), ["not an inference response"]),
    "not JSON": ((200, {}, b"<html>"), ["not JSON", "<html>"]),
    "empty": ((200, {}, b""), ["not JSON"]),
    "a list": ((200, {}, b"[]"), ["not a JSON object"]),
    "binary without the header": ((200, {}, GOOD), ["not JSON"]),
    "JSON cut short": ((200, {LENGTH: "20"}, GOOD), ["not JSON"]),
    "JSON of absurd depth": ((200, {}, b"[" * 200_000), ["not JSON"]),
    "JSON length beyond the end": ((200, {LENGTH: "9999"}, GOOD), ["9999", str(len(GOOD))]),
    "JSON length of absurd size": ((200, {LENGTH: "9" * 9_999}, GOOD), [LENGTH]),
    "JSON length no number": ((200, {LENGTH: "-1"}, GOOD), ["'-1'"]),
    "gzip that is none": ((200, {"Content-Encoding": "gzip"}, GOOD), ["gzip", "is not"]),
    "gzip cut short": ((200, GOOD_HEADERS | {"Content-Encoding": "gzip"}, gzip.compress(GOOD)[:-9]), ["cut short"]),
    "compression unknown": ((200, {"Content-Encoding": "br"}, GOOD), ["'br'"]),
}


@pytest.mark.parametrize("name", BAD_RESPONSES)
def test_malformed_response_is_one_clear_error(name: str) -> None:
    (status, headers, body), words = BAD_RESPONSES[name]
    with pytest.raises(UserError) as error:
        decode(status, headers, body)
    assert len(str(error.value)) < 700
    for word in words:
        assert word in error.value.what


@given(st.integers(0, len(GOOD)), st.binary(max_size=6), st.integers(0, 6))
def test_response_with_any_damage_is_read_or_a_user_error(at: int, put: bytes, cut: int) -> None:
    with contextlib.suppress(UserError):
        decode(200, GOOD_HEADERS, GOOD[:at] + put + GOOD[at + cut :])


# --- the hot path ----------------------------------------------------------------------------------------------------


def ending(wire: bytes, pieces: list[bytes] | None = None) -> End | Fail | None:
    return fed(ResponseDecoder(CountedResponse()), pieces or [wire])


BIG = response([(zeros("O", "FP32", (9_000,)), True)])[1]
LATE = json.dumps({"model_name": "m", "parameters": {"x": "y" * 5_000}, "outputs": []}).encode()
COUNTED = {
    "binary": (GOOD, None, ""),
    "JSON": (response([(Y, False)])[1], None, ""),
    "binary, large": (BIG, None, ""),
    "JSON, indented": (json.dumps({"model_name": "m", "outputs": []}, indent=2).encode(), None, ""),
    "gzip": (gzip.compress(GOOD), None, ""),
    "deflate": (zlib.compress(GOOD), None, ""),
    "gzip, large": (gzip.compress(BIG), None, ""),
    "outputs late": (LATE, None, ""),
    "null error": (b'{"error":null,"outputs":[]}', None, ""),
    "error": (b'{"error":"out of memory"}', "error_body", "out of memory"),
    "error, indented": (b'{\n  "error": "out of memory"\n}', "error_body", "out of memory"),
    "error that speaks of outputs": (b'{"error":"no \\"outputs\\" named"}', "error_body", "outputs"),
    "error with fields": (b'{"error":{"fields":["outputs"],"message":"bad"}}', "error_body", "bad"),
    "error, not first": (b'{"code":3,"error":"out of memory"}', "error_body", "out of memory"),
    "error, long": (b'{"error":"' + b"x" * 9_000 + b'"}', "error_body", "xxx"),
    "error, gzip": (gzip.compress(b'{"error":"out of memory"}'), "error_body", "out of memory"),
    "empty": (b"", "truncated", "empty"),
    "web page": (b"<html>Welcome</html>", "not_json", "Welcome"),
    "another API": (b'{"choices":[]}', "malformed_json", "no outputs"),
    "another API, long": (b'{"choices":"' + b"x" * 9_000 + b'"}', "malformed_json", "no outputs"),
    "a list": (b"[1,2]", "malformed_json", "no outputs"),
    "broken JSON": (b'{"choices":', "malformed_json", ""),
    "x that is not zlib": (b"xyz", "not_json", "xyz"),
}


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("name", COUNTED)
def test_counted_response_is_distinguished_from_an_error_at_every_split(name: str, chunked: bool) -> None:
    body, code, message = COUNTED[name]
    wire = http(body, chunked=chunked)
    found = ending(wire)
    if code is None:
        assert found == End(keep_alive=True)
    else:
        assert isinstance(found, Fail)
        assert (found.code, found.keep_alive) == (code, True)
        assert message in found.message
    step = max(1, len(wire) // 300)
    for at in range(1, len(wire), step):
        assert ending(wire, [wire[:at], wire[at:]]) == found, at
    assert ending(wire, [wire[n : n + 1] for n in range(len(wire))]) == found


def test_body_decoder_is_reusable_and_keeps_little() -> None:
    body = CountedResponse()
    decoder = ResponseDecoder(body)
    for payload, good in ((BIG, True), (b'{"error":"no"}', False), (GOOD, True)):
        decoder.reset()
        assert isinstance(fed(decoder, [http(payload)]), End if good else Fail)
        assert len(body._head) <= 4096


@given(st.lists(st.binary(max_size=30), max_size=5))
@example([b'"outputs"'])
def test_garbage_gives_a_failure_and_never_an_exception(pieces: list[bytes]) -> None:
    body, into = CountedResponse(), Received()
    assert body.feed(pieces, range(len(pieces)), into) is None
    assert isinstance(body.finish(into), Fail)
