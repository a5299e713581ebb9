"""The ground truth log: one JSON line per request with the server's own timestamps, to check a client's against.

All times are CLOCK_MONOTONIC ns of this machine. `arrived` is the kernel's receive timestamp of the request's last
bytes; `first` and `last` were taken just before the send() of the first and last content, `chunks` before that of each
content chunk, `done` before that of the very last bytes. What did not happen is null.

Rows are encoded at a request's end and written by a separate thread, so that a slow disk never delays a token.
"""

import threading
from collections import deque
from pathlib import Path

import msgspec

from inferometer.errors import UserError
from inferometer.serve.openai.response import Response
from inferometer.timing.clock import now

_INTERVAL_S = 0.25


class Row(msgspec.Struct, frozen=True, gc=False):
    """One line of the truth log."""

    id: str | None  # the request's X-Request-Id
    n: int  # the request's ordinal, from 1
    arrived: int
    first: int | None
    last: int | None
    done: int | None
    n_in: int
    n_out: int  # tokens written
    cached: int
    chunks: list[int]
    fault: str | None
    """The kind of its injected fault; `queue_full` if it was refused for that."""
    aborted: bool
    """Whether it ended early: the client disconnected, a fault cut it off, or the server was stopped."""


class TruthLog:
    """Appends rows to a file."""

    def __init__(self, path: str, append: bool = False) -> None:
        """Several processes may append whole lines to the same file."""
        try:
            self._file = Path(path).open("ab" if append else "wb", buffering=0)  # noqa: SIM115  (closed in `close`)
        except OSError as error:
            what = f"cannot write the truth log {path}: {error.strerror}"
            raise UserError(what, "choose another --truth FILE") from None
        self._path, self._encode, self._lines = path, msgspec.json.Encoder().encode, deque[bytes]()
        self._failure: OSError | None = None
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write, name="truth log", daemon=True)
        self._writer.start()

    def add(self, out: Response, fault: str | None, cached: int = 0, aborted: bool = False) -> None:
        """Add the row of a response that has ended."""
        stamps = list(out.stamps)
        first, last = (stamps[0], stamps[-1]) if stamps else (None, None)
        row = Row(
            id=out.request.id.decode("latin-1") or None, n=out.n, arrived=out.request.arrived, first=first, last=last,
            done=now() if last is None or aborted else last, n_in=out.n_in, n_out=out.written, cached=cached,
            chunks=stamps, fault=fault, aborted=aborted,
        )  # fmt: skip
        self._lines.append(self._encode(row) + b"\n")

    def close(self) -> None:
        """Write everything to the file before returning; raises UserError if that failed."""
        self._closing.set()
        self._writer.join()
        self._file.close()
        if self._failure is not None:
            what = f"the truth log {self._path} is incomplete: {self._failure.strerror}"
            raise UserError(what, "choose a --truth FILE on a disk with free space")

    def _write(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(_INTERVAL_S)
            rest = b"".join([self._lines.popleft() for _ in range(len(self._lines))])
            try:
                while rest and self._failure is None:
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                self._failure = error


def read(path: str | Path) -> list[Row]:
    """Return the rows of a truth log, in the order in which the requests ended."""
    return msgspec.json.Decoder(Row).decode_lines(Path(path).read_bytes())
