"""Another KServe v2 server: MLServer, which has neither configurations nor statistics, and streams bare responses."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
from real_server import started
from tensor_maker import random

from inferometer.analysis.breakdown import breakdown
from inferometer.config.schema import Server
from inferometer.errors import UserError
from inferometer.probe import kserve, query, reach
from inferometer.probe.connect import Peer
from inferometer.records import Run
from inferometer.tensors import DATATYPES, Tensor, TensorSpec, from_numpy
from inferometer.wire import protobuf
from inferometer.wire.kserve import grpc, http
from inferometer.wire.kserve.control import ModelMetadata, NotOffered
from inferometer.wire.kserve.infer import InferOptions, InferResponse
from inferometer.wire.target import parse

pytestmark = pytest.mark.mlserver

Urls = dict[str, Any]
WAYS = ["http", "grpc"]


@pytest.fixture(scope="module")
def mlserver() -> Iterator[Urls]:
    with started("mlserver", "--models", str(Path(__file__).parent / "mlserver_models")) as urls:
        yield urls


def peer_of(mlserver: Urls, way: str) -> Peer:
    return Peer(parse(mlserver[way]))


def infer(mlserver: Urls, way: str, tensors: list[Tensor], options: InferOptions) -> InferResponse:
    if way == "grpc":
        message = grpc.infer_request("echo", "", tensors, options)
        reply = query.grpc(peer_of(mlserver, way), grpc.INFER, [message], {})
        assert reply.fail is None, reply.fail
        return grpc.infer_response(reply.body)
    headers, body = http.encode(tensors, options)
    reply = query.http(peer_of(mlserver, way), "POST", http.infer_path("echo"), headers, body)
    return http.decode(reply.status, reply.headers, reply.body)


# --- what it says about itself ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_it_has_metadata_but_no_configuration_or_statistics(mlserver: Urls, way: str) -> None:
    there = peer_of(mlserver, way)
    assert kserve.live(there, {}) and kserve.ready(there, {})
    assert kserve.model_ready(there, {}, "echo")
    assert kserve.server_metadata(there, {}).name == "mlserver"
    found: ModelMetadata = kserve.model_metadata(there, {}, "echo")
    assert (found.name, found.inputs) == ("echo", (TensorSpec("x", "FP32", (-1, 4)),))
    for read in (kserve.model_config, kserve.statistics):
        with pytest.raises(NotOffered):
            read(there, {}, "echo")


@pytest.mark.parametrize("way", WAYS)
def test_the_first_model_of_the_index_is_the_default(mlserver: Urls, way: str) -> None:
    entries = kserve.repository_index(peer_of(mlserver, way), {})
    assert [(entry.name, entry.state) for entry in entries] == [("echo", "READY"), ("words", "READY")]
    assert reach.reach(Server(mlserver[way], api="kserve")).model == "echo"


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_version(mlserver: Urls, way: str) -> None:
    with pytest.raises(UserError, match="echo") as caught:
        reach.reach(Server(mlserver[way], model="echo", version="3", api="kserve"))
    assert caught.value.next_step == "check server.version"


@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_model(mlserver: Urls, way: str) -> None:
    with pytest.raises(UserError, match="nosuch") as caught:
        kserve.model_metadata(peer_of(mlserver, way), {}, "nosuch")
    assert not isinstance(caught.value, NotOffered)


# --- tensors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in ("FP16", "BF16")])
def test_inputs_are_echoed(mlserver: Urls, way: str, datatype: str) -> None:
    sent = random("x", datatype, (3, 4), np.random.default_rng(7))
    response = infer(mlserver, way, [sent], InferOptions(id="seven", binary=False))
    assert response.outputs == [sent]
    assert (response.model, response.id) == ("echo", "seven")


def test_typed_contents_are_read(mlserver: Urls) -> None:
    """MLServer responds in the format of the request; we send raw contents, other clients do not."""
    values: dict[str, tuple[str, list[Any]]] = {
        "BOOL": ("bool_contents", [True, False]),
        "INT8": ("int_contents", [-128, 127]),
        "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
        "UINT16": ("uint_contents", [0, 65535]),
        "UINT64": ("uint64_contents", [0, 2**64 - 1]),
        "FP32": ("fp32_contents", [0.5, -2.0]),
        "FP64": ("fp64_contents", [0.1, 1e300]),
        "BYTES": ("bytes_contents", [b"one", b""]),
    }
    request = protobuf.bundled("kserve").message("inference.ModelInferRequest")(model_name="echo")
    for datatype, (field, elements) in values.items():
        made = request.inputs.add(name=datatype, datatype=datatype, shape=[2])
        getattr(made.contents, field).extend(elements)
    reply = query.grpc(peer_of(mlserver, "grpc"), grpc.INFER, [request.SerializeToString()], {})
    assert reply.fail is None, reply.fail
    assert (
        not protobuf.bundled("kserve")
        .message("inference.ModelInferResponse")
        .FromString(reply.body)
        .raw_output_contents
    )
    assert grpc.infer_response(reply.body).outputs == [
        from_numpy(name, np.array(elements, DATATYPES[name].dtype or object), name)
        for name, (_, elements) in values.items()
    ]


# --- runs ---------------------------------------------------------------------------------------------------------------


def measured(folder: Path, mlserver: Urls, way: str, model: str, **sections: Any) -> Run:
    server = {"model": model, "api": "kserve" if way == "grpc" else "kserve-json"} | sections.pop("server", {})
    data = {"type": "tensors"} | sections.pop("data", {})
    run, _ = helpers.measure(folder, mlserver[way], server=server, data=data, **sections)
    return run


@pytest.mark.parametrize("way", WAYS)
def test_a_run_works_without_configuration_and_statistics(tmp_path: Path, mlserver: Urls, way: str) -> None:
    load = {"type": "closed", "concurrency": 4, "requests": 200}
    run = measured(tmp_path, mlserver, way, "echo", data={"shape": {"x": [2, 4]}}, load=load)
    rows = run.records.rows
    assert not rows["failure"].any(), run.records.failures
    assert sorted(rows["id"].tolist()) == list(range(200))
    assert run.manifest.statistics == (None,)
    assert breakdown(run, rows["failure"] == 0) is None
    assert run.manifest.no_statistics == ("the server offers no statistics",)
    assert run.manifest.server["name"] == "mlserver"


def test_a_stream_has_an_arrival_per_response(tmp_path: Path, mlserver: Urls) -> None:
    path = tmp_path / "data.json"
    texts = ["one", "one two", "one two three"]
    path.write_text(json.dumps({"data": [{"text_input": [text]} for text in texts]}))
    load = {"type": "closed", "concurrency": 1, "requests": 60}
    run = measured(tmp_path, mlserver, "grpc", "words", server={"stream": True}, data={"fill": f"@{path}"}, load=load)
    rows = run.records.rows
    assert not rows["failure"].any(), run.records.failures
    assert rows["chunk_count"].tolist() == [1 + id % 3 for id in rows["id"].tolist()]


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_of_the_model_has_its_message(tmp_path: Path, mlserver: Urls, way: str) -> None:
    """`words` can only stream."""
    load = {"type": "constant", "rate": 200, "requests": 10}
    run = measured(tmp_path, mlserver, way, "words", data={"fill": "random"}, load=load)
    assert (run.records.rows["failure"] > 0).all()
    assert all(failure.code.startswith(f"{way}_") for failure in run.records.failures)
    assert all(failure.message for failure in run.records.failures), run.records.failures
