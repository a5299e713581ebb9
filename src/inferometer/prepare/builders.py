"""Builds blocks of requests in this process and in others: `python -m inferometer.prepare.builders`.

A builder reads pieces from standard input, and returns the numbers of each block on standard output. When the parent has told it where the
block belongs, it writes the bytes there itself, so that they are not sent to the parent. It ends with the parent: standard input is closed
then. Blocks stay in the order of their pieces, whoever builds them, so the files are always the same.
"""

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from inferometer.errors import UserError
from inferometer.prepare.requests import Piece, Pieces, Source, build
from inferometer.store.folder import disk_errors
from inferometer.store.request_file import Block, RequestWriter, write_at

_AHEAD = 2
"""Pieces that a builder has been sent and not yet returned. They must fit into a pipe, or both ends would wait for each other."""
_HELD = 4
"""Blocks that this process may hold because others come before them."""


class _Task(NamedTuple):
    """What a builder needs before it gets pieces."""

    source: Source
    files: tuple[int, int]
    folder: Path


class _Place(NamedTuple):
    """Where the next block that is built and not yet written belongs in each of the files."""

    at: tuple[int, int]


class _Done(msgspec.Struct, frozen=True, tag=True):
    """The builder is ready for pieces; at the end: all its blocks are written."""


class _Failed(msgspec.Struct, frozen=True, tag=True):
    """Why a block cannot be built or written."""

    error: tuple[str, str, str, str]
    """The arguments of the UserError."""


def build_all(source: Source, pieces: Pieces, writer: RequestWriter, folder: Path, processes: int) -> Iterator[None]:
    """Build all pieces, with this many processes including this one. Yields after each."""
    builders: list[_Builder] = []
    order: deque[Block | _Builder] = deque()  # blocks that are built here, and for the others, who builds them
    held = 0
    try:
        for _ in range(processes - 1):
            builders.append(_Builder(_Task(source, writer.descriptors, folder)))
        while pieces.left or order:
            for builder in builders:
                while pieces.left and builder.takes_more():
                    builder.send(pieces.take())
                    order.append(builder)
            if pieces.left and held < _HELD:
                order.append(build(source, pieces.take()))
                held += 1
            while order:
                head = order[0]
                if isinstance(head, _Builder):
                    if pieces.left and held < _HELD and not head.has_answered():
                        break
                    head.place(writer)
                else:
                    with disk_errors(folder):
                        writer.append(head)
                    held -= 1
                order.popleft()
                yield
        for builder in builders:
            builder.finish()
    finally:
        for builder in builders:
            builder.close()


class _Builder:
    """The parent's end of a process that builds."""

    def __init__(self, task: _Task) -> None:
        own_threads = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # one core for each process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inferometer.prepare.builders"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | own_threads,
            pass_fds=task.files,
            process_group=0,  # the parent handles the terminal's Ctrl-C
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._answers = select.poll()  # unlike select(), it takes file descriptors above 1023
        self._answers.register(self._output)
        self._is_ready = False
        self._pending = 0
        self.send(task)

    def has_answered(self) -> bool:
        return bool(self._answers.poll(0))

    def takes_more(self) -> bool:
        """Return whether to send it a piece. While it starts, this process does without it."""
        if not self._is_ready and self.has_answered():
            self._receive()
            self._is_ready = True
        return self._is_ready and self._pending < _AHEAD

    def send(self, message: _Task | Piece | _Place | None) -> None:
        self._pending += isinstance(message, Piece)
        with contextlib.suppress(BrokenPipeError):  # it has died: _receive says so
            _write(self._input, pickle.dumps(message))

    def place(self, writer: RequestWriter) -> None:
        """Wait for the next block, and tell the builder where it belongs."""
        block = self._receive()
        assert isinstance(block, Block)
        self._pending -= 1
        self.send(_Place(writer.reserve(block)))

    def finish(self) -> None:
        """Wait until all blocks are written."""
        if self._is_ready:
            self.send(None)
            self._receive()

    def _receive(self) -> Block | _Done:
        data = _read(self._output)
        if not data:
            raise RuntimeError(f"a process that builds requests ended with status {self._process.wait()}")
        result = msgspec.msgpack.decode(data, type=Block | _Done | _Failed)
        if isinstance(result, _Failed):
            raise UserError(*result.error)
        return result

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()
        with contextlib.suppress(BrokenPipeError):
            self._input.close()


def _write(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "little"))
    pipe.write(data)
    pipe.flush()


def _read(pipe: IO[bytes]) -> bytes:
    """Return the next message; empty: there is none."""
    return pipe.read(int.from_bytes(pipe.read(8), "little"))


def main() -> None:
    """Build the blocks of the pieces that come in on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task: _Task = pickle.loads(_read(sys.stdin.buffer))
    built: deque[Block] = deque()
    _write(sys.stdout.buffer, msgspec.msgpack.encode(_Done()))
    while data := _read(sys.stdin.buffer):
        result: Block | _Done | _Failed | None
        try:
            result = _result(task, pickle.loads(data), built)
        except UserError as error:
            result = _Failed((error.what, error.remedy, error.key, error.source))
        if result is not None:
            _write(sys.stdout.buffer, msgspec.msgpack.encode(result))


def _result(task: _Task, message: Any, built: deque[Block]) -> Block | _Done | None:
    """Do what the message says; return what the parent is to know."""
    if message is None:
        return _Done()
    if isinstance(message, Piece):
        built.append(build(task.source, message))
        return msgspec.structs.replace(built[-1], tails=(), sessions=())
    block = built.popleft()
    with disk_errors(task.folder):
        for file, data, at in zip(task.files, (block.tails, block.sessions), message.at, strict=True):
            write_at(file, data, at)
    return None


if __name__ == "__main__":
    main()
