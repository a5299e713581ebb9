"""Access to the HTTP server: the token, TLS; and the access log."""

import ssl
from typing import Any

import pytest
import trustme
from raw_client import RawClient, request
from served import Served, connect, serving

from inferometer.serve.settings import Limits, Tls
from inferometer.serve.sim.settings import Sim
from inferometer.serve.sockets.listener import place

INFER = "/v2/models/identity/infer"
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}


@pytest.mark.parametrize(
    ("path", "body", "is_open"),
    [
        ("/health", None, True),
        ("/metrics", None, True),
        ("/v2/health/live", None, True),
        ("/v2/health/ready", None, True),
        ("/v2/models/identity/ready", None, True),
        ("/v2/models/identity/versions/1/ready", None, True),
        ("/v2", None, False),
        ("/v2/models/identity", None, False),
        ("/v2/models/identity/config", None, False),
        (INFER, BODY, False),
        ("/v2/repository/index", {}, False),
        ("/v1/models", None, False),
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}, False),
    ],
)
def test_the_token_is_required(guarded: Served, path: str, body: Any, is_open: bool):
    with RawClient(guarded.url) as web:
        for wrong in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic secret"},
            {"Authorization": "secret"},
        ):
            response = web.request(path, body, **wrong)
            assert response.status == (200 if is_open else 401)
            assert is_open or response.headers["www-authenticate"].startswith("Bearer")
            assert (
                is_open
                or (b"the bearer token is not valid" if wrong else b"the bearer token is missing") in response.body
            )
            if path.startswith("/v1"):
                assert response.json["error"]["code"] == "invalid_api_key"
        assert web.request(path, body, Authorization="Bearer secret").status == 200
        assert web.request(path, body, Authorization="bearer  secret").status == 200


@pytest.fixture(scope="module")
def guarded():
    with serving(token="secret", sim=Sim()) as server:
        yield server


def test_without_a_simulator_v1_is_404_in_openais_format():
    with serving() as server, RawClient(server.url) as web:
        for path, body in (("/v1/models", None), ("/v1/chat/completions", {})):
            response = web.request(path, body)
            assert response.status == 404
            assert set(response.json["error"]) == {"message", "type", "code"}
        assert isinstance(web.request("/nowhere").json["error"], str)
        assert web.request("/health", {}).status == 405


def test_draining_refuses_new_simulator_requests():
    with serving(sim=Sim()) as server, RawClient(server.url) as web:
        server.call(server.models.refuse_new)
        response = web.request("/v1/completions", {"prompt": "a"})
        assert (response.status, response.headers["connection"]) == (503, "close")


def test_an_internal_error_is_a_500_and_the_server_continues(monkeypatch: pytest.MonkeyPatch):
    with serving() as server:
        monkeypatch.setattr(server.models, "names", lambda: 1 / 0)
        with RawClient(server.url) as web:
            response = web.request("/v2/models/stats")
            assert response.status == 500
            assert "ZeroDivisionError" in response.json["error"]
        monkeypatch.setattr(server.models, "submit", lambda *_: 1 / 0)
        with RawClient(server.url) as web:
            assert web.request(INFER, BODY).status == 500
        assert server.call(lambda: server.listener.in_flight) == 0
        monkeypatch.undo()
        with RawClient(server.url) as web:
            assert web.request(INFER, BODY).status == 200


def test_the_access_log_has_one_line_per_request_without_headers(capfd: pytest.CaptureFixture[str]):
    with serving(access_log=True, sim=Sim(), token="secret") as server:
        with RawClient(server.url) as web:
            client = f"127.0.0.1:{web.sock.getsockname()[1]}"
            assert web.request(INFER, BODY, Authorization="Bearer secret").status == 200
            assert web.request("/v2/models/other?q=hidden", Authorization="Bearer secret").status == 404
            streamed = {"prompt": "a", "max_tokens": 2, "stream": True}
            assert web.request("/v1/completions", streamed, Authorization="Bearer secret").complete
            assert web.request("/v2").status == 401
        server.call(lambda: None)
    lines = [line.split() for line in capfd.readouterr().err.splitlines()]
    assert [line[1:5] for line in lines] == [
        [client, "POST", INFER, "200"],
        [client, "GET", "/v2/models/other", "404"],
        [client, "POST", "/v1/completions", "200"],
        [client, "GET", "/v2", "401"],
    ]
    assert all(len(line) == 7 and float(line[5]) >= 0 and line[6] == "ms" for line in lines)
    assert not any("secret" in word or "hidden" in word for line in lines for word in line)


CHUNKED = (
    b"POST /v2/chunked HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n80\r\n" + bytes(128) + b"\r\n0\r\n\r\n"
)
PROBLEMS = {
    "a body whose declared length is too long": (request("/v2/long?q=hidden", bytes(101)), "POST", "/v2/long", 413),
    "a body that turns out to be": (CHUNKED, "POST", "/v2/chunked", 413),
    "a head that is too long": (b"GET /v2/head HTTP/1.1\r\nX: " + bytes([120]) * 5000, "-", "-", 431),
    "a path that is": (b"GET /long?q=hidden" + bytes([120]) * 5000, "-", "-", 431),
    "no HTTP": (b"\x16\x03\x01\r\n\r\n", "-", "-", 400),
}


@pytest.mark.parametrize("what", PROBLEMS)
def test_the_access_log_includes_aborted_requests(what: str, capfd: pytest.CaptureFixture[str]):
    data, method, path, status = PROBLEMS[what]
    with (
        serving(access_log=True, limits=Limits(message=100, head=4096)) as server,
        RawClient(server.url) as web,
    ):
        web.send(data)
        assert web.response().status == status
        client = f"127.0.0.1:{web.sock.getsockname()[1]}"
        server.call(lambda: None)
    (line,) = (line.split() for line in capfd.readouterr().err.splitlines())
    assert line[1:5] == [client, method, path, str(status)]
    assert 0 <= float(line[5]) < 1000 * 60  # since the bytes came, and not since the machine started


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (("10.1.2.3", 50), "10.1.2.3:50"),
        (("::1", 50, 0, 0), "[::1]:50"),
        (("::ffff:10.1.2.3", 50, 0, 0), "10.1.2.3:50"),
    ],
)
def test_client_addresses_are_formatted(address: Any, shown: str):
    assert place(address) == shown


def test_inference_over_mutual_tls(authority: trustme.CA, files: dict[str, str]):
    tls = Tls(files["cert"], files["key"], files["ca"])
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with serving(tls=tls) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)), connect(server, context) as sock:
            sock.sendall(request(INFER, BODY))
            sock.recv(1)
        authority.issue_cert("me@example.org").configure_cert(context)
        with connect(server, context) as sock:
            sock.sendall(request(INFER, BODY))
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
