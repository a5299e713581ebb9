"""Calls of our server, in a process of its own, by a client that knows its messages only from reflection: grpcio's, and none of
our code."""

import base64
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from serve_server import NAMES

from inferometer.serve.background import Running

pytest_plugins = ["serve_server"]

PATIENCE_S = 20
KSERVE = "inference.GRPCInferenceService"


@pytest.fixture
def channel(ours: Running) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(ours.grpc.partition("://")[2]) as one:
        yield one


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
