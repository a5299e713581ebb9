"""Who is let in, over which transport, and what is logged."""

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from raw_client import RawClient, request
from served import Served, connect, serving

from inferometer.serve.settings import Settings, Tls
from inferometer.serve.sim.settings import Sim

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
        ("/", None, False),
        ("/v2", None, False),
        ("/v2/models/identity", None, False),
        ("/v2/models/identity/config", None, False),
        (INFER, BODY, False),
        ("/v2/repository/index", {}, False),
        ("/v1/models", None, False),
        ("/v1/completions", {"prompt": "a", "max_tokens": 1}, False),
    ],
)
def test_the_token_is_asked_for(guarded: Served, path: str, body: Any, is_open: bool):
    with RawClient(guarded.url) as web:
        for wrong in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic secret"},
            {"Authorization": "secret"},
        ):
            answer = web.ask(path, body, **wrong)
            assert answer.status == (200 if is_open else 401)
            assert is_open or answer.headers["www-authenticate"].startswith("Bearer")
            assert is_open or (b"the bearer token is wrong" if wrong else b"no bearer token was given") in answer.body
            if path.startswith("/v1"):
                assert answer.json["error"]["code"] == "invalid_api_key"
        assert web.ask(path, body, Authorization="Bearer secret").status == 200
        assert web.ask(path, body, Authorization="bearer  secret").status == 200


@pytest.fixture(scope="module")
def guarded():
    with serving(Settings(token="secret", sim=Sim())) as server:
        yield server


def test_without_a_simulator_v1_is_404_in_openais_words():
    with serving() as server, RawClient(server.url) as web:
        for path, body in (("/v1/models", None), ("/v1/chat/completions", {})):
            answer = web.ask(path, body)
            assert answer.status == 404
            assert set(answer.json["error"]) == {"message", "type", "code"}
        assert isinstance(web.ask("/nowhere").json["error"], str)
        assert web.ask("/health", {}).status == 405


def test_the_simulator_and_the_models_share_a_port(server: Served):
    with RawClient(server.url) as web:
        assert web.ask("/v1/completions", {"prompt": "a", "max_tokens": 3}).json["usage"]["completion_tokens"] == 3
        answer = web.ask("/v1/completions", {"prompt": "a", "max_tokens": 3, "stream": True})
        assert answer.events[-1] == "[DONE]"
        assert web.ask(INFER, BODY).status == 200
        assert web.ask("/").json["openai"]["models"] == ["sim"]
        assert "identity" in web.ask("/").json["kserve"]["models"]


def test_at_the_end_the_simulator_takes_nothing_new_either():
    with serving(Settings(sim=Sim())) as server, RawClient(server.url) as web:
        server.call(server.web.refuse_new)
        answer = web.ask("/v1/completions", {"prompt": "a"})
        assert (answer.status, answer.headers["connection"]) == (503, "close")


def test_an_error_of_ours_is_a_500_and_the_server_goes_on(monkeypatch: pytest.MonkeyPatch):
    with serving() as server:
        monkeypatch.setattr(server.models, "names", lambda: 1 / 0)
        with RawClient(server.url) as web:
            answer = web.ask("/")
            assert answer.status == 500
            assert "ZeroDivisionError" in answer.json["error"]
        monkeypatch.setattr(server.models, "submit", lambda *_: 1 / 0)
        with RawClient(server.url) as web:
            assert web.ask(INFER, BODY).status == 500
        assert server.call(lambda: server.listener.in_flight) == 0
        monkeypatch.undo()
        with RawClient(server.url) as web:
            assert web.ask(INFER, BODY).status == 200


def test_the_access_log_has_a_line_for_each_request_and_no_headers(capfd: pytest.CaptureFixture[str]):
    with serving(Settings(access_log=True, sim=Sim(), token="secret")) as server:
        with RawClient(server.url) as web:
            assert web.ask(INFER, BODY, Authorization="Bearer secret").status == 200
            assert web.ask("/v2/models/other?q=hidden", Authorization="Bearer secret").status == 404
            streamed = {"prompt": "a", "max_tokens": 2, "stream": True}
            assert web.ask("/v1/completions", streamed, Authorization="Bearer secret").complete
            assert web.ask("/v2").status == 401
        server.call(lambda: None)
    lines = [line.split() for line in capfd.readouterr().err.splitlines()]
    assert [line[1:5] for line in lines] == [
        ["127.0.0.1", "POST", INFER, "200"],
        ["127.0.0.1", "GET", "/v2/models/other", "404"],
        ["127.0.0.1", "POST", "/v1/completions", "200"],
        ["127.0.0.1", "GET", "/v2", "401"],
    ]
    assert all(len(line) == 7 and int(line[5]) > 0 and float(line[6]) >= 0 for line in lines)
    assert not any("secret" in word or "hidden" in word for line in lines for word in line)


def test_inference_over_mutual_tls(tmp_path: Path):
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = Tls(*(str(tmp_path / name) for name in ("cert.pem", "key.pem", "ca.pem")))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with serving(Settings(tls=tls)) as server:
        with pytest.raises((ssl.SSLError, ConnectionError)), connect(server, context) as sock:
            sock.sendall(request(INFER, BODY))
            sock.recv(1)
        authority.issue_cert("me@example.org").configure_cert(context)
        with connect(server, context) as sock:
            sock.sendall(request(INFER, BODY))
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
