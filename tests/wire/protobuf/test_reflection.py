"""Server reflection: against a real gRPC server, and against scripted responses for what real servers rarely do."""

from collections.abc import Callable, Generator, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection as grpc_reflection

from inferometer.errors import UserError
from inferometer.wire import protobuf
from inferometer.wire.reflection import PATHS, ReflectionQuery, describe, services

SERVICE = """
syntax = "proto3";
package talk;
import "words.proto";
import "google/protobuf/timestamp.proto";
service Echo { rpc Say(words.Word) returns (Result); }
service Other { rpc Say(stream words.Word) returns (stream Result); }
message Result { words.Word word = 1; google.protobuf.Timestamp at = 2; }
"""
WORDS = 'syntax = "proto3"; package words; message Word { string text = 1; }'

Exchange = Callable[[ReflectionQuery], bytes | None]
TIMEOUT = 20


def finish(conversation: Generator[ReflectionQuery, bytes | None, Any], exchange: Exchange) -> Any:
    """Run the conversation to its end."""
    try:
        query = next(conversation)
        while True:
            query = conversation.send(exchange(query))
    except StopIteration as end:
        return end.value


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[descriptor_pb2.FileDescriptorProto]:
    folder: Path = tmp_path_factory.mktemp("talk")
    (folder / "words.proto").write_text(WORDS)
    (folder / "talk.proto").write_text(SERVICE)
    return list(descriptor_pb2.FileDescriptorSet.FromString(protobuf.compile(folder / "talk.proto")).file)


# --- a real server ---------------------------------------------------------------------------------------------------


def say(word: bytes, _context: Any) -> bytes:
    return b"\x0a" + bytes([len(word)]) + word  # Result.word


@contextmanager
def serving(which: str, files: list[descriptor_pb2.FileDescriptorProto]) -> Iterator[Any]:
    """A channel to a grpcio server with reflection "v1alpha", "v1" or "none"."""
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    running = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    handlers = [grpc.method_handlers_generic_handler("talk.Echo", {"Say": grpc.unary_unary_rpc_method_handler(say)})]
    names = ["talk.Echo", "talk.Other", grpc_reflection.SERVICE_NAME]
    if which == "v1alpha":
        grpc_reflection.enable_server_reflection(names, running, pool=pool)
    elif which == "v1":  # grpcio has only v1alpha; the messages are the same
        from grpc_reflection.v1alpha.reflection_pb2 import (  # noqa: PLC0415
            ServerReflectionRequest,
            ServerReflectionResponse,
        )

        servicer = grpc_reflection.ReflectionServicer(names, pool=pool)
        handler = grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            ServerReflectionRequest.FromString,
            ServerReflectionResponse.SerializeToString,
        )
        handlers.append(
            grpc.method_handlers_generic_handler(
                "grpc.reflection.v1.ServerReflection", {"ServerReflectionInfo": handler}
            )
        )
    running.add_generic_rpc_handlers(tuple(handlers))
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    running.stop(None).wait(TIMEOUT)


@pytest.fixture(scope="module", params=["v1alpha", "v1"])
def server(request: pytest.FixtureRequest, files: list[descriptor_pb2.FileDescriptorProto]) -> Iterator[Any]:
    """A channel to a server, and the version of reflection that the server offers."""
    with serving(request.param, files) as channel:
        yield channel, request.param


def over(channel: Any, queries: list[ReflectionQuery]) -> Exchange:
    def exchange(query: ReflectionQuery) -> bytes | None:
        queries.append(query)
        try:
            responses = channel.stream_stream(query.path)(iter([query.message]), timeout=TIMEOUT)
            return bytes(next(responses))
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED
            return None

    return exchange


@pytest.mark.parametrize("wanted", ["talk.Echo/Say", "/talk.Echo/Say", "talk.Echo.Say", "talk.Echo", ""])
def test_description_of_a_real_service_is_sufficient_to_call_it(server: Any, wanted: str) -> None:
    channel, which = server
    queries: list[ReflectionQuery] = []
    schema = protobuf.load(finish(describe(wanted), over(channel, queries)))
    method = schema.method("talk.Echo/Say")
    call = channel.unary_unary(method.path)
    response = call(protobuf.encode(method.input, {"text": "hello"}), timeout=TIMEOUT)
    assert protobuf.decode(method.output, response) == {"word": {"text": "hello"}}
    assert schema.method("talk.Other/Say").client_streaming
    assert queries[0].path == PATHS[0], "v1 is tried first"
    assert {query.path for query in queries[1:]} <= {PATHS[1] if which == "v1alpha" else PATHS[0]}


def test_services_of_a_real_server_are_listed(server: Any) -> None:
    channel, _ = server
    assert finish(services(), over(channel, [])) == ["talk.Echo", "talk.Other"]


@pytest.mark.parametrize("wanted", ["talk.Ecko/Say", "nobody.Knows.This", "x"])
def test_error_for_an_unknown_service_lists_the_services_of_a_real_server(server: Any, wanted: str) -> None:
    channel, _ = server
    with pytest.raises(UserError, match=repr(wanted)) as caught:
        finish(describe(wanted), over(channel, []))
    assert caught.value.remedy == "its services are talk.Echo, talk.Other"


def test_real_server_without_reflection_is_reported(
    files: list[descriptor_pb2.FileDescriptorProto],
) -> None:
    queries: list[ReflectionQuery] = []
    with (
        serving("none", files) as channel,
        pytest.raises(UserError, match="does not offer reflection") as caught,
    ):
        finish(describe("talk.Echo/Say"), over(channel, queries))
    assert [query.path for query in queries] == list(PATHS)
    assert "server.proto" in caught.value.remedy


# --- scripted responses ------------------------------------------------------------------------------------------------

REQUEST = protobuf.bundled("reflection").message("grpc.reflection.v1.ServerReflectionRequest")
RESPONSE = protobuf.bundled("reflection").message("grpc.reflection.v1.ServerReflectionResponse")


def described(*files: descriptor_pb2.FileDescriptorProto) -> bytes:
    response = RESPONSE()
    response.file_descriptor_response.file_descriptor_proto.extend(file.SerializeToString() for file in files)
    return bytes(response.SerializeToString())


def failure(code: int, message: str = "no") -> bytes:
    return bytes(RESPONSE(error_response={"error_code": code, "error_message": message}).SerializeToString())


def one_by_one(files: list[descriptor_pb2.FileDescriptorProto], queries: list[str]) -> Exchange:
    """A server that sends one file at a time and lacks the well-known files of protobuf."""
    by_name = {file.name: file for file in files if not file.name.startswith("google/")}

    def exchange(query: ReflectionQuery) -> bytes:
        request = REQUEST.FromString(query.message)
        queries.append(request.file_by_filename or request.file_containing_symbol)
        if request.file_containing_symbol:
            return described(by_name["talk.proto"])
        return described(by_name[request.file_by_filename]) if request.file_by_filename in by_name else failure(5)

    return exchange


def test_missing_imports_are_requested_and_well_known_ones_are_optional(
    files: list[descriptor_pb2.FileDescriptorProto],
) -> None:
    queries: list[str] = []
    schema = protobuf.load(finish(describe("talk.Echo/Say"), one_by_one(files, queries)))
    assert queries == ["talk.Echo", "google/protobuf/timestamp.proto", "words.proto"]
    assert schema.method("talk.Echo/Say").output.DESCRIPTOR.full_name == "talk.Result"


def test_same_responses_give_the_same_bytes(files: list[descriptor_pb2.FileDescriptorProto]) -> None:
    assert finish(describe("talk.Echo"), one_by_one(files, [])) == finish(describe("talk.Echo"), one_by_one(files, []))


def test_listed_service_without_a_description_does_not_hide_the_others(
    files: list[descriptor_pb2.FileDescriptorProto],
) -> None:
    listed = RESPONSE(list_services_response={"service": [{"name": "talk.Echo"}, {"name": "a.Ghost"}]})

    def exchange(query: ReflectionQuery) -> bytes:
        request = REQUEST.FromString(query.message)
        if request.HasField("list_services"):
            return bytes(listed.SerializeToString())
        return failure(5) if request.file_containing_symbol == "a.Ghost" else described(*files)

    assert "talk.Echo/Say" in protobuf.load(finish(describe(), exchange)).methods
    assert finish(services(), exchange) == ["a.Ghost", "talk.Echo"]


def file(name: str, *imports: str) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(name=name, dependency=imports, syntax="proto3")


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        ([failure(13, "boom")], "boom"),
        ([b"\xff\xff"], "ServerReflectionResponse"),
        ([b""], "a different kind of response"),
        (
            [RESPONSE(file_descriptor_response={"file_descriptor_proto": [b"\xff"]}).SerializeToString()],
            "not a valid descriptor",
        ),
        ([described(file("a.proto", "b.proto")), failure(5, "lost")], "describe b.proto.*lost"),
        ([described(file("a.proto", "b.proto")), described(file("c.proto"))], "b.proto.*described c.proto"),
        ([described(file("a.proto", "b.proto")), described()], "b.proto.*described no file"),
        ([described(file("a.proto", "b.proto")), None], "reported it as unimplemented"),
    ],
)
def test_unexpected_response_is_an_error_with_a_reason(responses: list[bytes | None], expected: str) -> None:
    script = iter(responses)
    with pytest.raises(UserError, match=expected):
        finish(describe("a.A/B"), lambda query: next(script))


def test_server_with_endless_imports_is_abandoned() -> None:
    count = iter(range(10_000))

    def exchange(query: ReflectionQuery) -> bytes:
        i = next(count)
        return described(file(f"{i}.proto", f"{i + 1}.proto"))

    with pytest.raises(UserError, match="more than 4096 files"):
        finish(describe("a.A/B"), exchange)
