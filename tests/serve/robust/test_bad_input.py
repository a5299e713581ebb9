"""Client errors over both protocols get the right status and message, and the next request is served. Errors at startup
are one line with a remedy; what can be served is served."""

import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from robust_peer import (
    PORTS,
    STREAM_INFER,
    Child,
    Http,
    child,
    dialled,
    http_request,
    infer,
    launched,
    pending,
    responds,
    small,
    unary,
    write_models,
)
from served import CODE, PATIENCE_S, PYTHON, a_request, delayed, failure
from waiting import until

from inferometer.serve.kserve.messages import ModelInferRequest, ModelStreamInferResponse

INT64 = 2**63 - 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """Models that load, and two that do not."""
    folder = tmp_path_factory.mktemp("models")
    models = write_models(
        folder, slow=delayed("60s", slots=1), two=TWO, broken=PYTHON, unknown='backend: "tensorflow"\n', failing=PYTHON
    )
    (folder / "broken/1/model.py").write_text("def infer(inputs, parameters)\n    return inputs\n")
    (folder / "failing/1/model.py").write_text(CODE["failing"])
    with child("identity", models, *PORTS) as one:
        responds(one)
        yield one


TWO = """
backend: "identity"
max_batch_size: 4
input [{ name: "A", data_type: TYPE_INT32, dims: [ 3 ] }, { name: "B", data_type: TYPE_STRING, dims: [ 1 ] }]
output [{ name: "C", data_type: TYPE_INT32, dims: [ 3 ] }, { name: "D", data_type: TYPE_STRING, dims: [ 1 ] }]
"""
X = ("INPUT0", "FP32", [1, 2], bytes(8))
A = ("A", "INT32", [1, 3], bytes(12))
B = ("B", "BYTES", [1, 1], b"\1\0\0\0x")

Given = tuple[str, str, list[int], bytes]
STATUS = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "INTERNAL": 500}


@dataclass
class Bad:
    """An invalid request, and the expected response: gRPC's code, parts of the message."""

    code: str
    words: tuple[str, ...]
    model: str = "identity"
    version: str = ""
    given: tuple[Given, ...] = (X,)
    outputs: tuple[str, ...] = ()
    classes: int = 0
    id: str = ""
    timeout: Any = None


def invalid(*words: str, **fields: Any) -> Bad:
    return Bad("INVALID_ARGUMENT", words, **fields)


def shaped(*shape: int, size: int = 8) -> tuple[Given, ...]:
    return (("INPUT0", "FP32", list(shape), bytes(size)),)


def two(a: Given = A, b: Given = B) -> dict[str, Any]:
    return {"model": "two", "given": (a, b)}


UNKNOWN = "[request id: <id_unknown>] "
STRINGS = (
    UNKNOWN + "unexpected number of string elements {} for inference input 'B' for model 'two', expecting 1 in {} bytes"
)
BAD = {
    "unknown model": Bad("NOT_FOUND", ("Request for unknown model: 'nope' is not found",), model="nope"),
    "unknown version": Bad("NOT_FOUND", ("Request for unknown model: 'identity' version 7 is not found",), version="7"),
    "a model that did not load": Bad(
        "NOT_FOUND", ("Request for unknown model: 'broken' has no available versions",), model="broken"
    ),
    "wrong datatype": invalid(
        UNKNOWN + "inference input 'INPUT0' data-type is 'INT32', but model 'identity' expects 'FP32'",
        given=(("INPUT0", "INT32", [1, 2], bytes(8)),),
    ),
    "no datatype at all": invalid("FP32", "FP8", given=(("INPUT0", "FP8", [1, 2], bytes(8)),)),
    "too few dimensions": invalid(
        UNKNOWN + "unexpected shape for input 'INPUT0' for model 'identity'. Expected [-1,-1], got [2]", given=shaped(2)
    ),
    "too many dimensions": invalid("Expected [-1,-1], got [1,1,2]", given=shaped(1, 1, 2)),
    "wrong dimension": invalid(
        "unexpected shape for input 'A' for model 'two'. Expected [-1,3], got [1,2]", **two(("A", "INT32", [1, 2], bytes(8)))
    ),
    "rows that differ": invalid(
        UNKNOWN + "input 'B' batch size does not match other inputs for 'two': expected 2, got 1",
        **two(("A", "INT32", [2, 3], bytes(24))),
    ),
    "too many rows": invalid(
        "[request id: rid] inference request batch-size must be <= 64 for 'identity', got 65",
        given=shaped(65, 1, size=260), id="rid",
    ),
    "no rows": invalid(
        UNKNOWN + "inference request batch-size must be >= 1 for 'identity', got 0", given=shaped(0, 1, size=0)
    ),
    "a negative dimension": invalid("-2", given=shaped(1, -2)),
    "a shape over 64 bits": invalid("64", given=shaped(2**62, 4)),
    "a row over 64 bits": invalid("INPUT0", "got 8", given=shaped(1, INT64)),
    "bytes that do not fit the shape": invalid(
        UNKNOWN + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 12, got 8", given=shaped(1, 3)
    ),
    "a length that is cut short": invalid(STRINGS.format(0, 2), **two(b=("B", "BYTES", [1, 1], b"\0\0"))),
    "a string that is cut short": invalid(STRINGS.format(0, 5), **two(b=("B", "BYTES", [1, 1], b"\t\0\0\0x"))),
    "too many strings": invalid(STRINGS.format(2, 10), **two(b=("B", "BYTES", [1, 1], B[3] * 2))),
    "wrong name": invalid(
        "unexpected inference input 'INPUT1' for model 'identity', which has 'INPUT0'", given=(("INPUT1", *X[1:]),)
    ),
    "a wrong name of two": invalid(
        "unexpected inference input 'Z' for model 'two', which has 'A','B'", **two(b=("Z", *B[1:]))
    ),
    "no input": invalid(
        UNKNOWN + "expected 1 inputs but got 0 inputs for model 'identity'. Got input(s) [], but missing required "
        "input(s) ['INPUT0']. Please provide all required input(s).", given=(),
    ),
    "a missing input": invalid(
        UNKNOWN + "expected 2 inputs but got 1 inputs for model 'two'. Got input(s) ['A'], but missing required "
        "input(s) ['B']. Please provide all required input(s).", model="two", given=(A,),
    ),
    "one too many": invalid(
        "unexpected inference input 'Y' for model 'identity', which has 'INPUT0'", given=(X, ("Y", *X[1:]))
    ),
    "an input twice": invalid(UNKNOWN + "input 'INPUT0' already exists", given=(X, X)),
    "an output that is not": invalid(
        "unexpected inference output 'Z' for model 'identity', which has 'OUTPUT0'", outputs=("Z",)
    ),
    "classes of strings": invalid(
        UNKNOWN + "classification is not possible for output 'D': its data-type is 'BYTES'", **two(), outputs=("D",), classes=1
    ),
    "a timeout that is none": invalid("timeout", timeout="soon"),
    "a model that fails": Bad("INTERNAL", ("OSError: no luck",), model="failing", given=shaped(2)),
}  # fmt: skip


def over_http(server: Child, bad: Bad) -> str:
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, datatype, shape, data in bad.given
    ]
    classes = {"parameters": {"classification": bad.classes}} if bad.classes else {}
    tree = {"inputs": inputs, "outputs": [{"name": name} | classes for name in bad.outputs]}
    tree |= {"id": bad.id} if bad.id else {}
    tree |= {} if bad.timeout is None else {"parameters": {"timeout": bad.timeout}}
    head, raw = json.dumps(tree).encode(), b"".join(data for *_, data in bad.given)
    path = f"/v2/models/{bad.model}" + (f"/versions/{bad.version}" if bad.version else "") + "/infer"
    with Http(server.url) as client:
        status, body = client.request(
            http_request("POST", path, head + raw, f"Inference-Header-Content-Length: {len(head)}")
        )
        assert client.request(small())[0] == 200, "the connection goes on"
    message: str = json.loads(body)["error"]
    assert status == STATUS[bad.code], message
    return message


def over_grpc(server: Child, bad: Bad) -> list[str]:
    """Return the messages of a call and of a stream."""
    request = ModelInferRequest(model_name=bad.model, model_version=bad.version, id=bad.id)
    for name, datatype, shape, data in bad.given:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(data)
    for name in bad.outputs:
        output = request.outputs.add(name=name)
        if bad.classes:
            output.parameters["classification"].int64_param = bad.classes
    if bad.timeout is not None:
        request.parameters["timeout"].string_param = bad.timeout
    with dialled(server.grpc_address) as channel:
        code, message = failure(lambda: infer(channel, request))
        assert code == bad.code, message
        requests = [one.SerializeToString() for one in (request, a_request())]
        stream = channel.stream_stream(STREAM_INFER, None, ModelStreamInferResponse.FromString)
        first, second = stream(iter(requests), timeout=PATIENCE_S)
        assert second.infer_response.raw_output_contents, "the stream goes on"
        assert infer(channel, a_request()).raw_output_contents, "the connection goes on"
    return [message, first.error_message]


@pytest.mark.parametrize("what", BAD)
def test_bad_requests_get_the_right_status_and_message(server: Child, what: str) -> None:
    bad = BAD[what]
    refused_as_json = what in ("a negative dimension", "a timeout that is none", "no datatype at all")
    for message in (over_http(server, bad), *over_grpc(server, bad)):
        assert all(words in message for words in bad.words) or refused_as_json, message
        assert "\n" not in message
        refused_as_json = False
    assert server.errors() == ""


def test_an_expired_deadline(server: Child) -> None:
    """The client's own deadline over gRPC, and the protocol's parameter over both."""
    with dialled(server.grpc_address) as channel, Http(server.url) as holder, Http(server.url) as next_one:
        for held in (holder, next_one):
            held.sock.sendall(small("slow"))
        until(lambda: pending(server, "slow") == 1, "one request runs and the other is queued")
        assert failure(lambda: infer(channel, a_request("slow"), timeout=0.05))[0] == "DEADLINE_EXCEEDED"
        request = a_request("slow")
        request.parameters["timeout"].int64_param = 1000
        code, details = failure(lambda: infer(channel, request))
        assert (code, "Request timeout expired" in details) == ("DEADLINE_EXCEEDED", True)
        with Http(server.url) as client:
            given = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}
            tree = {"inputs": [given], "parameters": {"timeout": 1000}}
            status, message = client.json("POST", "/v2/models/slow/infer", tree)
        assert (status, "Request timeout expired" in message["error"]) == (504, True)
    assert responds(server)


def test_the_index_has_the_reason_why_a_model_failed_to_load(server: Child) -> None:
    with Http(server.url) as client:
        _, over_http = client.json("POST", "/v2/repository/index", {})
    with dialled(server.grpc_address) as channel:
        index = unary(channel, "RepositoryIndex")
    for reasons in (
        {one["name"]: one.get("reason", "") for one in over_http},
        {one.name: one.reason for one in index.models},
    ):
        assert "model.py" in reasons["broken"]
        assert "line 1" in reasons["broken"]
        assert "tensorflow" in reasons["unknown"]
        assert not reasons["identity"]
    assert {one["name"]: one["state"] for one in over_http} == {
        "broken": "UNAVAILABLE", "failing": "READY", "identity": "READY", "slow": "READY", "two": "READY",
        "unknown": "UNAVAILABLE",
    }  # fmt: skip


@pytest.mark.torch
def test_a_damaged_image() -> None:
    with child("classifier", *PORTS) as server:
        data = b"\x89PNG\r\n\x1a\n and then nothing"
        raw = len(data).to_bytes(4, "little") + data
        request = ModelInferRequest(model_name="classifier", raw_input_contents=[raw])
        request.inputs.add(name="image", datatype="BYTES", shape=[1, 1])
        with dialled(server.grpc_address) as channel:
            code, details = failure(lambda: infer(channel, request))
            assert (code, "image" in details) == ("INVALID_ARGUMENT", True)
            pixels = ModelInferRequest(model_name="classifier", raw_input_contents=[bytes(4 * 3 * 224 * 224)])
            pixels.inputs.add(name="pixels", datatype="FP32", shape=[1, 3, 224, 224])
            assert infer(channel, pixels).outputs[0].name == "scores"
        assert server.errors() == ""


# --- what is wrong when it starts ------------------------------------------------------------------------------------


def refused(*arguments: str, blocked: tuple[str, ...] = ()) -> str:
    """Return standard error of a server that cannot start: status 2, and no traceback."""
    process = launched(*arguments, blocked=blocked, stderr=subprocess.PIPE)
    _, message = process.communicate(timeout=4 * PATIENCE_S)  # some import torch
    assert process.returncode == 2, message
    assert "Traceback" not in message
    return " ".join(message.split())


@pytest.mark.parametrize("option", ["--grpc", "--metrics"])
def test_a_port_in_use(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"--http": 0, "--grpc": 0, "--metrics": 0} | {option: port}
        message = refused("identity", *(f"{name}={number}" for name, number in ports.items()))
    assert f"port {port} is in use" in message
    assert option in message


@pytest.mark.parametrize(
    ("package", "model", "extra"), [("onnxruntime", "model.onnx", "onnx"), ("torch", "model.pt", "torch")]
)
def test_a_missing_package(tmp_path: Path, package: str, model: str, extra: str) -> None:
    if "." in model:
        (tmp_path / model).write_bytes(b"x")
        model = str(tmp_path / model)
    message = refused(model, *PORTS, blocked=(package,))
    assert package in message
    assert f"inferometer[{extra}]" in message


def test_a_missing_package_affects_only_its_model(tmp_path: Path) -> None:
    models = write_models(tmp_path, good=delayed("1ms"), net='backend: "onnxruntime"\n')
    (tmp_path / "net/1/model.onnx").write_bytes(b"x")
    with child("identity", models, *PORTS, blocked=("onnxruntime",)) as server:
        assert responds(server, "good")
        with Http(server.url) as client:
            _, index = client.json("POST", "/v2/repository/index", {})
        (reason,) = (one["reason"] for one in index if one["name"] == "net")
        assert "onnxruntime" in reason
        assert "inferometer[onnx]" in reason


@pytest.mark.parametrize(
    "name", [pytest.param("model.onnx", marks=pytest.mark.onnx), pytest.param("model.pt", marks=pytest.mark.torch)]
)
def test_a_model_file_that_fails_to_load(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"this is no model")
    assert name in refused(str(tmp_path / name), *PORTS)
