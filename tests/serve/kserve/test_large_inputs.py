"""Inputs that take long to parse are handled in a thread, over HTTP and gRPC: other requests are served meanwhile."""

import json
import uuid
from collections.abc import Iterator
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from raw_client import RawClient, request
from served import PATIENCE_S, Held, Served, Stub, a_request, failure
from waiting import until

from inferometer.serve.kserve import messages
from inferometer.serve.models.shared_memory import RegionSlice
from inferometer.serve.models.signature import ModelSignature
from inferometer.serve.models.types import Refused
from inferometer.serve.offload import LARGE
from inferometer.tensors import from_numpy

COUNT = LARGE
WORDS = [b"", b"a", b"bcd", b""] * (COUNT // 4)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Replaces the function that reads large inputs by one that blocks until released."""
    made = Held(ModelSignature.read)
    monkeypatch.setattr(ModelSignature, "read", partialmethod(made))
    yield made
    made.may_go.set()


def raw(words: list[bytes], count: int) -> Any:
    made = messages.ModelInferRequest(model_name="all_types", id="large")
    made.inputs.add(name="IN_BYTES", datatype="BYTES", shape=[count])
    made.raw_input_contents.append(bytes(from_numpy("x", np.array([*words, None], object)[:-1]).data))
    return made


def typed(words: list[bytes], count: int) -> Any:
    made = messages.ModelInferRequest(model_name="all_types", id="large")
    made.inputs.add(name="IN_BYTES", datatype="BYTES", shape=[count]).contents.bytes_contents.extend(words)
    return made


class OverHttp:
    """A request with strings as binary data."""

    def __init__(self, server: Served, stub: Stub, count: int) -> None:
        self.client = RawClient(server.url)
        (data,) = raw(WORDS, count).raw_input_contents
        x = {"name": "IN_BYTES", "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": len(data)}}
        head = json.dumps({"inputs": [x], "parameters": {"binary_data_output": True}}).encode()
        path, size = "/v2/models/all_types/infer", {"Inference_Header_Content_Length": str(len(head))}
        self.client.send(request(path, head + data, **size))
        self.cancel = self.client.sock.close

    def result(self) -> bytes:
        response = self.client.response()
        assert response.complete
        if response.status == 400:
            raise Refused("INVALID_ARGUMENT", response.json["error"])
        return response.body[int(response.headers["inference-header-content-length"]) :]


class OverGrpc:
    def __init__(self, server: Served, stub: Stub, count: int, kind: Any) -> None:
        self.call = stub.ModelInfer.future(kind(WORDS, count), timeout=PATIENCE_S)
        self.cancel = self.call.cancel

    def result(self) -> bytes:
        try:
            (data,) = self.call.result().raw_output_contents
            return bytes(data)
        except grpc.RpcError as error:
            raise Refused(error.code().name, error.details()) from None


SEND: dict[str, Any] = {"http": OverHttp, "raw": partial(OverGrpc, kind=raw), "typed": partial(OverGrpc, kind=typed)}


@pytest.mark.parametrize("how", SEND)
def test_other_requests_are_served_while_many_strings_are_parsed(
    server: Served, stub: Stub, held: Held, how: str
) -> None:
    sent = SEND[how](server, stub, COUNT)
    assert held.is_there.wait(PATIENCE_S)
    assert held.thread.startswith("offload")
    assert stub.ServerLive(b"").live
    assert len(stub.ModelInfer(a_request()).outputs) == 1
    with RawClient(server.url) as other:
        assert other.request("/v2/health/ready").status == 200
    held.may_go.set()
    assert [sent.result()] == list(raw(WORDS, COUNT).raw_input_contents)


@pytest.mark.parametrize("how", SEND)
def test_a_client_that_leaves_while_its_inputs_are_parsed_frees_its_work(
    server: Served, stub: Stub, held: Held, how: str
) -> None:
    sent = SEND[how](server, stub, COUNT)
    assert held.is_there.wait(PATIENCE_S)
    sent.cancel()
    until(lambda: server.in_flight() == 0, "its work ended")
    held.may_go.set()
    assert len(stub.ModelInfer(a_request()).outputs) == 1


@pytest.mark.parametrize("count", [COUNT - 1, COUNT + 1])
@pytest.mark.parametrize("how", SEND)
def test_a_wrong_number_of_many_strings_is_refused(server: Served, stub: Stub, how: str, count: int) -> None:
    words = f"unexpected number of string elements {COUNT} for inference input 'IN_BYTES'"
    with pytest.raises(Refused, match=words) as refused:
        SEND[how](server, stub, count).result()
    assert refused.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("kind", [raw, typed])
def test_stream_responses_keep_their_order(stub: Stub, held: Held, kind: Any) -> None:
    def requests() -> Iterator[Any]:
        yield kind(WORDS, COUNT)
        assert held.is_there.wait(PATIENCE_S)
        yield a_request(id="small")
        held.may_go.set()
        yield kind(WORDS, COUNT - 1)

    responses = list(stub.ModelStreamInfer(requests(), timeout=PATIENCE_S))
    assert [one.infer_response.id for one in responses] == ["large", "small", "large"]
    assert [one.error_message for one in responses[:2]] == ["", ""]
    assert f"unexpected number of string elements {COUNT} for" in responses[2].error_message


@pytest.fixture
def region(server: Served) -> Iterator[str]:
    key = f"inferometer-test-{uuid.uuid4().hex}"
    path = Path("/dev/shm", key)
    path.write_bytes(bytes(4096))

    async def register() -> None:
        server.models.regions.register(key, key, 0, 4096)

    async def unregister() -> None:
        server.models.regions.unregister(key)

    try:
        server.run(register)
        yield key
        server.run(unregister)
    finally:
        path.unlink()


def test_regions_are_read_only_for_inputs_of_the_model(
    stub: Stub, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = RegionSlice.read

    def noted(region_slice: RegionSlice) -> bytes:
        reads.append(region_slice.byte_size)
        return read(region_slice)

    monkeypatch.setattr(RegionSlice, "read", noted)
    wanted = messages.ModelInferRequest(model_name="all_types")
    for name in ("IN_UINT8", *(f"i{i}" for i in range(100))):
        one = wanted.inputs.add(name=name, datatype="UINT8", shape=[4096])
        one.parameters["shared_memory_region"].string_param = region
        one.parameters["shared_memory_byte_size"].int64_param = 4096
    code, message = failure(lambda: stub.ModelInfer(wanted))
    assert (code, "unexpected inference input 'i0'" in message, reads) == ("INVALID_ARGUMENT", True, [])
    del wanted.inputs[1:]
    assert (list(stub.ModelInfer(wanted).raw_output_contents), reads) == ([bytes(4096)], [4096])
