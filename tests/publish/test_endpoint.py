"""The live endpoint over HTTP: its paths, and clients that behave badly."""

import contextlib
import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from spools import FakeShard, rows
from waiting import until

from inferometer.errors import UserError
from inferometer.publish import endpoint as endpoint_module
from inferometer.publish.endpoint import LOOPBACK, LiveEndpoint
from inferometer.publish.families import LiveFamilies, RunInfo
from inferometer.publish.live_counts import LiveCounts


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[LiveEndpoint]:
    served = make(tmp_path)
    served.start()
    yield served
    served.close()


def make(folder: Path, port: int = 0, host: str = LOOPBACK) -> LiveEndpoint:
    info = RunInfo("run", "http://127.0.0.1:8000", "m", "chat", "1.0")
    families = LiveFamilies(LiveCounts(folder, 1, ("only",)), info, lambda _stage, _seconds: None)
    return LiveEndpoint(families, port, host)


def port_of(endpoint: LiveEndpoint) -> int:
    return int(endpoint.url.removesuffix("/metrics").rpartition(":")[2])


def request(endpoint: LiveEndpoint, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, port_of(endpoint), timeout=10)
    with contextlib.closing(connection):
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read()


def completed(endpoint: LiveEndpoint) -> float:
    _, _, body = request(endpoint, "/metrics")
    (line,) = [line for line in body.decode().splitlines() if line.startswith("inferometer_requests_completed_total{")]
    return float(line.rpartition(" ")[2])


def test_paths(endpoint: LiveEndpoint) -> None:
    status, kind, body = request(endpoint, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"\ninferometer_in_flight 0.0\n" in body
    assert request(endpoint, "/metrics", "HEAD") == (200, kind, b"")
    assert request(endpoint, "/metrics?name=x")[0] == 200
    status, _, hint = request(endpoint, "/")
    assert status == 200 and b"/metrics" in hint and hint.count(b"\n") == 1
    assert request(endpoint, "/metric")[0] == 404
    assert request(endpoint, "/metrics", "POST")[0] == 501


def test_scrape_counts_what_was_recorded_since(
    endpoint: LiveEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "_PAGE_LASTS", 0.0)
    shard = FakeShard(tmp_path, 0)
    assert completed(endpoint) == 0
    shard.record(rows(3))
    assert completed(endpoint) == 3


def test_frequent_scrapes_get_the_same_page_until_the_end(
    endpoint: LiveEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "_PAGE_LASTS", 3600.0)
    assert completed(endpoint) == 0
    FakeShard(tmp_path, 0).record(rows(3))
    assert completed(endpoint) == 0
    assert endpoint.end() == ()
    assert completed(endpoint) == 3


def test_serving_scrapes_counts_as_cpu_time(endpoint: LiveEndpoint) -> None:
    until(lambda: endpoint.helper_cpu() > 0)  # of the thread that accepts connections
    before = endpoint._server._connections_cpu.seconds
    request(endpoint, "/metrics")
    until(lambda: endpoint._server._connections_cpu.seconds > before)


def test_final_values_remain_when_the_spool_has_been_removed(
    endpoint: LiveEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_module, "_PAGE_LASTS", 0.0)
    FakeShard(tmp_path, 0).record(rows(3))
    endpoint.end()
    for file in tmp_path.iterdir():
        file.unlink()
    assert completed(endpoint) == 3


def test_silent_clients_use_up_no_more_than_the_limit(endpoint: LiveEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module._Handler, "timeout", 0.3)
    with contextlib.ExitStack() as open_sockets:
        silent = [
            open_sockets.enter_context(socket.create_connection((LOOPBACK, port_of(endpoint)), timeout=10))
            for _ in range(endpoint_module._MAX_CONNECTIONS + 5)
        ]
        assert silent[-1].recv(1) == b"", "there are too many: closed at once"
        assert silent[0].recv(1) == b"", "closed after the timeout"
        until(lambda: answers(endpoint), "the endpoint serves again")


def answers(endpoint: LiveEndpoint) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return request(endpoint, "/metrics")[0] == 200
    return False


def test_port_in_use_is_a_user_error(endpoint: LiveEndpoint, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        make(tmp_path, port_of(endpoint))
    assert error.value.line == f"export.metrics_port: port {port_of(endpoint)} on 127.0.0.1 is in use"
    assert error.value.next_step == "choose another port, or 0 for a free one"


@pytest.mark.parametrize("host", ["127.0.0.2", "::1"])
def test_the_host_can_be_chosen(tmp_path: Path, host: str) -> None:
    with contextlib.closing(make(tmp_path, host=host)) as endpoint:
        endpoint.start()
        connection = http.client.HTTPConnection(host, port_of(endpoint), timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == 200
        with pytest.raises(ConnectionRefusedError):
            request(endpoint, "/metrics")


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_a_host_that_is_not_of_this_machine_is_a_user_error(tmp_path: Path, host: str) -> None:
    with pytest.raises(UserError) as error:
        make(tmp_path, host=host)
    assert error.value.line == f"export.metrics_host: this machine has no address {host}"
    assert error.value.next_step == "write 127.0.0.1, or 0.0.0.0 for all interfaces"


def test_close_frees_the_port_also_before_the_start(tmp_path: Path) -> None:
    unstarted = make(tmp_path)
    unstarted.close()
    again = make(tmp_path, port_of(unstarted))
    again.start()
    again.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port_of(again)))
