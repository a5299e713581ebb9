"""Client errors over both protocols get the right status and message, and the next request is served. Errors at startup
are one line with a remedy; what can be served is served."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from robust_peer import (
    PORTS,
    Child,
    Http,
    child,
    dialled,
    infer,
    launched,
    pending,
    responds,
    small,
    unary,
    write_models,
)
from served import PATIENCE_S, a_request, delayed
from waiting import until

from inferometer.serve.kserve.messages import ModelInferRequest

INT64 = 2**63 - 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """Models that load, and two that do not."""
    folder = tmp_path_factory.mktemp("models")
    python = 'input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]\noutput [{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]\n'
    models = write_models(
        folder,
        slow=delayed("60s", slots=1),
        two=TWO,
        broken='backend: "python"\n' + python,
        unknown='backend: "tensorflow"\n',
        failing='backend: "python"\nparameters { key: "warmup" value { string_value: "0" } }\n' + python,
    )
    (folder / "broken/1/model.py").write_text("def infer(inputs, parameters)\n    return inputs\n")
    (folder / "failing/1/model.py").write_text("def infer(inputs, parameters):\n    raise OSError('no\\nluck')\n")
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


class Bad:
    """An invalid request, and the expected response: gRPC's code, HTTP's status, parts of the message."""

    def __init__(
        self, code: str, status: int, *words: str, model: str = "identity", version: str = "", given: tuple[Given, ...] = (X,),
        outputs: tuple[str, ...] = (), timeout: Any = None,
    ) -> None:  # fmt: skip
        self.code, self.status, self.words = code, status, words
        self.model, self.version, self.given, self.outputs, self.timeout = model, version, given, outputs, timeout


def shaped(*shape: int, size: int = 8) -> tuple[Given, ...]:
    return (("INPUT0", "FP32", list(shape), bytes(size)),)


BAD = {
    "unknown model": Bad("NOT_FOUND", 404, "unknown model", "'nope'", model="nope"),
    "unknown version": Bad("NOT_FOUND", 404, "'identity'", "version 7", version="7"),
    "a model that did not load": Bad("NOT_FOUND", 404, "'broken'", "no available versions", model="broken"),
    "wrong datatype": Bad("INVALID_ARGUMENT", 400, "'INT32'", "'FP32'", given=(("INPUT0", "INT32", [1, 2], bytes(8)),)),
    "no datatype at all": Bad("INVALID_ARGUMENT", 400, "FP32", "FP8", given=(("INPUT0", "FP8", [1, 2], bytes(8)),)),
    "too few dimensions": Bad("INVALID_ARGUMENT", 400, "'INPUT0'", "Expected [-1,-1]", "got [2]", given=shaped(2)),
    "too many dimensions": Bad("INVALID_ARGUMENT", 400, "Expected [-1,-1]", "got [1,1,2]", given=shaped(1, 1, 2)),
    "wrong dimension": Bad(
        "INVALID_ARGUMENT", 400, "'A'", "Expected [-1,3]", "got [1,2]", model="two", given=(("A", "INT32", [1, 2], bytes(8)), B)
    ),
    "rows that differ": Bad(
        "INVALID_ARGUMENT", 400, "'B'", "batch size does not match", "expected 2, got 1", model="two", given=(("A", "INT32", [2, 3], bytes(24)), B)
    ),
    "too many rows": Bad("INVALID_ARGUMENT", 400, "must be <= 64", "got 65", given=shaped(65, 1, size=260)),
    "no rows": Bad("INVALID_ARGUMENT", 400, "must be >= 1", "got 0", given=shaped(0, 1, size=0)),
    "a negative dimension": Bad("INVALID_ARGUMENT", 400, "-2", given=shaped(1, -2)),
    "a shape over 64 bits": Bad("INVALID_ARGUMENT", 400, "64", given=shaped(2**62, 4)),
    "a row over 64 bits": Bad("INVALID_ARGUMENT", 400, "INPUT0", "got 8", given=shaped(1, INT64)),
    "bytes that do not fit the shape": Bad("INVALID_ARGUMENT", 400, "Expected 12", "got 8", given=shaped(1, 3)),
    "a string that is cut short": Bad(
        "INVALID_ARGUMENT", 400, "'B'", "elements 0", "5 bytes", model="two", given=(A, ("B", "BYTES", [1, 1], b"\t\0\0\0x"))
    ),
    "too many strings": Bad(
        "INVALID_ARGUMENT", 400, "elements 2", "expecting 1", model="two", given=(A, ("B", "BYTES", [1, 1], B[3] * 2))
    ),
    "wrong name": Bad(
        "INVALID_ARGUMENT", 400, "unexpected inference input 'INPUT1' for model 'identity', which has 'INPUT0'",
        given=(("INPUT1", *X[1:]),),
    ),
    "a wrong name of two": Bad(
        "INVALID_ARGUMENT", 400, "unexpected inference input 'Z' for model 'two', which has 'A','B'", model="two",
        given=(A, ("Z", *B[1:])),
    ),
    "no input": Bad("INVALID_ARGUMENT", 400, "expected 1 inputs but got 0", "'INPUT0'", given=()),
    "a missing input": Bad("INVALID_ARGUMENT", 400, "expected 2 inputs but got 1", "'B'", model="two", given=(A,)),
    "one too many": Bad("INVALID_ARGUMENT", 400, "unexpected inference input 'Y'", "has 'INPUT0'", given=(X, ("Y", *X[1:]))),
    "an input twice": Bad("INVALID_ARGUMENT", 400, "'INPUT0' already exists", given=(X, X)),
    "an output that is not": Bad(
        "INVALID_ARGUMENT", 400, "unexpected inference output 'Z' for model 'identity', which has 'OUTPUT0'", outputs=("Z",)
    ),
    "a timeout that is none": Bad("INVALID_ARGUMENT", 400, "timeout", timeout="soon"),
    "a model that fails": Bad("INTERNAL", 500, "OSError: no luck", model="failing", given=shaped(2)),
}  # fmt: skip


def over_http(server: Child, bad: Bad) -> tuple[int, str]:
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, datatype, shape, data in bad.given
    ]
    tree: dict[str, Any] = {"inputs": inputs, "outputs": [{"name": name} for name in bad.outputs]}
    tree["parameters"] = {} if bad.timeout is None else {"timeout": bad.timeout}
    return _posted(server, bad, tree, b"".join(data for *_, data in bad.given))


def _posted(server: Child, bad: Bad, tree: Any, raw: bytes) -> tuple[int, str]:
    head = json.dumps(tree).encode()
    path = f"/v2/models/{bad.model}" + (f"/versions/{bad.version}" if bad.version else "") + "/infer"
    lines = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(head) + len(raw)}\r\nInference-Header-Content-Length: {len(head)}\r\n\r\n"
    with Http(server.url) as client:
        status, body = client.request(lines.encode() + head + raw)
        assert client.request(small())[0] == 200, "the connection goes on"
    return status, json.loads(body)["error"]


def over_grpc(server: Child, bad: Bad) -> tuple[str, str]:
    request = ModelInferRequest(model_name=bad.model, model_version=bad.version)
    for name, datatype, shape, data in bad.given:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        request.raw_input_contents.append(data)
    for name in bad.outputs:
        request.outputs.add(name=name)
    if bad.timeout is not None:
        request.parameters["timeout"].string_param = bad.timeout
    with dialled(server.grpc_address) as channel:
        message = failure(lambda: infer(channel, request))
        assert infer(channel, a_request()).raw_output_contents, "the connection goes on"
    return message


def failure(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code().name, error.value.details()


@pytest.mark.parametrize("what", BAD)
def test_bad_requests_get_the_right_status_and_message(server: Child, what: str) -> None:
    bad = BAD[what]
    status, message = over_http(server, bad)
    code, details = over_grpc(server, bad)
    assert (status, code) == (bad.status, bad.code), (message, details)
    for words in bad.words:
        assert words in message or what in REFUSED_EARLIER, message
        assert words in details, details
    assert "\n" not in details
    assert server.errors() == ""


REFUSED_EARLIER = ("a negative dimension", "a timeout that is none", "no datatype at all")
"""Over HTTP, the JSON parser refuses these with its own message."""


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
