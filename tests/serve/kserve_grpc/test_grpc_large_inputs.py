"""Inputs that take long to parse are handled in a thread: other calls are served meanwhile."""

import threading
import uuid
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import PATIENCE_S, Served, Stub, a_request, failure
from waiting import until

from inferometer.serve.kserve import messages
from inferometer.serve.models.shared_memory import RegionSlice
from inferometer.serve.models.signature import ModelSignature
from inferometer.serve.offload import LARGE
from inferometer.tensors import from_numpy

COUNT = LARGE
WORDS = [b"", b"a", b"bcd", b""] * (COUNT // 4)


class Held:
    def __init__(self, function: Any) -> None:
        self._function = function
        self.is_there, self.may_go = threading.Event(), threading.Event()
        self.thread = ""

    def __call__(self, *words: Any) -> Any:
        self.thread = threading.current_thread().name
        self.is_there.set()
        assert self.may_go.wait(PATIENCE_S)
        return self._function(*words)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Replaces the function that reads large inputs by one that blocks until released."""
    made = Held(ModelSignature.read)
    monkeypatch.setattr(ModelSignature, "read", partialmethod(made))
    yield made
    made.may_go.set()


def raw(words: list[bytes], count: int | None = None) -> Any:
    made = messages.ModelInferRequest(model_name="all_types", id="large")
    made.inputs.add(name="IN_BYTES", datatype="BYTES", shape=[len(words) if count is None else count])
    made.raw_input_contents.append(bytes(from_numpy("x", np.array([*words, None], object)[:-1]).data))
    return made


def typed(words: list[bytes], count: int | None = None) -> Any:
    made = messages.ModelInferRequest(model_name="all_types", id="large")
    one = made.inputs.add(name="IN_BYTES", datatype="BYTES", shape=[len(words) if count is None else count])
    one.contents.bytes_contents.extend(words)
    return made


KINDS = {"raw": raw, "typed": typed}


@pytest.mark.parametrize("kind", KINDS)
def test_other_calls_are_served_while_many_strings_are_parsed(stub: Stub, held: Held, kind: str) -> None:
    call = stub.ModelInfer.future(KINDS[kind](WORDS), timeout=PATIENCE_S)
    assert held.is_there.wait(PATIENCE_S)
    assert held.thread.startswith("offload")
    assert stub.ServerLive(messages.SCHEMA.message("inference.ServerLiveRequest")()).live
    assert len(stub.ModelInfer(a_request()).outputs) == 1
    held.may_go.set()
    assert list(call.result().raw_output_contents) == list(raw(WORDS).raw_input_contents)


@pytest.mark.parametrize("kind", KINDS)
def test_stream_responses_keep_their_order(stub: Stub, held: Held, kind: str) -> None:
    def requests() -> Iterator[Any]:
        yield KINDS[kind](WORDS)
        assert held.is_there.wait(PATIENCE_S)
        yield a_request(id="small")
        held.may_go.set()
        yield KINDS[kind](WORDS, COUNT - 1)

    responses = list(stub.ModelStreamInfer(requests(), timeout=PATIENCE_S))
    assert [one.infer_response.id for one in responses] == ["large", "small", "large"]
    assert [one.error_message for one in responses[:2]] == ["", ""]
    assert f"unexpected number of string elements {COUNT} for" in responses[2].error_message


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_cancelled_while_its_inputs_are_parsed_frees_its_work(
    server: Served, stub: Stub, held: Held, kind: str
) -> None:
    call = stub.ModelInfer.future(KINDS[kind](WORDS), timeout=PATIENCE_S)
    assert held.is_there.wait(PATIENCE_S)
    call.cancel()
    until(lambda: server.in_flight() == 0, "its work ended")
    held.may_go.set()
    assert len(stub.ModelInfer(a_request()).outputs) == 1


@pytest.mark.parametrize("count", [COUNT - 1, COUNT + 1])
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_number_of_many_strings_is_refused(stub: Stub, kind: str, count: int) -> None:
    code, message = failure(lambda: stub.ModelInfer(KINDS[kind](WORDS, count)))
    assert (code, f"unexpected number of string elements {COUNT} for inference input 'IN_BYTES'" in message) == (
        "INVALID_ARGUMENT",
        True,
    ), message


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
    request = messages.ModelInferRequest(model_name="all_types")
    for name in ("IN_UINT8", *(f"i{i}" for i in range(100))):
        one = request.inputs.add(name=name, datatype="UINT8", shape=[4096])
        one.parameters["shared_memory_region"].string_param = region
        one.parameters["shared_memory_byte_size"].int64_param = 4096
    code, message = failure(lambda: stub.ModelInfer(request))
    assert (code, "unexpected inference input 'i0'" in message, reads) == ("INVALID_ARGUMENT", True, [])
    del request.inputs[1:]
    assert (list(stub.ModelInfer(request).raw_output_contents), reads) == ([bytes(4096)], [4096])
