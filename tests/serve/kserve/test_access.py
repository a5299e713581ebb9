"""Access over HTTP and gRPC: mutual TLS, the token, addresses; the access log; stopping."""

import io
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from raw_client import RawClient, request
from served import PATIENCE_S, Served, Stub, a_request, connect, dialled, failure, serving
from waiting import until

from inferometer.errors import UserError
from inferometer.serve import access
from inferometer.serve.kserve import messages
from inferometer.serve.settings import Limits, Tls
from inferometer.serve.sim.settings import Sim
from inferometer.serve.sockets.listener import place
from inferometer.wire import reflection
from inferometer.wire.grpc_framing import one_line

KSERVE = f"{messages.KSERVE_SERVICE}/"
ModelReadyRequest = messages.SCHEMA.message("inference.ModelReadyRequest")
INFER = "/v2/models/identity/infer"
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
SECRET = "Bearer secret"


def test_mutual_tls_requires_a_certificate_of_the_authority(files: dict[str, str], authority: trustme.CA) -> None:
    ca, mine = authority.cert_pem.bytes(), authority.issue_cert("me")
    with serving(tls=Tls(files["cert"], files["key"], files["ca"])) as one:

        def over_grpc(leaf: trustme.LeafCert | None) -> Any:
            pair = (leaf.private_key_pem.bytes(), leaf.cert_chain_pems[0].bytes()) if leaf else (None, None)
            with grpc.secure_channel(one.grpc_address, grpc.ssl_channel_credentials(ca, *pair)) as channel:
                return Stub(channel).ModelInfer(a_request(), timeout=PATIENCE_S)

        assert over_grpc(mine).raw_output_contents
        for stranger in (None, trustme.CA().issue_cert("me")):
            assert failure(lambda stranger=stranger: over_grpc(stranger))[0] == "UNAVAILABLE"
        with dialled(one.grpc_address) as plain:
            assert failure(lambda: plain.ModelInfer(a_request(), timeout=PATIENCE_S))[0] == "UNAVAILABLE"
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with pytest.raises((ssl.SSLError, ConnectionError)), connect(one, context) as sock:
            sock.sendall(request(INFER, BODY))
            sock.recv(1)
        mine.configure_cert(context)
        with connect(one, context) as sock:
            sock.sendall(request(INFER, BODY))
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")


# --- the token -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serving(token="secret", sim=Sim()) as one:
        yield one


WRONG = (None, "Bearer other", "Bearer secre", "secret", "Basic secret")
"""Values of the header `authorization`."""


def why(given: str | None) -> str:
    return f"the bearer token is {'not valid' if given else 'missing'}"


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
def test_http_requires_the_token(guarded: Served, path: str, body: Any, is_open: bool) -> None:
    with RawClient(guarded.url) as web:
        for wrong in WRONG:
            response = web.request(path, body, **({"Authorization": wrong} if wrong else {}))
            assert response.status == (200 if is_open else 401)
            if not is_open:
                assert response.headers["www-authenticate"].startswith("Bearer")
                assert why(wrong).encode() in response.body
            if path.startswith("/v1"):
                assert response.json["error"]["code"] == "invalid_api_key"
        assert web.request(path, body, Authorization=SECRET).status == 200
        assert web.request(path, body, Authorization="bearer  secret").status == 200


@pytest.mark.parametrize("wrong", WRONG)
def test_grpc_requires_the_token_except_for_health_and_readiness(guarded: Served, wrong: str | None) -> None:
    given: dict[str, Any] = {"metadata": [("authorization", wrong)] if wrong else [], "timeout": PATIENCE_S}
    valid: dict[str, Any] = {"metadata": [("authorization", "bearer secret")], "timeout": PATIENCE_S}
    with dialled(guarded.grpc_address) as stub:
        assert stub.ServerLive(b"", **given).live
        assert stub.ServerReady(b"", **given).ready
        assert stub.ModelReady(ModelReadyRequest(name="identity"), **given).ready
        for call in (
            lambda: stub.ModelInfer(a_request(), **given),
            lambda: list(stub.ModelStreamInfer(iter([a_request()]), **given)),
        ):
            code, words = failure(call)
            assert (code, words.startswith(why(wrong))) == ("UNAUTHENTICATED", True), words
        assert stub.ModelInfer(a_request(), **valid)
        for method in messages.SCHEMA.methods:
            if method.startswith(KSERVE) and not method.endswith(("Live", "Ready", "Infer", "Settings", "Setting")):
                query = getattr(stub, method.removeprefix(KSERVE))
                assert failure(lambda query=query: query(b"", **given))[0] == "UNAUTHENTICATED"
                try:
                    query(b"", **valid)
                except grpc.RpcError as error:
                    assert error.code().name not in ("UNAUTHENTICATED", "UNIMPLEMENTED", "UNKNOWN"), method


def test_reflection_requires_the_token_and_health_does_not(guarded: Served) -> None:
    with grpc.insecure_channel(guarded.grpc_address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == 1
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == 1
        watch.cancel()
        call = channel.stream_stream(reflection.PATHS[0])
        assert failure(lambda: list(call(iter([b""]), timeout=PATIENCE_S)))[0] == "UNAUTHENTICATED"


# --- addresses -------------------------------------------------------------------------------------------------------


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UserError, match=r"192\.0\.2\.1 port 0 is not available"), serving(host="192.0.2.1"):
        pass


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (("10.1.2.3", 50), "10.1.2.3:50"),
        (("::1", 50, 0, 0), "[::1]:50"),
        (("::ffff:10.1.2.3", 50, 0, 0), "10.1.2.3:50"),
    ],
)
def test_client_addresses_are_formatted(address: Any, shown: str) -> None:
    assert place(address) == shown


# --- errors ----------------------------------------------------------------------------------------------------------


def test_without_a_simulator_v1_is_404_in_openais_format() -> None:
    with serving() as one, RawClient(one.url) as web:
        for path, body in (("/v1/models", None), ("/v1/chat/completions", {})):
            response = web.request(path, body)
            assert response.status == 404
            assert set(response.json["error"]) == {"message", "type", "code"}
        assert isinstance(web.request("/nowhere").json["error"], str)
        assert web.request("/health", {}).status == 405


def test_an_internal_error_is_a_500_and_the_server_continues(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_status_messages_are_one_bounded_line() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    assert len(one_line("x" * 5000)) == 1000
    assert one_line("half \ud800 a pair") == "half ? a pair"


# --- the access log --------------------------------------------------------------------------------------------------


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error. (pytest's own capture loses what is written while it is read.)"""
    written = io.StringIO()
    monkeypatch.setattr(access, "sys", SimpleNamespace(stderr=written))
    return written


def lines_of(log: io.StringIO, count: int) -> list[list[str]]:
    """Return the words of the lines once there are `count`: a line may be written after its response."""
    until(lambda: log.getvalue().count("\n") >= count, f"{count} lines")
    return [line.split() for line in log.getvalue().splitlines()]


def test_the_access_log_has_one_line_per_request_without_headers(log: io.StringIO) -> None:
    with serving(access_log=True, sim=Sim(), token="secret") as one:
        with RawClient(one.url) as web:
            client = f"127.0.0.1:{web.sock.getsockname()[1]}"
            assert web.request(INFER, BODY, Authorization=SECRET).status == 200
            assert web.request("/v2/models/other?q=hidden", Authorization=SECRET).status == 404
            streamed = {"prompt": "a", "max_tokens": 2, "stream": True}
            assert web.request("/v1/completions", streamed, Authorization=SECRET).complete
            assert web.request("/v2").status == 401
        assert [line[1:5] for line in lines_of(log, 4)] == [
            [client, "POST", INFER, "200"],
            [client, "GET", "/v2/models/other", "404"],
            [client, "POST", "/v1/completions", "200"],
            [client, "GET", "/v2", "401"],
        ]
        token: dict[str, Any] = {"metadata": [("authorization", SECRET)], "timeout": PATIENCE_S}
        with grpc.insecure_channel(one.grpc_address) as channel:
            stub = Stub(channel)
            stub.ModelInfer(a_request(), **token)
            failure(lambda: stub.ModelInfer(a_request("nope"), **token))
            list(stub.ModelStreamInfer(iter([a_request()]), **token))
            failure(lambda: stub.ModelInfer(a_request()))
            failure(lambda: list(stub.ModelStreamInfer(iter([a_request()]))))
            for path in ("/no.such/Method", "/no.such/a line"):
                assert failure(lambda path=path: channel.unary_unary(path)(b"", **token))[0] == "UNIMPLEMENTED"
        lines = lines_of(log, 11)
    infer, stream = (f"/{KSERVE}{name}" for name in ("ModelInfer", "ModelStreamInfer"))
    assert sorted(line[2:5] for line in lines[4:]) == sorted(
        ["GRPC", path, status]
        for path, status in (
            (infer, "OK"),
            (infer, "NOT_FOUND"),
            (stream, "OK"),
            (infer, "UNAUTHENTICATED"),
            (stream, "UNAUTHENTICATED"),
            ("/no.such/Method", "UNIMPLEMENTED"),
            ("/no.such/a%20line", "UNIMPLEMENTED"),
        )
    )
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


def test_the_access_log_includes_aborted_requests(log: io.StringIO) -> None:
    with serving(access_log=True, limits=Limits(message=100, head=4096)) as one:
        for count, (data, method, path, status) in enumerate(PROBLEMS.values(), 1):
            with RawClient(one.url) as web:
                web.send(data)
                assert web.response().status == status
                client = f"127.0.0.1:{web.sock.getsockname()[1]}"
            line = lines_of(log, count)[-1]
            assert line[1:5] == [client, method, path, str(status)]
            assert 0 <= float(line[5]) < 1000 * 60  # since the bytes came, and not since the machine started


def test_the_access_log_has_the_client_of_expired_calls(log: io.StringIO) -> None:
    with serving(access_log=True) as one, dialled(one.grpc_address) as stub:

        def is_written() -> bool:
            """Of the first call that came in before its time was over."""
            failure(lambda: stub.ModelInfer(a_request("slow"), timeout=0.1))
            return "DEADLINE_EXCEEDED" in log.getvalue()

        until(is_written)
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", line[1]) for line in lines_of(log, 1))


def test_ipv6_clients_are_logged_as_addresses(log: io.StringIO) -> None:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no ::1")
    with serving(access_log=True, host="::1") as one, dialled(f"[::1]:{one.grpc_port}") as stub:
        stub.ModelInfer(a_request(), timeout=PATIENCE_S)
        (line,) = lines_of(log, 1)
    assert re.fullmatch(r"\[::1\]:\d+", line[1])


# --- the end ---------------------------------------------------------------------------------------------------------


def test_draining_refuses_new_simulator_requests() -> None:
    with serving(sim=Sim()) as one, RawClient(one.url) as web:
        one.call(one.models.refuse_new)
        response = web.request("/v1/completions", {"prompt": "a"})
        assert (response.status, response.headers["connection"]) == (503, "close")


def test_stopping_finishes_calls_in_progress_and_ends_idle_streams(tmp_path: Path) -> None:
    with serving() as one, dialled(one.grpc_address) as stub:
        idle_is_over = threading.Event()

        def never_more() -> Iterator[Any]:
            yield a_request()
            idle_is_over.wait(PATIENCE_S)

        idle = stub.ModelStreamInfer(never_more())
        assert next(idle).infer_response.raw_output_contents
        held = stub.ModelInfer.future(a_request("held", until=str(tmp_path / "go on")))
        until(lambda: one.in_flight() == 1)
        stopped = threading.Thread(target=one.run, args=(one.grpc.stop, 1000.0))
        stopped.start()
        assert failure(lambda: list(idle))[0] == "UNAVAILABLE"  # it may have sent what was not read
        (tmp_path / "go on").touch()
        assert held.result(PATIENCE_S).raw_output_contents
        stopped.join(PATIENCE_S)
        assert not stopped.is_alive()
        idle_is_over.set()


def test_pending_calls_are_refused_with_an_error() -> None:
    """gRPC has received them all when it is stopped, and Python has taken one."""
    with serving() as one, dialled(one.grpc_address) as stub:
        stub.ModelInfer(a_request())
        busy, go_on = threading.Event(), threading.Event()

        async def stop() -> None:
            busy.set()
            go_on.wait(PATIENCE_S)
            one.models.refuse_new()
            await one.grpc.stop(1000.0)

        stopped = threading.Thread(target=one.run, args=(stop,))
        stopped.start()
        assert busy.wait(PATIENCE_S)
        calls = [stub.ModelInfer.future(a_request()) for _ in range(8)]
        go_on.wait(0.2)  # they are on their way; one that comes later still is refused in any case
        go_on.set()
        assert {failure(lambda call=call: call.result(PATIENCE_S))[0] for call in calls} == {"UNAVAILABLE"}
        stopped.join(PATIENCE_S)
        assert not stopped.is_alive()
