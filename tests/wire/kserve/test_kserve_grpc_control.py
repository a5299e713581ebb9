"""KServe v2's control requests over gRPC: the bytes of the calls, and what the responses mean."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.records import Spent
from inferometer.tensors import TensorSpec
from inferometer.wire import protobuf
from inferometer.wire.kserve import control, grpc_control


def message(name: str, **fields: Any) -> bytes:
    made = protobuf.bundled("kserve").message(f"inference.{name}")(**fields)
    return bytes(made.SerializeToString())


SERVICE = "/inference.GRPCInferenceService/"
NAMED = b"\x0a\x01m\x12\x012"


@pytest.mark.parametrize(
    ("call", "method", "request_bytes"),
    [
        (grpc_control.live(), "ServerLive", b""),
        (grpc_control.ready(), "ServerReady", b""),
        (grpc_control.model_ready("m", "2"), "ModelReady", NAMED),
        (grpc_control.server_metadata(), "ServerMetadata", b""),
        (grpc_control.model_metadata("m", "2"), "ModelMetadata", NAMED),
        (grpc_control.model_config("m", "2"), "ModelConfig", NAMED),
        (grpc_control.statistics("m", "2"), "ModelStatistics", NAMED),
        (grpc_control.statistics(), "ModelStatistics", b""),
        (grpc_control.repository_index(), "RepositoryIndex", b""),
        (
            grpc_control.shm_register("r", "/k", 64, 8),
            "SystemSharedMemoryRegister",
            b"\x0a\x01r\x12\x02/k\x18\x08\x20\x40",
        ),
        (grpc_control.shm_unregister("r"), "SystemSharedMemoryUnregister", b"\x0a\x01r"),
        (grpc_control.shm_unregister(), "SystemSharedMemoryUnregister", b""),
        (grpc_control.shm_status("r"), "SystemSharedMemoryStatus", b"\x0a\x01r"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_path_and_bytes_of_a_call(call: grpc_control.ControlCall[Any], method: str, request_bytes: bytes) -> None:
    assert (call.path, call.message) == (SERVICE + method, request_bytes)


@pytest.mark.parametrize("call", [grpc_control.live(), grpc_control.ready(), grpc_control.model_ready("m")])
def test_health_is_a_boolean(call: grpc_control.ControlCall[bool]) -> None:
    assert grpc_control.read(call, 0, "", b"\x08\x01") is True
    assert grpc_control.read(call, 0, "", b"") is False


def test_server_metadata() -> None:
    data = b"\x0a\x06triton\x12\x062.51.0\x1a\x0astatistics"
    expected = control.ServerMetadata("triton", "2.51.0", ("statistics",))
    assert grpc_control.read(grpc_control.server_metadata(), 0, "", data) == expected


def test_model_metadata_with_a_variable_dimension() -> None:
    spec = b"\x0a\x01x\x12\x04FP32\x1a\x0b" + b"\xff" * 9 + b"\x01\x04"
    data = (
        b"\x0a\x01m\x12\x011\x1a\x06python" + b"\x22" + bytes([len(spec)]) + spec + b"\x2a" + bytes([len(spec)]) + spec
    )
    specs = (TensorSpec("x", "FP32", (-1, 4)),)
    expected = control.ModelMetadata("m", ("1",), "python", specs, specs)
    assert grpc_control.read(grpc_control.model_metadata("m"), 0, "", data) == expected


def test_model_config_with_unknown_fields() -> None:
    config = {
        "name": "m",
        "max_batch_size": 8,
        "output": [{"name": "y", "dims": [10], "label_filename": "labels.txt"}, {"name": "z"}],
        "sequence_batching": {},
        "model_transaction_policy": {"decoupled": True},
    }
    read = grpc_control.read(grpc_control.model_config("m"), 0, "", message("ModelConfigResponse", config=config))
    assert (read.name, read.max_batch_size, read.decoupled, read.sequence_batching) == ("m", 8, True, True)
    assert read.labels == {"y": "labels.txt"}
    assert read.raw["output"][0]["dims"] == ["10"]
    optimization = b"\x62\x04\x0a\x02\x08\x01"  # field 12, which our .proto leaves out
    plain = b"\x0a\x01m" + optimization
    read = grpc_control.read(grpc_control.model_config("m"), 0, "", b"\x0a" + bytes([len(plain)]) + plain)
    assert (read.max_batch_size, read.decoupled, read.sequence_batching, read.labels) == (0, False, False, {})


def test_unknown_fields_are_kept() -> None:
    kind = protobuf.bundled("kserve").message("inference.ModelConfig")
    data = b"\x0a\x01m\x62\x04\x0a\x02\x08\x01"
    assert kind.FromString(data).SerializeToString() == data


def test_statistics() -> None:
    stats = {
        "name": "m",
        "version": "1",
        "inference_count": 2**40,
        "execution_count": 3,
        "inference_stats": {"success": {"count": 2**40, "ns": 2**63}, "queue": {"count": 1, "ns": 5}},
        "batch_stats": [
            {"batch_size": 4, "compute_infer": {"count": 1, "ns": 7}},
            {"batch_size": 2, "compute_infer": {"count": 2, "ns": 9}},
        ],
    }
    [read] = grpc_control.read(
        grpc_control.statistics("m"), 0, "", message("ModelStatisticsResponse", model_stats=[stats])
    )
    assert (read.name, read.version, read.inference_count, read.execution_count) == ("m", "1", 2**40, 3)
    assert read.success == Spent(2**40, 2**63)
    assert read.queue == Spent(1, 5)
    assert read.fail == Spent()
    assert [(batch.size, batch.compute_infer.ns) for batch in read.batches] == [(2, 9), (4, 7)]


def test_repository_index() -> None:
    models = [{"name": "a", "version": "1", "state": "READY"}, {"name": "b", "state": "UNAVAILABLE", "reason": "why"}]
    assert grpc_control.read(
        grpc_control.repository_index(), 0, "", message("RepositoryIndexResponse", models=models)
    ) == (
        control.IndexEntry("a", "1", "READY"),
        control.IndexEntry("b", "", "UNAVAILABLE", "why"),
    )
    assert grpc_control.read(grpc_control.repository_index(), 0, "", b"") == ()


def test_shared_memory() -> None:
    regions = {name: {"name": name, "key": f"/{name}", "offset": 8, "byte_size": 64} for name in ("b", "a")}
    data = message("SystemSharedMemoryStatusResponse", regions=regions)
    assert grpc_control.read(grpc_control.shm_status(), 0, "", data) == (
        control.ShmStatus("a", "/a", 8, 64),
        control.ShmStatus("b", "/b", 8, 64),
    )
    assert grpc_control.read(grpc_control.shm_register("r", "/k", 64), 0, "", b"") is None
    assert grpc_control.read(grpc_control.shm_unregister("r"), 0, "", b"") is None


def test_not_offered_is_distinguished_from_errors() -> None:
    with pytest.raises(control.NotOffered, match="the statistics of m"):
        grpc_control.read(grpc_control.statistics("m"), 12, "", b"")
    with pytest.raises(UserError, match="the metadata of m failed with gRPC status 5: unknown model") as caught:
        grpc_control.read(grpc_control.model_metadata("m"), 5, "unknown model 'm'", b"")
    assert not isinstance(caught.value, control.NotOffered)


CALLS: list[Callable[[], grpc_control.ControlCall[Any]]] = [
    lambda: grpc_control.model_config("m"),
    lambda: grpc_control.model_metadata("m"),
    grpc_control.statistics,
    grpc_control.repository_index,
    grpc_control.shm_status,
    grpc_control.live,
]


@given(st.sampled_from(CALLS), st.binary(max_size=60))
def test_any_bytes_are_a_typed_result_or_a_user_error(
    call: Callable[[], grpc_control.ControlCall[Any]], data: bytes
) -> None:
    try:
        grpc_control.read(call(), 0, "", data)
    except UserError as error:
        assert error.what


def test_empty_configuration_response_is_an_error() -> None:
    with pytest.raises(UserError, match="the configuration of m"):
        grpc_control.read(grpc_control.model_config("m"), 0, "", b"")
