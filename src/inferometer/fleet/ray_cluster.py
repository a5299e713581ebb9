"""Connects to a Ray cluster, or starts one on this machine, and reserves room for the shards. Every wait has a limit.

Ray is imported here and not before: it is an extra. Its calls are made in one thread that stays: Ray ends the processes of a
cluster that it has started when the thread that started them ends, and a call that hangs must not hang the run.
"""

import contextlib
import importlib.util
import logging
import math
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from inferometer.config.fleet import Fleet, split_address
from inferometer.errors import UserError
from inferometer.units import format_number, format_seconds

T = TypeVar("T")

_CONNECT_S = 5.0
"""Maximum time for a TCP connection to the head."""
_CLOSE_S = 10.0
_STORE_BYTES = 256 << 20
"""Object store of a cluster that is started here: pieces of a few MB pass through it."""
_CLIENT_PORT = 10001
NO_RESPONSE = ("the Ray cluster does not respond", "check it with `ray status`", "fleet.address")
"""The arguments of a UserError."""


class RayThread:
    """Executes calls of Ray, one after the other."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ray", daemon=True).start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def call(self, function: Callable[[], T], limit: float, late: UserError) -> T:
        """Return what the function returns, or raise what it raises; raise `late` if it takes longer than `limit` seconds."""
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # it is raised again in the thread that waits
                future.set_exception(error)

        self._calls.put(call)
        if not wait([future], limit).done:
            raise late
        return future.result()

    def start(self, function: Callable[[], None]) -> None:
        """Let the thread execute this, whenever it ends."""
        self._calls.put(function)

    def end(self) -> None:
        self._calls.put(None)


def check_installed() -> None:
    """Raise UserError if Ray is not there."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            "Ray is not installed", "pip install 'inferometer[ray]', or use {fleet.type} local", "fleet.type"
        )


@contextlib.contextmanager
def connected(fleet: Fleet) -> Iterator[tuple[Any, RayThread]]:
    """The module `ray`, connected to the cluster, and the thread for its calls. A connection that was there before is used, and stays."""
    check_installed()
    address = fleet.address or os.environ.get("RAY_ADDRESS") or ""
    import ray  # noqa: PLC0415 - an extra, which takes half a second to import

    thread = RayThread()
    if ray.is_initialized():
        try:
            yield ray, thread
        finally:
            thread.end()
        return
    if address and address not in ("auto", "local"):
        _check_head(address)
    limit = float(fleet.wait)
    late = UserError(
        f"{_cluster_at(address)} did not respond within {format_seconds(limit)}",
        "check that its head is up (`ray status`), that this machine is one of its nodes, and not at 127.0.0.1; or allow more time "
        "with {fleet.wait}",
        "fleet.address",
    )
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # off the console: what matters is raised
    try:
        thread.call(lambda: ray.init(**_options(address)), limit, late)
    except UserError:
        raise
    except Exception as error:  # Ray raises this class itself
        raise UserError(
            f"{_cluster_at(address)} cannot be used: {first_line(error)}",
            "check {fleet.address} and `ray status`; the cluster must have the same versions of Ray and Python",
            "fleet.address",
        ) from None
    try:
        yield ray, thread
    finally:
        with contextlib.suppress(UserError):
            thread.call(ray.shutdown, _CLOSE_S, late)
        thread.end()


def _cluster_at(address: str) -> str:
    if not address or address == "local":
        return "a Ray cluster of this machine"
    return "the Ray cluster of this machine" if address == "auto" else f"the Ray cluster at {address}"


def _options(address: str) -> dict[str, Any]:
    quiet = {"logging_level": "error", "log_to_driver": False}
    if address and address != "local":
        # Ray takes an interface's address for that of this node, but a head on loopback has no other nodes than those here.
        host = address.rpartition(":")[0]
        return quiet | {"address": address} | ({"_node_ip_address": host} if host.startswith("127.") else {})
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # shards must not wait for everything else
    own = {"address": "local", "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    # Loopback, so that nobody else can reach the cluster. (Ray takes 127.0.0.1 for the address of an interface, and waits.)
    return quiet | own | ({"_node_ip_address": "127.0.0.2"} if sys.platform == "linux" else {})


def _check_head(address: str) -> None:
    """Raise UserError if nothing listens there. (Ray itself would wait for a minute and more.)"""
    if address.startswith("ray://"):
        raise UserError(
            f"{address} is an address of Ray Client, which is not supported",
            f"give HOST:PORT of the head, usually port 6379 (not {_CLIENT_PORT}), on one of the cluster's nodes",
            "fleet.address",
        )
    host, port = split_address(address)
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        raise UserError(
            f"there is no Ray cluster at {address}: {error.strerror or error}",
            "start one with `ray start --head`, check the address, or leave it out to start a cluster on this machine",
            "fleet.address",
        ) from None


def first_line(error: BaseException) -> str:
    """The line of Ray's error messages, which are long, that says the most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


# --- room for the shards ---------------------------------------------------------------------------------------------


def slots(nodes: list[dict[str, Any]], fleet: Fleet) -> int:
    """Return how many shards the nodes, as `ray.nodes()` lists them, have CPUs and resources for if they do nothing else."""
    needs = {"CPU": fleet.cpus} | fleet.resources
    total = 0
    for node in nodes:
        if not node["Alive"] or not _has_labels(node.get("Labels", {}), fleet.labels):
            continue
        has = node["Resources"]
        fits = min(math.floor(has.get(name, 0) / need + 1e-9) for name, need in needs.items())
        total += min(fits, fleet.per_node or fits)
    return total


def _has_labels(labels: dict[str, str], wanted: dict[str, str]) -> bool:
    """Whether a node has the labels; a value that is a selector of Ray's own is left to Ray."""
    return all(value.startswith("!") or "(" in value or labels.get(name) == value for name, value in wanted.items())


def reserve(ray: Any, fleet: Fleet, shards: int) -> list[Any]:
    """Ask for room for the shards, spread over the nodes: one or more placement groups, whose bundles are the shards in turn.

    Ray's SPREAD is a preference. If there is a maximum per node, there are as many groups with STRICT_SPREAD, each of which has at
    most one shard per node.
    """
    from ray.util.placement_group import placement_group  # noqa: PLC0415

    bundle = {"CPU": float(fleet.cpus)} | fleet.resources
    strategy, groups = ("STRICT_SPREAD", min(fleet.per_node, shards)) if fleet.per_node else ("SPREAD", 1)
    sizes = [len(range(group, shards, groups)) for group in range(groups)]
    selectors = [{"bundle_label_selector": [fleet.labels] * size} if fleet.labels else {} for size in sizes]
    return [
        placement_group([bundle] * size, strategy=strategy, **selector)
        for size, selector in zip(sizes, selectors, strict=True)
    ]


def no_room(nodes: list[dict[str, Any]], available: dict[str, float], fleet: Fleet, shards: int) -> UserError:
    """What is missing if the cluster does not have room for all shards."""
    alive = [node for node in nodes if node["Alive"]]
    fitting = [node for node in alive if _has_labels(node.get("Labels", {}), fleet.labels)]
    cpus = sum(node["Resources"].get("CPU", 0.0) for node in fitting)
    needed = [f"{format_number(fleet.cpus * shards, 4)} CPUs"]
    needed += [f"{format_number(need * shards, 4)} of {name}" for name, need in fleet.resources.items()]
    limit = f", at most {fleet.per_node} per node," if fleet.per_node else ""
    labelled = f" with {', '.join(f'{name}={value}' for name, value in fleet.labels.items())}" if fleet.labels else ""
    free = format_number(min(available.get("CPU", 0.0), cpus), 4)
    there = f"{len(fitting)} nodes{labelled} with {format_number(cpus, 4)} CPUs, {free} of them free"
    missing = [f"no {name}" for name in fleet.resources if not any(name in node["Resources"] for node in fitting)]
    return UserError(
        f"{shards} shards{limit} need {' and '.join(needed)}, and after {format_seconds(float(fleet.wait))} the Ray cluster has "
        f"{', '.join([there, *missing])}",
        f"use fewer shards ({{fleet.shards}}; there is room for {slots(nodes, fleet)}), lower {{fleet.cpus}}, or add nodes",
        "fleet.shards",
    )
