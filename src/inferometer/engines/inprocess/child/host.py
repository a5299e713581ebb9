"""The child process: reads commands from its socket, hands them to the engine, and sends events back, both as lines of JSON.

The engine is used in the main thread, as in a notebook. Two further threads read commands and report progress. When the socket is
closed, the parent has ended: the process then ends at once, with everything that it started.

Every command is followed by any number of `phase` and `progress` events, and by one of `ready`, `done` and `error`.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from inferometer.engines.inprocess.child.errors import Unusable, explain
from inferometer.engines.inprocess.child.jobs import Job, Options, Recording, now

Command = dict[str, Any]
_PROGRESS = 0.25
"""Seconds between two reports of progress."""


def main(path: str) -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, commands), daemon=True).start()
    _Host(Events(connection)).serve(commands)


def _read(connection: socket.socket, commands: "queue.SimpleQueue[Command]") -> None:
    with connection.makefile("rb") as lines, contextlib.suppress(OSError):
        for line in lines:
            commands.put(json.loads(line))
    end_at_once()


def end_at_once() -> None:
    """End this process and all others of its group, whatever they are doing."""
    with contextlib.suppress(OSError):
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


class Events:
    """Sends events to the parent, from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def send(self, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # the parent has ended, which the reader notices
            self._connection.sendall(line)

    def phase(self, name: str) -> None:
        """Report that a phase of the start is complete."""
        self.send({"event": "phase", "name": name, "at": now()})


class _Host:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._engine: Any = None
        self._does: dict[str, Callable[[Command], dict[str, Any]]] = {
            "load": self._load,
            "generate": self._generate,
            "complete": self._complete,
            "encode": self._encode,
            "start profile": self._start_profile,
            "stop profile": self._stop_profile,
        }

    def serve(self, commands: "queue.SimpleQueue[Command]") -> None:
        """Do one command after the other until `close`."""
        while (command := commands.get())["do"] != "close":
            needs_recovery = False
            try:
                event = self._does[command["do"]](command)
            except Unusable as error:
                event = explain(error)
            except BaseException as error:
                traceback.print_exc()
                event, needs_recovery = explain(error), True
            if needs_recovery:  # only now: the exception refers to frames, and these to tensors
                self._recover()
            self._events.send(event)
        if self._engine is not None:
            self._engine.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # threads of libraries must not hold up the end

    def _recover(self) -> None:
        if self._engine is not None:
            with contextlib.suppress(Exception):
                self._engine.free_memory()

    def _load(self, command: Command) -> dict[str, Any]:
        self._engine = _module(command["module"]).load(Options(**command["options"]), self._events.phase)
        return {"event": "ready", "at": now(), "facts": self._engine.facts, "versions": self._engine.versions}

    def _generate(self, command: Command) -> dict[str, Any]:
        job = Job.read(command)
        recording = Recording()
        recording.began = now()
        with self._reporting(recording):
            self._engine.generate(job, recording)
        recording.ended = now()
        recording.write(Path(command["result"]))
        return {"event": "done", **recording.totals()}

    def _complete(self, command: Command) -> dict[str, Any]:
        job = Job.read(command)
        return {"event": "done", "outputs": self._engine.complete(job.requests, command["tokens"], job.chat)}

    def _encode(self, command: Command) -> dict[str, Any]:
        return {"event": "done", **self._engine.encode(command)}

    def _start_profile(self, command: Command) -> dict[str, Any]:
        self._engine.start_profile()
        return {"event": "done"}

    def _stop_profile(self, command: Command) -> dict[str, Any]:
        return {"event": "done", "trace": self._engine.stop_profile(command["trace"])}

    @contextlib.contextmanager
    def _reporting(self, recording: Recording) -> Iterator[None]:
        """Report progress from another thread: an engine in the middle of a batch cannot."""
        ended = threading.Event()

        def report() -> None:
            while not ended.wait(_PROGRESS):
                self._events.send({"event": "progress", **recording.progress()})

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _module(name: str) -> Any:
    """A module of this folder, or a file somewhere else."""
    if not name.endswith(".py"):
        return importlib.import_module(f"{__package__}.{name}")
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
