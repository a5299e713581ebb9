"""grpcio's own clients against our server: health (like grpc_health_probe), reflection, and calls that need only reflection.

The server is a separate process, and none of our code runs on the client's side.
"""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from serve_server import NAMES, repository, settings
from waiting import until

from inferometer.serve.background import Running, serving

pytest_plugins = ["serve_server"]

PATIENCE_S = 20
KSERVE = "inference.GRPCInferenceService"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@pytest.fixture
def channel(ours: Running) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(ours.grpc.partition("://")[2]) as one:
        yield one


def a_check(service: str) -> Any:
    return health_pb2.HealthCheckRequest(service=service)


# --- health -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["", KSERVE, *NAMES])
def test_the_server_its_service_and_each_model_are_serving(channel: grpc.Channel, service: str) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    assert stub.Check(a_check(service), timeout=PATIENCE_S).status == SERVING
    watch = stub.Watch(a_check(service), timeout=PATIENCE_S)
    assert next(watch).status == SERVING
    watch.cancel()


def test_an_unknown_service(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    with pytest.raises(grpc.RpcError) as refused:
        stub.Check(a_check("nosuch"), timeout=PATIENCE_S)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(a_check("nosuch"), timeout=PATIENCE_S)
    assert next(watch).status == SERVICE_UNKNOWN
    watch.cancel()


def test_watches_see_the_server_stop(tmp_path: Path) -> None:
    server = serving(settings(repository(tmp_path, "identity"), drain=5))
    try:
        with grpc.insecure_channel(server.grpc.partition("://")[2]) as channel, ThreadPoolExecutor() as pool:
            stub = health_pb2_grpc.HealthStub(channel)
            watches = [stub.Watch(a_check(service), timeout=PATIENCE_S) for service in ("", "identity")]
            assert [next(watch).status for watch in watches] == [SERVING] * 2
            following = [
                pool.submit(next, watch) for watch in watches
            ]  # a watch that starts only after the end may be too late
            until(lambda: all(each.running() for each in following), "both watch")
            server.stop()
            assert [each.result().status for each in following] == [NOT_SERVING] * 2
    finally:
        server.stop()


# --- reflection ---------------------------------------------------------------------------------------------------------------


class Described:
    """Calls methods by name, with messages that only reflection describes, like grpc_cli and grpcurl."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self.database = ProtoReflectionDescriptorDatabase(channel)
        self.pool = DescriptorPool(self.database)

    def call(self, method: str, request: dict[str, Any], service: str = KSERVE) -> dict[str, Any]:
        found = self.pool.FindServiceByName(service).methods_by_name[method]
        given, gives = (message_factory.GetMessageClass(kind) for kind in (found.input_type, found.output_type))
        call = self._channel.unary_unary(
            f"/{service}/{method}", request_serializer=given.SerializeToString, response_deserializer=gives.FromString
        )
        response = call(json_format.ParseDict(request, given()), timeout=PATIENCE_S)
        tree: dict[str, Any] = json_format.MessageToDict(response, preserving_proto_field_name=True)
        return tree


@pytest.fixture
def described(channel: grpc.Channel) -> Described:
    return Described(channel)


def test_listing_services_and_methods(described: Described) -> None:
    listed = {
        name: [method.name for method in described.pool.FindServiceByName(name).methods]
        for name in described.database.get_services()
    }
    assert listed["grpc.health.v1.Health"] == ["Check", "Watch"]
    assert {"ServerLive", "ServerReady", "ModelReady", "ModelMetadata", "ModelInfer", "ModelStreamInfer"} <= set(
        listed[KSERVE]
    )
    assert {"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"} <= set(listed)


def test_metadata_with_only_reflection(described: Described) -> None:
    assert described.call("ServerReady", {}) == {"ready": True}
    assert described.call("Check", {"service": "identity"}, "grpc.health.v1.Health") == {"status": "SERVING"}
    metadata = described.call("ModelMetadata", {"name": "add_sub"})
    assert [each["name"] for each in metadata["inputs"]] == ["INPUT0", "INPUT1"]
    index = described.call("RepositoryIndex", {})
    assert [each["name"] for each in index["models"]] == NAMES


def test_inference_with_only_reflection(described: Described) -> None:
    shape = {"datatype": "INT32", "shape": [1, 16]}
    given = [{"name": name, "contents": {"int_contents": [number] * 16}} | shape for name, number in (("INPUT0", 5), ("INPUT1", 3))]  # fmt: skip
    response = described.call("ModelInfer", {"model_name": "add_sub", "id": "x", "inputs": given})
    assert (response["model_name"], response["model_version"], response["id"]) == ("add_sub", "1", "x")
    names = [each["name"] for each in response["outputs"]]
    raw = dict(zip(names, response["raw_output_contents"], strict=True))
    decoded = {name: np.frombuffer(base64.b64decode(text), "<i4").tolist() for name, text in raw.items()}
    assert decoded == {"OUTPUT0": [8] * 16, "OUTPUT1": [2] * 16}


def test_a_refusal_has_its_code(described: Described) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        described.call("ModelMetadata", {"name": "nosuch"})
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    assert refused.value.details() == "Request for unknown model: 'nosuch' is not found"


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate, grpc.Compression.NoCompression])
def test_compressed_messages(ours: Running, how: grpc.Compression) -> None:
    with grpc.insecure_channel(ours.grpc.partition("://")[2], compression=how) as channel:
        given = {"name": "INPUT0", "datatype": "FP32", "shape": [1000], "contents": {"fp32_contents": [0.5] * 1000}}
        response = Described(channel).call("ModelInfer", {"model_name": "no_batch", "inputs": [given]})
    assert [int(length) for length in response["outputs"][0]["shape"]] == [1000]
