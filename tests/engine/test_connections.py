"""HTTP/1.1 connections that servers keep, close, reset, leave without a response, or never accept."""

import select
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import NO_USAGE, STREAM, Client, http_response, measure, polite, scripted

from inferometer.analysis.attempts import retried
from inferometer.engine import http1
from inferometer.errors import UserError
from inferometer.records import COUNTED_BY, MISSING
from inferometer.workload.tokenizer import BUILTIN, load


def test_connections_are_kept_and_reused(tmp_path: Path) -> None:
    seen = []

    def script(client: Client) -> None:
        while client.request():
            seen.append(client.number)
            client.send(http_response())

    run, summary = measure(tmp_path, scripted(script), load={"type": "closed", "concurrency": 2, "requests": 20})
    assert summary.counts.ok == 20
    assert len(set(seen)) == 2
    assert set(run.records.rows["attempts"]) == {1}


@pytest.mark.usefixtures("stale_however_late")
def test_requests_succeed_if_the_server_closes_connections_that_it_promised_to_keep(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(http_response())

    run, summary = measure(tmp_path, scripted(script), load={"type": "closed", "concurrency": 3, "requests": 30})
    assert (summary.counts.ok, summary.counts.failed) == (30, 0)
    assert run.records.rows["attempts"].max() <= 2


@pytest.mark.usefixtures("stale_however_late")
def test_connections_that_the_server_keeps_closing_are_no_longer_reused(tmp_path: Path) -> None:
    """The response and the close arrive together, and with a single user there is no other sign of it."""

    def script(client: Client) -> None:
        client.request()
        client.send(http_response())

    run, summary = measure(tmp_path, scripted(script), load={"type": "closed", "concurrency": 1, "requests": 40})
    assert summary.counts.ok == 40
    assert (run.records.rows["attempts"] > 1).sum() <= 3


@pytest.mark.usefixtures("stale_however_late")
def test_request_on_a_stale_connection_is_resent_once_and_counts_from_its_first_attempt(tmp_path: Path) -> None:
    """The first connection carries one response, reads the next request, and closes 50 ms later without a response."""

    def script(client: Client) -> None:
        client.request()
        client.send(http_response())
        client.request()
        if client.number > 1:  # number 0 is the probe before the run
            respond_from_now_on(client)
        else:
            time.sleep(0.05)

    def respond_from_now_on(client: Client) -> None:
        client.send(http_response())
        polite(client)

    run, summary = measure(tmp_path, scripted(script), load={"type": "closed", "concurrency": 1, "requests": 3})
    assert summary.counts.ok == 3
    rows = np.sort(run.records.rows, order="id")
    assert rows["attempts"].tolist() == [1, 2, 1]
    assert retried(run.records.rows) == 1
    assert rows["first_token"][1] - rows["sent"][1] >= 50_000_000
    assert rows["intended"][1] <= rows["sent"][1]
    assert rows["held"][1] == 0  # the retry is part of the latency, not of the wait before the request was sent


def test_connection_that_closes_long_after_the_send_was_not_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "STALE_WITHIN", 0)  # so that any time counts as long

    def script(client: Client) -> None:
        client.request()
        client.send(http_response())
        client.request()

    run, summary = measure(tmp_path, scripted(script), load={"type": "closed", "concurrency": 1, "requests": 2})
    assert summary.counts.by_failure == {"closed": 1}
    assert run.records.rows["attempts"].tolist() == [1, 1]


def test_new_connection_that_closes_without_a_response_is_a_failure_not_a_retry(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.request()

    _, summary = measure(tmp_path, scripted(script), load={"type": "closed", "concurrency": 1, "requests": 2})
    assert summary.counts.by_failure == {"closed": 2}


def test_request_is_never_resent_once_a_byte_of_the_response_has_arrived(tmp_path: Path) -> None:
    count = 0

    def script(client: Client) -> None:
        nonlocal count
        client.request()
        client.send(http_response())
        while client.request():
            count += 1
            client.send(http_response()[:40])
            return

    _, summary = measure(tmp_path, scripted(script), load={"type": "closed", "concurrency": 1, "requests": 2})
    assert summary.counts.by_failure == {"cut_short": 1}
    assert count == 1


def test_reset_and_close_are_different_failures(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.request()
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sock.close()

    _, summary = measure(tmp_path, scripted(script), load={"type": "closed", "concurrency": 1, "requests": 1})
    assert summary.counts.by_failure == {"reset": 1}


@pytest.mark.parametrize(
    ("timeouts", "sent", "code"),
    [
        ({"first_token": "100ms"}, b"", "first_token_timeout"),
        (
            {"first_token": "100ms"},
            b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
            "first_token_timeout",
        ),
        ({"idle": "100ms"}, b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', "idle_timeout"),
        ({"total": "100ms"}, b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', "total_timeout"),
    ],
)
def test_each_timeout_has_its_own_failure_code(
    tmp_path: Path, timeouts: dict[str, str], sent: bytes, code: str
) -> None:
    over = threading.Event()

    def script(client: Client) -> None:
        client.request()
        client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + sent)
        over.wait(30)

    with scripted(script) as url:
        run, summary = measure(
            tmp_path, url, server={"timeouts": timeouts}, load={"type": "closed", "concurrency": 1, "requests": 1}
        )
    over.set()
    assert summary.counts.by_failure == {code: 1}
    waited = run.records.rows["done"] - run.records.rows["sent"]
    assert waited[0] >= 100_000_000
    has_token = b"content" in sent and b"role" not in sent
    if code != "total_timeout":  # it counts from the send, so the first token of a slow server may come too late
        assert (run.records.rows["first_token"][0] != MISSING) == has_token


def test_connection_that_never_opens_is_a_connect_timeout(tmp_path: Path) -> None:
    """The listen queue is full, so that the kernel does not accept the connection."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
    assert select.select([listener], [], [], 30)[0]  # one connection is in the queue, which makes it full
    with pytest.raises(UserError, match="no connection within"):
        measure(tmp_path, f"http://127.0.0.1:{port}", server={"timeouts": {"connect": "200ms"}})
    for sock in (*fillers, listener):
        sock.close()


@pytest.mark.usefixtures("stale_however_late")
def test_user_backs_off_while_the_server_refuses_connections(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(http_response())
        raise OSError

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def serve_two_and_stop() -> None:
        probe, _ = listener.accept()
        first, _ = listener.accept()
        listener.close()
        probe.close()
        client = Client(first, 1)
        client.request()
        client.send(http_response())
        client.request()
        first.close()

    threading.Thread(target=serve_two_and_stop, daemon=True).start()
    run, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 1, "requests": 7})
    assert (summary.counts.ok, summary.counts.by_failure) == (1, {"connect_refused": 6})
    rows = np.sort(run.records.rows, order="id")
    pauses = (rows["intended"][2:] - rows["done"][1:-1]) // 1_000_000
    assert pauses.tolist() == [10, 20, 40, 80, 160]
    assert summary.verdict == "INVALID"


def test_ipv6(tmp_path: Path) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        with scripted(polite, family=socket.AF_INET6) as url:
            assert measure(tmp_path, url)[1].counts.ok == 6
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")


def test_requests_go_to_several_base_urls_in_turn(tmp_path: Path) -> None:
    hits = [0, 0]

    def script(index: int):  # type: ignore[no-untyped-def]
        def serve(client: Client) -> None:
            while client.request():
                hits[index] += 1
                client.send(http_response())

        return serve

    with scripted(script(0)) as one, scripted(script(1)) as two:
        run, _ = measure(tmp_path, [one, two], load={"type": "closed", "concurrency": 2, "requests": 10})
    assert hits == [5, 5]
    assert np.array_equal(run.records.rows["url"], run.records.rows["id"] % 2)


@pytest.mark.usefixtures("stale_however_late")
def test_connection_that_the_server_closes_before_it_is_warmed_is_skipped(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        if client.number != 1:
            polite(client)

    with scripted(script) as url:
        _, summary = measure(
            tmp_path,
            url,
            server={"timeouts": {"connect": "30s"}},
            client={"warm": True, "connections": 70},  # opened in two batches, which leaves time to notice the close
            load={"type": "closed", "concurrency": 1, "requests": 2},
        )
    assert summary.counts.failed == 0


def test_connections_are_opened_and_warmed_before_the_start(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    def script(client: Client) -> None:
        while request := client.request():
            seen.append((client.number, request[0].split()[0]))
            client.send(http_response())

    with scripted(script) as url:
        measure(
            tmp_path, url, client={"warm": True, "connections": 3}, load={"type": "constant", "rate": 50, "requests": 2}
        )
    assert sorted(number for number, verb in seen if verb == "GET") == [1, 2, 3]


def test_large_request_is_sent_completely_to_a_server_that_reads_slowly(tmp_path: Path) -> None:
    sizes = []

    def script(client: Client) -> None:
        time.sleep(0.05)
        while request := client.request():
            sizes.append(len(request[2]))
            client.send(http_response())

    server = {"body": {"padding": "x" * 12_000_000}}
    _, summary = measure(
        tmp_path, scripted(script), server=server, load={"type": "closed", "concurrency": 1, "requests": 2}
    )
    assert summary.counts.ok == 2
    assert min(sizes) > 12_000_000


def test_first_content_is_recorded_apart_from_the_first_token_of_reasoning(tmp_path: Path) -> None:
    thought = b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n'

    def script(client: Client) -> None:
        while client.request():
            response = http_response(thought + STREAM)
            head = response.index(thought) + len(thought)
            client.send(response[:head])
            time.sleep(0.02)
            client.send(response[head:])

    run, _ = measure(tmp_path, scripted(script), load={"type": "closed", "concurrency": 1, "requests": 2})
    rows = run.records.rows
    assert (rows["first_content"] - rows["first_token"] >= 15_000_000).all()
    assert (rows["first_content"] <= rows["last_token"]).all()


def without_usage(client: Client) -> None:
    while client.request():
        client.send(http_response(NO_USAGE))


def test_the_tokenizer_of_the_model_counts_if_the_server_reports_no_usage(tmp_path: Path) -> None:
    path = BUILTIN / "tokenizer.json"  # named by the user, so it is the model's
    data = {"type": "prompts", "prompts": ["say one two"], "output": 4, "tokenizer": str(path)}
    run, summary = measure(tmp_path, scripted(without_usage), data=data)
    rows, count = run.records.rows, load(str(path)).count
    assert set(rows["n_in"]) == {count("say one two")}
    assert set(rows["in_counted_by"]) == {COUNTED_BY.index("tokenizer")}
    assert set(rows["n_out"]) == {count("one two")}
    assert set(rows["counted_by"]) == {COUNTED_BY.index("tokenizer")}
    assert summary.throughput.output_tokens is not None
    assert any(check.status == "pass" and "data.tokenizer" in check.message for check in summary.checks)


def test_tokens_are_not_counted_with_the_vocabulary_of_another_model(tmp_path: Path) -> None:
    """The built-in tokenizer reported 414 tokens/s for a model that made 148."""
    run, summary = measure(tmp_path, scripted(without_usage))
    rows = run.records.rows
    assert {(row["n_in"], row["in_counted_by"]) for row in rows} == {(-1, COUNTED_BY.index("nobody"))}
    assert {(row["n_out"], row["counted_by"]) for row in rows} == {(2, COUNTED_BY.index("chunks"))}
    assert (rows["n_want"] > 0).all() and (rows["chunk_count"] == 2).all()
    assert set(rows["streamed_tokens"]) == {-1}
    assert summary.throughput.input_tokens is None and summary.throughput.total_tokens is None
    assert summary.throughput.decode is None
    per_token = ("tpot", "tps_user", "ntpot", "tokens_per_chunk")
    assert not any(summary.metrics[name].count for name in (*per_token, "input_tokens"))
    assert not any(check.name == "answers" for check in summary.checks)
    warned = next(check for check in summary.checks if check.name == "token_source")
    assert warned.status == "warn" and "their number of chunks stands in" in warned.message


def test_manifest_says_whether_stamps_come_from_the_kernel_or_from_reading(tmp_path: Path) -> None:
    with scripted(polite) as url:
        by_kernel, _ = measure(tmp_path, url)
        by_user, _ = measure(tmp_path, url, client={"stamps": "user"})
    assert by_user.manifest.clock["stamps"] == "user"
    assert (by_user.records.rows["read_delay"] == -1).all()
    if by_kernel.manifest.clock["stamps"] == "kernel":
        assert (by_kernel.records.rows["read_delay"] >= 0).all()
    for run in (by_kernel, by_user):
        rows = run.records.rows
        assert (rows["sent"] <= rows["first_byte"]).all()
        assert (rows["first_byte"] <= rows["first_token"]).all()
        assert (rows["last_token"] <= rows["done"]).all()
