"""Scripted HTTP servers, and small runs against them."""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from inferometer import conduct
from inferometer.analysis.summary import Summary
from inferometer.config import Config, from_mapping
from inferometer.engine.job import Job
from inferometer.prepare.jobs import prepared_jobs
from inferometer.prepare.plans import whole_plan
from inferometer.prepare.setup import Setup
from inferometer.probe.reach import Reached
from inferometer.records import Probe, Run
from inferometer.wire.target import parse

STREAM = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":" two"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)
NO_USAGE = STREAM.replace(b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n', b"")


def http_response(body: bytes = STREAM, extra: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


class Client:
    """The server's side of one connection."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock = sock
        self.number = number
        self._rest = b""

    def request(self) -> tuple[str, dict[str, str], bytes] | None:
        """Return the next complete request (first line, headers, body), or None when the client has gone."""
        while b"\r\n\r\n" not in self._rest:
            if not self._more():
                return None
        head, _, rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        size = int(headers.get("content-length", 0))
        self._rest = rest
        while len(self._rest) < size:
            if not self._more():
                return None
        body, self._rest = self._rest[:size], self._rest[size:]
        return first, headers, body

    def _more(self) -> bool:
        try:
            data = self.sock.recv(65536)
        except OSError:
            return False
        self._rest += data
        return bool(data)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.sock.sendall(data)


@contextlib.contextmanager
def scripted(
    script: Callable[[Client], None],
    context: ssl.SSLContext | None = None,
    family: int = socket.AF_INET,
    address: tuple[str, int] = ("", 0),
) -> Iterator[str]:
    """Run a server that runs `script` for each connection, in a thread of its own; yield its base URL."""
    host = address[0] or ("::1" if family == socket.AF_INET6 else "127.0.0.1")
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, address[1]))
    listener.listen(64)
    open_socks: list[socket.socket] = []

    def serve(sock: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            if context is not None:
                sock = context.wrap_socket(sock, server_side=True)
            open_socks.append(sock)
            script(Client(sock, number))
        with contextlib.suppress(OSError):
            sock.close()

    def accept() -> None:
        number = 0
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(sock, number), daemon=True).start()
            number += 1

    threading.Thread(target=accept, daemon=True).start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"{'https' if context else 'http'}://{shown}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for sock in open_socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def polite(client: Client) -> None:
    """Respond to every request with a complete stream."""
    while client.request():
        client.send(http_response())


def measure(
    folder: Path,
    url: "str | list[str] | AbstractContextManager[str]",
    show: conduct.Show | None = None,
    **sections: Any,
) -> tuple[Run, Summary]:
    """Run a small load in this process, against a server that may be started for it: `measure(folder, scripted(polite))`. Sections
    override its config: `server={...}, load={...}`. No metrics are scraped: scripts count requests and connections."""
    if isinstance(url, AbstractContextManager):
        with url as started:
            return measure(folder, started, show, **sections)
    tree: dict[str, Any] = {
        "server": {"url": url, "model": "m"} | sections.pop("server", {}),
        "data": {"type": "prompts", "prompts": ["hello"], "output": 2},
        "load": {"type": "closed", "concurrency": 2, "requests": 6, "ramp_up": 0},
        "client": {"processes": 0, "probe": False} | sections.pop("client", {}),
        "observe": {"prometheus": []},
        "output": str(folder),
    }
    return conduct.measure(from_mapping(tree | sections), show)


@contextlib.contextmanager
def jobs_of(config: Config, folder: Path, shards: int = 1, probe: Probe | None = None) -> Iterator[list[Job]]:
    """The jobs of a run, with its requests, for a server that was not reached. The shards' records are to go into the folder."""
    targets = tuple(map(parse, config.server.urls))
    reached = Reached(targets, ((2, ("127.0.0.1", 1)),), config.server.model or "m", {})
    setup = Setup(config, reached, shards, folder, "0a", probe=probe or Probe())
    with prepared_jobs(setup, whole_plan(config, setup.probe.e2e_ns)) as jobs:
        yield jobs


def bodies(requests: list[tuple[str, dict[str, str], bytes]]) -> list[Any]:
    return [json.loads(body) for _, _, body in requests]


def setting(config: dict[str, Any], key: str) -> Any:
    """The value of a dotted key in a config as its YAML file has it; None if it is not there."""
    tree: Any = config
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree
