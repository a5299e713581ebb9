"""What a port speaks, for URLs without a scheme."""

import grpc
import pytest
from grpc_peers import grpcio
from helpers import Client, polite, scripted

from inferometer.errors import UserError
from inferometer.probe.scheme import with_scheme


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
