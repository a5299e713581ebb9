"""The upper limit for Python servers: they send a fixed response, without a model, a queue or any checks.

`echo_server.py aio|http` prints the port that it listens on and ends when its standard input is closed.

    aio    grpc.aio on uvloop: responds with the bytes of a ModelInferResponse
    http   an asyncio.Protocol on uvloop with httptools: responds with one binary tensor
"""

import asyncio
import json
import sys
from typing import Any

import grpc  # type: ignore[import-untyped]
import httptools
import uvloop

from inferometer.wire import protobuf

MODEL, ELEMENTS = "identity", 16
SERVICE = "/inference.GRPCInferenceService/"


def main() -> None:
    uvloop.run(_serve_with_aio() if sys.argv[1] == "aio" else _serve_http())


def _ready(port: int) -> None:
    print(port, flush=True)


# --- gRPC ------------------------------------------------------------------------------------------------------------


def _responses() -> dict[str, bytes]:
    """Responses by path: for inference, and for what our client requests before it."""
    schema = protobuf.bundled("kserve")

    def message(kind: str, /, **fields: Any) -> bytes:
        encoded: bytes = schema.message(f"inference.{kind}Response")(**fields).SerializeToString()
        return encoded

    tensor = {"datatype": "FP32", "shape": [1, ELEMENTS]}
    described = {"datatype": "FP32", "shape": [-1, -1]}
    return {
        f"{SERVICE}ModelInfer": message(
            "ModelInfer",
            model_name=MODEL,
            model_version="1",
            outputs=[{"name": "OUTPUT0", **tensor}],
            raw_output_contents=[bytes(4 * ELEMENTS)],
        ),
        f"{SERVICE}ServerLive": message("ServerLive", live=True),
        f"{SERVICE}ModelReady": message("ModelReady", ready=True),
        f"{SERVICE}ServerMetadata": message("ServerMetadata", name="echo"),
        f"{SERVICE}ModelMetadata": message(
            "ModelMetadata",
            name=MODEL,
            versions=["1"],
            inputs=[{"name": "INPUT0", **described}],
            outputs=[{"name": "OUTPUT0", **described}],
        ),
    }


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)


def _coroutine(response: bytes) -> Any:
    async def call(request: bytes, context: Any) -> bytes:
        return response

    return grpc.unary_unary_rpc_method_handler(call)


async def _serve_with_aio() -> None:
    server = grpc.aio.server(
        handlers=(_Handlers({path: _coroutine(response) for path, response in _responses().items()}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    _ready(port)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


# --- HTTP ------------------------------------------------------------------------------------------------------------


def _pages() -> dict[bytes, bytes]:
    """Complete HTTP responses by path, for the same requests."""
    described = {"datatype": "FP32", "shape": [-1, -1]}
    tensor = {"name": "OUTPUT0", "datatype": "FP32", "shape": [1, ELEMENTS]}
    head = json.dumps(
        {
            "model_name": MODEL,
            "model_version": "1",
            "outputs": [tensor | {"parameters": {"binary_data_size": 4 * ELEMENTS}}],
        }
    ).encode()
    metadata = {
        "name": MODEL,
        "versions": ["1"],
        "platform": "",
        "inputs": [{"name": "INPUT0"} | described],
        "outputs": [{"name": "OUTPUT0"} | described],
    }
    binary = b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n" % len(head)
    model = f"/v2/models/{MODEL}".encode()
    return {
        model + b"/infer": _response(head + bytes(4 * ELEMENTS), binary),
        b"/v2/health/live": _response(b""),
        model + b"/ready": _response(b""),
        b"/v2": _response(json.dumps({"name": "echo", "version": "", "extensions": []}).encode()),
        model: _response(json.dumps(metadata).encode()),
    }


def _response(body: bytes, headers: bytes = b"Content-Type: application/json\r\n", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, headers, len(body), body)


_NOT_FOUND = _response(b'{"error":"Not Found"}', status=b"404 Not Found")


class _Echo(asyncio.Protocol):
    def __init__(self, pages: dict[bytes, bytes]) -> None:
        self._pages = pages
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: Any) -> None:
        self._write = transport.write

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_message_complete(self) -> None:
        self._write(self._pages.get(self._path, _NOT_FOUND))


async def _serve_http() -> None:
    loop, pages = asyncio.get_running_loop(), _pages()
    server = await loop.create_server(lambda: _Echo(pages), "127.0.0.1", 0)
    _ready(server.sockets[0].getsockname()[1])
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    main()
