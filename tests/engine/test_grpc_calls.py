"""gRPC calls against grpcio's server: the four kinds, sizes, statuses, deadlines, metadata, compression."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_peers import BIG, failures_of, grpcio, one, run
from waiting import until

from inferometer.engine import http2_connection
from inferometer.engine.inflight import Flight
from inferometer.records import MISSING

TEXT = b"\x12\x05hello"
"""{"text": "hello"}"""


# --- the four kinds --------------------------------------------------------------------------------------------------


def test_unary(tmp_path: Path) -> None:
    received: list[bytes] = []

    def echo(message: bytes, _: grpc.ServicerContext) -> bytes:
        received.append(message)
        return message

    done, summary = run(tmp_path, grpcio(Unary=echo))
    assert summary.counts.ok == 6
    assert received == [TEXT] * 6
    rows = done.records.rows
    assert set(rows["status"]) == {200}
    assert set(rows["attempts"]) == {1}
    assert set(rows["chunk_count"]) == {0}
    assert set(rows["bytes_in"]) == {5 + len(TEXT)}
    assert (rows["sent"] <= rows["first_byte"]).all()
    assert (rows["first_byte"] <= rows["done"]).all()


@pytest.mark.parametrize("count", [0, 1, 40])
def test_each_message_of_a_streamed_response_is_an_arrival(tmp_path: Path, count: int) -> None:
    def down(message: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        yield from [message] * count

    done, summary = run(tmp_path, grpcio(Down=down), "Down")
    rows = done.records.rows
    assert summary.counts.ok == 6
    assert set(rows["chunk_count"]) == {count}
    if count:
        assert (rows["first_byte"] <= rows["first_token"]).all()
        assert (rows["last_token"] <= rows["done"]).all()
    else:
        assert (rows["first_token"] == MISSING).all()


def test_arrivals_of_a_slow_stream_are_spread_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server writes the next message a while after the client has read the last: messages that are read together share a stamp."""
    received: set[int] = set()
    apply = http2_connection.apply_events

    def applied(flight: Flight, *more: Any) -> Any:
        ending = apply(flight, *more)
        received.add(len(flight.arrivals))
        return ending

    def down(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        never = threading.Event()
        for count in range(1, 5):
            yield message
            until(lambda count=count: count in received)  # type: ignore[misc]
            never.wait(0.03)

    monkeypatch.setattr(http2_connection, "apply_events", applied)
    done, summary = run(tmp_path, grpcio(Down=down), "Down", load=one())
    rows = done.records.rows
    assert (summary.counts.ok, rows["chunk_count"].tolist()) == (1, [4])
    assert rows["last_token"][0] - rows["first_token"][0] > 60_000_000


def test_list_of_messages_is_streamed_to_the_server(tmp_path: Path) -> None:
    received: list[list[bytes]] = []

    def up(messages: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        received.append(list(messages))
        return b""

    _, summary = run(tmp_path, grpcio(Up=up), "Up", messages=[[{"text": "hello"}] * 3, []], load=one(requests=2))
    assert summary.counts.ok == 2
    assert received == [[TEXT] * 3, []]


def test_bidirectional_stream(tmp_path: Path) -> None:
    def both(messages: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        for message in messages:
            yield message
            yield message

    done, summary = run(tmp_path, grpcio(Both=both), "Both", messages=[[{"text": "hello"}] * 3])
    assert summary.counts.ok == 6
    assert set(done.records.rows["chunk_count"]) == {6}


# --- sizes and flow control ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hundred_megabytes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with one message of 100 MB: {"data": ...}."""
    size = 100_000_000
    head = b"\x0a" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21])
    path = tmp_path_factory.mktemp("big") / "message.bin"
    path.write_bytes(head + bytes(size))
    return str(path)


@pytest.mark.slow
def test_100_megabytes_in_both_directions(tmp_path: Path, hundred_megabytes: str) -> None:
    sizes: list[int] = []

    def echo(message: bytes, _: grpc.ServicerContext) -> bytes:
        sizes.append(len(message))
        return message

    done, summary = run(
        tmp_path, grpcio(BIG, Unary=echo), data={"type": "messages", "path": hundred_megabytes}, load=one()
    )
    assert summary.counts.ok == 1
    assert sizes == [100_000_005]
    assert done.records.rows["bytes_in"].tolist() == [100_000_010]


def test_message_that_is_too_large_is_resource_exhausted(tmp_path: Path) -> None:
    done, summary = run(
        tmp_path, grpcio(Unary=lambda message, _: message), messages=[{"text": "x" * 5_000_000}], load=one()
    )
    assert summary.counts.by_failure == {"grpc_RESOURCE_EXHAUSTED": 1}
    assert "larger than max" in failures_of(done).pop()[1].lower()


def test_client_waits_for_a_server_that_reads_the_request_late(tmp_path: Path) -> None:
    """The request exceeds the flow-control windows: the rest is sent once the server has read; a short call overtakes it."""
    go_on = threading.Event()
    order: list[int] = []

    def up(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        size = len(next(messages))
        if size > 1000:
            go_on.wait(30)
        order.append(size + sum(map(len, messages)))
        go_on.set()
        return b""

    requests = [[{"text": "x" * 1_000_000}] * 8, [{"text": "hello"}]]
    with grpcio(Up=up) as url:
        _, summary = run(
            tmp_path, url, "Up", messages=requests, client={"connections": 1}, load=one(concurrency=2, requests=2)
        )
    assert summary.counts.ok == 2
    assert order == [7, 8 * 1_000_004]


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_error_status_is_a_failure_with_its_name_and_the_servers_message(
    tmp_path: Path, code: grpc.StatusCode
) -> None:
    def fail(message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(code, "größer als 100 %\nnein")

    done, summary = run(tmp_path, grpcio(Unary=fail), load=one())
    assert summary.counts.by_failure == {f"grpc_{code.name}": 1}
    assert failures_of(done) == {(f"grpc_{code.name}", "größer als 100 % nein")}
    assert done.records.rows["status"].tolist() == [200]


def test_stream_that_fails_halfway_keeps_its_arrivals(tmp_path: Path) -> None:
    def down(message: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield message
        yield message
        context.abort(grpc.StatusCode.DATA_LOSS, "gone")

    done, summary = run(tmp_path, grpcio(Down=down), "Down", load=one())
    assert summary.counts.by_failure == {"grpc_DATA_LOSS": 1}
    assert done.records.rows["chunk_count"].tolist() == [2]


def test_method_that_the_server_does_not_have_is_unimplemented(tmp_path: Path) -> None:
    _, summary = run(tmp_path, grpcio(Unary=lambda message, _: message), "Up", load=one())
    assert summary.counts.by_failure == {"grpc_UNIMPLEMENTED": 1}


# --- metadata --------------------------------------------------------------------------------------------------------


def test_deadline_is_sent_to_the_server(tmp_path: Path) -> None:
    remaining: list[float] = []

    def slow(message: bytes, context: grpc.ServicerContext) -> bytes:
        remaining.append(context.time_remaining())
        over = threading.Event()
        if context.add_callback(over.set):  # False: the call is over already
            over.wait(30)
        return b""

    done, summary = run(tmp_path, grpcio(Unary=slow), server={"deadline": "300ms"}, load=one(requests=2))
    assert summary.counts.by_failure == {"grpc_DEADLINE_EXCEEDED": 2}
    assert all(0 <= each <= 0.3 for each in remaining)
    rows = done.records.rows
    assert (rows["done"] - rows["sent"] >= 250_000_000).all()


def test_headers_are_sent_as_metadata(tmp_path: Path) -> None:
    seen: dict[str, str | bytes] = {}

    def look(message: bytes, context: grpc.ServicerContext) -> bytes:
        seen.update(dict(context.invocation_metadata()))
        return b""

    headers = {"X-Tenant": "blue", "user-agent": "mine", "Sent-Bin": "AAECAw"}
    with grpcio(Unary=look) as url:
        run(tmp_path, url, server={"headers": headers}, load=one())
    assert seen["x-tenant"] == "blue"
    assert str(seen["user-agent"]).startswith("mine")
    assert seen["sent-bin"] == b"\x00\x01\x02\x03"


def test_api_key_is_sent_as_metadata_and_never_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str | bytes] = {}

    def look(message: bytes, context: grpc.ServicerContext) -> bytes:
        seen.update(dict(context.invocation_metadata()))
        context.abort(grpc.StatusCode.PERMISSION_DENIED, f"not with {seen['authorization']!r}")

    monkeypatch.setenv("THE_KEY", "hush-hush")
    done, _ = run(tmp_path, grpcio(Unary=look), server={"api_key_env": "THE_KEY"}, load=one())
    assert seen["authorization"] == "Bearer hush-hush"
    assert all(b"hush-hush" not in path.read_bytes() for path in done.folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compressed_requests_and_responses(tmp_path: Path, compression: str) -> None:
    text = "again and " * 1000
    received: list[bytes] = []

    def echo(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.set_compression(getattr(grpc.Compression, compression.capitalize()))
        for message in messages:
            received.append(message)
            yield message

    with grpcio(Both=echo) as url:
        done, summary = run(
            tmp_path, url, "Both", messages=[[{"text": text}] * 2], server={"compression": compression}, load=one()
        )
    assert summary.counts.ok == 1
    assert received == [b"\x12\x90\x4e" + text.encode()] * 2
    rows = done.records.rows
    assert rows["chunk_count"].tolist() == [2]
    assert rows["bytes_in"][0] < 1000
    assert rows["bytes_out"][0] < 1000


def test_server_timing_is_recorded(tmp_path: Path) -> None:
    def timed(message: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata([("server-timing", "queue;dur=0.25, compute;dur=3.5")])
        return b""

    done, _ = run(tmp_path, grpcio(Unary=timed))
    assert set(done.records.rows["queue"]) == {250_000}
    assert set(done.records.rows["compute"]) == {3_500_000}


def test_without_server_timing_the_times_are_unknown(tmp_path: Path) -> None:
    done, _ = run(tmp_path, grpcio(Unary=lambda message, _: message))
    assert set(done.records.rows["queue"]) == set(done.records.rows["compute"]) == {-1}
