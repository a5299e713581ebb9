"""/v2 over a raw socket: metadata, inference, generate, shared memory, loading, cancellation, draining."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from raw_client import RawClient, request
from served import CONFIGS, Served, make_repository, serving

from inferometer.serve import offload
from inferometer.serve.kserve import http as kserve_http
from inferometer.serve.models.types import Inference
from inferometer.tensors import Tensor
from inferometer.wire import server_timing
from inferometer.wire.compression import compressed
from inferometer.wire.kserve import control_requests as control
from inferometer.wire.kserve import http as client
from inferometer.wire.kserve.infer import InferOptions

INFER = "/v2/models/identity/infer"
X = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2]}


def infer(web: RawClient, tensors: list[Tensor], options: InferOptions, path: str = INFER, **more: str) -> Any:
    headers, body = client.encode(tensors, options)
    response = web.request(path, body, **{name.replace("-", "_"): value for name, value in (headers | more).items()})
    return client.decode(response.status, response.headers, response.body)


def test_readiness_has_the_body_that_kserves_client_expects(web: RawClient):
    assert web.request("/v2/health/live").json == {"live": True}
    assert web.request("/v2/health/ready").json == web.request("/v2/models/identity/ready").json == {"ready": True}


# --- what there is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2", 200),
        ("/v2/", 404),
        ("/v2/health/live", 200),
        ("/v2/health/ready", 200),
        ("/v2/health/other", 404),
        ("/v2/models", 404),
        ("/v2/models/stats", 200),
        ("/v2/models/identity", 200),
        ("/v2/models/%69dentity?a=b", 200),
        ("/v2/models/identity/", 404),
        ("/v2/models/identity/versions/1", 200),
        ("/v2/models/identity/versions/7", 404),
        ("/v2/models/identity/versions/x", 404),
        ("/v2/models/identity/ready", 200),
        ("/v2/models/identity/versions/1/ready", 200),
        ("/v2/models/identity/versions/7/ready", 400),
        ("/v2/models/other/ready", 400),
        ("/v2/models/identity/config", 200),
        ("/v2/models/identity/versions/1/stats", 200),
        ("/v2/models/other", 404),
        ("/v2/models/other/config", 404),
        ("/v2/models/other/stats", 400),
        ("/v2/models/identity/infer", 405),
        ("/v2/models/identity/generate", 405),
        ("/v2/models/identity/other", 404),
        ("/v2/repository/index", 405),
        ("/v2/repository/models/identity/load", 405),
        ("/v2/systemsharedmemory/status", 200),
        ("/v2/systemsharedmemory/region/other/status", 404),
        ("/v2/systemsharedmemory/other", 404),
        ("/v2/cudasharedmemory/status", 200),
        ("/v2/cudasharedmemory/region/other/status", 404),
        ("/v2/logging", 404),
        ("/v2x", 404),
        ("/other", 404),
        ("/v1/other", 404),
        ("/", 404),
        ("/health", 200),
        ("/metrics", 200),
    ],
)
def test_each_path_has_its_status(web: RawClient, path: str, status: int):
    response = web.request(path)
    assert response.status == status
    if status >= 400:
        assert response.json["error"]
    assert web.request("/health").status == 200


def test_our_client_reads_metadata_and_statistics(web: RawClient):
    for call in (
        control.live(),
        control.ready(),
        control.server_metadata(),
        control.model_metadata("identity"),
        control.model_config("identity"),
        control.repository_index(),
    ):
        response = web.request(call.path, call.body or None, call.method)
        assert control.read_http(call, response.status, response.body)


def test_metrics_of_models_and_simulator_are_on_one_page(web: RawClient):
    page = web.request("/metrics").body.decode()
    assert 'nv_inference_request_success{model="identity",version="1"}' in page
    assert "vllm:num_requests_running" in page


# --- inference ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("packing", ["none", "gzip", "deflate"])
def test_inference_round_trips(web: RawClient, binary: bool, packing: str):
    tensor = Tensor("INPUT0", "FP32", (3, 2), bytes(range(1, 25)))
    headers, body = client.encode([tensor], InferOptions(id="me", binary=binary))
    more = {"Accept-Encoding": packing}
    if packing != "none":
        more["Content-Encoding"], body = packing, compressed(body, packing)
    named = {name.replace("-", "_"): value for name, value in (headers | more).items()}
    response = web.request(INFER, body, **named)
    assert response.headers.get("content-encoding", "none") == packing
    back = client.decode(response.status, response.headers, response.body)
    assert (back.model, back.version, back.id) == ("identity", "1", "me")
    (output,) = back.outputs
    assert isinstance(output, Tensor)
    assert (output.name, output.shape, bytes(output.data)) == ("OUTPUT0", (3, 2), tensor.data)
    timing = server_timing.parse(response.headers["server-timing"].encode())
    assert timing is not None
    total = float(response.headers["server-timing"].rpartition("total;dur=")[2]) * 1e6
    assert 0 <= timing.queue + timing.compute <= total < 60e9


def test_response_fields_are_in_tritons_order(web: RawClient):
    response = web.request(INFER, {"id": "a", "inputs": [X]}).json
    assert list(response) == ["id", "model_name", "model_version", "outputs"]
    assert response["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.0]}]


def test_classes_are_sent_as_text(web: RawClient):
    body = {"inputs": [X], "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2}}]}
    (output,) = web.request(INFER, body).json["outputs"]
    assert output == {"name": "OUTPUT0", "datatype": "BYTES", "shape": [1, 2], "data": ["2.000000:1", "1.500000:0"]}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (INFER, b"{", 400, "JSON"),
        ("/v2/models/words/infer", {"inputs": []}, 501, "decoupled"),
        (
            "/v2/cudasharedmemory/region/r/register",
            {"raw_handle": {"b64": ""}, "device_id": 0, "byte_size": 1},
            400,
            "CUDA",
        ),
        ("/v2/systemsharedmemory/region/r/register", {"key": "/none", "offset": 0}, 400, "at least 1 byte"),
        ("/v2/systemsharedmemory/region/r/register", {"byte_size": "a"}, 400, "Unable to parse the request"),
        ("/v2/systemsharedmemory/region/r/register", {"key": "../x", "byte_size": 1}, None, "x"),
        ("/v2/repository/models/identity/unload", {}, 403, "--allow-control"),
        ("/v2/repository/models/x/unload", {"parameters": {"unload_dependents": False}}, 403, "--allow-control"),
        ("/v2/repository/models/identity/load", {}, 403, "--allow-control"),
        ("/v2/repository/index", [], 400, "object"),
    ],
)
def test_errors_are_explained_and_keep_the_connection(
    web: RawClient, path: str, body: Any, status: int | None, words: str
):
    response = web.request(path, body)
    assert response.status == status or (status is None and response.status >= 400)
    assert list(response.json) == ["error"]
    assert words in response.json["error"]
    assert web.request(INFER, {"inputs": [X]}).status == 200


def test_a_body_over_the_limit_is_413_before_it_arrives(server: Served):
    with RawClient(server.url) as web:
        web.send(b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1073807361\r\n\r\n")
        response = web.response()
        assert (response.status, response.headers["connection"]) == (413, "close")
        assert "1073807360" in response.json["error"]
        assert web.at_end()


# --- generate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"text_input": "hi"}, {"text_output": "hi"}),
        ({"text_input": ["hi"], "n": 3}, {"text_output": "hi", "m": 3}),
        ({"text_input": "hi", "n": [3, 4], "stream": False, "x": 1.5}, {"text_output": "hi", "m": [3, 4]}),
        ({"text_input": "hi", "parameters": {"n": [], "y": "z"}}, {"text_output": "hi", "m": []}),
        ({"text_input": "hi", "id": "me"}, {"text_output": "hi", "id": "me"}),
    ],
)
def test_generate_maps_inputs_and_outputs_by_name(web: RawClient, body: Any, found: dict[str, Any]):
    response = web.request("/v2/models/echo/generate", body)
    assert response.json == found | {"model_name": "echo", "model_version": "1"}
    assert list(response.json) == sorted(response.json)
    assert "server-timing" in response.headers


@pytest.mark.parametrize("how", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "JSON"),
        ([], 400, "object"),
        ({}, 400, "text_input"),
        ({"text_input": 3}, 400, "BYTES"),
        ({"text_input": ["a", "b"]}, 400, "text_input: the shape [1] is 1 elements, but 2 were given"),
        ({"text_input": "a", "n": 1.5}, 400, "INT32"),
        ({"text_input": "a", "x": [1]}, 400, "'x'"),
        ({"text_input": "a", "parameters": [1]}, 400, "'parameters' must be an object"),
    ],
)
def test_generate_explains_errors(web: RawClient, how: str, body: Any, status: int, words: str):
    response = web.request(f"/v2/models/echo/{how}", body)
    assert response.status == status
    assert words in response.json["error"]


def test_a_decoupled_model_requires_generate_stream(web: RawClient):
    response = web.request("/v2/models/words/generate_stream", {"text_input": "hi"})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    expected = {"model_name": "words", "model_version": "1", "text_output": "hi"}
    assert [json.loads(event) for event in response.events] == [expected] * 3
    assert response.complete
    refused = web.request("/v2/models/words/generate", {"text_input": "hi"})
    assert refused.status == 400
    assert "generate stream" in refused.json["error"]


def test_a_stream_over_http10_ends_with_the_connection(web: RawClient):
    web.send(request("/v2/models/words/generate_stream", {"text_input": "hi"}).replace(b"HTTP/1.1", b"HTTP/1.0"))
    response = web.response(until_end=True)
    assert "transfer-encoding" not in response.headers
    assert [json.loads(event)["text_output"] for event in response.events] == ["hi"] * 3


# --- cancelling, control, the end --------------------------------------------------------------------------------------


def test_tensors_are_freed_after_the_response(server: Served, web: RawClient, monkeypatch: pytest.MonkeyPatch):
    seen: list[weakref.ref[Any]] = []
    submit = server.models.submit

    def watched(inference: Inference, *more: bool) -> None:
        (tensor,) = inference.inputs.values()
        seen.append(weakref.ref(tensor.data))
        submit(inference, *more)

    monkeypatch.setattr(server.models, "submit", watched)
    gc.disable()
    try:
        for count in (300_000, 2):
            infer(web, [Tensor("INPUT0", "FP32", (1, count), bytes(4 * count))], InferOptions())
        server.call(lambda: None)
        assert [one() for one in seen] == [None, None]
    finally:
        gc.enable()


def test_a_stream_that_the_client_does_not_read_stops_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kserve_http, "UNREAD", 4_000_000)
    config = CONFIGS["words"].replace('"3"', '"1000000"')
    monkeypatch.setitem(CONFIGS, "words", config + 'parameters { key: "delay" value { string_value: "1ms" } }')
    with serving(make_repository(tmp_path, "words")) as server, RawClient(server.url) as web:
        web.send(request("/v2/models/words/generate_stream", {"text_input": "x" * 500_000}))
        server.until(lambda: server.models.find("words").counted.message().inference_stats.fail.count == 1)
        assert server.call(lambda: server.models.in_flight) == 0
        response = web.response()
        assert response.complete
        assert json.loads(response.events[-1]) == {"error": offload.not_read().message}
        assert web.request("/v2/health/live").status == 200
