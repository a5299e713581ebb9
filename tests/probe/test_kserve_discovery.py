"""Discovery of KServe servers that lack a feature, and of servers that are not KServe servers."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import grpc
import kserve_peers
import pytest
from grpc_peers import grpcio
from helpers import Client, measure, scripted

from inferometer.config.schema import Server
from inferometer.errors import OTHER_GRPC, OTHER_HTTP, UserError
from inferometer.probe import reach

ONE = {"type": "closed", "concurrency": 1, "requests": 1}


def overridden(path: str, status: int, body: bytes, extra: str = "") -> Callable[[Client], None]:
    """The scripted KServe server with another response at `path`."""
    usual = kserve_peers.over_http()

    def script(client: Client) -> None:
        received = client.request

        def request() -> tuple[str, dict[str, str], bytes] | None:
            while (message := received()) and message[0].split()[1] == path:
                head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
                client.send(head.encode() + body)
            return message

        client.request = request  # type: ignore[method-assign]
        usual(client)

    return script


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":"Invalid request URL"}',
        b'{"code":404,"type":"ResourceNotFoundException","message":"Requested resource is not found"}',
        b'{"detail":"Not Found"}',
        b"",
    ],
)
def test_a_server_without_model_configurations_can_be_measured(tmp_path: Path, body: bytes) -> None:
    with scripted(overridden("/v2/models/pair/config", 404, body)) as url:
        server = {"model": "pair", "api": "kserve"}
        _, summary = measure(tmp_path, url, server=server, data={"type": "tensors"}, load=ONE)
    assert summary.counts.ok == 1


def test_a_configuration_that_fails_is_an_error_with_a_remedy() -> None:
    with (
        scripted(overridden("/v2/models/pair/config", 500, b'{"error":"boom"}')) as url,
        pytest.raises(UserError) as caught,
    ):
        reach.reach(Server(url, model="pair", api="kserve"))
    assert "500: boom" in caught.value.what
    assert caught.value.remedy == "check the server's log"


def test_a_grpc_service_that_is_not_kserve_is_recognised() -> None:
    def unary(message: bytes, context: grpc.ServicerContext) -> bytes:
        return message

    with grpcio(Unary=unary) as url, pytest.raises(UserError, match="it is not a KServe v2 server") as caught:
        reach.reach(Server(url, model="m", api="kserve"))
    assert caught.value.what.startswith(url)
    assert caught.value.remedy == OTHER_GRPC


def test_an_http_server_that_is_not_kserve_is_recognised() -> None:
    with (
        scripted(overridden("/v2/health/live", 404, b"Not Found")) as url,
        pytest.raises(UserError, match="it is not a KServe v2 server") as caught,
    ):
        reach.reach(Server(url, model="pair", api="kserve"))
    assert caught.value.remedy == OTHER_HTTP


def test_compressed_responses_are_requested_for_inferences_only(tmp_path: Path) -> None:
    """Some servers compress every response that they may compress."""
    received_paths: list[tuple[str, str]] = []
    usual = kserve_peers.over_http()

    def script(client: Client) -> None:
        received = client.request

        def request() -> tuple[str, dict[str, str], bytes] | None:
            message = received()
            if message:
                received_paths.append((message[0].split()[1], message[1].get("accept-encoding", "")))
            return message

        client.request = request  # type: ignore[method-assign]
        usual(client)

    with scripted(script) as url:
        server = {"model": "pair", "api": "kserve", "headers": {"Accept-Encoding": "gzip"}}
        _, summary = measure(tmp_path, url, server=server, data={"type": "tensors"}, load=ONE)
    assert summary.counts.ok == 1
    assert {path.endswith("/infer") for path, encoding in received_paths if encoding} == {True}
    assert len({path for path, encoding in received_paths if not encoding}) >= 4


def test_a_compressed_response_counts(tmp_path: Path) -> None:
    tree = {"model_name": "pair", "outputs": [{"name": "SUM", "datatype": "INT32", "shape": [1, 4], "data": [0] * 4}]}
    body = gzip.compress(json.dumps(tree).encode())
    script = overridden("/v2/models/pair/infer", 200, body, "Content-Encoding: gzip\r\n")
    with scripted(script) as url:
        server = {"model": "pair", "api": "kserve", "headers": {"accept-encoding": "gzip"}}
        run, summary = measure(tmp_path, url, server=server, data={"type": "tensors"}, load=ONE)
    assert summary.counts.ok == 1
    assert run.records.rows["bytes_in"][0] >= len(body)
