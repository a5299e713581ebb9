"""Inference over gRPC with real models: unary calls, streams, deadlines, cancellation, errors."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import PATIENCE_S, Served, Stub, a_request, dialled, failure, serving
from tensor_maker import random
from waiting import until

from inferometer.serve.grpc import call as call_module
from inferometer.serve.kserve import messages
from inferometer.serve.settings import Limits
from inferometer.tensors import DATATYPES, Tensor, to_numpy
from inferometer.wire import server_timing
from inferometer.wire.kserve import grpc as client
from inferometer.wire.kserve.infer import InferOptions

# --- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 3, 10_000])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_our_own_client_gets_every_datatype_back(stub: Stub, datatype: str, size: int) -> None:
    given = random(f"IN_{datatype}", datatype, (size,), np.random.default_rng(size))
    message = client.infer_request("all_types", "", [given], InferOptions(id="seven"))
    response = client.infer_response(stub.ModelInfer(message).SerializeToString())
    assert (response.model, response.version, response.id) == ("all_types", "1", "seven")
    assert response.outputs == [Tensor(f"OUT_{datatype}", datatype, (size,), given.data)]


TYPED = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-(2**15), 2**15 - 1]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [0, 2**16 - 1]),
    "UINT32": ("uint_contents", [0, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "FP32": ("fp32_contents", [0.5, float("inf")]),
    "FP64": ("fp64_contents", [1e300, -0.5]),
    "BYTES": ("bytes_contents", [b"", b"\x00\xff two"]),
}


def a_typed_request(datatype: str, field: str, values: list[Any]) -> Any:
    made = messages.ModelInferRequest(model_name="all_types")
    one = made.inputs.add(name=f"IN_{datatype}", datatype=datatype, shape=[len(values)])
    getattr(one.contents, field).extend(values)
    return made


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_are_accepted(stub: Stub, datatype: str) -> None:
    field, values = TYPED[datatype]
    response = client.infer_response(stub.ModelInfer(a_typed_request(datatype, field, values)).SerializeToString())
    assert isinstance(response.outputs[0], Tensor)
    assert to_numpy(response.outputs[0]).tolist() == values


@pytest.mark.parametrize(
    ("datatype", "field", "values", "words"),
    [
        ("FP32", "int_contents", [1], "expected fp32_contents for datatype 'FP32', got int_contents"),
        ("FP16", "fp32_contents", [1.0], "expected raw_input_contents for datatype 'FP16', got fp32_contents"),
        ("INT8", "int_contents", [128], "128 does not fit into INT8"),
        (
            "FP32",
            "fp32_contents",
            [],
            "unable to find data for input tensor 'IN_FP32' for model 'all_types' in request.",
        ),
    ],
)
def test_typed_contents_in_the_wrong_field_are_refused(
    stub: Stub, datatype: str, field: str, values: list[Any], words: str
) -> None:
    request = a_typed_request(datatype, field, values)
    request.inputs[0].shape[:] = [1]
    code, message = failure(lambda: stub.ModelInfer(request))
    assert code == "INVALID_ARGUMENT"
    assert words in message


# --- what is refused -------------------------------------------------------------------------------------------------


def changed(change: Callable[[Any], Any]) -> Any:
    request = a_request()
    change(request)
    return request


def _shared(request: Any, region: Any = "nowhere") -> None:
    del request.raw_input_contents[:]
    for name, value in (("shared_memory_region", region), ("shared_memory_byte_size", 4)):
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(request.inputs[0].parameters[name], kind, value)


REFUSED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "no data": (
        lambda one: one.ClearField("raw_input_contents"),
        "INVALID_ARGUMENT",
        "unable to find data for input tensor 'INPUT0' for model 'identity' in request.",
    ),
    "raw and typed": (
        lambda one: one.inputs[0].contents.fp32_contents.append(1.0),
        "INVALID_ARGUMENT",
        "contents field must not be specified when using raw_input_contents for 'INPUT0'",
    ),
    "too many raw": (lambda one: one.raw_input_contents.append(b"abcd"), "INVALID_ARGUMENT", "2 raw_input_contents"),
    "too few raw": (
        lambda one: one.inputs.add(name="OTHER", datatype="FP32", shape=[1, 1]),
        "INVALID_ARGUMENT",
        "unable to find data for input tensor 'OTHER'",
    ),
    "classes that are text": (
        lambda one: one.outputs.add(name="OUTPUT0").parameters["classification"].MergeFrom(_text_parameter("1")),
        "INVALID_ARGUMENT",
        "invalid parameters for tensor 'OUTPUT0': Expected `int`, got `str` - at `$.classification`",
    ),
    "a parameter without a value": (
        lambda one: one.parameters["empty"],
        "INVALID_ARGUMENT",
        "parameter 'empty' must be a bool",
    ),
    "shared memory of nobody": (_shared, "NOT_FOUND", "Unable to find shared memory region: 'nowhere'"),
    "shared memory called 4": (
        lambda one: _shared(one, region=4),
        "INVALID_ARGUMENT",
        "invalid parameters for tensor 'INPUT0': Expected `str`, got `int` - at `$.shared_memory_region`",
    ),
}


def _text_parameter(value: str) -> Any:
    return messages.SCHEMA.message("inference.InferParameter")(string_param=value)


@pytest.mark.parametrize("case", REFUSED)
def test_bad_requests_are_refused_in_tritons_words(stub: Stub, case: str) -> None:
    change, code, words = REFUSED[case]
    got, message = failure(lambda: stub.ModelInfer(changed(change)))
    assert (got, words in message) == (code, True), message
    assert stub.ModelInfer(a_request()).raw_output_contents == [b"\0\0\x80?"]


def test_unary_calls_to_a_decoupled_model_are_refused(stub: Stub) -> None:
    assert failure(lambda: stub.ModelInfer(a_request("many"))) == (
        "UNIMPLEMENTED",
        "ModelInfer RPC doesn't support models with decoupled transaction policy",
    )


def test_invalid_messages_are_refused_without_output(stub: Stub, capfd: pytest.CaptureFixture[str]) -> None:
    for garbage in (b"\xff\xff\xff", b"\x3a\xff" * 20_000):
        code, message = failure(lambda garbage=garbage: stub.ModelInfer(garbage))
        assert (code, "is not a valid ModelInferRequest" in message) == ("INTERNAL", True)
    assert capfd.readouterr().err == ""


# --- timing, compression, limits -------------------------------------------------------------------------------------


def test_queue_compute_and_total_time_are_in_the_trailers(stub: Stub) -> None:
    response, call = stub.ModelInfer.with_call(a_request("late"))
    assert not response.parameters
    text = dict(call.trailing_metadata())["server-timing"]
    times = {name: float(value) for name, value in re.findall(r"(\w+);dur=([0-9.]+)", text)}
    assert list(times) == ["queue", "compute", "total"]
    assert 40 <= times["compute"] <= times["queue"] + times["compute"] < times["total"] < 1000 * PATIENCE_S


def test_messages_over_the_limit_are_refused() -> None:
    with serving(limits=Limits(message=100_000)) as one, dialled(one.grpc_address) as stub:
        assert failure(lambda: stub.ModelInfer(a_request(values=bytes(100_000))))[0] == "RESOURCE_EXHAUSTED"
        assert stub.ModelInfer(a_request(values=bytes(99_000))).raw_output_contents == [bytes(99_000)]


# --- cancellation and deadlines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_a_cancelled_call_frees_its_work(server: Served, stub: Stub, method: str) -> None:
    if method == "ModelInfer":
        call = stub.ModelInfer.future(a_request("slow"))
    else:
        call = stub.ModelStreamInfer(iter([a_request("slow"), a_request("slow"), a_request("endless")]))
    until(lambda: server.in_flight() == (1 if method == "ModelInfer" else 3))
    call.cancel()
    until(lambda: server.in_flight() == 0)


def test_an_expired_deadline_frees_its_work(server: Served, stub: Stub) -> None:
    assert failure(lambda: stub.ModelInfer(a_request("slow"), timeout=0.05))[0] == "DEADLINE_EXCEEDED"
    until(lambda: server.in_flight() == 0)


def test_the_deadline_of_a_call_is_that_of_its_inference(server: Served, stub: Stub) -> None:
    seen: dict[str, float] = {}  # by the request's id: calls whose deadline has passed may still come in
    original = server.models.submit

    def submit(inference: Any, *more: Any) -> None:
        seen[inference.id] = (inference.deadline - inference.arrived) / 1e9
        original(inference, *more)

    server.models.submit = submit  # type: ignore[method-assign]
    try:
        stub.ModelInfer(a_request(id="with"), timeout=100)
        stub.ModelInfer(a_request(id="without"))
    finally:
        del server.models.submit  # type: ignore[method-assign]
    assert 90 < seen["with"] <= 102  # gRPC sends three digits or so, rounded up
    assert seen["without"] > 1e9


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_keeps_order_except_for_decoupled_models(stub: Stub, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    held = [a_request("held", id=id, until=str(go_on)) for id in ("a", "d")]
    call = stub.ModelStreamInfer(iter([held[0], a_request(id="b"), a_request("many", id="c"), held[1]]))
    responses = [next(call).infer_response for _ in range(3)]
    go_on.touch()
    responses += [one.infer_response for one in call]
    assert [one.id for one in responses] == ["c", "c", "c", "a", "b", "d"]
    assert [one.parameters["triton_final_response"].bool_param for one in responses] == [False] * 3 + [True] * 3


def test_decoupled_models_send_an_empty_final_response_on_request(stub: Stub) -> None:
    responses = list(stub.ModelStreamInfer(iter([a_request("many", id="x", triton_enable_empty_final_response=True)])))
    last = responses[-1].infer_response
    assert (len(responses), last.id, last.model_name, len(last.outputs)) == (4, "x", "many", 0)
    assert last.parameters["triton_final_response"].bool_param
    responses = list(stub.ModelStreamInfer(iter([a_request(triton_enable_empty_final_response=True)])))
    assert [len(one.infer_response.outputs) for one in responses] == [1]


def test_a_refused_request_does_not_end_its_stream(stub: Stub) -> None:
    requests = [a_request("nope", id="x"), b"\xff\xff", a_request("failing", id="y"), a_request(id="z")]
    responses = list(stub.ModelStreamInfer(iter(requests)))
    errors = {one.infer_response.id: one.error_message for one in responses}
    assert errors["x"] == "Request for unknown model: 'nope' is not found"
    assert errors["y"] == "OSError: no luck"
    assert errors["z"] == ""
    assert "is not a valid ModelInferRequest" in errors[""]


def test_an_endless_model_stops_when_the_client_does_not_read(
    server: Served, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_module, "UNREAD", 50_000_000)
    call = stub.ModelStreamInfer(iter([a_request("endless", bytes(400_000))]))
    next(call)  # it is in progress; nothing more is read
    until(lambda: server.in_flight() == 0)
    assert failure(lambda: list(call))[0] == "RESOURCE_EXHAUSTED"


def test_clients_that_vanish_during_a_response_leave_nothing_behind(
    server: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(5):
        with dialled(server.grpc_address) as mine:
            calls = [mine.ModelStreamInfer(iter([a_request("endless", bytes(4000))])) for _ in range(4)]
            for call in calls:
                next(call)
    until(lambda: server.in_flight() == 0)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("model", ["late", "many"])
def test_a_streams_trailer_has_the_total_times_of_its_requests(stub: Stub, model: str) -> None:
    call = stub.ModelStreamInfer(iter([a_request(model), a_request(model)]))
    assert len(list(call)) == 2 * (3 if model == "many" else 1)
    timing = server_timing.parse(dict(call.trailing_metadata())["server-timing"].encode())
    assert timing is not None
    assert timing.compute >= (2 * 40_000_000 if model == "late" else 2 * 1_000_000)


def test_a_stream_without_requests_ends_with_ok(stub: Stub) -> None:
    assert list(stub.ModelStreamInfer(iter([]))) == []


def test_a_burst_of_calls_to_a_busy_server_is_served(server: Served, stub: Stub) -> None:
    """More calls than a server would process in one turn of its loop."""
    free = threading.Event()
    server.loop.call_soon_threadsafe(free.wait, PATIENCE_S)
    try:
        calls = [stub.ModelInfer.future(a_request(id=str(i))) for i in range(1500)]
    finally:
        free.set()
    assert [call.result(PATIENCE_S).id for call in calls] == [str(i) for i in range(1500)]
