"""Shards that are reached over TCP: they share only a socket with the parent, neither a folder nor a clock.

The shard records into a folder of its own. A background thread copies what is new there to the parent every 50 ms, numbers last, so
that the parent's spool folder is always a consistent, slightly older copy. The parent's messages come back over the same socket.
The shard estimates how far the parent's monotonic clock is ahead of its own, and converts instants to its own clock.

A message is four bytes of length and a msgpack array: its kind, then its values. The shard's first message is a token that the
parent has given to the process it started.
"""

import contextlib
import hmac
import os
import pickle
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.fleet.clocks import clock_offset
from inferometer.fleet.control import PARENT_GONE, Grant, WorkerResult
from inferometer.fleet.copying import FolderCopy, FolderReader, Numbers
from inferometer.fleet.job import Job
from inferometer.fleet.local import died, put_grant
from inferometer.fleet.runner import run_shard
from inferometer.store.spool import Control
from inferometer.store.spool_columns import Piece
from inferometer.timing.clock import now

_COPY_EVERY_S = 0.05
_PIECE = 1 << 20
_PINGS = 16
_CONNECT_S = 60.0
"""Maximum time that a process may take to connect to its parent."""
_CLOSE_S = 5.0


class _MessageChannel:
    """Sends and receives messages over a socket. Several threads may send."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, *message: Any) -> None:
        data = msgspec.msgpack.encode(message)
        with self._lock:
            self._sock.sendall(len(data).to_bytes(4, "little") + data)

    def receive(self) -> Any:
        """Return the next message, or None if the other end has gone."""
        head = self._read(4)
        data = self._read(int.from_bytes(head, "little")) if head else b""
        return msgspec.msgpack.decode(data) if data else None

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self._sock.recv(size - len(data))
            except OSError:
                return b""
            if not piece:
                return b""
            data += piece
        return bytes(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


# --- the parent's end ------------------------------------------------------------------------------------------------


class TcpShard:
    """A shard in a process that this one starts, in a session of its own, and that connects back to it."""

    def __init__(self, job: Job, shard: int, host: str = "127.0.0.1") -> None:
        self._job, self._shard = job, shard
        self._copy = FolderCopy(job.spool, shard)
        self._pending: list[tuple[Any, ...]] = []  # messages to send once the shard has connected
        self._channel: _MessageChannel | None = None
        self._lock = threading.Lock()
        self._result: WorkerResult | None = None
        self._ended = threading.Event()
        self._log = (job.spool / f"{shard}.log").open("w+b")
        self._listener = socket.create_server((host, 0))
        token = secrets.token_hex(16)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "inferometer.fleet.worker", f"{host}:{self._listener.getsockname()[1]}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(token.encode() + b"\n")
            self._process.stdin.close()
        threading.Thread(target=self._listen, args=(token,), daemon=True).start()

    def start(self, t0: int) -> None:
        self._send("start", t0)

    def release(self, stage: int, at: int) -> None:
        self._send("release", stage, at)

    def grant(self, grant: Grant) -> None:
        self._send("grant", *grant)

    def end_stage(self, stage: int) -> None:
        self._send("past", stage + 1)

    def abandon(self, stage: int) -> None:
        self._send("abandoned", stage + 1)

    def stop(self, level: int) -> None:
        self._send("stop", level)

    def is_alive(self) -> bool:
        return not self._ended.is_set() and self._process.poll() is None

    def silence(self) -> int:
        return self._copy.silence()

    def wait(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.close()
        if self._channel is not None:
            self._channel.close()

    def result(self) -> WorkerResult | str:
        self._ended.wait(1.0)  # for messages that are still on their way
        if self._result is not None:
            self._process.wait()
            return self._result
        self.kill()
        self._log.seek(0)
        return died(self._process.returncode, self._log.read())

    def _send(self, *message: Any) -> None:
        with self._lock:
            if self._channel is None:
                self._pending.append(message)
                return
        with contextlib.suppress(OSError):  # the shard has gone: is_alive() will say so
            self._channel.send(*message)

    def _listen(self, token: str) -> None:
        try:
            channel = self._accept(token)
            if channel is not None:
                channel.send("job", pickle.dumps((self._job, self._shard)))
                with self._lock:
                    self._channel = channel
                for message in self._pending:
                    self._send(*message)
                while self._result is None and (message := channel.receive()) is not None:
                    self._handle(channel, *message)
                channel.close()
        except OSError:
            pass  # the shard has gone, or was killed
        finally:
            self._ended.set()

    def _accept(self, token: str) -> _MessageChannel | None:
        self._listener.settimeout(_CONNECT_S)
        while True:
            sock, _ = self._listener.accept()
            sock.settimeout(_CONNECT_S)
            channel = _MessageChannel(sock)
            message = channel.receive()
            sock.settimeout(None)
            if message and hmac.compare_digest(str(message[1]).encode(), token.encode()):
                self._listener.close()
                return channel
            channel.close()

    def _handle(self, channel: _MessageChannel, kind: str, *values: Any) -> None:
        match kind:
            case "ping":
                channel.send("pong", values[0], now())
            case "piece":
                self._copy.put(Piece(*values))
            case "numbers":
                self._copy.put_numbers(Numbers(*values))
            case "result":
                self._result = msgspec.json.decode(values[0], type=WorkerResult)


# --- the shard's end -------------------------------------------------------------------------------------------------


def work(address: str, token: str) -> None:
    """Connect to the parent at HOST:PORT, run the shard that it sends, and send back what was recorded."""
    host, _, port = address.rpartition(":")
    channel = _MessageChannel(socket.create_connection((host, int(port)), _CONNECT_S))
    channel._sock.settimeout(None)
    channel.send("token", token)
    message = channel.receive()
    if message is None:
        return
    job, shard = pickle.loads(message[1])
    folder = Path(tempfile.mkdtemp(prefix="inferometer-"))
    try:
        _run(channel, job, shard, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(channel: _MessageChannel, job: Job, shard: int, folder: Path) -> None:
    control = Control(folder / f"{shard}.control", create=True)
    parent = _Parent(channel, control, folder)
    copier = _Copier(channel, control, folder, shard)
    parent.measure_clock()
    listening = threading.Thread(target=parent.listen, daemon=True)
    listening.start()
    threading.Thread(target=copier.keep_up, daemon=True).start()
    try:
        result = WorkerResult(report=run_shard(job, shard, folder))
    except UserError as error:
        result = WorkerResult(error=(error.what, error.remedy, error.key, error.source))
    parent.is_done = True
    with contextlib.suppress(OSError):
        copier.finish()
        channel.send("result", msgspec.json.encode(result))
        # The parent closes when it has everything: closing first might lose messages that are on their way.
        listening.join(_CLOSE_S)


class _Parent:
    """Receives the parent's messages and writes them into the shard's control file."""

    def __init__(self, channel: _MessageChannel, control: Control, folder: Path) -> None:
        self._channel, self._control, self._folder = channel, control, folder
        self._ahead = 0
        self.is_done = False

    def measure_clock(self) -> None:
        samples = []
        for _ in range(_PINGS):
            self._channel.send("ping", now())
            while (message := self._channel.receive()) is not None and message[0] != "pong":
                self._obey(*message)
            if message is None:
                os._exit(1)
            samples.append((message[1], message[2], now()))
        self._ahead, _ = clock_offset(samples)

    def listen(self) -> None:
        while (message := self._channel.receive()) is not None:
            self._obey(*message)
        if not self.is_done:  # the parent has gone
            self._control["stop"] = 2
            time.sleep(PARENT_GONE)
            shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(1)

    def _obey(self, kind: str, *values: int) -> None:
        match kind:
            case "start":
                self._control["t0"] = values[0] - self._ahead
            case "release":
                self._control["release_at"] = values[1] - self._ahead
                self._control["released"] = values[0]
            case "grant":
                number, stage, first, end, is_last = values
                put_grant(self._control, Grant(number, stage, first, end, bool(is_last)))
            case "past" | "abandoned" | "stop":
                self._control[kind] = values[0]


class _Copier:
    """Sends the parent what is new in the shard's folder."""

    def __init__(self, channel: _MessageChannel, control: Control, folder: Path, shard: int) -> None:
        self._channel, self._reader = channel, FolderReader(folder, shard, control, _PIECE)
        self._stopped = threading.Event()
        self._lock = threading.Lock()

    def keep_up(self) -> None:
        with contextlib.suppress(OSError):
            while not self._stopped.wait(_COPY_EVERY_S):
                self._copy()

    def finish(self) -> None:
        self._stopped.set()
        self._copy(is_last=True)

    def _copy(self, is_last: bool = False) -> None:
        with self._lock:
            for change in self._reader.round(is_last):
                if isinstance(change, Numbers):
                    self._channel.send("numbers", *change)
                else:
                    self._channel.send("piece", change.table, change.first, memoryview(change.data))
