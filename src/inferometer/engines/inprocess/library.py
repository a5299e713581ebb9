"""An engine that is used as a library, in a process of its own: started, commanded, and ended with everything that it started.

    library = start_library(spec, model, log_path, folder, timeout=600, max_batch=64)
    try:
        generated = library.generate(requests, level=8, count=64)
    finally:
        library.close()

Commands and events are lines of JSON on a Unix socket, which has a name rather than a number: whatever starts the process need not pass
on open files. The process ends by itself when the socket is closed, which the kernel does even if this process is killed.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferometer.campaign import Output
from inferometer.config.engines import EngineSpec
from inferometer.engines.inprocess.messages import Encoded, Generated, Progress, read_rows, write_requests
from inferometer.engines.launching import EngineError
from inferometer.types import Request
from inferometer.units import format_seconds

CHILD = Path(__file__).parent / "child"
MODULES = {
    "transformers": "hugging_face",
    "vllm": "vllm_offline",
    "torch": "encoders",
    "onnxruntime": "encoders",
}
"""The child's module for each type of engine; or a file somewhere else, whose name ends with .py."""
INSTALL = {"torch": "torch", "transformers": "transformers", "vllm": "vllm", "onnxruntime": "onnxruntime"}
ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",  # forking afterwards would be warned about, and one prompt gains nothing
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""Set unless they are set already."""
GRACE = 10.0
"""Seconds that an engine has to end by itself."""
_LOOK = 0.2
"""Seconds after which the end of the process is noticed."""
_GONE = 5.0
"""Seconds to wait for processes that were killed."""
_TAIL = 20

Event = dict[str, Any]
Start = Callable[[Sequence[str], Mapping[str, str], Path], "subprocess.Popen[bytes]"]
"""Starts a process with these words, this environment and this log. Its id is that of a process group, with which it is ended."""


def start_process(words: Sequence[str], env: Mapping[str, str], log_path: Path) -> "subprocess.Popen[bytes]":
    """Start a process whose output is appended to a log. It leads a group of its own."""
    with log_path.open("ab") as log:
        return subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(env), start_new_session=True
        )


def start_library(
    spec: EngineSpec,
    model: str,
    log_path: Path,
    folder: Path,
    timeout: float,
    *,
    max_batch: int = 1,
    task: str = "auto",
    config_of: str = "",
    start: Start = start_process,
) -> "Library":
    """Start an engine and wait until its model is loaded. Raises EngineError, and then nothing is left running.

    `folder` is for its files: traces of profilers, exported models. `max_batch` is the largest batch, or the most requests in flight,
    that will be measured. Encoders: `task` is what the model is loaded as, and `config_of` the folder whose config.json is that of
    an .onnx file.
    """
    for each in (log_path.parent, folder):
        each.mkdir(parents=True, exist_ok=True)
    library = Library(spec, log_path, folder, timeout, start)
    try:
        library.load(model, timeout, max_batch, task, config_of)
    except BaseException:
        library.close()
        raise
    return library


class Library:
    """A running engine. Methods raise EngineError; its `reason` is `out of memory` for a level that does not fit, after which the
    engine can still be used (`is_running`)."""

    def __init__(self, spec: EngineSpec, log_path: Path, folder: Path, timeout: float, start: Start) -> None:
        """Start the process, and wait until it connects."""
        self.spec, self.log_path, self.folder = spec, log_path, folder
        interpreter = _interpreter(spec)
        self.phases: dict[str, float] = {}
        """Seconds from the start of the process to the end of each phase."""
        self.facts: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self.ready_at: float | None = None
        """Seconds from the start of the process until the model was loaded."""
        self._room = Path(tempfile.mkdtemp(prefix="inferometer-"))
        self._buffer = bytearray()
        self._is_busy = False
        """Whether it works on a command."""
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.started_ns = time.monotonic_ns()
        with socket.socket(socket.AF_UNIX) as listener:
            path = str(self._room / "socket")
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(_LOOK)
            env = {**ENVIRONMENT, **os.environ, **spec.env}
            words = [interpreter, str(CHILD), path]
            try:
                self._process = start(words, env, log_path)
                self._connection = self._accepted(listener, timeout)
            except BaseException:
                self.close()
                raise

    # --- the engine ----------------------------------------------------------------------------------------------------

    def load(self, model: str, timeout: float, max_batch: int, task: str, config_of: str) -> None:
        """Load the model, within `timeout` seconds of the start of the process."""
        spec = self.spec
        options = {
            "type": spec.type,
            "mode": spec.mode,
            "model": _local(model),
            "dtype": spec.dtype,
            "device": spec.device,
            "compile": spec.compile,
            "args": spec.args,
            "max_batch": max_batch,
            "traces": str(self.folder),
            "task": task,
            "config_of": _local(config_of),
        }
        deadline = self.started_ns / 1e9 + timeout
        command = {"do": "load", "module": MODULES[spec.type], "options": options}
        ready = self._do(command, deadline, f"was not loaded within {format_seconds(timeout)}", "not ready")
        self.ready_at = self._since_start(ready["at"])
        self.facts, self.versions = {k: v for k, v in ready["facts"].items() if v}, ready["versions"]

    def generate(
        self,
        requests: Sequence[Request],
        level: int,
        *,
        count: int = 0,
        duration: float = 0.0,
        chat: bool = False,
        ignore_eos: bool = True,
        timeout: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Generated:
        """Run a level: `count` requests, or as many as are started within `duration` seconds.

        If there are fewer requests, they are used again. `chat` puts prompts that are texts into the model's chat template.
        Messages are put into it in any case.
        """
        if not requests or not (count or duration):
            raise ValueError("a level needs requests, and an end")
        job = {
            "level": level,
            "count": count,
            "duration": round(duration * 1e9),
            "sort": self.spec.sort,
            "chat": chat,
            "ignore_eos": ignore_eos,
        }
        given, result = self._files("requests", "rows")
        write_requests(given, requests)
        done = self._do(
            {"do": "generate", "requests": str(given), "result": str(result), "job": job},
            None if timeout is None else time.monotonic() + timeout,
            f"the level did not end within {format_seconds(timeout or 0)}",
            "failed",
            on_progress,
        )
        rows = read_rows(result)
        given.unlink()
        result.unlink()
        return Generated(
            rows=rows,
            began=done["began"],
            ended=done["ended"],
            padding=done["padding"],
            notes=tuple(done["notes"]),
        )

    def complete(
        self, requests: Sequence[Request], tokens: int, *, chat: bool = False, timeout: float | None = None
    ) -> list[Output]:
        """Complete prompts greedily, with at most `tokens` tokens each."""
        (given,) = self._files("requests")
        write_requests(given, requests)
        done = self._do(
            {"do": "complete", "requests": str(given), "tokens": tokens, "job": {"chat": chat}},
            None if timeout is None else time.monotonic() + timeout,
            f"the outputs were not there within {format_seconds(timeout or 0)}",
            "failed",
        )
        given.unlink()
        return msgspec.convert(done["outputs"], list[Output])

    def encode(
        self,
        batch: int,
        length: int,
        *,
        measurements: int,
        warmup: int,
        outputs: Path,
        seed: int = 0,
        timeout: float | None = None,
    ) -> Encoded:
        """Measure an encoder at one batch size and sequence length. Its outputs, as float32, are stored as a .npy file."""
        command = {
            "do": "encode",
            "batch": batch,
            "length": length,
            "measurements": measurements,
            "warmup": warmup,
            "seed": seed,
            "outputs": str(outputs),
        }
        deadline = None if timeout is None else time.monotonic() + timeout
        done = self._do(command, deadline, f"the calls did not end within {format_seconds(timeout or 0)}", "failed")
        return msgspec.convert(done, Encoded)

    def start_profile(self) -> None:
        """Start the engine's own profiler: torch's, or vLLM's."""
        self._do({"do": "start profile"}, time.monotonic() + 120, "the profiler did not start", "failed")

    def stop_profile(self, trace: Path) -> Path:
        """Stop it. Returns the file with the trace: `trace`, or where the engine has put it."""
        command = {"do": "stop profile", "trace": str(trace)}
        done = self._do(command, time.monotonic() + 600, "the profiler did not write its trace", "failed")
        return Path(done["trace"])

    # --- the process ---------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End the process: politely if it is idle, else at once; in any case with its whole group. May be called twice."""
        process, self._process = self._process, None
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.sendall(b'{"do": "close"}\n')
        if process is not None:
            if self._connection is not None and not self._is_busy:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
            _end_group(process)
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        shutil.rmtree(self._room, ignore_errors=True)

    def _accepted(self, listener: socket.socket, timeout: float) -> socket.socket:
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                return connection
            if not self.is_running:
                raise self._died()
            if time.monotonic() > deadline:
                late = f"its interpreter did not start within {format_seconds(timeout)}"
                raise EngineError(late, "check `python`", "not ready", self.log_tail())

    def _do(
        self,
        command: Mapping[str, Any],
        deadline: float | None,
        late: str,
        reason: str,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Event:
        """Send a command and return its result. Raises EngineError for an error, or when it takes too long; then the process is
        ended, because a call into a library cannot be interrupted."""
        self._check_running()
        assert self._connection is not None
        self._is_busy = True
        with contextlib.suppress(OSError):  # the process has ended, which the next line notices
            self._connection.sendall(msgspec.json.encode(command) + b"\n")
        while True:
            event = self._event(deadline, late, reason)
            match event["event"]:
                case "phase":
                    self.phases[event["name"]] = self._since_start(event["at"])
                case "progress" if on_progress is not None:
                    on_progress(msgspec.convert(event, Progress))
                case "error":
                    self._is_busy = False
                    raise self._error(event)
                case "ready" | "done":
                    self._is_busy = False
                    return event

    def _event(self, deadline: float | None, late: str, reason: str) -> Event:
        assert self._connection is not None
        while (end := self._buffer.find(b"\n")) < 0:
            left = _LOOK if deadline is None else min(deadline - time.monotonic(), _LOOK)
            if left <= 0:
                tail = self.log_tail()
                self.close()
                raise EngineError(late, "see its log, or allow more time", reason, tail)
            self._connection.settimeout(left)
            try:
                data = self._connection.recv(1 << 16)
            except TimeoutError:
                if not self.is_running:
                    raise self._died() from None
                continue
            except OSError:
                data = b""
            if not data:
                raise self._died()
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        event: Event = msgspec.json.decode(line)
        return event

    def _died(self) -> EngineError:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LOOK)
        status = self._process.poll()
        tail = self.log_tail()
        self.close()
        if status is not None and -status == signal.SIGKILL:
            how = "was killed: by the system, if there was too little memory"
        elif status is not None and status < 0:
            how = f"ended with the signal {signal.Signals(-status).name}"
        else:
            how = f"ended with status {status}"
        return EngineError(f"the process of the engine {how}", "see its log", "died", tail)

    def _error(self, event: Event) -> EngineError:
        kind, message = event["kind"], event["message"]
        if kind == "not installed":
            package = event["package"]
            python = _interpreter(self.spec)
            remedy = (
                f"{python} -m pip install {INSTALL.get(package, package)}, or name another interpreter with `python`"
            )
            return EngineError(f"{package} is not installed", remedy, "not installed")
        if kind == "out of memory":
            return EngineError(f"out of memory: {message}", "use a smaller batch", kind, self.log_tail())
        return EngineError(f"{message}", "see its log", "failed", self.log_tail())

    def _check_running(self) -> None:
        if self._connection is None or self._process is None:
            raise EngineError("the engine is not running", "start it again", "died")

    def log_tail(self) -> tuple[str, ...]:
        """The last lines of the engine's output."""
        with contextlib.suppress(OSError):
            return tuple(self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:])
        return ()

    def _files(self, *names: str) -> list[Path]:
        """Paths for files that are handed over."""
        self._check_running()
        word = secrets.token_hex(4)
        return [self._room / f"{name}-{word}.jsonl" for name in names]

    def _since_start(self, at: int) -> float:
        return (at - self.started_ns) / 1e9


def _local(model: str) -> str:
    """The path of a model on this machine; any other name as it is."""
    path = Path(model).expanduser()
    return str(path) if model and path.exists() else model


def _interpreter(spec: EngineSpec) -> str:
    if not spec.python:
        return sys.executable
    path = Path(spec.python).expanduser()
    if not path.is_file():
        raise EngineError(f"{spec.python}: there is no such interpreter", "check `python`", "not installed")
    return str(path)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and all others of its group, and wait until they are gone, so that their memory is free."""
    deadline = time.monotonic() + _GONE
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(_LOOK / 10)
    process.wait()
