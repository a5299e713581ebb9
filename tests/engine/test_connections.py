"""Connections as servers really treat them: kept, closed, reset, silent, encrypted."""

import select
import socket
import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import NO_USAGE, Client, answer, measure, polite, scripted

from inferometer.engine import http1_connection
from inferometer.errors import UserError
from inferometer.records import MISSING


def test_connections_are_kept_and_used_again(tmp_path: Path) -> None:
    seen = []

    def script(client: Client) -> None:
        while client.request():
            seen.append(client.number)
            client.send(answer())

    with scripted(script) as url:
        run, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 2, "requests": 20})
    assert summary.counts.ok == 20
    assert len(set(seen)) == 2
    assert set(run.records.rows["attempts"]) == {1}


@pytest.mark.usefixtures("stale_however_late")
def test_a_server_that_closes_after_each_answer_while_promising_to_keep_the_connection(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(answer())

    with scripted(script) as url:
        run, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 3, "requests": 30})
    assert (summary.counts.ok, summary.counts.failed) == (30, 0)
    assert run.records.rows["attempts"].max() <= 2


@pytest.mark.usefixtures("stale_however_late")
def test_such_a_server_is_soon_sent_every_request_once_over_a_connection_of_its_own(tmp_path: Path) -> None:
    """The last answer and the close arrive together, and with one user nothing else can tell in between."""

    def script(client: Client) -> None:
        client.request()
        client.send(answer())

    with scripted(script) as url:
        run, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 1, "requests": 40})
    assert summary.counts.ok == 40
    assert (run.records.rows["attempts"] > 1).sum() <= 3


@pytest.mark.usefixtures("stale_however_late")
def test_a_stale_connection_is_retried_once_and_the_time_is_not_the_clients(tmp_path: Path) -> None:
    """The first connection answers once, takes the next request in, and closes without a word."""

    def script(client: Client) -> None:
        client.request()
        client.send(answer())
        client.request()
        if client.number > 1:  # 0 is the look before the run
            polite_after(client)

    def polite_after(client: Client) -> None:
        client.send(answer())
        polite(client)

    with scripted(script) as url:
        run, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 1, "requests": 3})
    assert summary.counts.ok == 3
    rows = np.sort(run.records.rows, order="id")
    assert rows["attempts"].tolist() == [1, 2, 1]
    assert rows["held"][1] > 0


def test_a_connection_that_closes_long_after_the_send_was_not_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1_connection, "STALE_WITHIN", 0)  # so that any time is long

    def script(client: Client) -> None:
        client.request()
        client.send(answer())
        client.request()

    with scripted(script) as url:
        run, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 1, "requests": 2})
    assert summary.counts.by_failure == {"closed": 1}
    assert run.records.rows["attempts"].tolist() == [1, 1]


def test_a_fresh_connection_that_closes_without_a_word_is_a_failure_not_a_retry(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.request()

    with scripted(script) as url:
        _, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 1, "requests": 2})
    assert summary.counts.by_failure == {"closed": 2}


def test_a_request_is_never_sent_again_once_a_byte_was_answered(tmp_path: Path) -> None:
    count = 0

    def script(client: Client) -> None:
        nonlocal count
        client.request()
        client.send(answer())
        while client.request():
            count += 1
            client.send(answer()[:40])
            return

    with scripted(script) as url:
        _, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 1, "requests": 2})
    assert summary.counts.by_failure == {"cut_short": 1}
    assert count == 1


def test_a_reset_is_told_from_a_close(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.request()
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sock.close()

    with scripted(script) as url:
        _, summary = measure(tmp_path, url, load={"type": "closed", "concurrency": 1, "requests": 1})
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
def test_each_timeout_is_a_failure_with_its_own_code(
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
    if code != "total_timeout":  # which counts from the send: a slow server's token may come too late
        assert (run.records.rows["first_token"][0] != MISSING) == has_token


def test_a_connection_that_never_opens_is_a_connect_timeout(tmp_path: Path) -> None:
    """The look before the run and the opened connection fill the listen queue; the next one gets no answer."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
    assert select.select([listener], [], [], 30)[0]  # one is in the queue, which is full with that
    with pytest.raises(UserError, match="no connection within"):
        measure(tmp_path, f"http://127.0.0.1:{port}", server={"timeouts": {"connect": "200ms"}})
    for sock in (*fillers, listener):
        sock.close()


@pytest.mark.usefixtures("stale_however_late")
def test_a_server_that_goes_away_leaves_failures_and_is_not_asked_a_million_times(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(answer())
        raise OSError

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def serve_two_and_stop() -> None:
        look, _ = listener.accept()
        first, _ = listener.accept()
        listener.close()
        look.close()
        client = Client(first, 1)
        client.request()
        client.send(answer())
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


def test_several_base_urls_are_served_in_turn(tmp_path: Path) -> None:
    hits = [0, 0]

    def script(place: int):  # type: ignore[no-untyped-def]
        def serve(client: Client) -> None:
            while client.request():
                hits[place] += 1
                client.send(answer())

        return serve

    with scripted(script(0)) as one, scripted(script(1)) as two:
        run, _ = measure(tmp_path, [one, two], load={"type": "closed", "concurrency": 2, "requests": 10})
    assert hits == [5, 5]
    assert np.array_equal(run.records.rows["url"], run.records.rows["id"] % 2)


@pytest.mark.usefixtures("stale_however_late")
def test_a_connection_that_the_server_closes_before_it_is_warmed_is_passed_over(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        if client.number != 1:
            polite(client)

    with scripted(script) as url:
        _, summary = measure(
            tmp_path,
            url,
            server={"timeouts": {"connect": "30s"}},
            client={"warm": True, "connections": 70},  # they are opened in two goes: time enough to hear of the close
            load={"type": "closed", "concurrency": 1, "requests": 2},
        )
    assert summary.counts.failed == 0


def test_connections_are_opened_and_warmed_before_the_start(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    def script(client: Client) -> None:
        while request := client.request():
            seen.append((client.number, request[0].split()[0]))
            client.send(answer())

    with scripted(script) as url:
        measure(
            tmp_path, url, client={"warm": True, "connections": 3}, load={"type": "constant", "rate": 50, "requests": 2}
        )
    assert sorted(number for number, verb in seen if verb == "GET") == [1, 2, 3]


def test_a_big_request_goes_out_whole_to_a_server_that_reads_slowly(tmp_path: Path) -> None:
    sizes = []

    def script(client: Client) -> None:
        time.sleep(0.05)
        while request := client.request():
            sizes.append(len(request[2]))
            client.send(answer())

    server = {"body": {"padding": "x" * 12_000_000}}
    with scripted(script) as url:
        _, summary = measure(tmp_path, url, server=server, load={"type": "closed", "concurrency": 1, "requests": 2})
    assert summary.counts.ok == 2
    assert min(sizes) > 12_000_000


def test_tokens_are_counted_by_the_tokenizer_where_the_server_does_not(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        while client.request():
            client.send(answer(NO_USAGE))

    with scripted(script) as url:
        run, summary = measure(tmp_path, url)
    assert run.records.rows["n_out"].min() >= 2
    assert set(run.records.rows["counted_by"]) == {2}
    assert any(check.status == "warn" and "tokenizer" in check.message for check in summary.checks)


def test_stamps_taken_by_the_kernel_or_when_read_and_the_manifest_says_which(tmp_path: Path) -> None:
    with scripted(polite) as url:
        by_kernel, _ = measure(tmp_path, url)
        by_hand, _ = measure(tmp_path, url, client={"stamps": "user"})
    assert by_hand.manifest.clock["stamps"] == "user"
    assert (by_hand.records.rows["read_delay"] == -1).all()
    if by_kernel.manifest.clock["stamps"] == "kernel":
        assert (by_kernel.records.rows["read_delay"] >= 0).all()
    for run in (by_kernel, by_hand):
        rows = run.records.rows
        assert (rows["sent"] <= rows["first_byte"]).all()
        assert (rows["first_byte"] <= rows["first_token"]).all()
        assert (rows["last_token"] <= rows["done"]).all()
