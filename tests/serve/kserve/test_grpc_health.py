"""grpc.health.v1 and server reflection, with grpcio's clients and ours."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from raw_grpc import NO_MESSAGE, RawGrpc, headers
from served import PATIENCE_S, Served, failure, serving

from inferometer.wire import protobuf, reflection

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


@pytest.fixture
def channel(server: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc_address) as one:
        yield one


def a_check(service: str) -> Any:
    return health_pb2.HealthCheckRequest(service=service)


# --- health ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService", "identity", "many"])
def test_server_services_and_models_are_serving(channel: grpc.Channel, service: str) -> None:
    assert health_pb2_grpc.HealthStub(channel).Check(a_check(service)).status == SERVING


def test_unknown_services_are_not_found(channel: grpc.Channel) -> None:
    assert failure(lambda: health_pb2_grpc.HealthStub(channel).Check(a_check("nope")))[0] == "NOT_FOUND"


def test_a_watch_of_an_unknown_service_continues(channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(a_check("nope"), timeout=PATIENCE_S)
    assert next(watch).status == SERVICE_UNKNOWN
    assert watch.is_active()
    watch.cancel()


def test_a_watch_sees_each_change(server: Served, channel: grpc.Channel) -> None:
    async def set_serving(serving: bool) -> None:
        server.grpc.health.set_serving(serving)

    stub = health_pb2_grpc.HealthStub(channel)
    watches = [stub.Watch(a_check(service), timeout=PATIENCE_S) for service in ("", "identity")]
    assert [next(watch).status for watch in watches] == [SERVING] * 2
    server.run(set_serving, False)
    assert [next(watch).status for watch in watches] == [NOT_SERVING] * 2
    assert stub.Check(a_check("")).status == NOT_SERVING
    server.run(set_serving, True)
    assert [next(watch).status for watch in watches] == [SERVING] * 2


def test_a_watch_sees_a_model_unloaded_and_loaded() -> None:
    with serving() as one, grpc.insecure_channel(one.grpc_address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(a_check("many"), timeout=PATIENCE_S)
        assert next(watch).status == SERVING
        one.run(one.models.unload, "many")
        assert next(watch).status == NOT_SERVING
        check = health_pb2_grpc.HealthStub(channel).Check
        assert check(a_check("many")).status == NOT_SERVING  # it is known, and may come again
        one.run(one.models.load, "many")
        assert next(watch).status == SERVING


def test_a_watch_sees_the_stop_and_does_not_delay_it() -> None:
    with serving() as one, grpc.insecure_channel(one.grpc_address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(a_check(""), timeout=2 * PATIENCE_S)
        assert next(watch).status == SERVING
        stopped = threading.Thread(target=one.run, args=(one.grpc.stop, 1000.0))
        stopped.start()
        assert [response.status for response in watch] == [NOT_SERVING]
        stopped.join(PATIENCE_S)
        assert not stopped.is_alive()


def test_a_watch_that_arrives_after_the_stop_has_begun_does_not_delay_it() -> None:
    with serving() as one, RawGrpc(one.grpc_address) as raw:
        stream = raw.http.get_next_available_stream_id()
        raw.http.send_headers(stream, headers("/grpc.health.v1.Health/Watch"))
        assert raw.request("/inference.GRPCInferenceService/ServerLive") == 0  # so that the headers have arrived
        raw.http.send_data(stream, NO_MESSAGE, end_stream=True)
        stopped = threading.Thread(target=one.run, args=(one.grpc.stop, 1000.0))
        stopped.start()
        raw.sock.recv(65536)  # the announcement
        raw.send()
        stopped.join(PATIENCE_S)
        assert not stopped.is_alive()


# --- reflection ------------------------------------------------------------------------------------------------------

SERVICES = {
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
}


def test_grpcios_client_finds_all_services_and_their_messages(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert set(database.get_services()) == SERVICES
    pool = DescriptorPool(database)
    for name in SERVICES:
        service = pool.FindServiceByName(name)
        assert [method.input_type.full_name for method in service.methods]
    method = pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name["ModelInfer"]
    assert method.input_type.full_name == "inference.ModelInferRequest"


@pytest.mark.parametrize("path", reflection.PATHS)
def test_our_own_client_describes_the_service(channel: grpc.Channel, path: str) -> None:
    call = channel.stream_stream(path)

    def exchange(message: reflection.ReflectionQuery) -> bytes | None:
        return next(iter(call(iter([message.message])))) if message.path == path else None

    conversation = reflection.describe("inference.GRPCInferenceService/ModelInfer")
    message = next(conversation)
    try:
        while True:
            message = conversation.send(exchange(message))
    except StopIteration as end:
        schema = protobuf.load(end.value)
    assert schema.method("inference.GRPCInferenceService/ModelInfer").path.endswith("/ModelInfer")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"file_containing_symbol": "inference.ModelInferRequest.InferInputTensor"}, "kserve.proto"),
        ({"file_containing_symbol": "inference.GRPCInferenceService.ModelInfer"}, "kserve.proto"),
        ({"file_by_filename": "health.proto"}, "health.proto"),
        ({"file_containing_symbol": "no.such.Thing"}, 5),
        ({"file_by_filename": "../../etc/passwd"}, 5),
        ({"file_containing_symbol": ""}, 5),
        ({"file_containing_extension": {"containing_type": "x", "extension_number": 1}}, 5),
    ],
)
def test_reflection_errors_do_not_end_the_stream(
    channel: grpc.Channel, fields: dict[str, Any], expected: str | int
) -> None:
    message = reflection_pb2.ServerReflectionRequest(**fields)
    last = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    first, second = stub.ServerReflectionInfo(iter([message, last]))
    if isinstance(expected, int):
        assert first.error_response.error_code == expected
    else:
        files = first.file_descriptor_response.file_descriptor_proto
        assert descriptor_pb2.FileDescriptorProto.FromString(files[0]).name == expected
    assert first.original_request == message
    assert {one.name for one in second.list_services_response.service} == SERVICES
