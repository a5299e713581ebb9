"""Metadata, statistics and control over gRPC, read by our own client; and the JSON trees for HTTP."""

import base64
import json
import mmap
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, text_format
from needs import INSTALLED
from raw_grpc import RawGrpc, headers
from served import Stub, a_request, dialled, failure, serving
from waiting import until

from inferometer import __version__
from inferometer.serve.kserve import control, messages
from inferometer.wire import protobuf
from inferometer.wire.grpc_framing import framed
from inferometer.wire.kserve import control_requests as client

TRITON = INSTALLED / "triton/bin/python"


def query(stub: Stub, call: client.ControlRequest[Any]) -> Any:
    response = getattr(stub, call.rpc)(call.message)
    return client.read_grpc(call, 0, "", response.SerializeToString())


def request(kind: str, /, **fields: Any) -> Any:
    return messages.SCHEMA.message(f"inference.{kind}")(**fields)


# --- queries ---------------------------------------------------------------------------------------------------------


def test_the_server_is_live_and_ready_and_has_metadata(stub: Stub) -> None:
    assert query(stub, client.live()) and query(stub, client.ready())
    metadata = query(stub, client.server_metadata())
    assert (metadata.name, metadata.version) == ("inferometer", __version__)
    assert "system_shared_memory" in metadata.extensions


def test_model_readiness(stub: Stub) -> None:
    assert query(stub, client.model_ready("identity"))
    assert query(stub, client.model_ready("identity", "1"))
    assert not query(stub, client.model_ready("identity", "2"))
    assert not query(stub, client.model_ready("nope"))


def test_metadata_and_configuration_of_a_model(stub: Stub) -> None:
    metadata = query(stub, client.model_metadata("identity"))
    assert (metadata.name, metadata.versions) == ("identity", ("1",))
    assert [(one.name, one.datatype, one.shape) for one in metadata.inputs] == [("INPUT0", "FP32", (-1, -1))]
    assert query(stub, client.model_config("identity")).max_batch_size == 64
    assert query(stub, client.model_config("many")).decoupled


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig"])
def test_an_unknown_model_is_not_found(stub: Stub, method: str) -> None:
    assert failure(lambda: getattr(stub, method)(request(f"{method}Request", name="nope"))) == (
        "NOT_FOUND",
        "Request for unknown model: 'nope' is not found",
    )


def test_statistics_count_inferences(stub: Stub) -> None:
    (before,) = query(stub, client.statistics("identity"))
    for _ in range(3):
        stub.ModelInfer(a_request())
    (after,) = query(stub, client.statistics("identity", "1"))
    assert after.success.count - before.success.count == 3
    assert {one.name for one in query(stub, client.statistics())} >= {"identity", "many"}


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("nope", "", "requested model 'nope' is not available"),
        ("identity", "7", "requested model version is not available for model 'identity'"),
    ],
)
def test_statistics_of_an_unknown_model_are_refused_like_triton(
    stub: Stub, name: str, version: str, words: str
) -> None:
    message = request("ModelStatisticsRequest", name=name, version=version)
    assert failure(lambda: stub.ModelStatistics(message)) == ("INVALID_ARGUMENT", words)


# --- orders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
def test_loading_by_clients_is_denied_by_default(stub: Stub, method: str) -> None:
    code, message = failure(lambda: getattr(stub, method)(request(f"{method}Request", model_name="identity")))
    assert (code, "--allow-control" in message) == ("PERMISSION_DENIED", True)


def test_a_change_is_made_even_if_its_call_is_cancelled() -> None:
    with serving(control=True) as one, dialled(one.grpc_address) as stub, RawGrpc(one.grpc_address) as raw:
        message = request("RepositoryModelUnloadRequest", model_name="many").SerializeToString()
        stream = raw.http.get_next_available_stream_id()
        raw.http.send_headers(stream, headers(f"/{messages.KSERVE_SERVICE}/RepositoryModelUnload"))
        raw.http.send_data(stream, framed(message), end_stream=True)
        raw.http.reset_stream(stream)
        raw.send()
        until(lambda: not query(stub, client.model_ready("many")))


def test_clients_may_load_and_unload_models_if_allowed() -> None:
    with serving(control=True) as one, dialled(one.grpc_address) as stub:
        stub.RepositoryModelUnload(request("RepositoryModelUnloadRequest", model_name="many"))
        assert not query(stub, client.model_ready("many"))
        again = request("RepositoryModelLoadRequest", model_name="many")
        stub.RepositoryModelLoad(again)
        assert query(stub, client.model_ready("many"))
        again.parameters["config"].string_param = '{"backend": "nope"}'
        assert failure(lambda: stub.RepositoryModelLoad(again))[0] == "INTERNAL"
        again.parameters["file:1/model.py"].bytes_param = b""
        assert failure(lambda: stub.RepositoryModelLoad(again))[0] == "INVALID_ARGUMENT"
        del again.parameters["file:1/model.py"]
        again.parameters["other"].int64_param = 1
        assert failure(lambda: stub.RepositoryModelLoad(again)) == (
            "INVALID_ARGUMENT",
            "load parameter 'other' is not supported: only 'config' is, as a JSON string",
        )
        nope = request("RepositoryModelLoadRequest", model_name="nope")
        assert failure(lambda: stub.RepositoryModelLoad(nope)) == (
            "INTERNAL",
            "failed to load 'nope', failed to poll from model repository",
        )


def test_tensors_travel_in_shared_memory(stub: Stub) -> None:
    key = f"inferometer-test-{os.getpid()}"
    path = Path("/dev/shm", key)
    try:
        path.write_bytes(b"\0\0\x80?" + bytes(4))
        assert query(stub, client.shm_register("region", f"/{key}", 8)) is None
        assert [(one.name, one.key, one.byte_size) for one in query(stub, client.shm_status())] == [
            ("region", f"/{key}", 8)
        ]
        message = a_request()
        del message.raw_input_contents[:]
        message.outputs.add(name="OUTPUT0")
        for tensor, offset in ((message.inputs[0], 0), (message.outputs[0], 4)):
            tensor.parameters["shared_memory_region"].string_param = "region"
            tensor.parameters["shared_memory_byte_size"].int64_param = 4
            tensor.parameters["shared_memory_offset"].int64_param = offset
        response = stub.ModelInfer(message)
        assert (response.outputs[0].shape, response.raw_output_contents) == ([1, 1], [b""])
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            assert memory[:] == b"\0\0\x80?" * 2
        assert query(stub, client.shm_unregister("region")) is None
        assert query(stub, client.shm_status()) == ()
    finally:
        path.unlink(missing_ok=True)


def test_cuda_shared_memory_is_not_supported(stub: Stub) -> None:
    assert not stub.CudaSharedMemoryStatus(request("CudaSharedMemoryStatusRequest")).regions
    assert failure(lambda: stub.CudaSharedMemoryStatus(request("CudaSharedMemoryStatusRequest", name="x"))) == (
        "NOT_FOUND",
        "Unable to find cuda shared memory region: 'x'",
    )
    register = request("CudaSharedMemoryRegisterRequest", name="x", raw_handle=b"h", byte_size=4)
    assert failure(lambda: stub.CudaSharedMemoryRegister(register))[0] == "INVALID_ARGUMENT"
    stub.CudaSharedMemoryUnregister(request("CudaSharedMemoryUnregisterRequest", name="x"))


# --- trees -----------------------------------------------------------------------------------------------------------


def test_the_json_tree_has_tritons_order_names_and_numbers() -> None:
    config = text_format.Parse(
        'name: "m" max_batch_size: 4 input { name: "a" data_type: TYPE_FP32 dims: -1 } '
        "dynamic_batching { max_queue_delay_microseconds: 100 } parameters { key: 'k' value { string_value: 'v' } }",
        messages.ModelConfig(),
    )
    tree = control.tree(config)
    assert list(tree)[:7] == ["name", "platform", "backend", "runtime", "max_batch_size", "input", "output"]
    assert tree["input"] == [
        {
            "name": "a",
            "data_type": "TYPE_FP32",
            "format": "FORMAT_NONE",
            "dims": [-1],
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
            "is_non_linear_format_io": False,
        }
    ]
    assert tree["dynamic_batching"] == {
        "preferred_batch_size": [],
        "max_queue_delay_microseconds": 100,
        "preserve_ordering": False,
        "priority_levels": 0,
        "default_priority_level": 0,
        "priority_queue_policy": {},
    }
    assert tree["parameters"] == {"k": {"string_value": "v"}}
    assert "version_policy" not in tree and "sequence_batching" not in tree


# --- the protocol's own numbers --------------------------------------------------------------------------------------

DUMP = """
import base64, json
import tritonclient.grpc.model_config_pb2 as config, tritonclient.grpc.service_pb2 as service
print(json.dumps([base64.b64encode(one.DESCRIPTOR.serialized_pb).decode() for one in (config, service)]))
"""


def described(files: list[descriptor_pb2.FileDescriptorProto]) -> dict[str, Any]:
    """Return every message, field, enum and method, by name."""
    found: dict[str, Any] = {}
    for file in files:
        for enum in file.enum_type:
            found[enum.name] = {value.name: value.number for value in enum.value}
        for message in file.message_type:
            _describe(message, "", found)
        for service in file.service:
            for method in service.method:
                found[f"{service.name}/{method.name}"] = (
                    method.input_type,
                    method.output_type,
                    method.client_streaming,
                    method.server_streaming,
                )
    return found


def _describe(message: descriptor_pb2.DescriptorProto, prefix: str, found: dict[str, Any]) -> None:
    name = f"{prefix}{message.name}"
    found[name] = {
        one.name: (one.number, one.type, one.type_name, one.label, one.HasField("oneof_index")) for one in message.field
    }
    for enum in message.enum_type:
        found[f"{name}.{enum.name}"] = {value.name: value.number for value in enum.value}
    for nested in message.nested_type:
        _describe(nested, f"{name}.", found)


@pytest.mark.triton
def test_our_proto_files_match_tritonclient() -> None:
    completed = subprocess.run([TRITON, "-c", DUMP], capture_output=True, text=True, timeout=60, check=True)
    theirs = [
        descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(one)) for one in json.loads(completed.stdout)
    ]
    own = descriptor_pb2.FileDescriptorSet.FromString((protobuf.BUNDLED / "kserve.binpb").read_bytes())
    assert described(list(own.file)) == described(theirs)
