"""Builds blocks of requests in this process and in others: `python -m inferometer.prepare.builders`.

Standard input is a builder's end of a pipe: it receives pieces, and sends the numbers of each block. When the parent has told it where the
block belongs, it writes the bytes there itself, so that they are not sent to the parent. It ends with the parent: the pipe is closed
then. Blocks stay in the order of their pieces, whoever builds them, so the files are always the same.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

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
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "inferometer.prepare.builders"],
                stdin=theirs.fileno(),
                env=os.environ | own_threads,
                pass_fds=task.files,
                process_group=0,  # the parent handles the terminal's Ctrl-C
            )
        self._is_ready = False
        self._pending = 0
        self._send(task)

    def has_answered(self) -> bool:
        return self._pipe.poll()

    def takes_more(self) -> bool:
        """Return whether to send it a piece. While it starts, this process does without it."""
        if not self._is_ready and self.has_answered():
            self._receive()
            self._is_ready = True
        return self._is_ready and self._pending < _AHEAD

    def send(self, piece: Piece) -> None:
        self._pending += 1
        self._send(piece)

    def place(self, writer: RequestWriter) -> None:
        """Wait for the next block, and tell the builder where it belongs."""
        block = self._receive()
        assert block is not None
        self._pending -= 1
        self._send(writer.reserve(block))

    def finish(self) -> None:
        """Wait until all blocks are written."""
        if self._is_ready:
            self._send(None)
            self._receive()

    def _send(self, message: _Task | Piece | tuple[int, int] | None) -> None:
        with contextlib.suppress(OSError):  # it has died: _receive says so
            self._pipe.send(message)

    def _receive(self) -> Block | None:
        try:
            result: Block | UserError | None = self._pipe.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"a process that builds requests ended with status {self._process.wait()}") from None
        if isinstance(result, UserError):
            raise result
        return result

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()


def main() -> None:
    """Build the blocks of the pieces that the parent sends, and write them where it says. None: it is ready, or all are written."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe: Connection[Any, Any] = Connection(0)
    built: deque[Block] = deque()
    with contextlib.suppress(EOFError):
        task: _Task = pipe.recv()
        pipe.send(None)
        while True:
            message: Piece | tuple[int, int] | None = pipe.recv()
            try:
                if isinstance(message, Piece):
                    built.append(build(task.source, message))
                    pipe.send(msgspec.structs.replace(built[-1], tails=(), sessions=()))
                elif message is None:
                    pipe.send(None)
                else:
                    block = built.popleft()
                    with disk_errors(task.folder):
                        for file, data, at in zip(task.files, (block.tails, block.sessions), message, strict=True):
                            write_at(file, data, at)
            except UserError as error:
                pipe.send(error)


if __name__ == "__main__":
    main()
