"""`client.retries`: which faults are repeated, what a repeated request counts as, and what stops it."""

import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import Client, http_response, measure, scripted

from inferometer.analysis.attempts import repeated
from inferometer.engine.inflight import Flight
from inferometer.engine.retries import Retries
from inferometer.engine.run_state import RunState
from inferometer.timing.clock import now
from inferometer.types import Fail

ONE = {"type": "closed", "concurrency": 1, "requests": 3, "ramp_up": 0}
FRESH = {"connections": 0, "reuse": 1}
"""A connection for each request: none can be stale."""
SOON = FRESH | {"retries": 2, "retry_backoff": "30ms"}


def failing(times: int, fault: Any) -> Any:
    """A server that lets the first attempts of request 1 fail."""
    seen: Counter[int] = Counter()

    def serve(client: Client) -> None:
        while request := client.request():
            id = int(request[1]["x-request-id"].rpartition("-")[2], 16)
            seen[id] += 1
            if id == 1 and seen[id] <= times:
                fault(client)
                return
            client.send(http_response())

    return serve


def close(client: Client) -> None:
    """Close the connection without a response."""


def reset(client: Client) -> None:
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sock.close()


@pytest.mark.parametrize("fault", [close, reset])
def test_request_is_repeated_until_it_succeeds(tmp_path: Path, fault: Any) -> None:
    run, summary = measure(tmp_path, scripted(failing(2, fault)), load=ONE, client=SOON)
    rows = run.records.rows
    assert summary.counts.ok == 3
    assert rows["attempts"].tolist() == [1, 3, 1]
    found = repeated(run.records.rows)
    assert (found.requests, found.attempts, found.recovered, found.failed) == (1, 2, 1, 0)
    assert found.wasted_s >= 0.03 + 0.06
    assert int((rows["done"] - rows["sent"])[1]) > 90_000_000  # its latency includes the attempts that failed
    check = next(each for each in summary.checks if each.name == "retries")
    assert check.status == "pass" and "client.retries repeated 1 after a fault, 1 of them successfully" in check.message


def test_status_is_repeated_after_the_time_that_the_server_asks_for(tmp_path: Path) -> None:
    def busy(client: Client) -> None:
        client.send(b"HTTP/1.1 429 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    run, summary = measure(tmp_path, scripted(failing(1, busy)), load=ONE, client=SOON | {"retry_statuses": [429]})
    rows = run.records.rows
    assert summary.counts.ok == 3
    assert rows["attempts"].tolist() == [1, 2, 1]
    assert int(rows["wasted"][1]) >= 1_000_000_000
    assert int((rows["first_byte"] - rows["sent"])[1]) > 1_000_000_000  # of the response that succeeded


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_for_overload_is_reported_with_the_time_to_wait_and_the_way_to_repeat_it(
    tmp_path: Path, status: int
) -> None:
    def busy(client: Client) -> None:
        client.send(b"HTTP/1.1 %d Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n" % status)

    _, summary = measure(tmp_path, scripted(failing(1, busy)), load=ONE)
    (message,) = (check.message for check in summary.checks if check.name == "failures")
    assert "Retry-After: 7" in message and "client.retry_statuses" in message


def test_request_fails_after_its_last_attempt(tmp_path: Path) -> None:
    run, summary = measure(tmp_path, scripted(failing(9, close)), load=ONE, client=SOON | {"retries": 1})
    assert (summary.counts.ok, summary.counts.by_failure) == (2, {"closed": 1})
    assert run.records.rows["attempts"].tolist() == [1, 2, 1]
    assert repeated(run.records.rows).failed == 1


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (lambda client: client.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), "http_503"),
        (lambda client: client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), "cut_short"),
        (lambda client: time.sleep(2), "first_token_timeout"),
    ],
)
def test_other_failures_are_final(tmp_path: Path, fault: Any, code: str) -> None:
    with scripted(failing(9, fault)) as url:
        server = {"timeouts": {"first_token": "800ms"}}
        run, summary = measure(tmp_path, url, load=ONE, client=SOON, server=server)
    assert summary.counts.by_failure == {code: 1}
    assert run.records.rows["wasted"].max() == 0


def test_nothing_is_repeated_by_default(tmp_path: Path) -> None:
    _, summary = measure(tmp_path, scripted(failing(1, close)), load=ONE, client=FRESH)
    assert summary.counts.by_failure == {"closed": 1}


def test_refused_connections_are_repeated_in_open_loop(tmp_path: Path) -> None:
    """The server goes away after the first connection, and comes back after a while."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def serve() -> None:
        listener.accept()[0].close()  # the client looks whether it is there
        listener.close()
        time.sleep(0.5)
        with socket.create_server(("127.0.0.1", port)) as again:
            again.settimeout(10)
            for _ in range(2):
                connection = again.accept()[0]
                connection.recv(65536)
                connection.sendall(http_response())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    load = {"type": "constant", "rate": 100, "requests": 2}
    client = FRESH | {"retries": 6, "retry_backoff": "50ms"}
    run, summary = measure(tmp_path, f"http://127.0.0.1:{port}", load=load, client=client)
    thread.join(10)
    rows = run.records.rows
    assert summary.counts.ok == 2
    assert (rows["attempts"] >= 2).all() and (rows["wasted"] > 0).all()
    assert (rows["sent"] == rows["intended"]).all()  # when the first attempt began
    assert (rows["done"] - rows["intended"] > rows["wasted"]).all()


class Later:
    """Deadlines that never come by themselves."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []

    def at(self, deadline: int, callback: Any) -> None:
        self.callbacks.append(callback)


def job(retries: int, total: float) -> Any:
    timeouts = SimpleNamespace(total=total)
    return SimpleNamespace(retries=retries, retry_statuses=(), retry_backoff=5e-9, timeouts=timeouts)


def test_request_that_waits_to_be_repeated_can_be_cancelled() -> None:
    ended: list[Any] = []
    sent: list[Flight] = []
    later, state = Later(), RunState(given_up=[], unreached_limit=0)
    retries = Retries(job(3, 0), later, state, lambda *args: ended.append(args), sent.append)  # type: ignore[arg-type]
    flight, response = Flight(id=7, intended=10), object()
    retries.ended(flight, 20, Fail("connect_refused", ""), response)  # type: ignore[arg-type]
    assert not ended and len(later.callbacks) == 1
    retries.cancel()
    ((cancelled, _, event, same),) = ended
    assert (cancelled, event.code, same) == (flight, "cancelled", response)
    later.callbacks[0]()
    assert not sent
    state.stopping = True
    retries.ended(Flight(id=8, intended=10), 20, Fail("reset", ""), response)  # type: ignore[arg-type]
    assert len(ended) == 2  # nothing is repeated when the run ends


def test_request_is_not_repeated_after_its_total_time() -> None:
    ended: list[Any] = []
    later, state = Later(), RunState(given_up=[], unreached_limit=0)
    retries = Retries(job(9, 1), later, state, lambda *args: ended.append(args), lambda flight: None)  # type: ignore[arg-type]
    started = now()
    recent, old = Flight(id=1, intended=started, sent=started), Flight(id=2, intended=started - 10**10)
    for flight in (recent, old):
        retries.ended(flight, started, Fail("connect_refused", ""), object())  # type: ignore[arg-type]
    assert len(later.callbacks) == 1 and [flight.id for flight, *_ in ended] == [2]
    assert old.sent == 0 and old.first_attempt is None
