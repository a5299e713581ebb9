"""`inferometer infer --deadline` against a server that does not enforce it: the client does."""

from collections.abc import Iterator
from typing import Any

import kserve_peers
import pytest
from command import Result, assert_one_line, cli

from inferometer.probe import roundtrip
from inferometer.units import NS
from inferometer.wire import grpc, protobuf

METHOD = "inference.GRPCInferenceService/ModelInfer"
NEVER = '{"model_name": "pair", "parameters": {"never": {"bool_param": true}}}'
PASSED = "no response in time: the deadline of 100 ms passed before the response was complete (DEADLINE_EXCEEDED)"
REMEDY = "raise --deadline"


@pytest.fixture
def unaware(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its URL. The deadline that it receives is hours away."""
    monkeypatch.setattr(grpc, "timeout", lambda _: b"9H")
    with kserve_peers.over_grpc() as url:
        yield url


def infer(url: str, *arguments: str) -> Result:
    return cli("infer", url, *arguments, "--timeout", "30s")


def test_tensors(unaware: str) -> None:
    result = infer(unaware, "--model", "pair", "--parameter", "never=true", "--deadline", "100ms")
    assert_one_line(result, PASSED, REMEDY)


def test_a_method(unaware: str) -> None:
    proto = str(protobuf.BUNDLED / "kserve.binpb")
    result = infer(unaware, "--method", METHOD, "--proto", proto, "--data", NEVER, "--deadline", "100ms")
    assert_one_line(result, PASSED, REMEDY)


def test_a_stream_that_stops_shows_what_arrived(unaware: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's clock is past the deadline when all three responses have arrived."""
    decode, now, ahead = roundtrip._decoded, roundtrip.now, 0

    def tell(event: Any, response: Any) -> Any:
        nonlocal ahead
        events = decode(event, response)
        if response.count == 3:
            ahead = 100 * NS
        return events

    monkeypatch.setattr(roundtrip, "_decoded", tell)
    monkeypatch.setattr(roundtrip, "now", lambda: now() + ahead)
    result = infer(unaware, "--model", "many", "--input", "3", "--parameter", "never=true", "--deadline", "50s")
    assert result.status == 2
    assert result.out.count("SQUARE") == 3
    assert "the deadline of 50 s passed before the response was complete" in result.err and REMEDY in result.err
