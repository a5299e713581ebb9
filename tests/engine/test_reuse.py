"""Connections that are closed after some requests, and names with several addresses that change during a run."""

import contextlib
import gzip
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
import trustme
from grpc_peers import grpcio, one
from grpc_peers import run as grpc_run
from helpers import STREAM, Client, http_response, measure, polite, scripted

from inferometer.engine import resolver

NAME = "replicas.test"
several_loopback_addresses = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has the whole of 127.0.0.0/8 on its loopback interface"
)


# --- client.reuse ----------------------------------------------------------------------------------------------------


def counting(requests: Counter[int], headers: list[dict[str, str]]) -> Callable[[Client], None]:
    """A script that responds to every request, and counts the requests of each connection."""

    def script(client: Client) -> None:
        while (request := client.request()) is not None:
            requests[client.number] += 1
            headers.append(request[1])
            client.send(http_response())

    return script


@pytest.mark.parametrize(("reuse", "expected"), [(0, [12]), (1, [1] * 12), (5, [2, 5, 5]), (12, [12])])
def test_a_connection_carries_no_more_requests_than_it_may(tmp_path: Path, reuse: int, expected: list[int]) -> None:
    seen: Counter[int] = Counter()
    headers: list[dict[str, str]] = []
    run, summary = measure(tmp_path, scripted(counting(seen, headers)), load=one(requests=12), client={"reuse": reuse})
    assert summary.counts.ok == 12
    assert sorted(seen.values()) == expected
    assert {each.get("connection") for each in headers} == {"close" if reuse == 1 else None}
    assert set(run.records.rows["attempts"]) == {1}
    assert not run.manifest.outcome.notes


def test_a_proxy_that_closes_connections_and_compresses_is_noted(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        if client.request() is not None:
            client.send(http_response(gzip.compress(STREAM), "Content-Encoding: gzip\r\nConnection: close\r\n"))

    run, summary = measure(tmp_path, scripted(script), load=one(requests=12))
    assert summary.counts.ok == 12
    closed, compressed = run.manifest.outcome.notes
    assert "turn on keep-alive" in closed and "compressed (gzip)" in compressed


def test_warming_a_connection_does_not_count(tmp_path: Path) -> None:
    seen: Counter[int] = Counter()
    with scripted(counting(seen, [])) as url:
        client = {"reuse": 3, "warm": True}
        measure(tmp_path, url, load=one(requests=6), client=client)
    assert sorted(seen.values()) == [3, 4]  # the first connection was warmed with a request


@pytest.mark.parametrize(("reuse", "concurrency", "connections"), [(4, 1, 5), (1, 6, 20), (0, 1, 1)])
def test_a_grpc_connection_takes_no_more_calls_than_it_may(
    tmp_path: Path, reuse: int, concurrency: int, connections: int
) -> None:
    peers: Counter[str] = Counter()

    def echo(message: bytes, context: grpc.ServicerContext) -> bytes:
        peers[context.peer()] += 1
        return message

    with grpcio(Unary=echo) as url:
        load = {"type": "closed", "concurrency": concurrency, "requests": 20, "ramp_up": 0}
        run, summary = grpc_run(tmp_path, url, load=load, client={"reuse": reuse, "connections": 1})
    assert summary.counts.ok == 20
    assert len(peers) == connections
    assert max(peers.values()) == (reuse or 20)
    assert set(run.records.rows["attempts"]) == {1}
    assert not run.manifest.outcome.notes


def test_calls_in_flight_get_their_responses_on_the_old_connection(tmp_path: Path) -> None:
    """Six calls wait for one another; a connection takes two of them."""
    together = threading.Barrier(6, timeout=30)

    def wait(message: bytes, _: grpc.ServicerContext) -> bytes:
        together.wait()
        return message

    with grpcio(Unary=wait) as url:
        load = {"type": "closed", "concurrency": 6, "requests": 12, "ramp_up": 0}
        _, summary = grpc_run(tmp_path, url, load=load, client={"reuse": 2, "connections": 1})
    assert (summary.counts.ok, summary.counts.failed) == (12, 0)


# --- names -----------------------------------------------------------------------------------------------------------


class Names:
    """Stands in for the system's name service. It knows one name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = socket.getaddrinfo
        self.addresses: list[str] | None = ["127.0.0.1"]
        self.lookups = 0
        self.delay = 0.0
        monkeypatch.setattr(socket, "getaddrinfo", self)
        monkeypatch.setattr(resolver, "LOOKUP_EVERY", 0)

    def __call__(self, host: str, port: Any, *rest: Any, **more: Any) -> Any:
        if host != NAME:
            return self._real(host, port, *rest, **more)
        self.lookups += 1
        if self.lookups > 1:  # the first lookup is part of reaching the server
            time.sleep(self.delay)
        if self.addresses is None:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port))) for address in self.addresses]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@contextlib.contextmanager
def replicas(*hosts: str, script: Callable[[Client], None] = polite) -> Iterator[tuple[str, int]]:
    """Start a server on each of the hosts, all on one port; yield the URL with the name, and the port."""
    with contextlib.ExitStack() as servers:
        first = servers.enter_context(scripted(script, address=(hosts[0], 0)))
        port = urlsplit(first).port or 0
        for host in hosts[1:]:
            servers.enter_context(scripted(script, address=(host, port)))
        yield f"http://{NAME}:{port}", port


@several_loopback_addresses
def test_all_addresses_of_a_name_get_connections(tmp_path: Path, names: Names) -> None:
    names.addresses = ["127.0.0.1", "127.0.0.2"]
    with replicas("127.0.0.1", "127.0.0.2") as (url, port):
        run, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 4, "requests": 40, "ramp_up": 0})
    assert summary.counts.ok == 40
    assert set(run.records.replicas) == {f"127.0.0.1:{port}", f"127.0.0.2:{port}"}
    assert min(Counter(run.records.rows["replica"].tolist()).values()) >= 2  # each has two of the four connections


@several_loopback_addresses
def test_an_address_without_a_server_is_left_out_and_named(tmp_path: Path, names: Names) -> None:
    names.addresses = ["127.0.0.2", "127.0.0.1", "127.0.0.3"]
    with replicas("127.0.0.1", "127.0.0.3") as (url, port):
        run, summary = measure(tmp_path, url, client={"reuse": 1})
    assert (summary.counts.ok, summary.counts.failed) == (6, 0)
    used = {run.records.replicas[number] for number in run.records.rows["replica"]}
    assert used == {f"127.0.0.1:{port}", f"127.0.0.3:{port}"}
    (note,) = run.manifest.outcome.notes
    assert note == f"{NAME}: 127.0.0.2 was left out (connection refused), its other addresses were used"


@several_loopback_addresses
def test_a_replica_that_appears_during_the_run_gets_its_share(tmp_path: Path, names: Names) -> None:
    names.addresses = ["127.0.0.1"]
    count = 0

    def script(client: Client) -> None:
        nonlocal count
        while client.request():
            count += 1
            if count == 10:
                names.addresses = ["127.0.0.1", "127.0.0.2"]
            client.send(http_response())

    with replicas("127.0.0.1", "127.0.0.2", script=script) as (url, port):
        run, _ = measure(tmp_path, url, load=one(requests=40), client={"reuse": 2})
    by_address = Counter(run.records.replicas[number] for number in run.records.rows["replica"])
    assert by_address[f"127.0.0.1:{port}"] >= 10
    assert 10 <= by_address[f"127.0.0.2:{port}"] <= 20


def test_a_literal_address_is_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver.Resolver, "_look_up", lambda _: pytest.fail("looked up"))
    with scripted(polite) as url:
        run, summary = measure(tmp_path, url, client={"reuse": 1})
    assert summary.counts.ok == 6
    assert run.records.replicas == (urlsplit(url).netloc,)


def test_the_last_addresses_are_used_if_a_lookup_fails(tmp_path: Path, names: Names) -> None:
    def script(client: Client) -> None:
        while client.request():
            names.addresses = None
            client.send(http_response())

    with replicas("127.0.0.1", script=script) as (url, _):
        run, summary = measure(tmp_path, url, load=one(requests=6), client={"reuse": 1})
    assert summary.counts.ok == 6
    (note,) = run.manifest.outcome.notes
    assert NAME in note and "Temporary failure" in note


def test_a_lookup_is_part_of_the_time_to_connect_and_not_of_the_lag(tmp_path: Path, names: Names) -> None:
    names.delay = 0.05
    with replicas("127.0.0.1") as (url, _):
        run, summary = measure(tmp_path, url, load=one(requests=4), client={"reuse": 1})
    rows = run.records.rows
    assert (rows["held"] >= 50_000_000).all()
    assert (rows["sent"] - rows["intended"] - rows["held"] < 50_000_000).all()
    assert summary.counts.ok == 4


def test_a_lookup_that_takes_too_long_is_a_connect_timeout(tmp_path: Path, names: Names) -> None:
    names.delay = 0.5
    with replicas("127.0.0.1") as (url, _):
        server = {"timeouts": {"connect": "100ms"}}
        run, summary = measure(tmp_path, url, load=one(requests=1), client={"reuse": 1}, server=server)
    assert summary.counts.by_failure == {"connect_timeout": 1}
    assert run.records.rows["replica"].tolist() == [-1]


def test_tls_uses_the_name_whatever_the_address(tmp_path: Path, names: Names) -> None:
    authority, asked = trustme.CA(), []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(NAME).configure_cert(context)
    context.sni_callback = lambda _, name, __: asked.append(name)
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    with scripted(polite, context) as url:
        by_name = f"https://{NAME}:{urlsplit(url).port}"
        _, summary = measure(tmp_path, by_name, server={"tls": {"ca": str(ca)}}, client={"reuse": 2})
    assert summary.counts.ok == 6
    assert len(asked) >= 3 and set(asked) == {NAME}
    assert names.lookups >= 3
