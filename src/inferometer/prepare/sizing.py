"""How many client processes and connections a load needs, from its plan and from what the probe showed (probe/estimate.py)."""

import math
import pickle
import time

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import processors, schedule, workload
from inferometer.apis import APIS, scheme_of
from inferometer.config.schema import Config
from inferometer.records import Probe
from inferometer.types import ClosedStage, OpenStage, Plan
from inferometer.units import NS, format_number, format_seconds

MAX_SHARE = 0.4
"""The share of a core that one process may use. Beyond it, requests that are due at the same time wait for one another."""
_USERS_PER_PROCESS = 512
"""Users of a closed loop per process, however little they do."""

# CPU seconds of the client, measured on a machine on which `_work` takes _REFERENCE.
_PER_REQUEST = {"http": 30e-6, "grpc": 80e-6}
_PER_CONNECTION = 75e-6
"""For opening and closing a connection, without TLS."""
_PER_CHUNK = 10e-6
_PER_BYTE = 0.5e-9
"""Per byte sent or received: copying it, and the kernel's part."""
_WAKE_UP = 100e-6
"""The part of a request's CPU time in the probe that a busy process does not have: waking up for the response, in cold caches."""
_ROUNDS, _REFERENCE = 5_000, 0.75e-3
_CHUNKS_UNKNOWN = 128
"""Chunks per response if neither the probe nor data.output shows them."""

MAX_OPENED = 1_024
"""Maximum number of connections opened before t=0 for an open loop, in all processes together: some servers keep a thread for each
idle connection. Over gRPC, where requests share connections, the maximum holds for a closed loop, too."""
_MIN_OPENED = 4
_E2E_UNKNOWN = NS // 2
"""The duration of a request that the number of connections is based on if the probe did not find it."""


_SESSIONS = 16
"""Sessions that are built to find out how long users think, and how large sessions are."""


class Pace(msgspec.Struct, frozen=True):
    """What the user of a closed loop does before the next session: the turns of one, on average, with pauses in between."""

    turns: float = 1.0
    think: float = 0.0
    """Nanoseconds before each later turn."""
    stored: float = 0.0
    """Bytes that are stored for the later turns of a session."""

    def duration(self, stage: ClosedStage, e2e: int) -> float:
        """Return the nanoseconds of a session whose requests take `e2e` each. If users are shared by sessions, none waits while
        another thinks."""
        if stage.by_request:
            return self.turns * (e2e + stage.think)
        return self.turns * e2e + (self.turns - 1) * self.think + stage.think


def pace_of(config: Config) -> Pace:
    """Return the pace of the sessions in the data; without sessions, each request is one of its own."""
    if not workload.has_sessions(config.data):
        return Pace()
    count = min(_SESSIONS, workload.distinct(config.data) or _SESSIONS)
    requests = workload.build(config.data, config.seed, range(count))
    thinks = [turn.think for request in requests for turn in request.later]
    stored = sum(len(pickle.dumps(request.later)) for request in requests if request.later)
    turns = workload.mean_turns(config.data, config.seed)
    return Pace(turns, sum(thinks) / max(len(thinks), 1), stored / count)


# --- connections ------------------------------------------------------------------------------------------------------


def connections_to_open(config: Config, plan: Plan, probe: Probe, shards: int) -> int:
    """Return how many connections one of the shards opens before t=0; `plan` is its part."""
    if config.client.connections != "auto":
        return config.client.connections
    if config.client.reuse == 1:  # a client without keep-alive connects when it has a request
        return 0
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
    """Return the number of processes on this machine for this load, and why it is this number."""
    if config.client.processes != "auto":
        return max(1, min(config.client.processes, schedule.max_shards(plan))), "set by client.processes"
    cores = cores or max(int(processors.usable()), 1)
    return _count(config, plan, probe, cores - 1, f"one of {cores} cores is left to others")


def shard_count(config: Config, plan: Plan, probe: Probe, room: int) -> tuple[int, str]:
    """Return the number of shards on a cluster that has room for so many, and why it is this number."""
    if config.fleet.shards != "auto":
        return min(config.fleet.shards, schedule.max_shards(plan)), "set by fleet.shards"
    return _count(config, plan, probe, room, f"the cluster has room for {room}")


def _count(config: Config, plan: Plan, probe: Probe, room: int, limit: str) -> tuple[int, str]:
    cpu = cpu_per_request(config, probe, slowness())
    pace = pace_of(config)
    rate = max(expected_rate(stage, probe.e2e_ns, pace) * pace.turns for stage in plan.stages)
    users = max(stage.concurrency if isinstance(stage, ClosedStage) else 0 for stage in plan.stages)
    count = min(processes_for(rate, cpu, users, room + 1), schedule.max_shards(plan))
    return count, _because(rate, cpu, users, room, count, limit)


def processes_for(rate: float, cpu: float, users: int, cores: int) -> int:
    """Return how many processes send `rate` requests per second at `cpu` seconds of CPU each, for `users` users of a closed loop.

    Each process uses at most MAX_SHARE of a core. One core is left to everything else.
    """
    wanted = max(math.ceil(rate * cpu / MAX_SHARE), math.ceil(users / _USERS_PER_PROCESS))
    return max(1, min(wanted, cores - 1))


def expected_rate(stage: OpenStage | ClosedStage, e2e: int, pace: Pace) -> float:
    """Return the sessions per second to expect; without sessions, the requests. Open loop: in the busiest second. Closed loop: if the
    server does not slow down under load (0: not known)."""
    if isinstance(stage, ClosedStage):
        return stage.concurrency * NS / pace.duration(stage, e2e) if e2e else 0.0
    span = min(NS, max(stage.duration, 1))
    return _busiest(stage.instants, span) * NS / span


def cpu_per_request(config: Config, probe: Probe, slowness: float) -> float:
    """Return the CPU seconds that a request takes the client: by the size of requests and responses, or what the probe measured if
    that is more, as with TLS or long JSON. Streams are not measured like that: the probe wakes up for every chunk."""
    chunks, size = _chunks(config, probe), (probe.request_bytes or 0) + (probe.response_bytes or 0)
    per_request = _PER_REQUEST[scheme_of(config.server.urls[0])]
    if config.client.reuse:
        per_request += _PER_CONNECTION / config.client.reuse
    by_size = (per_request + chunks * _PER_CHUNK + size * _PER_BYTE) * slowness
    return by_size if chunks or probe.cpu is None else max(by_size, probe.cpu - _WAKE_UP * slowness)


def _chunks(config: Config, probe: Probe) -> float:
    """Return the expected number of chunks per response; 0: it is not streamed."""
    if probe.chunks is not None:
        return probe.chunks
    if probe.chunks_per_second and probe.e2e:
        return probe.chunks_per_second * probe.e2e
    if not config.server.stream or APIS[config.server.api].request != "text":
        return 0
    return workload.mean_output(config.data, config.seed) or _CHUNKS_UNKNOWN


def slowness() -> float:
    """Return how long this machine takes for a piece of work, compared to the one on which the constants were measured."""
    return min(_work() for _ in range(3)) / _REFERENCE


def _work() -> float:
    """Return the CPU seconds of about a millisecond of ordinary Python."""
    start = time.thread_time()
    seen: dict[int, bytes] = {}
    for number in range(_ROUNDS):
        seen[number % 64] = b"%b%d%b" % (b"head", number, b"tail")
    return time.thread_time() - start


def _because(rate: float, cpu: float, users: int, room: int, count: int, limit: str) -> str:
    if not rate:
        return f"{users} users, at most {_USERS_PER_PROCESS} per process; how fast they send is not known"
    share = rate * cpu
    busy = f"up to {format_number(rate, 3)} requests/s at {format_seconds(cpu)} of CPU each keep {format_number(share, 2)} cores busy"
    wanted = math.ceil(share / MAX_SHARE)
    if count >= wanted:
        return f"{busy}, at most {MAX_SHARE} per process"
    if count < room:
        limit = "the load has no more users"
    return f"{busy}, which needs {wanted} processes, but {limit}"
