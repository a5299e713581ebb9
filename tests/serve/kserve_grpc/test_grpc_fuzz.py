"""Random messages to any method over a real channel: each gets a response, the server continues, nothing is printed."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_peer import CONFIGS, PATIENCE_S, Stub, a_request, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferometer.serve.kserve import messages
from inferometer.tensors import DATATYPES
from inferometer.wire import protobuf

PATHS = sorted(
    {f"/{name}" for set_of in ("kserve", "health", "reflection_v1alpha") for name in protobuf.bundled(set_of).methods}
)
FUZZED = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
ENDLESS = {"/grpc.health.v1.Health/Watch"}


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    with serving(control=True) as one, grpc.insecure_channel(one.grpc_address) as channel:
        yield channel


@pytest.fixture(autouse=True)
def quiet(channel: grpc.Channel, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert Stub(channel).ModelInfer(a_request(), timeout=PATIENCE_S).raw_output_contents == [b"\0\0\x80?"]
    assert capfd.readouterr().err == ""


def send(channel: grpc.Channel, path: str, sent: list[bytes]) -> None:
    """Send as a stream, which every method is to the server. UNKNOWN would be an unhandled exception."""
    timeout = 0.05 if path in ENDLESS else 2
    try:
        for _ in channel.stream_stream(path)(iter(sent), timeout=timeout):
            pass
    except grpc.RpcError as error:
        assert error.code() != grpc.StatusCode.UNKNOWN, error.details()


@FUZZED
@given(path=st.sampled_from(PATHS), sent=st.lists(st.binary(max_size=60), min_size=1, max_size=3))
def test_random_bytes(channel: grpc.Channel, path: str, sent: list[bytes]) -> None:
    send(channel, path, sent)


names = st.sampled_from(["", "INPUT0", "OUTPUT0", "IN_FP32", "IN_BYTES", "OUT_BYTES", "x", "\0", "é"])
_SHARED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
_OTHERS = ("classification", "timeout", "priority", "sequence_id", "sequence_start", "binary_data", "y")
_TRITONS = ("triton_enable_empty_final_response", "triton_x")
parameter_names = st.sampled_from([*_SHARED, *_OTHERS, *_TRITONS])
sizes = st.integers(-2, 5) | st.integers(-(2**63), 2**63 - 1)


@st.composite
def parameters(draw: st.DrawFn, field: Any) -> None:
    for name in draw(st.lists(parameter_names, max_size=3)):
        kind = draw(st.sampled_from(["bool_param", "int64_param", "string_param", "double_param", "uint64_param", ""]))
        value = {
            "bool_param": True,
            "int64_param": draw(sizes),
            "string_param": draw(names),
            "double_param": draw(st.floats()),
            "uint64_param": 2**64 - 1,
        }
        if kind:
            setattr(field[name], kind, value[kind])
        else:
            field[name].SetInParent()


@st.composite
def infer_requests(draw: st.DrawFn) -> Any:
    models = st.sampled_from(["identity", *(name for name in CONFIGS if name not in ("slow", "endless")), "", "nope"])
    made = messages.ModelInferRequest(
        model_name=draw(models), model_version=draw(st.sampled_from(["", "", "1", "-1", "x"]))
    )
    made.id = draw(st.text(max_size=4))
    draw(parameters(made.parameters))
    for name in draw(st.lists(names, max_size=3)):
        one = made.inputs.add(name=name, datatype=draw(st.sampled_from([*DATATYPES, "", "FP8"])))
        one.shape.extend(draw(st.lists(sizes, max_size=3)))
        draw(parameters(one.parameters))
        if draw(st.booleans()):
            one.contents.int_contents.extend(draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)))
            one.contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=4), max_size=2)))
    for name in draw(st.lists(names, max_size=2)):
        draw(parameters(made.outputs.add(name=name).parameters))
    made.raw_input_contents.extend(draw(st.lists(st.binary(max_size=24), max_size=3)))
    return made


@FUZZED
@given(sent=st.lists(infer_requests(), min_size=1, max_size=4))
def test_infer_requests_in_a_stream(channel: grpc.Channel, sent: list[Any]) -> None:
    """Each ordinary request has one response, and the stream ends with OK."""
    data = [one.SerializeToString() for one in sent]
    responses = list(
        channel.stream_stream(f"/{messages.KSERVE_SERVICE}/ModelStreamInfer")(iter(data), timeout=PATIENCE_S)
    )
    if all(one.model_name != "many" for one in sent):
        assert len(responses) == len(sent)
