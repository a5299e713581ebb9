"""Processes that build blocks of requests for a shard: `python -m inferometer.fleet.builders`.

Each reads its parts from standard input and writes the blocks to standard output, in the same order. It ends with the shard: standard
input is closed then.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from typing import IO, Protocol

import msgspec

from inferometer.errors import UserError
from inferometer.fleet.preparing import Block, Part, Source, build

_AHEAD = 2
"""Parts that a builder has been sent and not yet returned. They must fit into a pipe, or both ends would wait for each other."""


class Parts(Protocol):
    """The parts that are left to build."""

    left: int

    def take(self) -> Part: ...


def build_blocks(source: Source, parts: Parts, builders: int) -> Iterator[Block]:
    """Yield the blocks of all parts, in order. Builder n of N builds every Nth of them."""
    own_threads = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # one core for each builder
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "inferometer.fleet.builders"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | own_threads,
            process_group=0,  # the terminal's Ctrl-C is handled by the parent of the shards
        )
        for _ in range(builders)
    ]
    try:
        for builder in started:
            _send(builder, source)
        sent = 0
        for number in count():
            while parts.left and sent < number + _AHEAD * builders:
                _send(started[sent % builders], parts.take())
                sent += 1
            if number == sent:
                return
            yield _receive(started[number % builders])
    finally:
        for builder in started:
            builder.kill()
            builder.wait()
            assert builder.stdin is not None and builder.stdout is not None
            builder.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                builder.stdin.close()


def _send(builder: "subprocess.Popen[bytes]", message: Source | Part) -> None:
    assert builder.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has died: _receive says so
        _write(builder.stdin, pickle.dumps(message))


def _receive(builder: "subprocess.Popen[bytes]") -> Block:
    assert builder.stdout is not None
    data = _read(builder.stdout)
    if not data:
        raise RuntimeError(f"a process that builds requests ended with status {builder.wait()}")
    result = msgspec.msgpack.decode(data, type=Block | _Failed)
    if isinstance(result, _Failed):
        raise UserError(*result.error)
    return result


class _Failed(msgspec.Struct, frozen=True, tag=True):
    """Why a block cannot be built."""

    error: tuple[str, str, str, str]
    """The arguments of the UserError."""


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "little"))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    """Return the next message; empty: there is none."""
    return pipe.read(int.from_bytes(pipe.read(8), "little"))


def main() -> None:
    """Build the blocks of the parts that come in on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source = pickle.loads(_read(sys.stdin.buffer))
    while data := _read(sys.stdin.buffer):
        result: Block | _Failed
        try:
            result = build(source, pickle.loads(data))[1]
        except UserError as error:
            result = _Failed((error.what, error.remedy, error.key, error.source))
        _write(sys.stdout.buffer, msgspec.msgpack.encode(result))


if __name__ == "__main__":
    main()
