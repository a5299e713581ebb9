"""Injected faults: their syntax, which requests they apply to, and what the client sees."""

import json
import socket
import struct
import time
from itertools import pairwise
from typing import Any

import pytest
from raw_client import RawClient, Response

from inferometer.errors import UserError
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim import truth
from inferometer.serve.sim.faults import KINDS, Fault, parse_fault, pick
from inferometer.serve.sim.settings import Batch, Fixed

MS = 1_000_000


# --- the grammar -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("reject", Fault("reject", 503, every=1)),
        ("reject=429", Fault("reject", 429, every=1)),
        ("stall=250ms", Fault("stall", 250 * MS, every=1)),
        ("split=1", Fault("split", 1, every=1)),
        ("reset@#7", Fault("reset", nth=7)),
    ],
)
def test_valid_faults_are_parsed(text: str, fault: Fault):
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text",
    ["", "nope", "reject=99", "reject=x", "split=0", "stall=x", "reset=1", "reset@#0", "reset@#x", "reset@every=0",
     "reset@0%", "reset@101%", "reset@x%", "reset@t=5s", "freeze@t=x", "reset@later"],
)  # fmt: skip
def test_invalid_faults_are_explained(text: str):
    with pytest.raises(UserError) as error:
        parse_fault(text)
    assert error.value.remedy


def struck(*rules: str, seed: int = 0, n: int = 1000) -> list[int]:
    parsed = [parse_fault(rule) for rule in rules]
    return [k for k in range(1, n + 1) if pick(parsed, k, seed)]


def test_rules_select_requests():
    assert struck("reset@#7") == [7]
    assert struck("reset@every=300") == [300, 600, 900]
    assert struck("reset", n=3) == [1, 2, 3]
    assert struck() == []


def test_a_share_is_random_and_reproducible():
    first = struck("reset@5%", n=10_000)
    assert 400 < len(first) < 600
    assert struck("reset@5%", n=10_000) == first
    assert struck("reset@5%", n=10_000, seed=1) != first


def test_the_first_matching_rule_wins():
    faults = [parse_fault("reset@#2"), parse_fault("html@every=2")]
    assert [getattr(pick(faults, n, 0), "kind", None) for n in range(1, 5)] == [None, "reset", None, "html"]


# --- as the client sees them -----------------------------------------------------------------------------------------


def send(client: RawClient, fault: str, stream: bool = True, tokens: int = 10) -> Response:
    body: dict[str, Any] = {"prompt": "hello", "stream": stream, "max_tokens": tokens}
    return client.request("/v1/completions", body, x_sim_fault=fault)


def tokens_in(response: Response) -> int:
    return response.body.count(b'"finish_reason":null')


OK, BROKEN = (200, True, False), (200, False, False)
SEEN: dict[str, tuple[tuple[int, bool, bool], int | None, bytes, bytes]] = {
    # status, whether the response is complete, whether it was reset; tokens of 10; what the body has, and what it has not
    "reject=429": ((429, True, False), 0, b'"code":"injected"', b"data: "),
    "reset": ((0, False, True), 0, b"", b"data: "),
    "abort": ((200, False, True), 5, b"", b"[DONE]"),
    "cut": (BROKEN, 5, b"", b"[DONE]"),
    "truncate": (OK, 5, b"", b"[DONE]"),
    "error_frame": (OK, 5, b'data: {"error":', b"length"),
    "garbage": (OK, None, b"[DONE]", b"error"),
    "error_body": (OK, 0, b'{"error":', b"data: "),
    "empty": (OK, 0, b"[DONE]", b"error"),
    "html": (OK, 0, b"<h1>", b"data: "),
    "close": (OK, 10, b"[DONE]", b"error"),
}


@pytest.mark.parametrize("fault", SEEN)
def test_what_a_client_sees_of_a_stream(client: RawClient, fault: str):
    seen, tokens, has, lacks = SEEN[fault]
    response = send(client, fault)
    assert (response.status, response.complete, response.reset) == seen
    assert tokens_in(response) == tokens or tokens is None
    assert has in response.body and lacks not in response.body
    assert (fault == "html") == response.headers.get("content-type", "").startswith("text/html")
    if fault == "reset":
        assert client.reads == []  # it comes before any byte
    elif fault == "close":
        assert "connection" not in response.headers
        assert client.at_end()
    elif response.complete:
        assert client.request("/health").status == 200


def test_garbage_is_one_malformed_event(client: RawClient):
    *events, done = send(client, "garbage").events
    assert (len(events), done) == (10 + 1 + 1, "[DONE]")
    assert sum(not is_json(event) for event in events) == 1


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_empty_is_a_whole_response_without_a_token(client: RawClient):
    assert send(client, "empty", stream=False).json["choices"][0]["text"] == ""


def test_stall_pauses_halfway_and_loses_nothing(client: RawClient):
    start = time.monotonic()
    response = send(client, "stall=300ms")
    assert time.monotonic() - start > 0.3
    assert len(response.events) == 12


def test_split_writes_arrive_complete(client: RawClient):
    before = segments(client)
    response = send(client, "split=3")
    assert len(response.events) == 12
    assert segments(client) - before > 12
    assert send(client, "close").complete


def segments(client: RawClient) -> int:
    """Return how many TCP segments arrived according to the kernel (tcpi_segs_in): a blocked client reads many at once."""
    return int(struct.unpack_from("I", client.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 140)[0])


@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "freeze"])
def test_every_fault_in_short_responses_leaves_the_server_working(sim: str, kind: str, stream: bool, tokens: int):
    fault = "stall=1ms" if kind == "stall" else kind
    with RawClient(sim) as client:
        response = send(client, fault, stream, tokens)
        broken = kind in ("reset", "abort", "cut")
        assert response.complete is not broken
    with RawClient(sim) as client:
        assert send(client, "close").complete


@pytest.mark.parametrize(
    ("kind", "complete"), [("abort", False), ("cut", False), ("truncate", True), ("garbage", True)]
)
def test_faults_halfway_through_a_non_streamed_response(client: RawClient, kind: str, complete: bool):
    response = send(client, kind, stream=False)
    assert response.complete is complete
    assert response.body.startswith(b'{"id"')
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        response.json  # noqa: B018


def test_an_unknown_fault_in_the_header_is_400(client: RawClient):
    response = send(client, "nonsense")
    assert response.status == 400
    assert "unknown fault 'nonsense'" in response.json["error"]["message"]


@pytest.mark.parametrize(
    "timing",
    [Fixed(ttft=0.02, itl=0.02), pytest.param(Batch(prefill_rate=100, decode_step=0.02), marks=pytest.mark.slow)],
)
def test_a_timed_freeze_delays_everything(timing: Fixed | Batch, truth_file: str):
    settings = simulator(timing=timing, faults=("freeze=300ms@t=50ms",), truth=truth_file)
    with running(settings) as url, RawClient(url) as client:
        assert len(send(client, "", tokens=20).events) == 22
    (row,) = truth.read(truth_file)
    # From the arrival on: a server that was held up comes to its first token after the freeze, or 400 ms late.
    stamps = [row.arrived, *row.chunks]
    assert any(b - a >= 300 * MS and b >= row.arrived + 350 * MS for a, b in pairwise(stamps))
    assert row.fault is None
