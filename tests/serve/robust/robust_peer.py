"""The server as a user starts it, in a process of its own, observed from outside; and clients that are large, many, or
rude.

Its memory, threads and open files are read from /proc; its standard error is kept, and is empty if all is well. The
clients are raw sockets for HTTP and grpcio for gRPC: neither is ours.
"""

import contextlib
import json
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import h2.events
from raw_client import RawClient
from raw_grpc import RawGrpc, headers
from served import PATIENCE_S, PYTHON, a_request

from inferometer.serve.kserve import messages
from inferometer.serve.kserve.messages import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse

MIB = 1 << 20
PIECE = 1 << 20

MODEL_INFER = f"/{messages.KSERVE_SERVICE}/ModelInfer"
STREAM_INFER = f"/{messages.KSERVE_SERVICE}/ModelStreamInfer"
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

# --- models ----------------------------------------------------------------------------------------------------------


HELD = """
import time
from pathlib import Path


def infer(inputs, parameters):
    while not Path({until!r}).exists():
        time.sleep(0.005)
    return {{"OUTPUT0": inputs["INPUT0"]}}
"""


def write_held(folder: Path, name: str, until: Path) -> str:
    """Write an identity model that waits until the file `until` exists, one request at a time."""
    written = write_models(folder, **{name: PYTHON})
    (folder / name / "1/model.py").write_text(HELD.format(until=str(until)))
    return written


def write_models(folder: Path, **configs: str) -> str:
    for name, config in configs.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    return str(folder)


# --- the server ------------------------------------------------------------------------------------------------------


class Child:
    """`inferometer serve` in a process of its own: its addresses, resources and output."""

    def __init__(self, process: "subprocess.Popen[str]", stderr: Path, http: str, grpc_address: str) -> None:
        self.process, self.url, self.grpc_address = process, http, grpc_address
        self.pid = process.pid
        host, _, port = http.removeprefix("http://").rpartition(":")
        self.address = (host, int(port))
        self._stderr = stderr

    def errors(self) -> str:
        """Return its standard error so far."""
        return self._stderr.read_text(errors="replace")

    def memory(self) -> int:
        return self._status("VmRSS")

    def peak(self) -> int:
        """Return the maximum memory since it started, or since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name}: the server is gone")

    def refuses_connections(self) -> bool:
        try:
            socket.create_connection(self.address, timeout=PATIENCE_S).close()
        except ConnectionRefusedError:
            return True
        return False

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextlib.contextmanager
def child(*arguments: str, blocked: Sequence[str] = (), first: str = "") -> Iterator[Child]:
    """Run `inferometer serve ARGUMENTS`; packages in `blocked` appear as not installed, and `first` is executed before."""
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        stderr = Path(folder) / "stderr"
        with stderr.open("w") as errors:
            process = launched(*arguments, blocked=blocked, first=first, stderr=errors)
        try:
            assert process.stdout is not None
            http = process.stdout.readline().split()
            assert http[:2] == ["Listening", "on"], f"{http} {stderr.read_text()}"
            grpc_address = ""
            if "--grpc=-1" not in arguments:
                grpc_address = process.stdout.readline().split()[1].removeprefix("grpc://")
            one = Child(process, stderr, http[2], grpc_address)
            yield one
            one.stop()
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def launched(*arguments: str, blocked: Sequence[str] = (), first: str = "", stderr: Any) -> "subprocess.Popen[str]":
    start = f"import sys; sys.modules.update(dict.fromkeys({list(blocked)!r})); sys.argv[0] = 'inferometer'; "
    start += f"{first}\nfrom inferometer.cli.main import entry; entry()"
    command = [sys.executable, "-c", start, "serve", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True)


PORTS = ("--http=0", "--grpc=0", "--metrics=-1", "--drain=10s")


# --- HTTP ------------------------------------------------------------------------------------------------------------


def http_request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def infer_head(model: str, size: int, shape: Sequence[int]) -> bytes:
    """Return an infer request with binary data, without the `size` bytes of data."""
    given = {"name": "INPUT0", "datatype": "FP32", "shape": list(shape), "parameters": {"binary_data_size": size}}
    tree = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    lines = (
        f"POST /v2/models/{model}/infer HTTP/1.1",
        "Host: x",
        f"Content-Length: {len(tree) + size}",
        f"Inference-Header-Content-Length: {len(tree)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + tree


def small(model: str = "identity", values: bytes = b"\0\0\x80?") -> bytes:
    """Return a complete infer request of a few bytes; `identity` takes batches, the others do not."""
    count = len(values) // 4
    return infer_head(model, len(values), [1, count] if model == "identity" else [count]) + values


class Http(RawClient):
    """A keep-alive connection. The status is 0 if the connection ended before a response, and `cut` says how."""

    closes = False
    """Whether the last response announced that the server closes."""
    cut = ""

    def request(self, data: bytes) -> tuple[int, bytes]:  # type: ignore[override]
        try:
            self.send(data)
        except OSError as error:
            self.cut = f"while sending: {error}"
        # Even then: a request that is refused early gets a response, but is not read to its end.
        return self.read_response()

    def json(self, method: str, path: str, tree: Any = None) -> tuple[int, Any]:
        status, body = self.request(http_request(method, path, b"" if tree is None else json.dumps(tree).encode()))
        return status, json.loads(body) if body else None

    def read_response(self) -> tuple[int, bytes]:
        try:
            response = self.response()
        except OSError as error:
            self.cut = f"while waiting: {error}"
            return 0, b""
        if not response.complete:
            self.cut = f"closed after {len(response.body)} bytes of a response"
            return 0, b""
        self.closes = response.headers.get("connection") == "close"
        return response.status, response.body


def responds(server: Child, model: str = "identity") -> bool:
    """Check that the server responds over both protocols."""
    with Http(server.url) as client:
        status, body = client.request(small(model))
        assert status == 200, body
    with dialled(server.grpc_address) as channel:
        assert infer(channel, a_request(model)).raw_output_contents == [b"\0\0\x80?"]
    return True


def pending(server: Child, model: str) -> int:
    """Return the number of queued requests according to the metrics."""
    with Http(server.url) as client:
        _, page = client.request(http_request("GET", "/metrics"))
    line = f'nv_inference_pending_request_count{{model="{model}",'
    return next(int(float(each.split()[-1])) for each in page.decode().splitlines() if each.startswith(line))


# --- gRPC ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def dialled(address: str, *options: tuple[str, Any]) -> Iterator[grpc.Channel]:
    """Open a gRPC channel with its own connection."""
    with grpc.insecure_channel(
        address, options=[("grpc.use_local_subchannel_pool", 1), *UNLIMITED, *options]
    ) as channel:
        yield channel


def infer(channel: grpc.Channel, request: Any, timeout: float = PATIENCE_S) -> Any:
    call = channel.unary_unary(MODEL_INFER, lambda one: one.SerializeToString(), ModelInferResponse.FromString)
    return call(request, timeout=timeout)


def unary(channel: grpc.Channel, method: str, **fields: Any) -> Any:
    """Call any unary method of the KServe service."""
    found = messages.SCHEMA.method(f"{messages.KSERVE_SERVICE}/{method}")
    call = channel.unary_unary(found.path, lambda one: one.SerializeToString(), found.output.FromString)
    return call(found.input(**fields), timeout=PATIENCE_S)


# --- large -----------------------------------------------------------------------------------------------------------

_TRUTH = bytes(range(256)) * (PIECE // 256)


def large_over_http(server: Child, size: int) -> None:
    """Send and receive `size` bytes over one connection in pieces, so that this process never holds all of them."""
    with Http(server.url, 120) as client:
        client.sock.sendall(infer_head("identity", size, [1, size // 4]))
        for _ in range(size // PIECE):
            client.sock.sendall(_TRUTH)
        _compare_response(client.sock, size)


def _compare_response(sock: socket.socket, size: int) -> None:
    with sock.makefile("rb", buffering=PIECE) as file:
        assert file.readline().split()[1] == b"200"
        json_size = 0
        while (line := file.readline().lower()) != b"\r\n":
            if line.startswith(b"inference-header-content-length:"):
                json_size = int(line.split()[1])
        assert json.loads(file.read(json_size))["outputs"][0]["parameters"]["binary_data_size"] == size
        for _ in range(size // PIECE):
            assert file.read(PIECE) == _TRUTH


def large_over_grpc(server: Child, size: int) -> None:
    """Send and receive one message in pieces over HTTP/2, so that this process never holds all of it."""
    prefix = ModelInferRequest(model_name="identity")
    prefix.inputs.add(name="INPUT0", datatype="FP32", shape=[1, size // 4])
    head = prefix.SerializeToString() + b"\x3a" + _varint(size)
    received = 0
    with RawGrpc(server.grpc_address) as raw:
        http = raw.http
        http.increment_flow_control_window(1 << 30)
        stream = http.get_next_available_stream_id()
        http.send_headers(stream, headers(MODEL_INFER))
        http.send_data(stream, struct.pack(">BL", 0, len(head) + size) + head)
        for i in range(size // PIECE):
            for at in range(0, PIECE, 1 << 14):
                while http.local_flow_control_window(stream) < 1 << 14:
                    raw.events()
                is_last = i == size // PIECE - 1 and at == PIECE - (1 << 14)
                http.send_data(stream, _TRUTH[at : at + (1 << 14)], end_stream=is_last)
            raw.send()
        ended = False
        while not ended:
            for event in raw.events():
                if isinstance(event, h2.events.DataReceived):
                    received += len(event.data)
                    http.acknowledge_received_data(event.flow_controlled_length, stream)
                ended = ended or isinstance(event, h2.events.StreamEnded)
            raw.send()
    assert size < received < size + 200


def _varint(number: int) -> bytes:
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7) if number >= 0x80 else bytes((number,))


LARGE = {"HTTP": large_over_http, "gRPC": large_over_grpc}

# --- many ------------------------------------------------------------------------------------------------------------


class Tally:
    """Counts what was served, refused with an error, or lost."""

    def __init__(self) -> None:
        self.served = 0
        self.refused: dict[str, int] = {}
        self.lost: dict[str, int] = {}
        self._lock = threading.Lock()

    def serve(self) -> None:
        with self._lock:
            self.served += 1

    def refuse(self, why: str) -> None:
        with self._lock:
            self.refused[why] = self.refused.get(why, 0) + 1

    def lose(self, why: str) -> None:
        with self._lock:
            self.lost[why] = self.lost.get(why, 0) + 1

    def __repr__(self) -> str:
        return f"{self.served} served, refused {self.refused}, lost {self.lost}"


def many_streams(address: str, count: int, model: str) -> Tally:
    """Open `count` ModelStreamInfer calls concurrently on one connection; once all are open, each sends a request and reads the response."""
    import asyncio  # noqa: PLC0415  (threads would need one per stream)

    async def run() -> Tally:
        tally, opened, everybody = Tally(), 0, asyncio.Event()
        options = [("grpc.use_local_subchannel_pool", 1), *UNLIMITED]
        channel = grpc.aio.insecure_channel(address, options=options)
        message = a_request(model).SerializeToString()

        async def one() -> None:
            nonlocal opened
            call = channel.stream_stream(STREAM_INFER)()
            try:
                await call.write(message)
                assert await call.read() is not grpc.aio.EOF
                opened += 1
                if opened == count:
                    everybody.set()
                await asyncio.wait_for(everybody.wait(), PATIENCE_S * 4)
                await call.write(message)
                response = await call.read()
                assert not ModelStreamInferResponse.FromString(response).error_message
                await call.done_writing()
                assert await call.read() is grpc.aio.EOF
                tally.serve()
            except grpc.aio.AioRpcError as error:
                (tally.refuse if error.code().name in ("RESOURCE_EXHAUSTED", "UNAVAILABLE") else tally.lose)(
                    f"{error.code().name}: {error.details()}"
                )
                everybody.set()

        async with channel:
            await asyncio.gather(*(one() for _ in range(count)))
        return tally

    return asyncio.run(run())


def many_connections(address: tuple[str, int], count: int, request: bytes) -> Tally:
    """Open `count` HTTP connections concurrently; once all are open, each sends two requests."""
    tally = Tally()
    socks = [socket.create_connection(address, timeout=PATIENCE_S) for _ in range(count)]
    try:
        for _ in range(2):
            _request_all(socks, request, tally)
    finally:
        for sock in socks:
            sock.close()
    return tally


def _request_all(socks: list[socket.socket], request: bytes, tally: Tally) -> None:
    for sock in socks:
        sock.sendall(request)
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        left, end = len(socks), time.monotonic() + 4 * PATIENCE_S
        while left and time.monotonic() < end:
            for key, _ in selector.select(1):
                selector.unregister(key.fileobj)
                left -= 1
                _count(key.fileobj, tally)  # type: ignore[arg-type]
        for _ in range(left):
            tally.lose("no response")


def _count(sock: socket.socket, tally: Tally) -> None:
    try:
        status = sock.recv(65536)[9:12].decode("latin-1")
    except OSError as error:
        status = str(error)
    if status == "200":
        tally.serve()
    else:
        (tally.refuse if status in ("429", "503") else tally.lose)(status or "closed without a response")
