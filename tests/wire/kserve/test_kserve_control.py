"""Control requests over HTTP and gRPC: responses as Triton and MLServer send them, missing endpoints, and malformed responses."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.records import Spent
from inferometer.tensors import TensorSpec
from inferometer.wire import protobuf
from inferometer.wire.kserve import control_requests
from inferometer.wire.kserve.control import (
    BatchStatistics,
    IndexEntry,
    ModelMetadata,
    ModelStatistics,
    NotOffered,
    ServerMetadata,
    ShmStatus,
    difference,
)
from inferometer.wire.kserve.control_requests import ControlRequest, read_grpc, read_http

NAMED = b"\x0a\x01m\x12\x012"
REQUESTS: dict[str, tuple[ControlRequest[Any], str, bytes, str, bytes]] = {
    "live": (control_requests.live(), "GET /v2/health/live", b"", "ServerLive", b""),
    "ready": (control_requests.ready(), "GET /v2/health/ready", b"", "ServerReady", b""),
    "model ready": (control_requests.model_ready("m", "2"), "GET /v2/models/m/versions/2/ready", b"", "ModelReady", NAMED),
    "server": (control_requests.server_metadata(), "GET /v2", b"", "ServerMetadata", b""),
    "metadata": (control_requests.model_metadata("a b"), "GET /v2/models/a%20b", b"", "ModelMetadata", b"\x0a\x03a b"),
    "metadata of a version": (
        control_requests.model_metadata("m", "2"), "GET /v2/models/m/versions/2", b"", "ModelMetadata", NAMED,
    ),
    "config": (control_requests.model_config("m", "2"), "GET /v2/models/m/versions/2/config", b"", "ModelConfig", NAMED),
    "index": (control_requests.repository_index(), "POST /v2/repository/index", b"{}", "RepositoryIndex", b""),
    "statistics": (
        control_requests.statistics("m", "2"), "GET /v2/models/m/versions/2/stats", b"", "ModelStatistics", NAMED,
    ),
    "statistics of all": (control_requests.statistics(), "GET /v2/models/stats", b"", "ModelStatistics", b""),
    "register": (
        control_requests.shm_register("r/1", "/k", 64, 8),
        "POST /v2/systemsharedmemory/region/r%2F1/register",
        b'{"key":"/k","offset":8,"byte_size":64}',
        "SystemSharedMemoryRegister",
        b"\x0a\x03r/1\x12\x02/k\x18\x08\x20\x40",
    ),
    "unregister": (
        control_requests.shm_unregister("r"),
        "POST /v2/systemsharedmemory/region/r/unregister", b"", "SystemSharedMemoryUnregister", b"\x0a\x01r",
    ),
    "unregister all": (
        control_requests.shm_unregister(), "POST /v2/systemsharedmemory/unregister", b"", "SystemSharedMemoryUnregister", b"",
    ),
    "status": (
        control_requests.shm_status("r"),
        "GET /v2/systemsharedmemory/region/r/status", b"", "SystemSharedMemoryStatus", b"\x0a\x01r",
    ),
    "status of all": (
        control_requests.shm_status(), "GET /v2/systemsharedmemory/status", b"", "SystemSharedMemoryStatus", b"",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_each_request_has_its_form_over_http_and_grpc(name: str) -> None:
    request, line, body, rpc, message = REQUESTS[name]
    assert (f"{request.method} {request.path}", request.body or b"") == (line, body)
    assert (request.rpc_path, request.message) == (f"/inference.GRPCInferenceService/{rpc}", message)


def response_to(request: ControlRequest[Any], tree: Any) -> Any:
    return read_http(request, 200, json.dumps(tree).encode())


def test_server_metadata() -> None:
    triton = {"name": "triton", "version": "2.51.0", "extensions": ["classification", "statistics"]}
    assert response_to(control_requests.server_metadata(), triton) == ServerMetadata(
        "triton", "2.51.0", ("classification", "statistics")
    )
    assert response_to(control_requests.server_metadata(), {"name": "x"}) == ServerMetadata("x")


def test_model_metadata_of_triton_and_of_mlserver() -> None:
    triton = {
        "name": "add_sub",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": "X", "datatype": "INT32", "shape": [-1, 16]}],
        "outputs": [{"name": "Y", "datatype": "BYTES", "shape": ["-1", "4294967296"]}],
    }
    assert response_to(control_requests.model_metadata("add_sub"), triton) == ModelMetadata(
        "add_sub", ("1",), "python", (TensorSpec("X", "INT32", (-1, 16)),), (TensorSpec("Y", "BYTES", (-1, 2**32)),)
    )
    mlserver = {"name": "m", "versions": [], "platform": "", "inputs": [], "outputs": [], "parameters": {}}
    assert response_to(control_requests.model_metadata("m"), mlserver) == ModelMetadata("m")


def test_model_config() -> None:
    tree = {
        "name": "classifier",
        "platform": "",
        "backend": "python",
        "max_batch_size": 64,
        "output": [
            {"name": "SCORES", "data_type": "TYPE_FP32", "dims": [10], "label_filename": "labels.txt"},
            {"name": "OTHER", "data_type": "TYPE_FP32", "dims": [1], "label_filename": ""},
        ],
        "model_transaction_policy": {"decoupled": True},
        "sequence_batching": {"max_sequence_idle_microseconds": 5000000},
    }
    config = response_to(control_requests.model_config("classifier"), tree)
    assert (config.name, config.max_batch_size) == ("classifier", 64)
    assert (config.decoupled, config.sequence_batching) == (True, True)
    assert config.labels == {"SCORES": "labels.txt"}
    assert config.raw == tree
    plain = response_to(control_requests.model_config("m"), {"name": "m", "max_batch_size": 0, "dynamic_batching": {}})
    assert (plain.max_batch_size, plain.decoupled, plain.sequence_batching, plain.labels) == (0, False, False, {})


def test_repository_index() -> None:
    triton = [{"name": "a", "version": "1", "state": "READY"}, {"name": "b", "state": "UNAVAILABLE", "reason": "bad"}]
    assert response_to(control_requests.repository_index(), triton) == (
        IndexEntry("a", "1", "READY"),
        IndexEntry("b", "", "UNAVAILABLE", "bad"),
    )
    assert response_to(control_requests.repository_index(), []) == ()


def stats(n: int, as_text: bool = False) -> dict[str, Any]:
    """A model's statistics after n requests in batches of 1 and 4, as Triton sends them."""

    def number(value: int) -> Any:
        return str(value) if as_text else value

    def spent(count: int, ns: int) -> dict[str, Any]:
        return {"count": number(count), "ns": number(ns)}

    return {
        "name": "m",
        "version": "1",
        "last_inference": number(1_700_000_000_000),
        "inference_count": number(5 * n),
        "execution_count": number(2 * n),
        "inference_stats": {
            "success": spent(5 * n, 100 * n),
            "fail": spent(n, n),
            "queue": spent(5 * n, 30 * n),
            "compute_input": spent(5 * n, 10 * n),
            "compute_infer": spent(5 * n, 50 * n),
            "compute_output": spent(5 * n, 10 * n),
            "cache_hit": spent(0, 0),
            "cache_miss": spent(n, 2 * n),
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": number(size),
                "compute_input": spent(n, n),
                "compute_infer": spent(n, 10 * n * size),
                "compute_output": spent(n, 2 * n),
            }
            for size in (4, 1)
        ],
        "memory_usage": [],
    }


def expected(n: int) -> ModelStatistics:
    return ModelStatistics(
        name="m",
        version="1",
        inference_count=5 * n,
        execution_count=2 * n,
        success=Spent(5 * n, 100 * n),
        fail=Spent(n, n),
        queue=Spent(5 * n, 30 * n),
        compute_input=Spent(5 * n, 10 * n),
        compute_infer=Spent(5 * n, 50 * n),
        compute_output=Spent(5 * n, 10 * n),
        cache_miss=Spent(n, 2 * n),
        batches=tuple(BatchStatistics(size, Spent(n, n), Spent(n, 10 * n * size), Spent(n, 2 * n)) for size in (1, 4)),
    )


@pytest.mark.parametrize("as_text", [False, True], ids=["numbers", "text"])
def test_statistics_with_numbers_as_numbers_or_as_text(as_text: bool) -> None:
    tree = {"model_stats": [stats(3, as_text), {"name": "idle"}]}
    assert response_to(control_requests.statistics(), tree) == (expected(3), ModelStatistics("idle"))


@given(st.integers(0, 2**40), st.integers(1, 2**40))
def test_difference_of_two_reports(before: int, more: int) -> None:
    assert difference([expected(before)], [expected(before + more)]) == (expected(more),)
    assert difference([], [expected(more)]) == (expected(more),)


def test_difference_omits_batch_sizes_that_did_not_run() -> None:
    (since,) = difference([expected(3)], [expected(3)])
    assert since == ModelStatistics("m", "1")


def test_statistics_that_went_backwards_are_an_error() -> None:
    with pytest.raises(UserError, match="m went backwards"):
        difference([expected(3)], [expected(2)])


def test_shared_memory_status_and_empty_responses() -> None:
    tree = [{"name": "r", "key": "/k", "offset": "8", "byte_size": 64}]
    assert response_to(control_requests.shm_status(), tree) == (ShmStatus("r", "/k", 8, 64),)
    assert response_to(control_requests.shm_status(), []) == ()
    read_http(control_requests.shm_register("r", "/k", 64), 200, b"")
    read_http(control_requests.shm_unregister("r"), 200, b"{}")


# --- health ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "yes"),
    [
        (200, b"", True),
        (200, b'{"live":true}', True),
        (200, b'{"name":"m","ready":false}', False),
        (400, b"", False),
        (400, b'{"error":"Model version not ready"}', False),
        (503, b"", False),
    ],
)
def test_health_is_a_boolean(status: int, body: bytes, yes: bool) -> None:
    assert read_http(control_requests.model_ready("m"), status, body) is yes
    assert read_http(control_requests.ready(), status, body) is yes


# --- missing endpoints and malformed responses -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"detail":"Not Found"}'),
        (404, b'{"error":"Not Found"}'),
        (404, b""),
        (404, b"<html>404 page not found</html>"),
        (405, b'{"detail":"Method Not Allowed"}'),
        (501, b'{"error":"the server does not support model statistics"}'),
    ],
)
@pytest.mark.parametrize("name", REQUESTS)
def test_missing_endpoint_is_distinguished_from_a_failure(name: str, status: int, body: bytes) -> None:
    request = REQUESTS[name][0]
    with pytest.raises(NotOffered) as error:
        read_http(request, status, body)
    assert request.what in error.value.what


def test_404_without_a_model_means_that_the_endpoint_is_missing() -> None:
    with pytest.raises(NotOffered):  # MLServer takes /v2/models/stats for a model
        read_http(control_requests.statistics(), 404, b'{"error":"Model stats not found"}')


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b'{"error":"Request for unknown model: \'m\' is not found"}', ["404", "unknown model"]),
        (500, b'{"error":"boom"}', ["500", "boom"]),
        (401, b"", ["401"]),
        (200, b'{"error":"boom"}', ["boom"]),
        (200, b"<html>Welcome</html>", ["Welcome", "unexpected response"]),
        (200, b"", ["unexpected response"]),
        (200, b"5", ["unexpected response"]),
        (200, b'{"model_stats": [5]}', ["unexpected response"]),
        (200, b'{"model_stats": [{}]}', ["missing required field `name`"]),
        (200, b'{"model_stats": [{"name": "m", "inference_count": 1.5}]}', ["1.5", "inference_count"]),
        (200, b'{"model_stats": [{"name": "m", "inference_count": "x"}]}', ["unexpected response"]),
        (200, b"[" * 200_000, ["unexpected response"]),
    ],
)
def test_other_responses_are_user_errors_with_the_server_message(status: int, body: bytes, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        read_http(control_requests.statistics("m"), status, body)
    assert not isinstance(error.value, NotOffered)
    for word in ["the statistics of m", *words]:
        assert word in error.value.what


KEYS = st.sampled_from(
    ["name", "shape", "inputs", "datatype", "versions", "extensions", "model_stats", "output", "key"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(REQUESTS)), JSON, st.sampled_from([200, 400, 404, 500]))
def test_any_json_is_a_result_or_a_user_error(name: str, tree: Any, status: int) -> None:
    request = REQUESTS[name][0]
    try:
        result = read_http(request, status, json.dumps(tree).encode())
    except UserError as error:
        assert request.what in error.what
    else:
        assert status == 200 or result is False


# --- gRPC ------------------------------------------------------------------------------------------------------------


def message(name: str, **fields: Any) -> bytes:
    made = protobuf.bundled("kserve").message(f"inference.{name}")(**fields)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("call", [control_requests.live(), control_requests.ready(), control_requests.model_ready("m")])
def test_health_is_a_boolean_over_grpc(call: ControlRequest[bool]) -> None:
    assert read_grpc(call, 0, "", b"\x08\x01") is True
    assert read_grpc(call, 0, "", b"") is False


def test_server_metadata_over_grpc() -> None:
    data = b"\x0a\x06triton\x12\x062.51.0\x1a\x0astatistics"
    expected = ServerMetadata("triton", "2.51.0", ("statistics",))
    assert read_grpc(control_requests.server_metadata(), 0, "", data) == expected


def test_model_metadata_with_a_variable_dimension_over_grpc() -> None:
    spec = b"\x0a\x01x\x12\x04FP32\x1a\x0b" + b"\xff" * 9 + b"\x01\x04"
    data = (
        b"\x0a\x01m\x12\x011\x1a\x06python" + b"\x22" + bytes([len(spec)]) + spec + b"\x2a" + bytes([len(spec)]) + spec
    )
    specs = (TensorSpec("x", "FP32", (-1, 4)),)
    expected = ModelMetadata("m", ("1",), "python", specs, specs)
    assert read_grpc(control_requests.model_metadata("m"), 0, "", data) == expected


def test_model_config_with_unknown_fields_over_grpc() -> None:
    config = {
        "name": "m",
        "max_batch_size": 8,
        "output": [{"name": "y", "dims": [10], "label_filename": "labels.txt"}, {"name": "z"}],
        "sequence_batching": {},
        "model_transaction_policy": {"decoupled": True},
    }
    read = read_grpc(control_requests.model_config("m"), 0, "", message("ModelConfigResponse", config=config))
    assert (read.name, read.max_batch_size, read.decoupled, read.sequence_batching) == ("m", 8, True, True)
    assert read.labels == {"y": "labels.txt"}
    assert read.raw["output"][0]["dims"] == ["10"]
    optimization = b"\x62\x04\x0a\x02\x08\x01"  # field 12, which our .proto leaves out
    plain = b"\x0a\x01m" + optimization
    read = read_grpc(control_requests.model_config("m"), 0, "", b"\x0a" + bytes([len(plain)]) + plain)
    assert (read.max_batch_size, read.decoupled, read.sequence_batching, read.labels) == (0, False, False, {})


def test_unknown_fields_are_kept_over_grpc() -> None:
    kind = protobuf.bundled("kserve").message("inference.ModelConfig")
    data = b"\x0a\x01m\x62\x04\x0a\x02\x08\x01"
    assert kind.FromString(data).SerializeToString() == data


def test_statistics_over_grpc() -> None:
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
    [read] = read_grpc(control_requests.statistics("m"), 0, "", message("ModelStatisticsResponse", model_stats=[stats]))
    assert (read.name, read.version, read.inference_count, read.execution_count) == ("m", "1", 2**40, 3)
    assert read.success == Spent(2**40, 2**63)
    assert read.queue == Spent(1, 5)
    assert read.fail == Spent()
    assert [(batch.size, batch.compute_infer.ns) for batch in read.batches] == [(2, 9), (4, 7)]


def test_repository_index_over_grpc() -> None:
    models = [{"name": "a", "version": "1", "state": "READY"}, {"name": "b", "state": "UNAVAILABLE", "reason": "why"}]
    assert read_grpc(control_requests.repository_index(), 0, "", message("RepositoryIndexResponse", models=models)) == (
        IndexEntry("a", "1", "READY"),
        IndexEntry("b", "", "UNAVAILABLE", "why"),
    )
    assert read_grpc(control_requests.repository_index(), 0, "", b"") == ()


def test_shared_memory_over_grpc() -> None:
    regions = {name: {"name": name, "key": f"/{name}", "offset": 8, "byte_size": 64} for name in ("b", "a")}
    data = message("SystemSharedMemoryStatusResponse", regions=regions)
    assert read_grpc(control_requests.shm_status(), 0, "", data) == (
        ShmStatus("a", "/a", 8, 64),
        ShmStatus("b", "/b", 8, 64),
    )
    assert read_grpc(control_requests.shm_register("r", "/k", 64), 0, "", b"") is None
    assert read_grpc(control_requests.shm_unregister("r"), 0, "", b"") is None


def test_not_offered_is_distinguished_from_errors_over_grpc() -> None:
    with pytest.raises(NotOffered, match="the statistics of m"):
        read_grpc(control_requests.statistics("m"), 12, "", b"")
    with pytest.raises(UserError, match="the metadata of m failed with gRPC status 5: unknown model") as caught:
        read_grpc(control_requests.model_metadata("m"), 5, "unknown model 'm'", b"")
    assert not isinstance(caught.value, NotOffered)


@given(st.sampled_from(sorted(REQUESTS)), st.binary(max_size=60))
def test_any_bytes_are_a_typed_result_or_a_user_error(name: str, data: bytes) -> None:
    try:
        read_grpc(REQUESTS[name][0], 0, "", data)
    except UserError as error:
        assert error.what


def test_empty_configuration_response_is_an_error_over_grpc() -> None:
    with pytest.raises(UserError, match="the configuration of m"):
        read_grpc(control_requests.model_config("m"), 0, "", b"")
