"""Times in the parameters and fields of responses (`server.timing`), over each protocol."""

import gzip
import json
from collections.abc import Sequence
from typing import Any

import pytest
from grpc_peers import HEAD, OK, descriptors
from responses import fed, http, sse

from inferometer.errors import UserError
from inferometer.types import ONE_TOKEN, Decoder, End, Event, ServerTiming, StreamResponse
from inferometer.wire import calls, protobuf
from inferometer.wire.context import CallContext
from inferometer.wire.grpc_framing import framed
from inferometer.wire.http1 import id_prefix
from inferometer.wire.kserve.http import JSON_LENGTH
from inferometer.wire.target import parse

TREE = {"model_name": "m", "outputs": [], "parameters": {"wait_us": 250, "busy": "1.5"}, "stats": {"all_ns": 2e6}}
TIMES = {"queue": "wait_us", "compute": "busy", "total": "stats.all_ns"}
HEADER = "Server-Timing: queue;dur=9\r\n"


def encoded(url: str, api: str, timing: dict[str, str], **more: Any) -> Any:
    return calls.encode(CallContext(api=api, model="m", targets=(parse(url),), tag="t", timing=timing, **more), [])


def over_http(body: bytes, timing: dict[str, str], api: str = "kserve", headers: str = HEADER, **more: Any) -> Any:
    """The times of a response; the decoder is used for the second time."""
    decoder: Decoder = encoded("http://h:1", api, timing, **more).decoder()
    assert fed(decoder, [http(body, headers=headers)]) == End(True)
    decoder.reset()
    wire = http(body, headers=headers)
    assert fed(decoder, [wire[:90], wire[90:]]) == End(True)
    return decoder.received.timing


def test_times_of_a_json_response() -> None:
    body = json.dumps(TREE).encode()
    assert over_http(body, TIMES) == ServerTiming(250_000, 1_500_000, 2_000_000)
    assert over_http(body, {"total": "busy s"}) == ServerTiming(-1, -1, 1_500_000_000), "the unit may be given"
    assert over_http(body, {}) == ServerTiming(9_000_000, -1)
    for name in ("missing", "stats", "outputs", "stats.all_ns.x", "model_name"):
        assert over_http(body, {"compute": name}) == ServerTiming(9_000_000, -1), "then the header counts"
        assert over_http(body, {"compute": name}, headers="") is None


@pytest.mark.parametrize("pack", [None, gzip.compress])
@pytest.mark.parametrize("expected", [(), ((),)])
def test_times_before_binary_outputs_of_a_response_that_may_be_compressed(pack: Any, expected: Any) -> None:
    text = json.dumps(TREE).encode()
    headers = f"{JSON_LENGTH}: {len(text)}\r\n" + "Content-Encoding: gzip\r\n" * bool(pack)
    body = text + b"\0\1\2{"
    found = over_http(pack(body) if pack else body, TIMES, headers=headers, expected=expected)
    assert found == ServerTiming(250_000, 1_500_000, 2_000_000)


def test_times_of_text_streamed_or_not() -> None:
    whole = {"choices": [{"message": {"content": "a"}}], "timings": {"prompt_ms": 3}}
    assert over_http(json.dumps(whole).encode(), {"compute": "timings.prompt_ms"}, "chat") == ServerTiming(
        -1, 3_000_000
    )
    chunks = [{"choices": [{"delta": {"content": "a"}}], "total": n} for n in (1, 2)]
    assert over_http(sse(*chunks), {"total": "total"}, "chat", stream=True) == ServerTiming(-1, -1, 2_000_000)


# --- gRPC ------------------------------------------------------------------------------------------------------------


def events(response: StreamResponse, data: bytes, trailers: Sequence[tuple[str, str]] = OK) -> list[Event]:
    """The events of a response that arrives byte by byte."""
    head, end = (tuple((name.encode(), value.encode()) for name, value in fields) for fields in (HEAD, trailers))
    found = [*response.headers(head, False)]
    for n in range(len(data)):
        found += response.data(data[n : n + 1], False)
    return [*found, *response.headers(end, True)]


def inference(method: str, id: str = "", **parameters: Any) -> bytes:
    tree: dict[str, Any] = {"model_name": "m", "id": id, "parameters": parameters}
    output = protobuf.bundled("kserve").method(f"inference.GRPCInferenceService/{method}").output
    return framed(protobuf.encode(output, {"infer_response": tree} if "Stream" in method else tree))


SPENT = {"wait_us": {"int64_param": 250}, "busy": {"double_param": 1.5}}


def test_times_of_an_inference_over_grpc() -> None:
    message = inference("ModelInfer", **SPENT)
    response = encoded("grpc://h:1", "kserve", TIMES).response()
    timing = [*OK, ("server-timing", "queue;dur=9")]
    assert events(response, message, timing)[-2:] == [ServerTiming(250_000, 1_500_000), End(True)]
    response = encoded("grpc://h:1", "kserve", TIMES, stream=True).response()
    found = events(response, inference("ModelStreamInfer", **SPENT) + inference("ModelStreamInfer"))
    assert found == [ONE_TOKEN, ONE_TOKEN, ServerTiming(250_000, 1_500_000), End(True)]


def test_times_of_each_request_on_an_open_stream() -> None:
    stream = encoded("grpc://h:1", "kserve", TIMES, stream=True, persistent=True, decoupled=True).response()
    final = {"triton_final_response": {"bool_param": True}}
    for id in range(3):
        stream.request(id, b"")
        name = f"{id_prefix('t')}{id:012x}"
        spent = {"busy": {"double_param": id}} if id < 2 else {}
        some = stream.data(inference("ModelStreamInfer", name, **spent), False)
        last = stream.data(inference("ModelStreamInfer", name, **final), False)
        assert [*some, *last] == [ONE_TOKEN, *([ServerTiming(-1, id * 1_000_000)] if spent else []), End(True)]
    assert stream.is_usable


def test_times_of_any_method() -> None:
    service = {"descriptors": descriptors(), "method": "t.S/Unary"}
    output = protobuf.load(descriptors()).method("t.S/Unary").output
    response = encoded("grpc://h:1", "grpc", {"total": "text us"}, **service).response()
    found = events(response, framed(protobuf.encode(output, {"text": "12.5"})))
    assert found == [ServerTiming(-1, -1, 12_500), End(True)]
    with pytest.raises(UserError, match=r"t\.M has no field 'text\.x'") as error:
        encoded("grpc://h:1", "grpc", {"total": "text.x"}, **service)
    assert error.value.key == "server.timing"
