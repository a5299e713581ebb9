"""Access to the gRPC server: TLS, mutual TLS, the token, ports; the access log; stopping."""

import io
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from served import PATIENCE_S, Served, Stub, a_request, dialled, failure, serving
from waiting import until

from inferometer.errors import UserError
from inferometer.serve import access
from inferometer.serve.kserve import messages
from inferometer.serve.settings import Tls
from inferometer.wire import reflection
from inferometer.wire.grpc_framing import one_line

KSERVE = f"{messages.KSERVE_SERVICE}/"
ModelReadyRequest = messages.SCHEMA.message("inference.ModelReadyRequest")

# --- TLS -------------------------------------------------------------------------------------------------------------


def over_tls(address: str, authority: trustme.CA, leaf: trustme.LeafCert | None = None) -> grpc.Channel:
    pair = (leaf.private_key_pem.bytes(), leaf.cert_chain_pems[0].bytes()) if leaf else (None, None)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authority.cert_pem.bytes(), *pair))


def test_tls(files: dict[str, str], authority: trustme.CA) -> None:
    with serving(tls=Tls(files["cert"], files["key"])) as one:
        with over_tls(one.grpc_address, authority) as channel:
            assert Stub(channel).ModelInfer(a_request()).raw_output_contents
        with dialled(one.grpc_address) as plain:
            assert failure(lambda: plain.ModelInfer(a_request(), timeout=PATIENCE_S))[0] == "UNAVAILABLE"


def test_mutual_tls_requires_a_certificate_of_the_authority(files: dict[str, str], authority: trustme.CA) -> None:
    with serving(tls=Tls(files["cert"], files["key"], files["ca"])) as one:
        with over_tls(one.grpc_address, authority, authority.issue_cert("me")) as channel:
            assert Stub(channel).ModelInfer(a_request()).raw_output_contents
        for stranger in (None, trustme.CA().issue_cert("me")):
            with over_tls(one.grpc_address, authority, stranger) as channel:
                call = Stub(channel).ModelInfer
                assert failure(lambda call=call: call(a_request(), timeout=PATIENCE_S))[0] == "UNAVAILABLE"


# --- the token -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(token="secret") as one:
        yield one.grpc_address


GIVEN: dict[str, list[tuple[str, str]]] = {
    "none": [],
    "another": [("authorization", "Bearer other")],
    "a part": [("authorization", "Bearer secre")],
    "no scheme": [("authorization", "secret")],
    "another scheme": [("authorization", "Basic secret")],
}


@pytest.mark.parametrize("given", GIVEN)
def test_calls_without_the_token_are_refused(address: str, given: str) -> None:
    with dialled(address) as stub:
        options: dict[str, Any] = {"metadata": GIVEN[given], "timeout": PATIENCE_S}
        code, words = failure(lambda: stub.ModelInfer(a_request(), **options))
        assert code == "UNAUTHENTICATED"
        assert words.startswith("the bearer token is not valid" if GIVEN[given] else "the bearer token is missing")
        assert failure(lambda: list(stub.ModelStreamInfer(iter([a_request()]), **options)))[0] == "UNAUTHENTICATED"
        assert failure(lambda: stub.ServerMetadata(b"", **options))[0] == "UNAUTHENTICATED"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_calls_with_the_token_are_accepted(address: str, scheme: str) -> None:
    with dialled(address) as stub:
        assert stub.ModelInfer(a_request(), metadata=[("authorization", f"{scheme} secret")])


def test_reflection_requires_the_token_and_health_does_not(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()).status == 1
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == 1
        watch.cancel()
        call = channel.stream_stream(reflection.PATHS[0])
        assert failure(lambda: list(call(iter([b""]), timeout=PATIENCE_S)))[0] == "UNAUTHENTICATED"


def test_readiness_requires_no_token(address: str) -> None:
    with dialled(address) as stub:
        for given in GIVEN.values():
            options: dict[str, Any] = {"metadata": given, "timeout": PATIENCE_S}
            assert stub.ServerLive(b"", **options).live
            assert stub.ServerReady(b"", **options).ready
            assert stub.ModelReady(ModelReadyRequest(name="identity"), **options).ready


@pytest.mark.parametrize("token", [None, "secret"])
def test_all_methods_except_health_and_readiness_require_the_token(token: str | None) -> None:
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with serving(token=token) as one, dialled(one.grpc_address) as stub:
        for method in messages.SCHEMA.methods:
            if method.startswith(KSERVE) and not method.endswith(("Live", "Ready", "Infer", "Settings", "Setting")):
                name = method.removeprefix(KSERVE)
                if token:
                    assert failure(lambda name=name: getattr(stub, name)(b""))[0] == "UNAUTHENTICATED"
                try:
                    getattr(stub, name)(b"", metadata=metadata, timeout=PATIENCE_S)
                except grpc.RpcError as error:
                    assert error.code().name not in ("UNAUTHENTICATED", "UNIMPLEMENTED", "UNKNOWN"), method


# --- ports -----------------------------------------------------------------------------------------------------------


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UserError, match=r"192\.0\.2\.1 port 0 is not available"), serving(host="192.0.2.1"):
        pass


# --- the access log --------------------------------------------------------------------------------------------------


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard error. (pytest's own capture loses what is written while it is read.)"""
    written = io.StringIO()
    monkeypatch.setattr(access, "sys", SimpleNamespace(stderr=written))
    return written


def lines_of(log: io.StringIO, count: int) -> list[str]:
    """Return the lines once there are `count`: a call's line may be written after its response."""
    until(lambda: log.getvalue().count("\n") >= count, f"{count} lines")
    return log.getvalue().splitlines()


def test_the_access_log_has_one_line_per_call(log: io.StringIO) -> None:
    with serving(access_log=True) as one, dialled(one.grpc_address) as stub:
        stub.ModelInfer(a_request())
        failure(lambda: stub.ModelInfer(a_request("nope"), metadata=[("authorization", "Bearer private")]))
        lines_of(log, 2)
        list(stub.ModelStreamInfer(iter([a_request()])))
        lines_of(log, 3)
    lines = log.getvalue().splitlines()
    assert [line.split()[2:5] for line in lines] == [
        ["GRPC", "/inference.GRPCInferenceService/ModelInfer", "OK"],
        ["GRPC", "/inference.GRPCInferenceService/ModelInfer", "NOT_FOUND"],
        ["GRPC", "/inference.GRPCInferenceService/ModelStreamInfer", "OK"],
    ]
    assert "private" not in "".join(lines)


def logged(log: io.StringIO, calls: Callable[[Served], None], count: int, **settings: Any) -> list[str]:
    """Return the lines of a server after these calls."""
    with serving(access_log=True, **settings) as one:
        calls(one)
        lines_of(log, count)
    return log.getvalue().splitlines()


def test_the_access_log_includes_refused_calls(log: io.StringIO) -> None:
    def calls(one: Served) -> None:
        with grpc.insecure_channel(one.grpc_address) as channel:
            token: dict[str, Any] = {"metadata": [("authorization", "Bearer secret")], "timeout": PATIENCE_S}
            failure(lambda: Stub(channel).ModelInfer(a_request()))
            failure(lambda: list(Stub(channel).ModelStreamInfer(iter([a_request()]))))
            for path in ("/no.such/Method", "/no.such/a line"):
                assert failure(lambda path=path: channel.unary_unary(path)(b"", **token))[0] == "UNIMPLEMENTED"

    lines = logged(log, calls, 4, token="secret")
    assert sorted(line.split()[3:5] for line in lines) == [
        ["/inference.GRPCInferenceService/ModelInfer", "UNAUTHENTICATED"],
        ["/inference.GRPCInferenceService/ModelStreamInfer", "UNAUTHENTICATED"],
        ["/no.such/Method", "UNIMPLEMENTED"],
        ["/no.such/a%20line", "UNIMPLEMENTED"],
    ]


def test_the_access_log_has_the_client_of_expired_calls(log: io.StringIO) -> None:
    with serving(access_log=True) as one, dialled(one.grpc_address) as stub:

        def is_written() -> bool:
            """Of the first call that came in before its time was over."""
            failure(lambda: stub.ModelInfer(a_request("slow"), timeout=0.1))
            return "DEADLINE_EXCEEDED" in log.getvalue()

        until(is_written)
    lines = log.getvalue().splitlines()
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+", line.split()[1]) for line in lines), lines


def test_ipv6_clients_are_logged_as_addresses(log: io.StringIO) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no ::1")

    def calls(one: Served) -> None:
        with dialled(f"[::1]:{one.grpc_port}") as stub:
            stub.ModelInfer(a_request(), timeout=PATIENCE_S)

    (line,) = logged(log, calls, 1, host="::1")
    assert re.fullmatch(r"\[::1\]:\d+", line.split()[1]), line


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


# --- the end ---------------------------------------------------------------------------------------------------------


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


def test_status_messages_are_one_bounded_line() -> None:
    assert one_line("a\n  b\tc") == "a b c"
    assert len(one_line("x" * 5000)) == 1000
    assert one_line("half \ud800 a pair") == "half ? a pair"


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
