"""A server engine of a comparison while it runs: started, measured over HTTP or gRPC like any other server, and ended."""

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from inferometer import conduct, store, workload
from inferometer.campaign import Output, StartUp
from inferometer.conduct.measuring import completed
from inferometer.config import from_mapping
from inferometer.config.engines import Campaign, EngineSpec, Level, level_config
from inferometer.config.loads import Closed
from inferometer.config.schema import Config
from inferometer.engines import failures, milestones, readiness
from inferometer.engines.catalog import server_engine
from inferometer.engines.launching import EngineError, Launch, Start, free_port
from inferometer.engines.process import ServerProcess, check_port, running
from inferometer.errors import UserError
from inferometer.prepare.jobs import provide_tokenizer
from inferometer.probe import estimate, reach
from inferometer.records import Run
from inferometer.types import Request
from inferometer.units import format_seconds

_VERSION_TIMEOUT = 60.0
_ANY_SERVER = ("command", "triton")
"""Engines that may refuse the field `ignore_eos`."""


class RunningServer:
    """The engine, ready to be measured."""

    def __init__(
        self, campaign: Campaign, spec: EngineSpec, launch: Launch, process: ServerProcess | None, startup: StartUp
    ) -> None:
        self._campaign, self._spec, self._launch, self._process = campaign, spec, launch, process
        self.startup = startup
        self.facts: dict[str, str] = {}
        self.version = ""
        self.profiler = launch.profiler

    @property
    def log_tail(self) -> tuple[str, ...]:
        return self._process.tail if self._process is not None else ()

    def config(self, level: Level, salt: str, repeat: int) -> Config:
        """The config of one level, with the engine's process observed."""
        config = level_config(self._campaign, level, _server(self._campaign, self._launch, self._spec), salt, repeat)
        if self._process is None or config.observe.processes:
            return config
        observe = msgspec.structs.replace(config.observe, processes=[self._process.pid])
        return msgspec.structs.replace(config, observe=observe)

    def measure(self, config: Config, level: Level, show: conduct.Show | None) -> tuple[Run, float | None]:
        """Measure one level. The second result is the share of padding, which servers do not report."""
        return conduct.measure(config, show)[0], None

    def complete(self, sample: Path, count: int, tokens: int, folder: Path) -> list[Output]:
        """Complete the prompts of the sample greedily. Each row of the file is one prompt."""
        server = _server(self._campaign, self._launch, self._spec)
        server["body"] = dict(server.get("body") or {}) | {"temperature": 0}
        tree: dict[str, Any] = {
            "server": server,
            "data": {"type": "jsonl", "path": str(sample), "output": tokens, "turns": "last"},
            "load": {"type": "closed", "concurrency": 1, "requests": count},
            "client": {"processes": 0, "probe": False},
            "observe": {"prometheus": [], "host": False, "gpu": False},
            "keep": "text",
            "output": str(folder),
        }
        run, _ = conduct.measure_to_end(from_mapping(tree))
        bodies = store.bodies_of(run.folder, range(count))
        rows = {int(row["id"]): row for row in run.records.rows}
        outputs = []
        for id in range(count):
            failure = int(rows[id]["failure"]) if id in rows else 0
            body_of = bodies.get(id)
            why = run.records.failures[failure - 1].code if failure else "" if id in rows else "not sent"
            outputs.append(Output(body_of.response or "" if body_of else "", error=why))
        return outputs

    def warm_up(self, count: int, most: int, folder: Path) -> None:
        """Send requests that are not measured, with as many in flight as the highest level has."""
        replace = msgspec.structs.replace
        config = self.config(Level("concurrency", 1), "warm-up", 0)
        config = replace(
            config,
            load=Closed(concurrency=min(count, most), requests=count),
            observe=replace(config.observe, prometheus=[], host=False, gpu=False, processes=[]),
            client=replace(config.client, probe=False),
            output=str(folder),
            slo=[],
        )
        conduct.measure_to_end(config)

    def reset_cache(self) -> bool:
        """Empty the prefix cache; return whether the engine can."""
        if not self._launch.reset_cache:
            return False
        with contextlib.suppress(UserError):
            return 200 <= readiness.post(self._launch.url, self._launch.reset_cache) < 300
        return False

    def call_profiler(self, hook: str) -> None:
        """Call a path of the server, or run a shell command."""
        if not hook.startswith("/"):
            subprocess.run(hook, shell=True, check=False, timeout=600)
        elif not 200 <= (status := readiness.post(self._launch.url, hook, 600)) < 300:
            raise UserError(f"POST {hook}: status {status}", "start the engine with its profiler enabled")

    def check_alive(self) -> None:
        """Raise EngineError when the engine has died."""
        if self._process is not None and (status := self._process.settled_status()) is not None:
            reason, words = failures.explain(status, self._process.output.splitlines())
            kind = "died" if reason in ("failed", "died") else reason
            raise EngineError(f"died during the measurement: {words}", "see its log", kind, self._process.tail)


@contextlib.contextmanager
def opened_server(
    campaign: Campaign, spec: EngineSpec, log: Path, files: Path, is_cold: bool, dropped: bool
) -> Iterator[RunningServer]:
    """Start the engine and wait until it is ready; end it after the block. Raises EngineError when it does not get ready."""
    launch = _launched(campaign, spec, files)
    with contextlib.ExitStack() as held:
        process = None
        if launch.command:
            address = urlsplit(launch.url)
            check_port(address.hostname or "127.0.0.1", address.port or 80)
            process = held.enter_context(running(launch.command, log, launch.env | spec.env))
        reader = readiness.LogReader(process) if process is not None else None
        begun = process.started if process is not None else time.monotonic()
        patience = float(campaign.startup.timeout)
        try:
            ready, first = readiness.await_ready(
                process, launch, partial(_first_token, campaign, launch, spec), patience, reader
            )
        except EngineError as error:
            raise _explained(error, process) from None
        lines = reader.lines if reader is not None else []
        startup = StartUp(
            is_cold=is_cold,
            dropped_cache=dropped,
            phases=milestones.phases(lines, launch.milestones),
            ready=ready - begun if process is not None else None,
            first_token=first - begun if process is not None else None,
        )
        engine = RunningServer(campaign, spec, launch, process, startup)
        engine.facts = launch.facts | milestones.facts(lines, launch.fact_lines)
        yield engine


def version_of(campaign: Campaign, spec: EngineSpec, files: Path) -> str:
    """What the engine's own command says about its version; empty if it has none."""
    command = _launched(campaign, spec, files).version
    if not command:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_VERSION_TIMEOUT, check=False)
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        return lines[-1][:100] if lines and not done.returncode else ""
    return ""


def _launched(campaign: Campaign, spec: EngineSpec, files: Path) -> Launch:
    port = urlsplit(spec.url).port if spec.url else None
    is_profiled = campaign.profile is not None and campaign.profile.engine == spec.name
    launch = server_engine(spec).launch(
        Start(spec, spec.model or campaign.model, port or free_port(), files, is_profiled)
    )
    changes = {"url": spec.url} if spec.url else {}
    return msgspec.structs.replace(launch, **changes, **({"ready": spec.ready} if spec.ready is not None else {}))


def _server(campaign: Campaign, launch: Launch, spec: EngineSpec) -> dict[str, Any]:
    """The `server` section for this engine. Responses have the requested length, if the engine supports that and the data has one."""
    fixed = {"ignore_eos": True} if spec.type not in _ANY_SERVER and campaign.data.get("output") != 0 else {}
    return fixed | campaign.server | launch.server | {"url": launch.url} | spec.server


def _first_token(campaign: Campaign, launch: Launch, spec: EngineSpec, patience: float) -> float | None:
    """Send a request of the workload, and return the seconds to its first token. Raises UserError unless the response is good."""
    config = level_config(campaign, Level("concurrency", 1), _server(campaign, launch, spec), "first", 0)
    reached = reach.reach(config.server)
    provide_tokenizer(config, reached)
    config = completed(config, reached)
    requests: list[Request] = workload.probe_requests(config.data, config.seed, 1, "first response")
    probe = estimate.estimate(config, reached, requests, "first", seconds=patience)
    if probe.failure or probe.is_cut:
        raise UserError(probe.failure or f"no complete response within {format_seconds(patience)}", "see its log")
    return probe.ttft if probe.ttft is not None else probe.e2e


def _explained(error: EngineError, process: ServerProcess | None) -> EngineError:
    """The error with what the log says about its cause."""
    if process is None or error.reason not in ("died", "not ready"):
        return error
    reason, words = failures.explain(process.status, process.output.splitlines())
    kind = error.reason if reason in ("failed", "died") else reason
    text = f"{error.what}: {words}" if words and words not in error.what else error.what
    return EngineError(text, error.remedy, kind, process.tail)


def sample_row(request: Request, tokens: int) -> dict[str, Any] | None:
    """A prompt of the sample as a row of a JSONL file; None if it is not a text."""
    if isinstance(request.payload, str):
        return {"prompt": request.payload, "output": tokens}
    if isinstance(request.payload, list) and all(isinstance(each, dict) for each in request.payload):
        return {"messages": request.payload, "output": tokens}
    return None


def prompts_of(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The prompts of the sample as text, for the record."""
    return tuple(row["prompt"] if "prompt" in row else str(row["messages"]) for row in rows)
