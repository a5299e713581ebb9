"""The server continues whatever a client does to its shared memory, at any time."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from robust_peer import MODEL_INFER, PORTS, Child, Http, child, dialled, pending, responds, unary, write_held
from served import PATIENCE_S
from waiting import until

from inferometer.serve.kserve.messages import ModelInferRequest, ModelInferResponse
from inferometer.serve.offload import COPIED, LARGE

SIZE = 4 * LARGE * COPIED


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the model `held` waits for."""
    return tmp_path_factory.mktemp("held") / "now"


@pytest.fixture(scope="module")
def server(now: Path) -> Iterator[Child]:
    with child("identity", write_held(now.parent / "repository", "held", now), *PORTS) as one:
        responds(one)
        yield one


@pytest.fixture
def memory() -> Iterator[Path]:
    path = Path("/dev/shm") / f"inferometer-test-{uuid.uuid4().hex}"
    with path.open("wb") as file:
        file.truncate(2 * SIZE)
    yield path
    path.unlink()


def placed(parameters: object, offset: int) -> None:
    parameters["shared_memory_region"].string_param = "r"  # type: ignore[index]
    parameters["shared_memory_byte_size"].int64_param = SIZE  # type: ignore[index]
    parameters["shared_memory_offset"].int64_param = offset  # type: ignore[index]


def in_memory(model: str, shape: list[int]) -> bytes:
    """Return a request with all of its input and output in the region `r`."""
    made = ModelInferRequest(model_name=model)
    placed(made.inputs.add(name="INPUT0", datatype="FP32", shape=shape).parameters, 0)
    placed(made.outputs.add(name="OUTPUT0").parameters, SIZE)
    return made.SerializeToString()


def test_truncating_memory_during_a_request_affects_only_that_request(server: Child, memory: Path, now: Path) -> None:
    with dialled(server.grpc_address) as channel:
        unary(channel, "SystemSharedMemoryRegister", name="r", key=f"/{memory.name}", byte_size=2 * SIZE)
        call = channel.unary_unary(MODEL_INFER, None, ModelInferResponse.FromString)
        first = call.future(in_memory("held", [SIZE // 4]), timeout=PATIENCE_S)
        second = call.future(in_memory("held", [SIZE // 4]), timeout=PATIENCE_S)
        until(lambda: pending(server, "held") == 1, "one request runs and the other is queued")
        os.truncate(memory, 0)
        now.touch()
        for one in (first, second):
            assert one.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert one.details() == "shared memory region 'r' was truncated after it was registered"
        assert memory.stat().st_size == 0
        late = call.future(in_memory("identity", [1, SIZE // 4]), timeout=PATIENCE_S)
        assert late.details() == "shared memory region 'r' was truncated after it was registered"
        unary(channel, "SystemSharedMemoryUnregister", name="r")
    assert responds(server)
    assert server.process.poll() is None
    assert server.errors() == ""


def test_large_tensors_in_shared_memory_round_trip_over_http(server: Child, memory: Path) -> None:
    truth = os.urandom(SIZE)
    with memory.open("r+b") as file:
        file.write(truth)
    region = {"shared_memory_region": "r", "shared_memory_byte_size": SIZE}
    request = {
        "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, SIZE // 4], "parameters": region}],
        "outputs": [{"name": "OUTPUT0", "parameters": region | {"shared_memory_offset": SIZE}}],
    }
    files = server.files()
    with Http(server.url) as client:
        key = {"key": f"/{memory.name}", "byte_size": 2 * SIZE}
        assert client.json("POST", "/v2/systemsharedmemory/region/r/register", key) == (200, None)
        listed = [{"name": "r", "key": f"/{memory.name}", "offset": 0, "byte_size": 2 * SIZE}]
        assert client.json("GET", "/v2/systemsharedmemory/status") == (200, listed)
        status, tree = client.json("POST", "/v2/models/identity/infer", request)
        assert (status, tree["outputs"]) == (200, [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, SIZE // 4]}])
        assert memory.read_bytes()[SIZE:] == truth
        os.truncate(memory, SIZE)
        status, tree = client.json("POST", "/v2/models/identity/infer", request)
        assert (status, tree) == (400, {"error": "shared memory region 'r' was truncated after it was registered"})
        assert client.json("POST", "/v2/systemsharedmemory/unregister") == (200, None)
    until(lambda: server.files() <= files, "the object is closed again")
    assert server.errors() == ""
