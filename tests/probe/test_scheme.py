"""What a port speaks, for URLs without a scheme and data without an API."""

import grpc
import kserve_peers
import pytest
from grpc_peers import grpcio
from helpers import Client, http_response, polite, scripted

from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.probe.scheme import DISCOVERY, with_scheme


def refuse(client: Client) -> None:
    client.request()
    client.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


def close(client: Client) -> None:
    client.request()


def test_any_response_over_http_will_do() -> None:
    with scripted(refuse) as url:
        assert with_scheme(url.removeprefix("http://")) == url
        assert with_scheme(url.removeprefix("http://") + "/prefix/v1") == f"{url}/prefix/v1"


def test_a_grpc_server() -> None:
    def unary(message: bytes, context: grpc.ServicerContext) -> bytes:
        return message

    with grpcio(Unary=unary) as url:
        assert with_scheme(url.removeprefix("grpc://")) == url


def test_a_server_that_closes_without_a_byte_is_neither() -> None:
    with scripted(close) as url, pytest.raises(UserError, match="closed the connection"):
        with_scheme(url.removeprefix("http://"))


def test_nothing_listens() -> None:
    with scripted(polite) as url:
        pass
    with pytest.raises(UserError, match="connection refused"):
        with_scheme(url.removeprefix("http://"))


def test_the_api_is_that_of_a_tensor_server_unless_the_data_decides() -> None:
    with scripted(kserve_peers.over_http()) as url:

        def api_of(**tree: object) -> str:
            return from_mapping({"server": {"url": url}} | tree, discovery=DISCOVERY).server.api

        assert api_of() == "kserve"
        assert api_of(data={"prompts": ["x"]}) == "chat"
        assert from_mapping({"server": {"url": url}}).server.api == "chat", "the server was not asked"
    assert api_of() == "chat", "it is left to the run to report that nothing listens"
    with scripted(refuse) as url:
        assert api_of() == "chat"


@pytest.mark.parametrize("body", [b"<html>", b"vllm:num_requests_running 1", b'{"detail": "?"}', b"[" * 10_000])
def test_a_server_that_answers_every_path_is_no_tensor_server(body: bytes) -> None:
    def script(client: Client) -> None:
        while client.request():
            client.send(http_response(body))

    with scripted(script) as url:
        assert DISCOVERY.api(url) == "chat"


@pytest.mark.parametrize(
    ("models", "api"),
    [
        (b'{"models": ["m"]}', "kserve"),  # as KServe's own servers list them
        (b'{"data": []}', "kserve"),
        (b'{"data": [{"id": "m"}]}', "chat"),
    ],
)
def test_a_tensor_server_may_have_a_list_of_models(models: bytes, api: str) -> None:
    def script(client: Client) -> None:
        while request := client.request():
            client.send(http_response(models if "/v1/models" in request[0] else b'{"name": "x"}'))

    with scripted(script) as url:
        assert DISCOVERY.api(url) == api
