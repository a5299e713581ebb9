"""The circumstances of a run for its manifest: versions, host, clock, server, and the config with secrets removed."""

import importlib.metadata
import ipaddress
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from inferometer import __version__
from inferometer.config.data import Images, Tensors
from inferometer.config.fields import RampUp, Seconds, Window
from inferometer.config.loads import Constant, Gamma, Poisson, StageSpec, stages_of
from inferometer.config.schema import Config
from inferometer.config.secret import is_secret, without_password
from inferometer.printable import REMOVED
from inferometer.probe.connect import Address
from inferometer.probe.kserve import ModelFacts
from inferometer.records import StagePlan
from inferometer.types import ClosedStage, OpenStage, Plan
from inferometer.units import NS, format_number
from inferometer.wire.target import parse
from inferometer.workload import tensors

_LIBRARIES = ("uvloop", "httptools", "msgspec", "numpy", "pyarrow", "tokenizers")


def redacted(config: Config, model: str) -> dict[str, object]:
    """The config as it ran, with the model that the server reported and without anything that could be a secret."""
    tree: dict[str, Any] = msgspec.to_builtins(config, enc_hook=_plain)
    del tree["sweep"]  # a run is one combination of settings
    server = tree["server"]
    server["url"] = [parse(url).url for url in config.server.urls]
    server["model"] = model
    server["headers"] = dict.fromkeys(server["headers"], REMOVED)
    server["body"] = _without_secrets(server["body"])
    server["parameters"] = _without_secrets(server["parameters"])
    if isinstance(tree["observe"]["prometheus"], list):
        tree["observe"]["prometheus"] = [without_password(url) for url in tree["observe"]["prometheus"]]
    for section in (tree["observe"]["promql"], tree["export"]["otlp"]):
        if section is not None:
            section |= {"url": without_password(section["url"]), "headers": dict.fromkeys(section["headers"], REMOVED)}
    for class_ in tree["data"].get("classes", ()):
        class_["headers"] = dict.fromkeys(class_["headers"], REMOVED)
        class_["body"] = _without_secrets(class_["body"])
    return tree


def _plain(value: object) -> object:
    if isinstance(value, Seconds):
        return float(value)
    if isinstance(value, Window | RampUp):
        return str(value)
    raise NotImplementedError(type(value))


def _without_secrets(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: REMOVED if is_secret(key) else _without_secrets(value) for key, value in tree.items()}
    return [_without_secrets(value) for value in tree] if isinstance(tree, list) else tree


def versions() -> dict[str, str]:
    """Versions of Python, Inferometer and the libraries that matter for a measurement."""
    installed = {"inferometer": __version__, "python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            installed[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def host() -> dict[str, object]:
    """The machine that the client runs on."""
    return {
        "name": platform.node(),
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory": psutil.virtual_memory().total,
    }


def is_here(addresses: Iterable[Address]) -> bool:
    """Return whether all of these addresses are this machine's own. A forwarded port on this machine looks the same."""
    interfaces = {own.address.partition("%")[0] for each in psutil.net_if_addrs().values() for own in each}
    hosts = [str(address[0]).partition("%")[0] for _, address in addresses]
    return all(host in interfaces or _is_loopback(host) for host in hosts)


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return address.is_loopback or address.is_unspecified  # to connect to 0.0.0.0 is to connect to this machine


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()  # which runs a program


def clock_source() -> str:
    """The kernel's clock source, such as tsc."""
    try:
        return (
            Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text(encoding="utf-8").strip()
        )
    except OSError:
        return "unknown"


def server(config: Config, facts: ModelFacts | None) -> dict[str, object]:
    """KServe: what the server reports about itself and the model."""
    if facts is None:
        return {}
    described: dict[str, object] = {
        "name": facts.server.name,
        "version": facts.server.version,
        "platform": facts.metadata.platform,
        "inputs": [msgspec.to_builtins(one) for one in facts.metadata.inputs],
        "outputs": [msgspec.to_builtins(one) for one in facts.metadata.outputs],
        "max_batch_size": facts.max_batch,
        "decoupled": facts.config is not None and facts.config.decoupled,
    }
    if isinstance(config.data, Tensors):
        described["batch"] = tensors.batch(config.data, facts.max_batch)
    elif isinstance(config.data, Images):
        described["batch"] = config.data.batch
    return described


def stage_plans(config: Config, plan: Plan, turns: float = 0.0, parts: int = 1) -> tuple[StagePlan, ...]:
    """The load of each stage, as planned. `turns` is the mean number of turns per session; 0: there are no sessions. `plan` is one of
    this many parts of the load."""
    specs = stages_of(config.load)
    return tuple(
        _stage_plan(spec, stage, number, turns, parts)
        for number, (spec, stage) in enumerate(zip(specs, plan.stages, strict=True))
    )


def _stage_plan(spec: StageSpec, stage: OpenStage | ClosedStage, number: int, turns: float, parts: int) -> StagePlan:
    kind = str(type(spec).__struct_config__.tag)
    is_paced = isinstance(stage, OpenStage) and stage.turns is not None
    unit = spec.unit if turns and not is_paced else "requests"
    seconds = stage.duration / NS
    if isinstance(stage, ClosedStage):
        return StagePlan(
            type=kind,
            open=False,
            unit=unit,
            name=spec.name or f"{number + 1} {kind} {stage.concurrency}",
            duration=seconds,
            requests=stage.requests,
            concurrency=stage.concurrency,
            ramp_up=0.0 if stage.ramp_is_limit else stage.ramp_up / NS,
            think=stage.think / NS,
            drain=stage.barrier,
            pause=stage.pause / NS,
            first_id=stage.first_id,
            users=0,
            **_stable(spec),
        )
    count = round(len(stage.instants) * (turns if turns and unit == "requests" else 1))
    if stage.turns is not None:
        count = len(stage.turns.instants) // parts
    rate = count / seconds if seconds else 0.0
    if isinstance(spec, Constant | Poisson | Gamma) and not isinstance(spec.rate, str):
        rate = spec.rate / parts
    return StagePlan(
        type=kind,
        open=True,
        unit=unit,
        name=spec.name or f"{number + 1} {kind} {format_number(rate, 4)}/s",
        rate=rate,
        duration=seconds,
        requests=count,
        concurrency=stage.cap,
        users=0 if stage.turns is None else stage.turns.users if parts == 1 else len(stage.instants),
        drain=stage.barrier,
        pause=stage.pause / NS,
        first_id=stage.first_id,
        **_stable(spec),
    )


def _stable(spec: StageSpec) -> dict[str, float]:
    return {"stable": spec.stable, "window": float(spec.window)} if spec.stable else {}
