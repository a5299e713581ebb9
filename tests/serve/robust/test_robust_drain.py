"""SIGTERM under load: watchers are notified first, all accepted requests get responses, and the exit status is 0.

The server's access log is the reference: clients must have received as many responses as it sent.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from raw_client import RawClient
from robust_peer import (
    MODEL_INFER,
    PORTS,
    STREAM_INFER,
    Child,
    Http,
    Tally,
    child,
    dialled,
    http_request,
    infer_head,
    pending,
    responds,
    small,
    unary,
    write_held,
    write_models,
)
from served import PATIENCE_S, a_request, delayed
from waiting import until

from inferometer.serve.background import serving
from inferometer.serve.kserve.messages import ModelStreamInferResponse
from inferometer.serve.settings import Settings
from inferometer.wire import protobuf

HEALTH = protobuf.bundled("health")
CheckRequest = HEALTH.message("grpc.health.v1.HealthCheckRequest")
CheckResponse = HEALTH.message("grpc.health.v1.HealthCheckResponse")
SERVING, NOT_SERVING = 1, 2
IN_WORDS = ("stopping", "shutting down")
NO_CONNECTION = ("failed to connect", "GOAWAY", "Connection refused")
"""grpcio's messages for a call that never reached a server."""
UNHURRIED = """
from inferometer.serve import app
from inferometer.serve.grpc import server
from inferometer.serve.sockets import listener

app._ANNOUNCED_S, listener._QUIET_NS, server._LAST_S = 1.0, 500_000_000, 0.3
"""
"""Watchers are notified first because the server delays its first refusal, and requests that cross its announcement get
responses because it delays closing: here for longer than a thread of this test may be blocked on a busy machine."""


class Load:
    """Clients in a loop until the server is gone; counts their responses, and when the first was refused."""

    def __init__(self, server: Child, model: str) -> None:
        self.server, self.model = server, model
        self.http, self.grpc, self.streams = Tally(), Tally(), Tally()
        self.first_refused = float("inf")
        self._threads: list[threading.Thread] = []

    def start(self, client: Callable[[], None], count: int) -> None:
        for _ in range(count):
            thread = threading.Thread(target=client, daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a client still waits for a response"

    def _refused(self, tally: Tally, why: str) -> None:
        self.first_refused = min(self.first_refused, time.monotonic())
        tally.refuse(why)

    def over_http(self) -> None:
        """Send requests over keep-alive connections until no connection is accepted."""
        data = small(self.model)
        while True:
            try:
                client = Http(self.server.url)
            except ConnectionRefusedError:
                return
            with client:
                client.closes = False
                while not client.closes:
                    status, body = client.request(data)
                    if status == 200:
                        self.http.serve()
                    elif status == 503:
                        self._refused(self.http, body.decode())
                    else:
                        self.http.lose(f"{status} {body!r} {client.cut}")
                        return

    def over_grpc(self) -> None:
        message = a_request(self.model).SerializeToString()
        with dialled(self.server.grpc_address) as channel:
            call = channel.unary_unary(MODEL_INFER)
            while True:
                try:
                    call(message, timeout=PATIENCE_S)
                    self.grpc.serve()
                except grpc.RpcError as error:
                    self._end_of(error, self.grpc)
                    return

    def over_a_stream(self) -> None:
        """Send each request when the previous response has arrived."""
        message, sent, go_on = a_request(self.model).SerializeToString(), 0, threading.Semaphore(1)

        def requests() -> Iterator[bytes]:
            nonlocal sent
            while go_on.acquire(timeout=PATIENCE_S):
                sent += 1
                yield message

        with dialled(self.server.grpc_address) as channel:
            try:
                for data in channel.stream_stream(STREAM_INFER)(requests()):
                    why = ModelStreamInferResponse.FromString(data).error_message
                    if why:
                        self._refused(self.streams, why)
                    else:
                        self.streams.serve()
                    go_on.release()
            except grpc.RpcError as error:
                self._end_of(error, self.streams)

    def _end_of(self, error: grpc.RpcError, tally: Tally) -> None:
        why = f"{error.code().name}: {error.details()}"
        if error.code() == grpc.StatusCode.UNAVAILABLE and any(words in why for words in IN_WORDS):
            self._refused(tally, why)
        elif error.code() == grpc.StatusCode.UNAVAILABLE and any(words in why for words in NO_CONNECTION):
            pass
        else:
            tally.lose(why)


class Watcher:
    """Health's Watch: the statuses received, and when NOT_SERVING arrived."""

    def __init__(self, server: Child) -> None:
        self.statuses: list[int] = []
        self.not_serving_at = float("inf")
        self._address = server.grpc_address
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        with dialled(self._address) as channel:
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch", None, CheckResponse.FromString)
            try:
                for response in watch(CheckRequest().SerializeToString()):
                    self.statuses.append(response.status)
                    if response.status == NOT_SERVING:
                        self.not_serving_at = min(self.not_serving_at, time.monotonic())
            except grpc.RpcError:
                pass

    def end(self) -> None:
        self._thread.join(PATIENCE_S)


@pytest.mark.slow
def test_no_accepted_request_is_lost(tmp_path: Path) -> None:
    models = write_models(tmp_path, busy=delayed("30ms", slots=3))
    with child(models, "identity", *PORTS, "--access-log", first=UNHURRIED) as server:
        load, watcher = Load(server, "busy"), Watcher(server)
        load.start(load.over_http, 6)
        load.start(load.over_grpc, 4)
        load.start(load.over_a_stream, 2)
        tallies = (load.http, load.grpc, load.streams)
        until(
            lambda: all(tally.served >= 8 for tally in tallies) and watcher.statuses == [SERVING],
            "all clients are running",
        )
        assert server.stop() == 0
        load.end()
        watcher.end()
        log = server.errors().splitlines()
    assert [tally.lost for tally in tallies] == [{}, {}, {}]
    assert watcher.statuses == [SERVING, NOT_SERVING]
    assert watcher.not_serving_at < load.first_refused
    assert load.http.served == sum("/infer 200 " in line for line in log)
    assert load.grpc.served == sum(f"{MODEL_INFER} OK" in line for line in log)
    assert sum(load.http.refused.values()) == sum("/infer 503 " in line for line in log)
    assert not any("Traceback" in line for line in log)


def test_readiness_fails_while_requests_are_finished(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    models = write_held(tmp_path / "models", "held", go_on)
    with (
        child(models, "identity", *PORTS, "--drain=60s") as server,
        Http(server.url) as client,
        Http(server.url) as prober,
    ):
        assert prober.json("GET", "/v2/health/ready")[0] == 200
        client.sock.sendall(small("held"))
        with dialled(server.grpc_address) as channel:
            call = channel.unary_unary(MODEL_INFER).future(a_request("held").SerializeToString())
            until(lambda: pending(server, "held") == 1, "one request runs and the other is queued")
            server.process.send_signal(signal.SIGTERM)
            status = 200
            while status == 200:
                status, _ = prober.request(http_request("GET", "/v2/health/ready"))
            assert status == 400
            until(server.refuses_connections, "connections are refused")
            go_on.touch()
            assert client.read_response()[0] == 200
            assert client.closes
            assert call.result(PATIENCE_S)
            assert server.process.wait(PATIENCE_S) == 0  # the idle connections do not delay it
        assert server.errors() == ""


def test_metrics_can_be_read_from_their_port_until_the_end(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    settings = Settings(models=(write_held(tmp_path / "models", "held", go_on),), http=0, metrics=0, drain=60)
    with (
        serving(settings) as server,
        RawClient(server.url) as client,
        RawClient(server.url) as prober,
        RawClient(server.metrics.removesuffix("/metrics")) as scraper,
    ):
        assert prober.request("/health").status == scraper.request("/metrics").status == 200
        client.send(small("held"))
        os.kill(server.pid, signal.SIGTERM)
        until(lambda: prober.request("/health").status in (503, 0))
        assert [scraper.request("/metrics").status for _ in range(3)] == [200] * 3
        go_on.touch()
        assert client.response().status == 200


def test_not_ready_is_reported_before_requests_are_refused() -> None:
    """Here for longer than the test takes: until a second signal, watchers are notified and all requests are served."""
    long = "from inferometer.serve import app\napp._ANNOUNCED_S = 1000.0"
    with child("identity", *PORTS, "--drain=2000s", first=long) as server, dialled(server.grpc_address) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch", None, CheckResponse.FromString)
        statuses = watch(CheckRequest().SerializeToString(), timeout=PATIENCE_S)
        assert next(statuses).status == SERVING
        with Http(server.url) as client:
            assert client.json("GET", "/v2/health/ready")[0] == 200
            server.process.send_signal(signal.SIGTERM)
            assert next(statuses).status == NOT_SERVING
            until(lambda: client.json("GET", "/v2/health/ready")[0] == 400, "readiness fails")
            assert client.json("GET", "/v2/models/identity/ready")[0] == 400
            assert not unary(channel, "ServerReady").ready
            assert responds(server)  # over new connections, too
        assert server.stop(signal.SIGTERM) == 0
        assert server.errors() == ""


def test_unfinished_requests_are_refused_when_the_drain_time_is_over(tmp_path: Path) -> None:
    """They get an error instead of a closed connection."""
    models = write_models(tmp_path, long=delayed("60s", slots=1))
    with child(models, "identity", *PORTS, "--drain=500ms") as server, Http(server.url) as client:
        client.sock.sendall(small("long"))
        with dialled(server.grpc_address) as channel:
            call = channel.unary_unary(MODEL_INFER).future(a_request("long").SerializeToString(), timeout=PATIENCE_S)
            until(lambda: pending(server, "long") == 1, "one request runs and the other is queued")
            assert server.stop() == 0
            assert (call.code(), call.details()) == (
                grpc.StatusCode.UNAVAILABLE,
                "the server stopped before the request was complete",
            )
        status, body = client.read_response()
        assert (status, body) == (503, b'{"error":"the server stopped before the request was complete"}')


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    models = write_models(tmp_path, long=delayed("60s", slots=1))
    with child(models, "identity", *PORTS, "--drain=60s") as server:
        with (
            Http(server.url) as client,
            Http(server.url) as other,
            Http(server.url) as upload,
            Http(server.url) as prober,
        ):
            upload.sock.sendall(infer_head("identity", 400_000, [1, 100_000]))
            for each in (client, other):
                each.sock.sendall(small("long"))
            until(lambda: pending(server, "long") == 1, "one request runs and the other is queued")
            server.process.send_signal(signal.SIGTERM)
            until(
                lambda: prober.request(http_request("GET", "/v2/health/ready"))[0] != 200,
                "the server handled the signal",
            )
            assert server.process.poll() is None
            assert server.stop(signal.SIGTERM) == 0  # in less than the 60 s that the drain would take
        assert server.errors() == ""
