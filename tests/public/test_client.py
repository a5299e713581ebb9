"""`inferometer.Client`: tensors over HTTP and gRPC, text, what a server says about its models, and connections that stay open."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers import Client as Connection
from helpers import http_response, polite, scripted

import inferometer
from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Settings

ARRAYS: dict[str, Any] = {
    "BOOL": np.array([True, False]),
    **{f"{sign}INT{bits}": np.array([1, 2, 100], f"{'u' if sign else 'i'}{bits // 8}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.array([0.5, -1.5, np.inf], f"f{bits // 8}") for bits in (16, 32, 64)},
    "BF16": np.array([0.5, -1.5], np.float32),
    "BYTES": np.array([b"one", b"", b"\x00\xff"], object),
}  # fmt: skip


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, served: Running) -> Iterator[inferometer.Client]:
    with inferometer.Client(served.url if request.param == "http" else served.grpc) as made:
        yield made


def test_arrays_of_every_datatype_come_back(client: inferometer.Client) -> None:
    found = client.infer("all_types", ARRAYS)
    assert found.keys() == ARRAYS.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, ARRAYS[name])
        assert array.dtype == ARRAYS[name].dtype and array.flags.writeable


def test_values_are_converted_to_what_the_model_takes(client: inferometer.Client) -> None:
    given = {"INT32": [1, 2], "FP32": np.array([0.1]), "BYTES": ["text", "ü"], "BF16": [1.0]}
    found = client.infer("all_types", given, outputs=["INT32", "FP32", "BYTES", "BF16"])
    assert found["INT32"].dtype == np.int32 and found["FP32"][0] == np.float32(0.1)
    assert found["BYTES"].tolist() == [b"text", "ü".encode()] and found["BF16"].tolist() == [1.0]
    with pytest.raises(inferometer.Error, match="300 does not fit into INT8"):
        client.infer("all_types", {"INT8": [300]})


def test_the_responses_of_a_decoupled_model_are_an_iterator(client: inferometer.Client) -> None:
    given = {"text_input": ["hello"], "max_tokens": [3]}
    with pytest.raises(inferometer.Error, match=r"decoupled.*grpc:// URL, with Client.stream"):
        client.infer("sim", given)
    if "grpc" not in repr(client):
        with pytest.raises(inferometer.Error, match="HTTP cannot stream responses"):
            next(client.stream("sim", given))
        return
    pieces = [outputs["text_output"].item() for outputs in client.stream("sim", given)]
    assert len(pieces) == 3 and all(pieces)
    with pytest.raises(inferometer.Error, match="nothing"):
        list(client.stream("nothing", given))
    next(client.stream("sim", {**given, "max_tokens": [1000]}))  # ends the call
    assert client.infer("identity", {"INPUT0": [[1.0]]})["OUTPUT0"].tolist() == [[1.0]]


def test_the_server_says_what_it_has(client: inferometer.Client) -> None:
    assert client.metadata()["name"] == "inferometer"
    metadata = client.metadata("identity")
    assert metadata["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}]
    assert client.config("identity")["max_batch_size"] == 64
    assert client.ready() and client.ready("identity") and not client.ready("nothing")
    (made,) = inferometer.dummy_inputs(metadata, batch=2, length=3, count=1)
    assert client.infer("identity", made, version="1")["OUTPUT0"].shape == (2, 3)


def test_what_the_server_refuses_is_an_error(client: inferometer.Client) -> None:
    with pytest.raises(inferometer.Error, match="'nothing' is not found"):
        client.infer("nothing", {"INPUT0": np.zeros((1, 1), np.float32)})
    with pytest.raises(inferometer.Error, match="INPUT1"):
        client.infer("identity", {"INPUT1": np.zeros((1, 1), np.float32)})
    assert client.infer("identity", {"INPUT0": [[1.0]]})["OUTPUT0"].tolist() == [[1.0]]  # the connection still works


def test_threads_share_a_client(client: inferometer.Client) -> None:
    barrier = threading.Barrier(4, timeout=30)

    def infer(number: int) -> float:
        barrier.wait()
        return float(client.infer("identity", {"INPUT0": np.full((1, 1000), number, np.float32)})["OUTPUT0"].mean())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(infer, range(8))) == list(range(8))


def test_a_text_has_tokens_and_times(served: Running) -> None:
    with inferometer.Client(served.url) as client:
        text = client.generate("hello", max_tokens=6)
        assert str(text) == text.text and text.output_tokens == len(text.arrivals) == 6 and text.model == "sim"
        assert text.ttft is not None and 0.004 < text.ttft <= text.arrivals[-1] <= text.e2e and len(text.gaps) == 5
        stream = client.generate([{"role": "user", "content": "hello"}], model="sim", max_tokens=6, stream=True)
        pieces = list(stream)
        assert 1 <= len(pieces) <= 6 and "".join(pieces) == stream.result.text  # one that is read late joins the next


def test_a_text_that_is_left_early_does_not_disturb_the_next(served: Running) -> None:
    with inferometer.Client(served.url, api="completions") as client:
        with client.generate("hello", max_tokens=50, stream=True) as stream:
            next(stream)
        with pytest.raises(inferometer.Error, match="closed before its end"):
            stream.result  # noqa: B018
        assert client.generate("hello", max_tokens=2).output_tokens == 2


def test_text_is_not_sent_over_grpc_and_other_apis_are_refused(served: Running) -> None:
    with (
        inferometer.Client(served.grpc) as client,
        pytest.raises(inferometer.Error, match="prompts are sent over HTTP"),
    ):
        client.generate("hello")
    with pytest.raises(inferometer.Error, match="api: 'kserve' does not generate text"):
        inferometer.Client(served.url, api="kserve")


# --- connections -----------------------------------------------------------------------------------------------------


def test_requests_share_a_connection() -> None:
    numbers = []

    def script(connection: Connection) -> None:
        while connection.request():
            numbers.append(connection.number)
            connection.send(http_response())

    with scripted(script) as url, inferometer.Client(url) as client:
        for _ in range(3):
            assert client.generate("hello", model="m").text == "one two"
    assert numbers == [0, 0, 0]


@pytest.mark.parametrize("when", ["before the next request", "at the next request"])
def test_a_connection_that_the_server_closed_is_replaced(when: str) -> None:
    closed = threading.Event()

    def script(connection: Connection) -> None:
        connection.request()
        connection.send(http_response())
        if when == "at the next request" and connection.number == 0:
            connection.request()
        connection.sock.close()
        closed.set()

    with scripted(script) as url, inferometer.Client(url) as client:
        assert client.generate("hello", model="m").text == "one two"
        if when == "before the next request":
            closed.wait(10)
        assert client.generate("hello", model="m").text == "one two"


def test_a_new_connection_that_is_closed_is_an_error() -> None:
    def script(connection: Connection) -> None:
        connection.request()

    with (
        scripted(script) as url,
        inferometer.Client(url) as client,
        pytest.raises(inferometer.Error, match="no response"),
    ):
        client.generate("hello", model="m")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_survives_a_restart_of_the_server(protocol: str) -> None:
    with serving(Settings(models=("identity",), http=0, grpc=0)) as first:
        url = first.url if protocol == "http" else first.grpc
        ports = [int(each.rpartition(":")[2]) for each in (first.url, first.grpc)]
        client = inferometer.Client(url)
        assert client.infer("identity", {"INPUT0": [[1.0]]})["OUTPUT0"].tolist() == [[1.0]]
    with client, serving(Settings(models=("identity",), http=ports[0], grpc=ports[1])):
        assert client.infer("identity", {"INPUT0": [[2.0]]})["OUTPUT0"].tolist() == [[2.0]]


def test_a_server_that_does_not_listen_is_not_ready() -> None:
    with scripted(polite) as url:
        pass
    with inferometer.Client(url) as client:
        assert not client.ready() and not client.ready("m")
        with pytest.raises(inferometer.Error, match="connection refused"):
            client.metadata()


def test_servers_without_kserve_are_ready_when_they_list_models() -> None:
    def script(connection: Connection) -> None:
        while request := connection.request():
            listed = b'{"data": [{"id": "m"}]}'
            found = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
            connection.send(http_response(listed) if "/v1/models" in request[0] else found)

    with scripted(script) as url, inferometer.Client(url) as client:
        assert client.ready() and client.ready("m") and not client.ready("other")


def test_keys_and_headers_are_sent_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def script(connection: Connection) -> None:
        while request := connection.request():
            seen.append(request[1])
            key = request[1].get("authorization", "") or request[1].get("x-api-key", "")
            body = json.dumps({"error": {"message": f"bad key {key}"}}).encode()
            connection.send(b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    monkeypatch.setenv("MY_KEY", "sk-from-the-environment")
    with scripted(script) as url:
        for options in (
            {"api_key": "sk-very-secret"},
            {"api_key_env": "MY_KEY"},
            {"api_key": "sk-x", "api": "messages"},
        ):
            with inferometer.Client(url, headers={"X-Team": "blue"}, **options) as client:
                with pytest.raises(inferometer.Error) as caught:
                    client.generate("hello", model="m")
                assert "sk-" not in str(caught.value) and "sk-" not in repr(client) and "api_key" in str(caught.value)
    *bearers, messages = seen
    assert [each["authorization"] for each in bearers] == ["Bearer sk-very-secret", "Bearer sk-from-the-environment"]
    assert messages["x-api-key"] == "sk-x" and messages["anthropic-version"] and "authorization" not in messages
    assert all(each["x-team"] == "blue" for each in seen)
    with pytest.raises(inferometer.Error, match="not allowed in a header") as caught:
        inferometer.Client(url, api_key="sk-secret\r\nX: y")
    assert "sk-secret" not in str(caught.value)
