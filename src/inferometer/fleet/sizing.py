"""How many client processes and connections a load needs, from its plan and from what the probe showed (probe/estimate.py)."""

import math
import os

import numpy as np
from numpy.typing import NDArray

from inferometer import schedule
from inferometer.apis import scheme_of
from inferometer.config.schema import Config, Messages, Tensors
from inferometer.records import Probe
from inferometer.types import ClosedStage, OpenStage, Plan
from inferometer.units import NS, format_number, format_seconds

MAX_SHARE = 0.4
"""The share of a core that one process may use. Beyond it, requests that are due at the same time wait for one another."""
CPU_PER_CHUNK = 10e-6
"""CPU seconds per chunk, if there was no probe. A response that is not streamed counts as two chunks."""
_USERS_PER_PROCESS = 512
"""Users of a closed loop per process, however little they do."""

MAX_OPENED = 1_024
"""Maximum number of connections opened before t=0 for an open loop, in all processes together: some servers keep a thread for each
idle connection. Over gRPC, where requests share connections, the maximum holds for a closed loop, too."""
_MIN_OPENED = 4
_E2E_UNKNOWN = NS // 2
"""The duration of a request that the number of connections is based on if the probe did not find it."""


# --- connections ------------------------------------------------------------------------------------------------------


def connections_to_open(config: Config, plan: Plan, probe: Probe, shards: int) -> int:
    """Return how many connections one of the shards opens before t=0; `plan` is its part."""
    if config.client.connections != "auto":
        return config.client.connections
    limit = max(MAX_OPENED // shards, 1)
    most = max(expected_in_flight(stage, probe.e2e_ns, limit) for stage in plan.stages)
    return min(most, limit) if scheme_of(config.server.urls[0]) == "grpc" else most


def expected_in_flight(stage: OpenStage | ClosedStage, e2e: int, limit: int = MAX_OPENED) -> int:
    """Return how many requests may be in flight at the same time, if each takes `e2e` nanoseconds (0: not known).

    Open loop, by Little's law: rate times e2e, plus three times the square root for chance (a Poisson process has that spread), or
    the arrivals within the busiest e2e if these are more, as in a burst. At most `limit`.
    """
    if isinstance(stage, ClosedStage):
        return min(stage.concurrency, stage.requests) if stage.requests else stage.concurrency
    e2e = e2e or _E2E_UNKNOWN
    mean = len(stage.instants) * e2e / max(stage.duration, 1)
    wanted = max(math.ceil(mean + 3 * math.sqrt(mean)), _busiest(stage.instants, e2e), _MIN_OPENED)
    return max(1, min(wanted, len(stage.instants), limit, stage.cap or limit))


def _busiest(instants: NDArray[np.int64], span: int) -> int:
    """Return the largest number of instants within any `span` nanoseconds."""
    first = np.searchsorted(instants, instants - span, side="right")
    return int((np.arange(1, len(instants) + 1) - first).max(initial=0))


# --- processes --------------------------------------------------------------------------------------------------------


def process_count(config: Config, plan: Plan, probe: Probe, cores: int | None = None) -> tuple[int, str]:
    """Return the number of processes for this load, and why it is this number."""
    most = schedule.max_shards(plan)
    if config.client.processes != "auto":
        return max(1, min(config.client.processes, most)), "set by client.processes"
    cores = cores or usable_cores()
    cpu = probe.cpu or _cpu_unknown(config)
    rate = max(_rate(stage, probe.e2e_ns) for stage in plan.stages)
    users = max(stage.concurrency if isinstance(stage, ClosedStage) else 0 for stage in plan.stages)
    count = min(processes_for(rate, cpu, users, cores), most)
    return count, _because(rate, cpu, users, cores, count)


def processes_for(rate: float, cpu: float, users: int, cores: int) -> int:
    """Return how many processes send `rate` requests per second at `cpu` seconds of CPU each, for `users` users of a closed loop.

    Each process uses at most MAX_SHARE of a core. One core is left to everything else.
    """
    wanted = max(math.ceil(rate * cpu / MAX_SHARE), math.ceil(users / _USERS_PER_PROCESS))
    return max(1, min(wanted, cores - 1))


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _rate(stage: OpenStage | ClosedStage, e2e: int) -> float:
    """Return the requests per second to expect: open loop, in the busiest second; closed loop, if the server does not slow down."""
    if isinstance(stage, ClosedStage):
        return stage.concurrency * NS / (e2e + stage.think) if e2e else 0.0
    span = min(NS, max(stage.duration, 1))
    return _busiest(stage.instants, span) * NS / span


def _cpu_unknown(config: Config) -> float:
    """Return the CPU seconds per request to assume without a probe."""
    output = 0 if isinstance(config.data, Tensors | Messages) else config.data.output
    return ((output or 128) + 1 if config.server.stream else 2) * CPU_PER_CHUNK


def _because(rate: float, cpu: float, users: int, cores: int, count: int) -> str:
    if not rate:
        return f"{users} users, at most {_USERS_PER_PROCESS} per process; the rate is not known without a probe"
    share = rate * cpu
    text = f"up to {format_number(rate, 3)} requests/s at {format_seconds(cpu)} of CPU each: {format_number(share, 2)} of a core"
    wanted = math.ceil(share / MAX_SHARE)
    if count < wanted:
        limit = f"{cores} cores" if count >= cores - 1 else "its users or its cap"
        return f"{text}, which needs {wanted} processes at most {MAX_SHARE:.0%} busy; limited by {limit}"
    return f"{text}, at most {MAX_SHARE} per process"
