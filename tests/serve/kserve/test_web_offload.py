"""Large bodies are processed in a thread: other requests are served meanwhile, and everything else works as for small
ones."""

import gc
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_client import RawClient, request
from served import Held, Served, serving
from waiting import until

from inferometer.serve import compression
from inferometer.serve.kserve import http_codec
from inferometer.serve.kserve.http import Infer
from inferometer.serve.models.types import Inference
from inferometer.serve.offload import LARGE
from inferometer.serve.settings import Limits
from inferometer.wire.http1_requests import Request

INFER = "/v2/models/identity/infer"
GENERATE = "/v2/models/echo/generate"
COUNT = LARGE // 2


def body(count: int = COUNT, **more: Any) -> bytes:
    x = {"name": "INPUT0", "datatype": "FP32", "shape": [1, count], "data": [0.5] * count}
    return json.dumps({"inputs": [x]} | more).encode()


def binary(count: int = COUNT, **parameters: Any) -> tuple[bytes, dict[str, str]]:
    """Return the tensor as binary data behind the JSON."""
    x = {"name": "INPUT0", "datatype": "FP32", "shape": [1, count], "parameters": {"binary_data_size": 4 * count}}
    head = json.dumps({"inputs": [x], "parameters": parameters}).encode()
    return head + bytes(4 * count), {"Inference_Header_Content_Length": str(len(head))}


SMALL = body(2)
LARGE_ONES: dict[str, tuple[bytes, bytes]] = {
    "json": (request(INFER, body()), b"request"),
    "gzip": (request(INFER, gzip.compress(body()), Content_Encoding="gzip"), b"request"),
    "deflate": (request(INFER, zlib.compress(body()), Content_Encoding="deflate"), b"request"),
    "generate": (request(GENERATE, {"text_input": "a", "n": [1] * COUNT}), b"generate"),
    "json response": (request(INFER, binary()[0], **binary()[1]), b"response"),
    "compressed response": (
        request(
            INFER, binary(binary_data_output=True)[0], Accept_Encoding="gzip", **binary(binary_data_output=True)[1]
        ),
        b"packed",
    ),
}
PARTS = {
    b"request": (http_codec, "request"),
    b"generate": (http_codec, "generate_request"),
    b"response": (http_codec, "to_values"),
    b"packed": (compression, "compress"),
}


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], Held]]:
    made: list[Held] = []

    def hold(part: bytes) -> Held:
        owner, name = PARTS[part]
        made.append(Held(getattr(owner, name)))
        monkeypatch.setattr(owner, name, made[-1])
        return made[-1]

    yield hold
    for one in made:
        one.may_go.set()


@pytest.mark.parametrize("kind", LARGE_ONES)
def test_other_requests_are_served_while_a_large_body_is_processed(server: Served, hold: Any, kind: str):
    data, part = LARGE_ONES[kind]
    held = hold(part)
    with RawClient(server.url) as large, RawClient(server.url) as other:
        large.send(data)
        assert held.is_there.wait(30)
        assert held.thread.startswith("offload")
        assert other.request("/v2/health/ready").status == 200
        assert other.request(INFER, SMALL).status == 200
        assert server.call(lambda: server.listener.in_flight) == 1
        held.may_go.set()
        response = large.response()
        assert (response.status, response.complete) == (200, True)
        if kind == "generate":
            assert response.json["m"] == [1] * COUNT
        elif kind == "compressed response":
            plain = gzip.decompress(response.body)
            assert plain[int(response.headers["inference-header-content-length"]) :] == bytes(4 * COUNT)
        else:
            (output,) = response.json["outputs"]
            assert output["data"] == [0.0 if kind == "json response" else 0.5] * COUNT
        assert large.request(INFER, SMALL).status == 200  # the connection goes on
    assert server.call(lambda: server.models.in_flight) == 0


def test_responses_on_a_connection_keep_their_order(server: Served, hold: Any):
    held = hold(b"request")
    with RawClient(server.url) as client:
        client.send(request(INFER, body(id="large")))
        assert held.is_there.wait(30)
        client.send(request(INFER, body(2, id="small")) + request(INFER, body(3, id="smaller")))
        held.may_go.set()
        assert [client.response().json["id"] for _ in range(3)] == ["large", "small", "smaller"]


def test_small_bodies_and_binary_tensors_need_no_thread(server: Served, monkeypatch: pytest.MonkeyPatch):
    with RawClient(server.url) as client:
        monkeypatch.setattr(server.models.offload, "do", lambda *_: 1 / 0)
        assert client.request(INFER, SMALL).status == 200
        assert (
            client.request(INFER, gzip.compress(SMALL), Content_Encoding="gzip", Accept_Encoding="gzip").status == 200
        )
        data, headers = binary(binary_data_output=True)
        assert client.request(INFER, data, **headers).status == 200
        assert client.request(GENERATE, {"text_input": "a", "n": [1, 2]}).status == 200


@pytest.mark.parametrize(("kind", "submitted"), [("json", 0), ("json response", 1)])
def test_the_result_for_a_disconnected_client_is_dropped(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], hold: Any, kind: str, submitted: int
):
    with serving(access_log=True) as server:
        seen: list[Inference] = []
        submit = server.models.submit
        monkeypatch.setattr(server.models, "submit", lambda one, *more: (seen.append(one), submit(one, *more)))
        data, part = LARGE_ONES[kind]
        held = hold(part)
        with RawClient(server.url) as client:
            client.send(data)
            assert held.is_there.wait(30)
        server.until(lambda: not server.listener.connections)
        held.may_go.set()
        with RawClient(server.url) as client:  # through the same threads, so that the other is over
            for _ in range(2):
                assert client.request(INFER, body()).status == 200
        assert len(seen) == 2 + submitted
        assert server.models.in_flight == 0
    statuses = [line.split()[4] for line in capfd.readouterr().err.splitlines()]
    assert statuses == ["499", "200", "200"]


def test_the_drain_waits_for_admitted_requests(hold: Any):
    with serving() as server:
        held = hold(b"request")
        with RawClient(server.url) as large, RawClient(server.url) as late:
            large.send(LARGE_ONES["json"][0])
            assert held.is_there.wait(30)
            server.call(server.models.refuse_new)
            assert late.request(INFER, body()).status == 503
            assert server.call(lambda: server.listener.in_flight) == 1
            held.may_go.set()
            response = large.response()
            assert (response.status, response.headers["connection"]) == (200, "close")


@pytest.mark.parametrize(
    ("data", "headers", "status", "words"),
    [
        (body()[:-1], {}, 400, "failed to parse the request JSON buffer"),
        (body().replace(b"0.5", b'"a"', 1), {}, 400, "is not a number"),
        (body().replace(b"FP32", b"FP16"), {}, 400, "FP16 data via JSON is not supported"),
        (body().replace(b"INPUT0", b"INPUT9"), {}, 400, "INPUT9"),
        (body().replace(b"[1, %d]" % COUNT, b"[1, 7]"), {}, 400, f"is 7 elements, but {COUNT} were given"),
        (gzip.compress(body())[:-9], {"Content_Encoding": "gzip"}, 400, "is truncated"),
        (bytes(LARGE + 1), {"Content_Encoding": "gzip"}, 400, "is not valid gzip data"),
        (
            gzip.compress(body(20 * COUNT)),
            {"Content_Encoding": "gzip"},
            413,
            "decompressed body is larger than 1000000 bytes",
        ),
        (gzip.compress(body()), {"Content_Encoding": "br"}, 501, "Unsupported compression type 'br'"),
    ],
)
def test_errors_in_large_bodies_are_explained(data: bytes, headers: dict[str, str], status: int, words: str):
    with serving(limits=Limits(message=1_000_000)) as server, RawClient(server.url) as client:
        response = client.request(INFER, data, **headers)
        assert (response.status, words in response.json["error"]) == (status, True), response.json
        assert client.request(INFER, SMALL).status == 200


def test_a_small_limit_applies_to_decompression_in_the_loop():
    with serving(limits=Limits(message=2000)) as server, RawClient(server.url) as client:
        assert client.request(INFER, gzip.compress(body(1000)), Content_Encoding="gzip").status == 413


def test_large_bodies_are_freed(server: Served):
    kinds = (Infer, Request, Inference)
    gc.collect()
    before = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    gc.disable()
    try:
        with RawClient(server.url) as client:
            for data in (body(), body()[:-1], body().replace(b"INPUT0", b"INPUT9")):
                client.request(INFER, data)
            client.send(LARGE_ONES["compressed response"][0])
            client.response()
            client.request("/v2/health/live")  # by now the loop has released the response
            server.call(lambda: None)
            known = set(map(id, before))

            def is_clear() -> bool:
                """A thread releases a body only after it has notified the loop, which may have responded by then."""
                return all(id(one) in known for one in gc.get_objects() if issubclass(type(one), kinds))

            until(is_clear, "nothing is kept")
    finally:
        gc.enable()
