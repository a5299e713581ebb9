"""A gRPC server with a few models, in a thread of this process, for blocking clients.

identity    FP32 [-1] -> the same, in batches up to 64
all_types   IN_T -> OUT_T for every datatype T, each optional
slow        identity after a minute, any number concurrently
late        identity after 40 ms, any number concurrently
many        decoupled: three responses
endless     decoupled: a million responses
held        identity once the file in the request's parameter `until` exists, one at a time
failing     raises
"""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc

from inferometer.serve.kserve import messages
from inferometer.serve.kserve.grpc import KserveGrpc
from inferometer.serve.models.registry import Models
from inferometer.serve.settings import Settings
from inferometer.serve.sockets.listener import bound
from inferometer.tensors import DATATYPES
from inferometer.timing.loop import new_loop

T = TypeVar("T")
PATIENCE_S = 30

ONE = """
input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
output [{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
parameters { key: "warmup" value { string_value: "0" } }
"""


def delayed(delay: str, responses: int = 1) -> str:
    parameters = {"delay": delay, "slots": "0", "answers": str(responses)}
    return (
        'backend: "sim"\n'
        + ONE
        + "".join(
            f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
            for name, value in parameters.items()
        )
    )


def config_type(datatype: str) -> str:
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


CONFIGS = {
    "all_types": 'backend: "identity"\n'
    + "".join(
        f'input [{{ name: "IN_{one}", data_type: {config_type(one)}, dims: [ -1 ], optional: true }}]\n'
        f'output [{{ name: "OUT_{one}", data_type: {config_type(one)}, dims: [ -1 ] }}]\n'
        for one in DATATYPES
    ),
    "slow": delayed("60s"),
    "late": delayed("40ms"),
    "many": delayed("1ms", responses=3) + "model_transaction_policy { decoupled: true }\n",
    "endless": delayed("1ms", responses=1_000_000) + "model_transaction_policy { decoupled: true }\n",
    "held": 'backend: "python"\n' + ONE,
    "failing": 'backend: "python"\n' + ONE,
}


HELD = f"""
import time
from pathlib import Path


def infer(inputs, parameters):
    end = time.monotonic() + {PATIENCE_S}
    while not Path(parameters["until"]).exists() and time.monotonic() < end:
        time.sleep(0.005)
    return {{"OUTPUT0": inputs["INPUT0"]}}
"""


def write_repository(folder: Path) -> None:
    for name, config in CONFIGS.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    (folder / "held/1/model.py").write_text(HELD)
    (folder / "failing/1/model.py").write_text("def infer(inputs, parameters):\n    raise OSError('no\\nluck')\n")


class Served:
    """The server, and its loop to run functions in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, models: Models, server: KserveGrpc, port: int) -> None:
        self.loop, self.models, self.server, self.port = loop, models, server, port
        self.grpc_address = f"127.0.0.1:{port}"

    def run(self, function: Callable[..., Awaitable[T]], *words: Any) -> T:
        async def call() -> T:
            return await function(*words)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(PATIENCE_S)

    def in_flight(self) -> int:
        async def count() -> int:
            return self.models.in_flight

        return self.run(count)


@contextlib.contextmanager
def serving(**settings: Any) -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder))
        loop = new_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        async def begin() -> Served:
            configured = Settings(**settings)
            models = Models(loop, limit=configured.limits.requests)
            models.add("identity")
            models.add(folder)
            await models.start()
            sock = bound(Settings(host=configured.host, http=0), contextlib.ExitStack())["http"]
            return Served(loop, models, KserveGrpc(models, configured, sock), sock.getsockname()[1])

        async def end() -> None:
            await served.server.stop(0)
            await served.models.close()

        try:
            served = asyncio.run_coroutine_threadsafe(begin(), loop).result(PATIENCE_S)
            yield served
            asyncio.run_coroutine_threadsafe(end(), loop).result(PATIENCE_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(PATIENCE_S)
            loop.close()


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
def dialled(address: str) -> Iterator[Stub]:
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
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
