"""--max-requests, --max-streams and --max-header over gRPC, and what they do not apply to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from raw_grpc import RawGrpc
from served import PATIENCE_S, Served, Stub, a_request, dialled, failure, serving
from waiting import until

from inferometer.serve.kserve import messages
from inferometer.serve.settings import Limits

OK, RESOURCE_EXHAUSTED = 0, 8
CHECK = "/grpc.health.v1.Health/Check"
FULL = "the server has 2 requests in progress"


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.fixture
def two() -> Iterator[Served]:
    with serving(limits=Limits(requests=2)) as one:
        yield one


@pytest.fixture
def channel(two: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(two.grpc_address) as one:
        yield one


def test_all_kinds_of_inference_are_limited_and_metadata_calls_are_not(two: Served, channel: grpc.Channel) -> None:
    stub = Stub(channel)
    watch = health_pb2_grpc.HealthStub(channel).Watch
    watches = [watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S) for _ in range(5)]
    assert [next(one).status for one in watches] == [1] * 5
    in_flight = [stub.ModelInfer.future(a_request("slow")) for _ in range(2)]
    until(lambda: two.in_flight() == 2)
    options: dict[str, Any] = {"timeout": PATIENCE_S}
    code, words = failure(lambda: stub.ModelInfer(a_request(), **options))
    assert (code, FULL in words) == ("RESOURCE_EXHAUSTED", True), words
    (response,) = stub.ModelStreamInfer(iter([a_request()]), **options)
    assert FULL in response.error_message
    assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), **options).status == 1
    assert stub.ServerReady(b"", **options).ready
    assert stub.ModelReady(messages.SCHEMA.message("inference.ModelReadyRequest")(name="identity"), **options).ready
    assert not any(call.done() for call in in_flight)
    for call in in_flight:
        call.cancel()
    until(lambda: two.in_flight() == 0)
    assert stub.ModelInfer(a_request(), **options).raw_output_contents


# --- streams of a connection -----------------------------------------------------------------------------------------


def test_calls_beyond_the_limit_of_a_connection_wait(tmp_path: Path) -> None:
    """They start when others end, and none is refused."""
    peak, go_on = 0, tmp_path / "go on"
    with serving(limits=Limits(streams=3)) as one, dialled(one.grpc_address) as stub:
        submit = one.models.submit

        def counted(*words: Any) -> None:
            nonlocal peak
            submit(*words)
            peak = max(peak, one.models.in_flight)

        one.models.submit = counted  # type: ignore[method-assign]
        calls = [stub.ModelInfer.future(a_request("held", until=str(go_on)), timeout=PATIENCE_S) for _ in range(12)]
        until(lambda: peak >= 3)
        go_on.touch()
        assert all(call.result().raw_output_contents for call in calls)
        with RawGrpc(one.grpc_address) as raw:
            assert raw.max_streams == 3
    assert peak == 3


# --- metadata --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [4 << 10, 24 << 10])
def test_metadata_up_to_the_limit_is_accepted_and_more_is_refused(limit: int) -> None:
    """HTTP/2 counts 32 additional bytes per entry; the other entries are about 300 bytes."""
    with serving(limits=Limits(head=limit)) as one, RawGrpc(one.grpc_address) as raw:
        for _ in range(2):
            assert raw.request(CHECK, ("padding", "x" * (limit - 500))) == OK
            assert raw.request(CHECK, ("padding", "x" * (limit + 1))) == RESOURCE_EXHAUSTED
