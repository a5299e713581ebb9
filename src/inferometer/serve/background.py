"""A reference server in a child process: for tests, benches and the demo.

    with serving(Settings(models=("identity",), http=0, grpc=0)) as server:
        server.url, server.grpc, server.metrics, server.pid

The child reads its settings from stdin and writes its addresses to stdout. `stop` ends it, and returns when its truth log
is complete.
"""

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.serve.settings import Settings

_PATIENCE_S = 15.0
_LOOK_S = 0.25
_M_ARENA_MAX = -8  # glibc's malloc.h


class Running(contextlib.AbstractContextManager["Running"]):
    """A server that listens: its process id, and its URLs ("" for what is not served)."""

    def __init__(self, process: "subprocess.Popen[bytes]", patience: float, listening: dict[str, Any]) -> None:
        self._process, self._patience, self.pid = process, patience, process.pid
        self.url, self.grpc, self.metrics = listening["http"], listening["grpc"], listening["metrics"]

    def stop(self, *_: object) -> None:
        """End the server and wait until it has ended; raises UserError if its truth log is incomplete."""
        self._process.terminate()
        try:
            last = self._process.communicate(timeout=self._patience)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise UserError(f"the server did not end within {self._patience:g} s, and was killed") from None
        if last:
            raise UserError(**msgspec.json.decode(last))

    __exit__ = stop


def serving(settings: Settings) -> Running:
    """Start a server and wait until it listens; raises UserError if it cannot. It ends with its `with` block."""
    command = [sys.executable, "-m", "inferometer.serve.background", str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin and process.stdout
    process.stdin.write(msgspec.json.encode(settings) + b"\n")
    process.stdin.flush()
    reply = msgspec.json.decode(process.stdout.readline() or b'{"what": "the server ended before it listened"}')
    if "http" in reply:
        return Running(process, _PATIENCE_S + settings.drain, reply)
    process.communicate()
    raise UserError(**reply)


@contextlib.contextmanager
def running(settings: Settings) -> Iterator[str]:
    """Like `serving`, but with the HTTP URL only."""
    with serving(settings) as server:
        yield server.url


async def _serve() -> None:
    from inferometer.serve.app import serve  # noqa: PLC0415  (heavy: for the child only)

    pipe = os.dup(1)
    os.dup2(2, 1)  # the pipe to the parent is ours alone: what models print goes to standard error

    def send(reply: object) -> None:
        os.write(pipe, msgspec.json.encode(reply) + b"\n")

    try:
        await serve(msgspec.json.decode(sys.stdin.buffer.readline(), type=Settings), send)
    except UserError as error:
        send({"what": error.what, "remedy": error.remedy})


def run_process(work: Coroutine[Any, Any, None], parent: int = 0) -> None:
    """Run a process of the server. If it has a `parent`, it ends within one second of the parent's end, even if it is busy."""
    from inferometer.serve.offload import leave  # noqa: PLC0415  (heavy: not for the parent)
    from inferometer.timing.loop import run  # noqa: PLC0415

    # By default, each thread gets a heap of glibc's malloc, and memory that one thread allocates and another frees
    # fragments all of them: under mixed load, memory grew without bound.
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every socket and every segment of tensors is a file
    if parent:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    run(work)
    leave()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    time.sleep(_LOOK_S)  # an idle server closes its connections meanwhile
    os._exit(1)


if __name__ == "__main__":
    run_process(_serve(), parent=int(sys.argv[1]))
