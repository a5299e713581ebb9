"""gRPC connections against grpcio's server: many streams, few streams, servers that stop, TLS, addresses, timeouts."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import trustme
from grpc_peers import grpcio, handler, one, run, said

from inferometer.errors import UserError


def echo(message: bytes, _: grpc.ServicerContext) -> bytes:
    return message


# --- many streams ----------------------------------------------------------------------------------------------------


def test_1000_streams_at_once_on_one_connection(tmp_path: Path) -> None:
    """No call is answered before all 1000 are there, and all come from one address."""
    peers: set[str] = set()

    async def serving(ready: threading.Event, stop: threading.Event, ports: list[int]) -> None:
        arrived = 0
        all_there = asyncio.Event()

        async def wait(message: bytes, context: grpc.aio.ServicerContext) -> bytes:
            nonlocal arrived
            arrived += 1
            peers.add(context.peer())
            if arrived >= 1000:
                all_there.set()
            await asyncio.wait_for(all_there.wait(), 60)
            return message

        server = grpc.aio.server()
        server.add_generic_rpc_handlers([handler({"Unary": wait})])
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        ready.set()
        await asyncio.to_thread(stop.wait)
        await server.stop(None)

    ready, stop = threading.Event(), threading.Event()
    ports: list[int] = []
    server = threading.Thread(target=lambda: asyncio.run(serving(ready, stop, ports)))
    server.start()
    assert ready.wait(30)
    try:
        load = {"type": "closed", "concurrency": 1000, "requests": 2000}
        done, summary = run(tmp_path, f"grpc://127.0.0.1:{ports[0]}", client={"connections": 1}, load=load)
    finally:
        stop.set()
        server.join()
    assert (summary.counts.ok, len(peers)) == (2000, 1)
    assert sorted(done.records.rows["id"].tolist()) == list(range(2000))


def test_where_the_server_allows_few_streams_more_connections_are_opened(tmp_path: Path) -> None:
    peers: set[str] = set()
    gate = threading.Barrier(12)

    def wait(message: bytes, context: grpc.ServicerContext) -> bytes:
        peers.add(context.peer())
        gate.wait(30)
        return message

    options = [("grpc.max_concurrent_streams", 3)]
    with grpcio(options, workers=12, Unary=wait) as url:
        done, summary = run(
            tmp_path, url, client={"connections": 1}, load={"type": "closed", "concurrency": 12, "requests": 36}
        )
    assert (summary.counts.ok, summary.counts.failed) == (36, 0)
    assert len(peers) >= 4
    rows = done.records.rows
    assert (rows["held"] > 0).sum() >= 9
    assert (rows["held"][rows["attempts"] == 2] > 0).all()  # grpcio counts a stream a little longer than it lasts


def calls_by_connection(tmp_path: Path, concurrency: int, connections: int) -> tuple[list[int], int]:
    """How many calls went over each connection, and the most that shared one at a time."""
    counts: dict[str, int] = {}
    under_way: dict[str, int] = {}
    most = 0
    lock, gate = threading.Lock(), threading.Barrier(concurrency)

    def note(message: bytes, context: grpc.ServicerContext) -> bytes:
        nonlocal most
        peer = context.peer()
        with lock:
            counts[peer] = counts.get(peer, 0) + 1
            under_way[peer] = under_way.get(peer, 0) + 1
            most = max(most, under_way[peer])
        gate.wait(30)  # so that those that share a connection are there together, and none is overtaken again and again
        with lock:
            under_way[peer] -= 1
        return message

    load = {"type": "closed", "concurrency": concurrency, "requests": 48}
    with grpcio(Unary=note) as url:
        _, summary = run(tmp_path, url, client={"connections": connections}, load=load)
    assert summary.counts.ok == 48
    return sorted(counts.values()), most


def test_a_call_goes_over_a_connection_that_is_idle(tmp_path: Path) -> None:
    counts, most = calls_by_connection(tmp_path, concurrency=4, connections=4)
    assert len(counts) == 4 and most == 1


def test_calls_share_connections_evenly_where_there_are_fewer(tmp_path: Path) -> None:
    counts, most = calls_by_connection(tmp_path, concurrency=6, connections=3)
    assert len(counts) == 3 and 2 <= most <= 4


def test_without_a_connection_opened_before_one_is_when_it_is_needed(tmp_path: Path) -> None:
    with grpcio(Unary=echo) as url:
        done, summary = run(tmp_path, url, client={"connections": 0})
    assert summary.counts.ok == 6
    assert (done.records.rows["held"] > 0).sum() == 2


# --- servers that stop -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_that_sends_its_connections_away_again_and_again_costs_no_call(tmp_path: Path) -> None:
    peers: set[str] = set()

    def note(message: bytes, context: grpc.ServicerContext) -> bytes:
        peers.add(context.peer())
        return message

    # Old enough to have been opened before it is sent away, though the client may stand still meanwhile.
    options = [("grpc.max_connection_age_ms", 500), ("grpc.max_connection_age_grace_ms", 30_000)]
    with grpcio(options, Unary=note) as url:
        load = {"type": "closed", "concurrency": 4, "duration": "2500ms", "think": "1ms"}
        done, summary = run(tmp_path, url, client={"connections": 2}, load=load)
    assert summary.counts.failed == 0
    assert len(peers) > 4
    ids = sorted(done.records.rows["id"].tolist())
    assert ids == list(range(len(ids)))


def test_a_server_that_stops_gracefully_answers_what_it_has_and_takes_nothing_more(tmp_path: Path) -> None:
    answered = 0
    stopping = threading.Event()

    def serve(message: bytes, context: grpc.ServicerContext) -> bytes:
        nonlocal answered
        answered += 1
        if answered == 20:
            threading.Thread(target=stop).start()
        if answered >= 20:
            stopping.wait(30)
        return message

    def stop() -> None:
        server.stop(30)
        stopping.set()

    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, [handler({"Unary": serve})])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        load = {"type": "closed", "concurrency": 4, "requests": 40}
        done, summary = run(tmp_path, f"grpc://127.0.0.1:{port}", client={"connections": 1}, load=load)
        server.stop(0).wait()
    assert summary.counts.ok == answered
    assert 20 <= answered <= 23  # the others' calls that were under way when it was told to stop
    # Until its port is closed the kernel still connects to it, and then ends what the server had not taken.
    not_sent = {"connect_refused", "connect_failed"}
    assert set(summary.counts.by_failure) <= not_sent | {"grpc_CANCELLED", "grpc_UNAVAILABLE"}
    assert sorted(done.records.rows["id"].tolist()) == list(range(40))


@pytest.mark.slow
def test_a_server_that_stops_at_once_leaves_failures_and_no_call_without_a_row(tmp_path: Path) -> None:
    count = 0
    stopping = threading.Event()

    def stop_soon(message: bytes, context: grpc.ServicerContext) -> bytes:
        nonlocal count
        count += 1
        if count == 10:
            threading.Thread(target=stop).start()
        if count >= 10:
            stopping.wait(30)
        return message

    def stop() -> None:
        server.stop(0)
        stopping.set()

    with ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, [handler({"Unary": stop_soon})])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        done, summary = run(
            tmp_path, f"grpc://127.0.0.1:{port}", load={"type": "closed", "concurrency": 4, "requests": 40}
        )
        server.stop(0).wait()
    assert 6 <= summary.counts.ok <= 13  # what was under way with the tenth call may be answered or not
    assert set(summary.counts.by_failure) <= {
        "grpc_CANCELLED",
        "grpc_UNAVAILABLE",
        "connect_refused",
        "connect_failed",  # the server stopped before it had greeted
        "closed",
        "reset",
    }
    assert sorted(done.records.rows["id"].tolist()) == list(range(40))


# --- timeouts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeouts", "messages", "code"),
    [
        ({"total": "1s"}, 1, "total_timeout"),
        ({"first_token": "1s"}, 0, "first_token_timeout"),
        ({"idle": "1s"}, 1, "idle_timeout"),
    ],
)
def test_a_timeout_ends_its_stream_alone(tmp_path: Path, timeouts: dict[str, str], messages: int, code: str) -> None:
    """Of two kinds of call on one connection one hangs; the server hears that it was given up."""
    cancelled = threading.Event()
    peers: set[str] = set()

    def down(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        peers.add(context.peer())
        if b"hang" not in message:
            yield message
            return
        context.add_callback(cancelled.set)
        yield from [message] * messages
        cancelled.wait(30)

    texts = [{"text": "hang"}, *[{"text": "hello"}] * 39]
    with grpcio(Down=down) as url:
        done, summary = run(
            tmp_path,
            url,
            "Down",
            messages=texts,
            server={"timeouts": timeouts},
            client={"connections": 1},
            load={"type": "constant", "rate": 100, "requests": 40},
        )
        assert cancelled.wait(30)
    assert summary.counts.by_failure == {code: 1}
    assert (summary.counts.ok, len(peers)) == (39, 1)
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert rows["done"][0] - rows["sent"][0] >= 1_000_000_000
    assert rows["chunk_count"][0] == messages


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def credentials(authority: trustme.CA, wants_certificate: bool = False) -> grpc.ServerCredentials:
    mine = authority.issue_cert("127.0.0.1", "localhost")
    pair = (mine.private_key_pem.bytes(), b"".join(blob.bytes() for blob in mine.cert_chain_pems))
    return grpc.ssl_server_credentials(
        [pair], authority.cert_pem.bytes() if wants_certificate else None, wants_certificate
    )


def tls(authority: trustme.CA, folder: Path, **more: str) -> dict[str, object]:
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return {"tls": {"ca": str(folder / "ca.pem"), **more}}


def test_over_tls(tmp_path: Path, authority: trustme.CA) -> None:
    with grpcio(credentials=credentials(authority), Unary=echo) as url:
        done, summary = run(tmp_path, url, messages=[{"text": "x" * 300_000}], server=tls(authority, tmp_path))
    assert summary.counts.ok == 6
    assert set(done.records.rows["bytes_in"]) == {300_009}


def test_over_tls_with_a_client_certificate(tmp_path: Path, authority: trustme.CA) -> None:
    authority.issue_cert("me@example.org").private_key_and_cert_chain_pem.write_to_path(tmp_path / "me.pem")
    with grpcio(credentials=credentials(authority, True), Unary=echo) as url:
        server = tls(authority, tmp_path, cert=str(tmp_path / "me.pem"))
        assert run(tmp_path, url, server=server)[1].counts.ok == 6


def test_a_client_certificate_that_is_missing_is_one_clear_line(tmp_path: Path, authority: trustme.CA) -> None:
    with grpcio(credentials=credentials(authority, True), Unary=echo) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url, server=tls(authority, tmp_path))
    assert "it may want a certificate (server.tls.cert)" in caught.value.what


def test_a_certificate_of_somebody_else_is_one_clear_line(tmp_path: Path, authority: trustme.CA) -> None:
    with grpcio(credentials=credentials(authority), Unary=echo) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url, server=tls(trustme.CA(), tmp_path))
    assert "certificate is not accepted" in caught.value.what
    assert "server.tls.ca" in caught.value.remedy


def test_no_tls_behind_grpcs(tmp_path: Path) -> None:
    with grpcio(Unary=echo) as url, pytest.raises(UserError, match="the TLS handshake failed") as caught:
        run(tmp_path, url.replace("grpc:", "grpcs:"), server={"timeouts": {"connect": "2s"}})
    assert "grpc:// instead of grpcs://" in caught.value.remedy


def test_tls_behind_grpc(tmp_path: Path, authority: trustme.CA) -> None:
    with grpcio(credentials=credentials(authority), Unary=echo) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url.replace("grpcs:", "grpc:"), server={"timeouts": {"connect": "2s"}})
    assert "127.0.0.1" in caught.value.what


# --- addresses -------------------------------------------------------------------------------------------------------


def test_ipv6(tmp_path: Path) -> None:
    try:
        with grpcio(host="[::1]", Unary=echo) as url:
            assert run(tmp_path, url)[1].counts.ok == 6
    except (OSError, RuntimeError) as error:
        pytest.skip(f"no IPv6 loopback here: {error}")


def test_several_urls_are_served_in_turn(tmp_path: Path) -> None:
    hits = [0, 0]

    def count(place: int):  # type: ignore[no-untyped-def]
        def serve(message: bytes, _: grpc.ServicerContext) -> bytes:
            hits[place] += 1
            return message

        return serve

    with grpcio(Unary=count(0)) as one_url, grpcio(Unary=count(1)) as other:
        done, summary = run(tmp_path, [one_url, other], load={"type": "closed", "concurrency": 2, "requests": 10})
    assert summary.counts.ok == 10
    assert hits == [5, 5]
    assert np.array_equal(done.records.rows["url"], done.records.rows["id"] % 2)


def test_a_port_where_nothing_listens(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(UserError, match="connection refused"):
            run(tmp_path, f"grpc://127.0.0.1:{unused.getsockname()[1]}")


def test_one_of_two_servers_is_not_there(tmp_path: Path) -> None:
    with grpcio(Unary=echo) as url, pytest.raises(UserError, match="connection refused"):
        run(tmp_path, [url, "grpc://127.0.0.1:1"])


def test_failures_are_told_apart_by_their_words(tmp_path: Path) -> None:
    def fail(message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, message.decode("latin-1")[2:])

    with grpcio(Unary=fail) as url:
        done, summary = run(tmp_path, url, messages=[{"text": "one"}, {"text": "two"}], load=one(requests=4))
    assert summary.counts.by_failure == {"grpc_INVALID_ARGUMENT": 4}
    assert said(done) == {("grpc_INVALID_ARGUMENT", "one"), ("grpc_INVALID_ARGUMENT", "two")}
