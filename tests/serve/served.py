"""A server in a thread of this process, over HTTP and gRPC, with models that need no packages, and its clients.

identity    FP32 [-1] -> the same, in batches up to 64
all_types   IN_T -> OUT_T for every datatype T, each optional
echo        text_input -> text_output, and n -> m, which is optional
words       decoupled: three times the text
slow        identity after a minute, any number concurrently
late        identity after 40 ms, any number concurrently
many        decoupled: three responses
endless     decoupled: a million responses
held        identity once the file in the request's parameter `until` exists, one at a time
failing     raises
"""

import asyncio
import contextlib
import socket
import ssl
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc

from inferometer.serve.kserve import messages
from inferometer.serve.kserve.grpc import KserveGrpc
from inferometer.serve.models import statistics
from inferometer.serve.models.registry import Models
from inferometer.serve.settings import Settings
from inferometer.serve.sim.server import Simulator
from inferometer.serve.sockets.listener import Listener, bound
from inferometer.serve.sockets.transport import tls_context
from inferometer.serve.web import Web
from inferometer.tensors import DATATYPES
from inferometer.timing.loop import new_loop

T = TypeVar("T")
PATIENCE_S = 30
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def tensor(side: str, name: str, datatype: str, dims: str = "-1", more: str = "") -> str:
    kind = "STRING" if datatype == "BYTES" else datatype
    return f'{side} [{{ name: "{name}", data_type: TYPE_{kind}, dims: [ {dims} ] {more} }}]\n'


def parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "{one}" }} }}\n' for name, one in values.items()
    )


FP32 = tensor("input", "INPUT0", "FP32") + tensor("output", "OUTPUT0", "FP32")


def delayed(delay: str, *, responses: int = 1, slots: int = 0, more: str = "") -> str:
    """Return the configuration of an identity model with a delay; at most `slots` concurrently, 0 for no limit."""
    decoupled = DECOUPLED if responses > 1 else ""
    words = parameters(delay=delay, slots=str(slots), answers=str(responses), warmup="0")
    return f'backend: "sim"\n{FP32}{words}{decoupled}{more}'


TEXT = tensor("input", "text_input", "BYTES", "1") + tensor("output", "text_output", "BYTES", "1")
PYTHON = f'backend: "python"\n{FP32}{parameters(warmup="0")}'
CONFIGS = {
    "all_types": 'backend: "identity"\n'
    + "".join(
        tensor("input", f"IN_{one}", one, more="optional: true") + tensor("output", f"OUT_{one}", one)
        for one in DATATYPES
    ),
    "echo": f'backend: "identity"\n{TEXT}{tensor("input", "n", "INT32", more="optional: true")}{tensor("output", "m", "INT32")}',
    "words": f'backend: "sim"\n{TEXT}{DECOUPLED}{parameters(answers="3")}',
    "slow": delayed("60s"),
    "late": delayed("40ms"),
    "many": delayed("1ms", responses=3),
    "endless": delayed("1ms", responses=1_000_000),
    "held": PYTHON,
    "failing": PYTHON,
}
CODE = {
    "held": f"""
import time
from pathlib import Path


def infer(inputs, parameters):
    end = time.monotonic() + {PATIENCE_S}
    while not Path(parameters["until"]).exists() and time.monotonic() < end:
        time.sleep(0.005)
    return {{"OUTPUT0": inputs["INPUT0"]}}
""",
    "failing": "def infer(inputs, parameters):\n    raise OSError('no\\nluck')\n",
}


def make_repository(folder: Path, *names: str) -> Path:
    for name in names or CONFIGS:
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIGS[name])
        if name in CODE:
            (folder / name / "1/model.py").write_text(CODE[name])
    return folder


class Served:
    """A running server; `call` and `run` run a function in its loop."""

    def __init__(self, settings: Settings, repository: Path) -> None:
        self.settings, self.repository = settings, repository
        self.loop = new_loop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, what: self.errors.append(what))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        try:
            self.run(self._start)
        except BaseException:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            raise

    async def _start(self) -> None:
        grpc_sock = bound(Settings(host=self.settings.host, http=0), contextlib.ExitStack())["http"]
        self.models = Models(self.loop, device="cpu", limit=self.settings.limits.requests)
        self.models.add("identity")
        self.models.add(str(self.repository))
        await self.models.start()
        self.sim = Simulator(self.settings.sim, self.loop) if self.settings.sim is not None else None
        self.web = Web(self.settings, self.models, self.sim, self._page)
        tls = tls_context(self.settings.tls) if self.settings.tls is not None else None
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        self.listener = Listener(sock, self.web.connect, self.settings.limits, tls)
        self.port, self.grpc_port = sock.getsockname()[1], grpc_sock.getsockname()[1]
        self.grpc = KserveGrpc(self.models, self.settings, grpc_sock)
        self.url, self.grpc_address = f"http://127.0.0.1:{self.port}", f"127.0.0.1:{self.grpc_port}"

    async def _page(self) -> bytes:
        return statistics.page(self.models, 0.0) + (b"" if self.sim is None else self.sim.metrics())

    def run(self, function: Callable[..., Awaitable[T]], *words: Any) -> T:
        async def call() -> T:
            return await function(*words)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(2 * PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self.run(call)

    def in_flight(self) -> int:
        return self.call(lambda: self.models.in_flight)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait in the loop until the condition holds."""

        async def wait() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    await asyncio.sleep(0.002)

        self.run(wait)

    def stop(self) -> None:
        async def end() -> None:
            await self.grpc.stop(0)
            self.listener.close()
            if self.sim is not None:
                self.sim.close()
            await self.models.close()

        self.run(end)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextlib.contextmanager
def serving(repository: Path | None = None, **settings: Any) -> Iterator[Served]:
    """Serve the models of the repository, or those above, besides `identity`."""
    with tempfile.TemporaryDirectory() as folder:
        server = Served(Settings(**settings), repository or make_repository(Path(folder)))
        try:
            yield server
            assert server.errors == []
        finally:
            server.stop()


class Held:
    """A function that blocks the first time it is called outside the test's thread."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.is_there = threading.Event()
        self.may_go = threading.Event()
        self.thread = ""

    def __call__(self, *words: Any, **more: Any) -> Any:
        if not self.is_there.is_set():
            self.thread = threading.current_thread().name
            self.is_there.set()
            assert self.may_go.wait(PATIENCE_S)
        return self._function(*words, **more)


def connect(server: Served, context: ssl.SSLContext | None = None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
    return context.wrap_socket(sock, server_hostname="localhost") if context is not None else sock


# --- gRPC ------------------------------------------------------------------------------------------------------------


class Stub:
    """Blocking methods of a service by name, with messages or bytes; metadata and timeout as in grpcio."""

    def __init__(self, channel: grpc.Channel, service: str = messages.KSERVE_SERVICE) -> None:
        self._channel, self._service = channel, service

    def __getattr__(self, name: str) -> Any:
        if f"{self._service}/{name}" not in messages.SCHEMA.methods:
            raise AttributeError(name)
        method = messages.SCHEMA.method(f"{self._service}/{name}")
        kind = ("stream_" if method.client_streaming else "unary_") + ("stream" if method.server_streaming else "unary")
        return getattr(self._channel, kind)(method.path, _bytes, method.output.FromString)


def _bytes(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


@contextlib.contextmanager
def dialled(address: str, *options: tuple[str, Any]) -> Iterator[Stub]:
    """Open a gRPC connection of its own."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1), *options]) as channel:
        yield Stub(channel)


def a_request(model: str = "identity", values: bytes = b"\0\0\x80?", id: str = "", **parameters: Any) -> Any:
    """Return a request with FP32 values for INPUT0; one row for models with batches."""
    made = messages.ModelInferRequest(model_name=model, id=id, raw_input_contents=[values])
    shape = [1, len(values) // 4] if model == "identity" else [len(values) // 4]
    made.inputs.add(name="INPUT0", datatype="FP32", shape=shape)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(made.parameters[name], kind, value)
    return made


def failure(call: Callable[[], Any]) -> tuple[str, str]:
    """Return the status and the message of a call that fails."""
    try:
        response = call()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError(f"expected a failure, got {response}")
