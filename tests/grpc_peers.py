"""Shared by gRPC tests: grpcio as a server, a server that follows a script, and runs against them."""

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import Settings
from helpers import Client, measure, scripted

from inferometer.analysis.summary import Summary
from inferometer.records import Run

BIG = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
KINDS = {
    "Unary": (False, False, grpc.unary_unary_rpc_method_handler),
    "Down": (False, True, grpc.unary_stream_rpc_method_handler),
    "Up": (True, False, grpc.stream_unary_rpc_method_handler),
    "Both": (True, True, grpc.stream_stream_rpc_method_handler),
}
"""The methods of t.S: whether the client and the server stream, and grpcio's handler for it."""


def descriptors() -> bytes:
    """Return a descriptor set of the service t.S, whose messages have the fields `data` and `text`."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    message = file.message_type.add(name="M")
    message.field.add(name="data", number=1, type=12, label=1)
    message.field.add(name="text", number=2, type=9, label=1)
    service = file.service.add(name="S")
    for name, (up, down, _) in KINDS.items():
        service.method.add(name=name, input_type=".t.M", output_type=".t.M", client_streaming=up, server_streaming=down)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def run(
    folder: Path, url: "str | list[str] | AbstractContextManager[str]", method: str = "Unary", **sections: Any
) -> tuple[Run, Summary]:
    """Run calls of t.S/`method`, as `measure` does; six of them unless the load says otherwise."""
    proto = folder / "t.binpb"
    proto.write_bytes(descriptors())
    server = {"api": "grpc", "method": f"t.S/{method}", "proto": str(proto)} | sections.pop("server", {})
    data: dict[str, Any] = {"type": "messages", "messages": sections.pop("messages", [{"text": "hello"}])}
    data = sections.pop("data", data)
    return measure(folder / "runs", url, server=server, data=data, **sections)


def one(**more: Any) -> dict[str, Any]:
    """Return a load of one call at a time, and one in total unless `requests` is given."""
    return {"type": "closed", "concurrency": 1, "requests": 1} | more


def failures_of(run: Run) -> set[tuple[str, str]]:
    """Return the codes and messages of a run's failures, without cancelled requests."""
    return {(failure.code, failure.message) for failure in run.records.failures if failure.code != "cancelled"}


# --- grpcio ----------------------------------------------------------------------------------------------------------


def handler(handlers: dict[str, Callable[..., Any]]) -> grpc.GenericRpcHandler:
    """Return grpcio's handler of t.S for functions that take and return messages as bytes."""
    return grpc.method_handlers_generic_handler("t.S", {name: KINDS[name][2](fn) for name, fn in handlers.items()})


@contextlib.contextmanager
def grpcio(
    options: list[tuple[str, Any]] | None = None,
    credentials: grpc.ServerCredentials | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    workers: int = 8,
    compression: grpc.Compression | None = None,
    **handlers: Callable[..., Any],
) -> Iterator[str]:
    """Run grpcio's server in threads of this process; yield its URL."""
    with ThreadPoolExecutor(workers) as pool:
        server = grpc.server(pool, [handler(handlers)], options=options or [], compression=compression)
        address = f"{host}:{port}"
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        if not port:
            raise OSError(f"{address} cannot be bound")
        server.start()
        try:
            yield f"grpc{'s' * bool(credentials)}://{host}:{port}"
        finally:
            server.stop(0).wait()


# --- a script --------------------------------------------------------------------------------------------------------

HEAD = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


class GrpcPeer:
    """The server's side of one HTTP/2 connection. Number 0 is the probe before the run, over which no request comes."""

    def __init__(self, client: Client, settings: dict[int, int]) -> None:
        self.sock = client.sock
        self.number = client.number
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.resets: list[tuple[int, int]] = []
        self.heads: dict[int, dict[str, str]] = {}
        self._requests: list[int] = []
        self.h2.local_settings = Settings(client=False, initial_values=settings)  # type: ignore[arg-type]
        self.h2.initiate_connection()
        self.receive()  # before flush: the client's settings are then acknowledged together with ours, not some time later
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.sendall(self.h2.data_to_send())

    def receive(self) -> bool:
        """Receive what the client sends next; return False when it has gone."""
        try:
            data = self.sock.recv(65536)
            events = self.h2.receive_data(data)
        except (OSError, ProtocolError):
            return False
        for event in events:
            if isinstance(event, RequestReceived):
                self.heads[event.stream_id] = dict(event.headers)
            elif isinstance(event, StreamEnded):
                self._requests.append(event.stream_id)
            elif isinstance(event, StreamReset):
                self.resets.append((event.stream_id, int(event.error_code)))
            if hasattr(event, "flow_controlled_length") and event.flow_controlled_length:
                with contextlib.suppress(ProtocolError):
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        self.flush()
        return bool(data)

    def request(self) -> int | None:
        """Return the stream of the next complete request, or None when the client has gone."""
        while not self._requests:
            if not self.receive():
                return None
        return self._requests.pop(0)

    def requests(self) -> Iterator[int]:
        while (stream := self.request()) is not None:
            yield stream

    def head(self, stream: int, headers: list[tuple[str, str]] | None = None, end: bool = False) -> None:
        self.h2.send_headers(stream, headers or HEAD, end_stream=end)
        self.flush()

    def data(self, stream: int, data: bytes, end: bool = False) -> None:
        self.h2.send_data(stream, data, end_stream=end)
        self.flush()

    def respond(self, stream: int, message: bytes = b"", trailers: list[tuple[str, str]] | None = None) -> None:
        """Send a complete response."""
        self.h2.send_headers(stream, HEAD)
        self.h2.send_data(stream, framed(message))
        self.h2.send_headers(stream, trailers or OK, end_stream=True)
        self.flush()

    def reset(self, stream: int, code: int) -> None:
        self.h2.reset_stream(stream, code)
        self.flush()

    def go_away(self, last: int, code: int = 0) -> None:
        """Send GOAWAY like a server that still completes its calls (h2 itself would end the connection)."""
        self.sock.sendall(struct.pack(">HBBBIII", 0, 8, 7, 0, 0, last, code))

    def polite(self) -> None:
        for stream in self.requests():
            self.respond(stream)


@contextlib.contextmanager
def scripted_grpc(
    script: Callable[[GrpcPeer], None], context: ssl.SSLContext | None = None, settings: dict[int, int] | None = None
) -> Iterator[str]:
    """Run a gRPC server that runs `script` for each connection; yield its URL."""
    with scripted(lambda client: script(GrpcPeer(client, settings or {})), context) as url:
        yield url.replace("http", "grpc", 1)


def hard_close(peer: GrpcPeer) -> None:
    """Reset the connection instead of closing it."""
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.sock.close()
