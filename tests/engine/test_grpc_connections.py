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
from grpc_peers import failures_of, grpcio, handler, one, run

from inferometer.errors import UserError


def echo(message: bytes, _: grpc.ServicerContext) -> bytes:
    return message


# --- many streams ----------------------------------------------------------------------------------------------------


def test_1000_streams_at_once_on_one_connection(tmp_path: Path) -> None:
    """The server responds only once all 1000 calls have arrived, and all come from one address."""
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
        load = {"type": "closed", "concurrency": 1000, "requests": 2000, "ramp_up": 0}
        done, summary = run(tmp_path, f"grpc://127.0.0.1:{ports[0]}", client={"connections": 1}, load=load)
    finally:
        stop.set()
        server.join()
    assert (summary.counts.ok, len(peers)) == (2000, 1)
    assert sorted(done.records.rows["id"].tolist()) == list(range(2000))


def test_more_connections_are_opened_if_the_server_allows_few_streams(tmp_path: Path) -> None:
    peers: set[str] = set()
    gate = threading.Barrier(12)

    def wait(message: bytes, context: grpc.ServicerContext) -> bytes:
        peers.add(context.peer())
        gate.wait(30)
        return message

    options = [("grpc.max_concurrent_streams", 3)]
    with grpcio(options, workers=12, Unary=wait) as url:
        load = {"type": "closed", "concurrency": 12, "requests": 36, "ramp_up": 0}
        done, summary = run(tmp_path, url, client={"connections": 1}, load=load)
    assert (summary.counts.ok, summary.counts.failed) == (36, 0)
    assert len(peers) >= 4
    rows = done.records.rows
    assert (rows["held"] > 0).sum() >= 9
    assert rows["attempts"].max() <= 2  # grpcio still counts a stream for a moment after its end


def calls_by_connection(tmp_path: Path, concurrency: int, connections: int) -> tuple[list[int], int]:
    """Return the number of calls over each connection, and the largest number that shared one at a time."""
    counts: dict[str, int] = {}
    in_flight: dict[str, int] = {}
    most = 0
    lock, gate = threading.Lock(), threading.Barrier(concurrency)

    def note(message: bytes, context: grpc.ServicerContext) -> bytes:
        nonlocal most
        peer = context.peer()
        with lock:
            counts[peer] = counts.get(peer, 0) + 1
            in_flight[peer] = in_flight.get(peer, 0) + 1
            most = max(most, in_flight[peer])
        gate.wait(30)  # so that calls that share a connection overlap, and none is overtaken again and again
        with lock:
            in_flight[peer] -= 1
        return message

    load = {"type": "closed", "concurrency": concurrency, "requests": 48, "ramp_up": 0}
    _, summary = run(tmp_path, grpcio(Unary=note), client={"connections": connections}, load=load)
    assert summary.counts.ok == 48
    return sorted(counts.values()), most


def test_call_uses_an_idle_connection(tmp_path: Path) -> None:
    counts, most = calls_by_connection(tmp_path, concurrency=4, connections=4)
    assert len(counts) == 4 and most == 1


def test_calls_share_connections_evenly_if_there_are_fewer(tmp_path: Path) -> None:
    counts, most = calls_by_connection(tmp_path, concurrency=6, connections=3)
    assert len(counts) == 3 and 2 <= most <= 4


def test_connection_is_opened_during_the_run_if_none_was_opened_before(tmp_path: Path) -> None:
    done, summary = run(tmp_path, grpcio(Unary=echo), client={"connections": 0})
    assert summary.counts.ok == 6
    assert (done.records.rows["held"] > 0).sum() == 2


# --- servers that stop -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_call_is_lost_when_the_server_repeatedly_closes_its_connections(tmp_path: Path) -> None:
    peers: set[str] = set()

    def note(message: bytes, context: grpc.ServicerContext) -> bytes:
        peers.add(context.peer())
        return message

    # Long enough that the connection is open before GOAWAY, even if the client stalls.
    options = [("grpc.max_connection_age_ms", 500), ("grpc.max_connection_age_grace_ms", 30_000)]
    with grpcio(options, Unary=note) as url:
        load = {"type": "closed", "concurrency": 4, "duration": "2500ms", "think": "1ms"}
        done, summary = run(tmp_path, url, client={"connections": 2}, load=load)
    assert summary.counts.failed == 0
    assert len(peers) > 4
    ids = sorted(done.records.rows["id"].tolist())
    assert ids == list(range(len(ids)))


def test_server_that_stops_gracefully_completes_its_calls_and_accepts_no_more(tmp_path: Path) -> None:
    completed = 0
    stopping = threading.Event()

    def serve(message: bytes, context: grpc.ServicerContext) -> bytes:
        nonlocal completed
        completed += 1
        if completed == 20:
            threading.Thread(target=stop).start()
        if completed >= 20:
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
    assert summary.counts.ok == completed
    assert 20 <= completed <= 23  # plus the other users' calls in flight when it was stopped
    # Until the port is closed, the kernel still accepts connections, and then resets those that the server had not.
    not_sent = {"connect_refused", "connect_failed"}
    assert set(summary.counts.by_failure) <= not_sent | {"grpc_CANCELLED", "grpc_UNAVAILABLE"}
    assert sorted(done.records.rows["id"].tolist()) == list(range(40))


@pytest.mark.slow
def test_every_call_has_a_row_when_the_server_stops_abruptly(tmp_path: Path) -> None:
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
    assert 6 <= summary.counts.ok <= 13  # calls in flight together with the tenth may or may not complete
    assert set(summary.counts.by_failure) <= {
        "grpc_CANCELLED",
        "grpc_UNAVAILABLE",
        "connect_refused",
        "connect_failed",  # the server stopped before it had sent its settings
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
def test_timeout_ends_only_its_own_stream(tmp_path: Path, timeouts: dict[str, str], messages: int, code: str) -> None:
    """One of two kinds of call on one connection hangs; the server is notified when it is given up."""
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
    done, summary = run(
        tmp_path,
        grpcio(credentials=credentials(authority), Unary=echo),
        messages=[{"text": "x" * 300_000}],
        server=tls(authority, tmp_path),
    )
    assert summary.counts.ok == 6
    assert set(done.records.rows["bytes_in"]) == {300_009}


def test_over_tls_with_a_client_certificate(tmp_path: Path, authority: trustme.CA) -> None:
    authority.issue_cert("me@example.org").private_key_and_cert_chain_pem.write_to_path(tmp_path / "me.pem")
    with grpcio(credentials=credentials(authority, True), Unary=echo) as url:
        server = tls(authority, tmp_path, cert=str(tmp_path / "me.pem"))
        assert run(tmp_path, url, server=server)[1].counts.ok == 6


def test_missing_client_certificate_is_a_clear_error(tmp_path: Path, authority: trustme.CA) -> None:
    with grpcio(credentials=credentials(authority, True), Unary=echo) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url, server=tls(authority, tmp_path))
    assert "it may want a certificate (server.tls.cert)" in caught.value.what


def test_certificate_of_another_authority_is_a_clear_error(tmp_path: Path, authority: trustme.CA) -> None:
    with grpcio(credentials=credentials(authority), Unary=echo) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url, server=tls(trustme.CA(), tmp_path))
    assert "certificate is not accepted" in caught.value.what
    assert "server.tls.ca" in caught.value.remedy


def test_plain_server_at_a_grpcs_url_is_a_clear_error(tmp_path: Path) -> None:
    with grpcio(Unary=echo) as url, pytest.raises(UserError, match="the TLS handshake failed") as caught:
        run(tmp_path, url.replace("grpc:", "grpcs:"), server={"timeouts": {"connect": "2s"}})
    assert "grpc:// instead of grpcs://" in caught.value.remedy


def test_tls_server_at_a_grpc_url_is_a_clear_error(tmp_path: Path, authority: trustme.CA) -> None:
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


def test_calls_go_to_several_urls_in_turn(tmp_path: Path) -> None:
    hits = [0, 0]

    def count(index: int):  # type: ignore[no-untyped-def]
        def serve(message: bytes, _: grpc.ServicerContext) -> bytes:
            hits[index] += 1
            return message

        return serve

    with grpcio(Unary=count(0)) as one_url, grpcio(Unary=count(1)) as other:
        done, summary = run(tmp_path, [one_url, other], load={"type": "closed", "concurrency": 2, "requests": 10})
    assert summary.counts.ok == 10
    assert hits == [5, 5]
    assert np.array_equal(done.records.rows["url"], done.records.rows["id"] % 2)


def test_port_without_a_listener_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(UserError, match="connection refused"):
            run(tmp_path, f"grpc://127.0.0.1:{unused.getsockname()[1]}")


def test_one_of_two_servers_cannot_be_reached(tmp_path: Path) -> None:
    with grpcio(Unary=echo) as url, pytest.raises(UserError, match="connection refused"):
        run(tmp_path, [url, "grpc://127.0.0.1:1"])


def test_failures_with_different_messages_are_kept_apart(tmp_path: Path) -> None:
    def fail(message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, message.decode("latin-1")[2:])

    done, summary = run(tmp_path, grpcio(Unary=fail), messages=[{"text": "one"}, {"text": "two"}], load=one(requests=4))
    assert summary.counts.by_failure == {"grpc_INVALID_ARGUMENT": 4}
    assert failures_of(done) == {("grpc_INVALID_ARGUMENT", "one"), ("grpc_INVALID_ARGUMENT", "two")}
