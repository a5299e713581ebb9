"""The HTTP server in a thread of the test process, with models that need no packages."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from inferometer.serve.models import statistics
from inferometer.serve.models.registry import Models
from inferometer.serve.settings import Settings
from inferometer.serve.sim.server import Simulator
from inferometer.serve.sockets.listener import Listener
from inferometer.serve.sockets.transport import tls_context
from inferometer.serve.web import Web
from inferometer.tensors import DATATYPES
from inferometer.timing.loop import new_loop

T = TypeVar("T")

CONFIGS = {
    "all_types": 'backend: "identity" max_batch_size: 0\n'
    + "".join(
        f'input [{{ name: "IN_{name}" data_type: TYPE_{"STRING" if name == "BYTES" else name} dims: [-1] optional: true }}]\n'
        f'output [{{ name: "OUT_{name}" data_type: TYPE_{"STRING" if name == "BYTES" else name} dims: [-1] }}]\n'
        for name in DATATYPES
    ),
    "slow": """
        backend: "sim" max_batch_size: 0
        input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [-1] }]
        output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [-1] }]
        parameters { key: "delay" value { string_value: "1000s" } }
        parameters { key: "warmup" value { string_value: "0" } }
    """,
    "words": """
        backend: "sim" max_batch_size: 0
        model_transaction_policy { decoupled: true }
        input [{ name: "text_input" data_type: TYPE_STRING dims: [1] }]
        output [{ name: "text_output" data_type: TYPE_STRING dims: [1] }]
        parameters { key: "answers" value { string_value: "3" } }
    """,
    "echo": """
        backend: "identity" max_batch_size: 0
        input [{ name: "text_input" data_type: TYPE_STRING dims: [1] }, { name: "n" data_type: TYPE_INT32 dims: [-1] optional: true }]
        output [{ name: "text_output" data_type: TYPE_STRING dims: [1] }, { name: "m" data_type: TYPE_INT32 dims: [-1] }]
    """,
}


class Served:
    """A running server; `call` runs a function in its loop."""

    def __init__(self, settings: Settings, repository: Path | None) -> None:
        self.settings = settings
        self.repository = repository
        self.loop = new_loop()
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, what: self.errors.append(what))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        try:
            self._wait(self._start())
        except BaseException:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            raise

    async def _start(self) -> None:
        self.models = Models(self.loop, device="cpu")
        self.models.add("identity")
        if self.repository is not None:
            self.models.add(str(self.repository))
        await self.models.start()
        self.sim = Simulator(self.settings.sim, self.loop) if self.settings.sim is not None else None
        self.web = Web(self.settings, self.models, self.sim, self._page)
        tls = tls_context(self.settings.tls) if self.settings.tls is not None else None
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        self.listener = Listener(sock, self.web.connect, self.settings.limits, tls)
        self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def _page(self) -> bytes:
        return statistics.page(self.models, 0.0) + (b"" if self.sim is None else self.sim.metrics())

    def call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return self._wait(run())

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait in the loop until the condition holds."""

        async def run() -> None:
            async with asyncio.timeout(30):
                while not condition():
                    await asyncio.sleep(0.002)

        self._wait(run())

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def stop(self) -> None:
        async def end() -> None:
            self.listener.close()
            if self.sim is not None:
                self.sim.close()
            await self.models.close()

        self._wait(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextlib.contextmanager
def serving(settings: Settings | None = None, repository: Path | None = None) -> Iterator[Served]:
    server = Served(settings or Settings(), repository)
    try:
        yield server
        assert server.errors == []
    finally:
        server.stop()


def make_repository(folder: Path, *names: str) -> Path:
    for name in names or CONFIGS:
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(f'name: "{name}"\n' + CONFIGS[name])
    return folder


def connect(server: Served, context: ssl.SSLContext | None = None) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    return context.wrap_socket(sock, server_hostname="localhost") if context is not None else sock
