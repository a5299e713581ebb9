"""Shards on the nodes of a Ray cluster: the parent's end.

One thread polls all actors (ray_actor.py): each always has one poll to respond to, which brings what is new in the shard's folder
to the parent's. The supervisor's messages go to the actors at once, with instants converted to the node's clock. When all shards
are ready, the thread measures the clock of each node; only then does the supervisor see that they are. An actor that dies, or that
does not respond for some seconds, is lost; whoever waits for anything of it waits no longer than that.
"""

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from inferometer import __version__
from inferometer.config.fleet import Fleet
from inferometer.config.loads import Closed, stages_of
from inferometer.errors import UserError
from inferometer.fleet import clocks, ray_cluster
from inferometer.fleet.clocks import ClockOffset, NodeClock
from inferometer.fleet.control import Grant, WorkerResult
from inferometer.fleet.copying import FolderCopy, Numbers
from inferometer.fleet.job import Job
from inferometer.fleet.ray_actor import GROUPS, NodeFacts, ShardActor, Update
from inferometer.fleet.ray_cluster import RayThread
from inferometer.fleet.shipping import ShippedFile, files_of, moved
from inferometer.store.spool import STATES
from inferometer.timing.clock import now
from inferometer.units import NS, format_seconds

_POLL_S, _DEALING_POLL_S, _POLL_PER_SHARD_S = 0.15, 0.03, 0.0015
"""How long an actor waits before it responds to a poll, unless its shard ends: usually; if the parent deals out requests (dealing.py),
which needs the latest numbers; and with many shards, at least, for each of them. A poll takes about a millisecond of CPU time."""
_WAIT_S = 0.02
"""How long the thread waits for responses before it handles those that are there."""
_SILENT_S = 10.0
"""An actor that has not responded for this long is lost."""
_UNREACHABLE_S = 3.0
"""The same if its connection was closed or is refused: Ray takes up to a minute to call such a node dead."""
_PING_S = 2.0
_STEP_S = 0.2
_CLOSE_S = 3.0
_MARGIN_S = 15.0
"""How long a call that should return at once may take, before the cluster counts as one that does not respond."""
_PIECE, _RESPONSE, _RESPONSES = 1 << 20, 8 << 20, 128 << 20
"""Bytes that are read at a time, that a response may have, and that all responses in flight together may have."""
_INLINE = 64 << 10
"""Files up to this size are arguments of calls; larger ones pass through the object store, once for all nodes."""
_FILE_PIECE = 8 << 20


class RayFleet:
    """The actors of a run. Calling it starts one of their shards (control.StartShard)."""

    def __init__(self, ray: Any, thread: RayThread, settings: Fleet, shards: int) -> None:
        self._ray, self._thread, self._settings = ray, thread, settings
        self._shards: list[RayShard] = []
        self._is_polling = False
        self._is_synchronized = False
        self._closed = threading.Event()
        self._polls_ended = threading.Event()
        self._groups: list[Any] = []
        self._actors: list[Any] = []
        self._files: list[ShippedFile] | None = None
        self.start_in = NS // 4 + shards * NS // 200
        """Nanoseconds from the last shard's `ready` to t=0: the message must have reached every node by then."""
        self.facts: list[NodeFacts] = []
        self._start_clocks: dict[str, ClockOffset] = {}
        self._end_clocks: dict[str, ClockOffset] = {}
        try:
            self._place(shards)
        except BaseException:
            self.close()
            raise

    # --- before the run ----------------------------------------------------------------------------------------------

    def _place(self, shards: int) -> None:
        """Create the actors. Raises UserError when the cluster has no room for them, or cannot run them."""
        ray, settings = self._ray, self._settings
        limit = float(settings.wait)

        def reserve() -> bool:
            self._groups = ray_cluster.reserve(ray, settings, shards)
            return self._has_all([group.ready() for group in self._groups], limit)

        late = UserError("the Ray cluster does not respond", "check it with `ray status`", "fleet.address")
        if not self._thread.call(reserve, limit + _MARGIN_S, late):
            nodes, free = self._thread.call(lambda: (ray.nodes(), ray.available_resources()), _MARGIN_S, late)
            raise ray_cluster.no_room(nodes, free, settings, shards)
        self.facts = self._thread.call(lambda: self._create(shards, limit), limit + _MARGIN_S, late)
        for facts in self.facts:
            if facts.version != __version__:
                raise UserError(
                    f"the Ray node {facts.address} has inferometer {facts.version}, and this machine {__version__}",
                    "install the same version on all nodes",
                    "fleet.address",
                )

    def _create(self, shards: int, limit: float) -> list[NodeFacts]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: PLC0415

        ray, settings = self._ray, self._settings
        options = {"num_cpus": float(settings.cpus), "resources": settings.resources, "max_restarts": 0}
        kind = ray.remote(concurrency_groups=GROUPS, **options)(ShardActor)
        for shard in range(shards):
            index, group = divmod(shard, len(self._groups))
            strategy = PlacementGroupSchedulingStrategy(self._groups[group], index)
            self._actors.append(kind.options(scheduling_strategy=strategy).remote())
        references = [actor.facts.remote() for actor in self._actors]
        if not self._has_all(references, limit):
            raise UserError(
                f"the shards did not start on the Ray cluster within {format_seconds(limit)}",
                "see the logs of the cluster, or allow more time with {fleet.wait}",
                "fleet.wait",
            )
        try:
            facts: list[NodeFacts] = ray.get(references, timeout=_MARGIN_S)
        except ray.exceptions.RayError as error:
            raise _cannot_run(error) from None
        return facts

    def _has_all(self, references: list[Any], limit: float) -> bool:
        """Wait until all of these are there, in steps, so that closing the fleet ends it; return whether they are."""
        end = now() + limit * NS
        while not self._closed.is_set() and now() < end:
            _, left = self._ray.wait(references, num_returns=len(references), timeout=_STEP_S)
            if not left:
                return True
        return False

    def __call__(self, job: Job, shard: int, /) -> "RayShard":
        handle = RayShard(self, job, shard, self._actors[shard], self.facts[shard])
        if self._files is None:
            self._files = files_of(job.config)
            self._ship(self._files)
        config = moved(job.config, handle.facts.folder)
        data = pickle.dumps((msgspec.structs.replace(job, config=config), shard))
        handle.begin(data, _PIECE)
        self._shards.append(handle)
        if not self._is_polling:
            self._is_polling = True
            self._thread.start(self._poll)
        return handle

    def _ship(self, files: list[ShippedFile]) -> None:
        """Copy the files to one actor of each node; the others of the node link to its copies."""
        first: dict[str, int] = {}
        for number, facts in enumerate(self.facts):
            first.setdefault(facts.node_id, number)
        receivers = [self._actors[number] for number in first.values()]

        def ship() -> None:
            get = self._ray.get
            for file in files:
                with file.source.open("rb") as opened:
                    offset = 0
                    while (data := opened.read(_FILE_PIECE)) or not offset:
                        sent = data if len(data) <= _INLINE else self._ray.put(data)
                        get([each.put_file.remote(file.name, offset, sent) for each in receivers], timeout=60)
                        offset += len(data)
                        if len(data) < _FILE_PIECE:
                            break
            names = [file.name for file in files]
            links = [
                actor.link_files.remote(self.facts[first[facts.node_id]].folder, names)
                for number, (actor, facts) in enumerate(zip(self._actors, self.facts, strict=True))
                if first[facts.node_id] != number
            ]
            get(links, timeout=60)

        if not files:
            return
        size = sum(file.source.stat().st_size for file in files)
        late = UserError(
            "the files of the workload did not reach the nodes in time", "check the network", "fleet.address"
        )
        try:
            self._thread.call(ship, 60 + size / (1 << 20), late)
        except (self._ray.exceptions.RayError, OSError) as error:
            raise UserError(
                f"the files of the workload cannot be copied to the nodes: {ray_cluster.first_line(error)}",
                "check the disks of the nodes",
                "fleet.address",
            ) from None

    # --- during the run ----------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Poll all shards until they have ended or the fleet is closed. Runs in the thread for Ray's calls."""
        pending: dict[Any, RayShard] = {}
        try:
            while not self._closed.is_set():
                pending = {reference: shard for reference, shard in pending.items() if shard.is_polled}
                waited_for = {shard.number for shard in pending.values()}
                for shard in self._shards:
                    if shard.is_polled and shard.number not in waited_for:
                        pending[shard.poll(len(self._shards))] = shard
                if not pending:
                    self._closed.wait(_WAIT_S)
                    continue
                ready, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=_WAIT_S)
                for reference in ready:
                    self._take(pending.pop(reference), reference)
                self._synchronize()
        except Exception as error:  # the run must end with a clear error, whatever it was
            for shard in self._shards:
                shard.die(f"could not be polled any more: {type(error).__name__}: {ray_cluster.first_line(error)}")
        finally:
            self._polls_ended.set()

    def _take(self, shard: "RayShard", reference: Any) -> None:
        errors = self._ray.exceptions
        try:
            update = self._ray.get(reference, timeout=_PING_S)
        except errors.ActorUnavailableError:
            shard.note_unreachable()
            return
        except errors.GetTimeoutError:
            return  # it may respond again; if it does not, it is silent for too long
        except errors.RayError as error:
            shard.die(_died_of(error, shard.facts))
            return
        try:
            shard.take(update, self._is_synchronized)
        except OSError as error:
            shard.die(f"could not be recorded any more: {error.strerror or error}")
        if update.result is None:
            return
        others = (other for other in self._shards if other.facts.node_id == shard.facts.node_id and other is not shard)
        if self._is_synchronized and not any(other.is_polled for other in others):
            with contextlib.suppress(errors.RayError):  # the node has gone since
                self._end_clocks[shard.facts.node_id] = self._measure(shard)
        shard.end(update.result)

    def _synchronize(self) -> None:
        """Measure the clocks of all nodes when all shards are ready, and let the supervisor see that they are."""
        if self._is_synchronized or len(self._shards) < len(self._actors):
            return
        if not all(shard.is_ready for shard in self._shards):
            return
        for shard in self._shards:
            if shard.facts.node_id in self._start_clocks:
                continue
            try:
                self._start_clocks[shard.facts.node_id] = self._measure(shard)
            except self._ray.exceptions.RayError as error:
                shard.die(_died_of(error, shard.facts))
                return
        self._is_synchronized = True
        for shard in self._shards:
            shard.show_state()

    def _measure(self, shard: "RayShard") -> ClockOffset:
        """Measure the clock of a shard's node."""
        ping = shard.actor.clock.options(concurrency_group="clock")
        return clocks.measure(lambda: self._ray.get(ping.remote(), timeout=_PING_S))

    def offset(self, node_id: str) -> int:
        """How far the monotonic clock of a node is ahead, ns."""
        return self._start_clocks[node_id].offset if node_id in self._start_clocks else 0

    def clocks(self) -> list[NodeClock]:
        """The clocks of all nodes, before the run and after it."""
        return [
            NodeClock(
                next(facts.address for facts in self.facts if facts.node_id == node),
                tuple(number for number, facts in enumerate(self.facts) if facts.node_id == node),
                start,
                self._end_clocks.get(node),
            )
            for node, start in self._start_clocks.items()
        ]

    def notes(self) -> list[str]:
        """What the user should know about the nodes."""
        slow = sorted({facts.address for facts in self.facts if facts.niceness > 0})
        if not slow:
            return []
        return [
            f"Ray gives its processes on {', '.join(slow)} a lower priority, so that shards may send late: start Ray there with "
            "RAY_worker_niceness=0"
        ]

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all actors, and give back their room."""
        self._closed.set()
        if self._is_polling:
            self._polls_ended.wait(_CLOSE_S)
        late = UserError("the Ray cluster does not respond")
        with contextlib.suppress(UserError, self._ray.exceptions.RayError):
            self._thread.call(self._remove, 2 * _CLOSE_S, late)

    def _remove(self) -> None:
        ray = self._ray
        lost = {shard.number for shard in self._shards if shard.is_lost}
        closing = [actor.close.remote() for number, actor in enumerate(self._actors) if number not in lost]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for actor in self._actors:
            ray.kill(actor)
        from ray.util.placement_group import remove_placement_group  # noqa: PLC0415

        for group in self._groups:
            remove_placement_group(group)


def _cannot_run(error: Exception) -> UserError:
    """Why the actors could not be created."""
    text = str(error)
    if "No module named 'inferometer" in text:
        return UserError(
            "a node of the Ray cluster does not have inferometer",
            "install it on all nodes: pip install 'inferometer[ray]'",
            "fleet.address",
        )
    return UserError(
        f"the Ray cluster cannot run the shards: {ray_cluster.first_line(error)}",
        "see the logs of the cluster",
        "fleet.address",
    )


def _died_of(error: Exception, facts: NodeFacts) -> str:
    """How an actor ended, in one line. Ray's own messages go over many."""
    if type(error).__name__ == "NodeDiedError" or "node has died" in str(error):
        return f"was lost with its Ray node {facts.address}"
    if type(error).__name__ == "GetTimeoutError":
        return f"was given up: its Ray node {facts.address} did not respond for {_PING_S:.0f} s"
    return f"was lost: its Ray actor on {facts.address} died"


class RayShard:
    """The parent's handle on one actor (control.ShardHandle)."""

    def __init__(self, fleet: RayFleet, job: Job, number: int, actor: Any, facts: NodeFacts) -> None:
        self._fleet, self.number, self.actor, self.facts = fleet, number, actor, facts
        self._copy = FolderCopy(job.spool, number)
        is_dealt = any(isinstance(stage, Closed) and stage.requests for stage in stages_of(job.config.load))
        self._poll_s = _DEALING_POLL_S if is_dealt else _POLL_S
        self._poll = actor.poll.options(concurrency_group="poll")
        self._command = actor.command.options(concurrency_group="control")
        self._heard = now()
        self._unreachable = 0  # since when the actor cannot be reached; 0: it can
        self._has_more = False
        self._polls = 0  # how many responses were taken: one that did not arrive is requested again
        self._state = 0
        self._result: WorkerResult | str | None = None
        self._ended = threading.Event()
        self.is_lost = False

    def begin(self, data: bytes, piece: int) -> None:
        """Start the shard's process. The job has the secrets: it is an argument of a call, which Ray does not show or store."""
        self.actor.begin.options(concurrency_group="control").remote(data, piece)

    # --- for the thread that polls -----------------------------------------------------------------------------------

    @property
    def is_polled(self) -> bool:
        return not self._ended.is_set()

    @property
    def is_ready(self) -> bool:
        return self._state >= STATES.index("ready")

    def poll(self, shards: int) -> Any:
        wait = 0.0 if self._has_more else max(self._poll_s, shards * _POLL_PER_SHARD_S)
        return self._poll.remote(self._polls, wait, min(_RESPONSE, _RESPONSES // shards))

    def take(self, update: Update, is_synchronized: bool) -> None:
        """Store what a poll has brought."""
        self._heard, self._has_more = now(), update.has_more
        self._polls += 1
        self._unreachable = 0
        self._copy.beat(update.heartbeat)
        for change in update.changes:
            if isinstance(change, Numbers):
                self._copy.put_numbers(change)
                self._state = self._copy.control["state"]
                if not is_synchronized:
                    self._copy.control.state = "starting"
            else:
                self._copy.put(change)

    def note_unreachable(self) -> None:
        """Take note that the connection to the actor failed. Ray tries again; for how long, is decided here."""
        self._unreachable = self._unreachable or now()
        if now() - self._unreachable > _UNREACHABLE_S * NS:
            self.die(f"was lost: its Ray node {self.facts.address} cannot be reached any more")

    def end(self, result: WorkerResult | str) -> None:
        self._result = result
        self._ended.set()

    def show_state(self) -> None:
        self._copy.control["state"] = self._state

    def die(self, how: str) -> None:
        """End it, unless it has already ended."""
        if not self._ended.is_set():
            self.is_lost, self._result = True, how
            self._ended.set()

    # --- for the supervisor ------------------------------------------------------------------------------------------

    def start(self, t0: int) -> None:
        self._command.remote("start", t0 + self._fleet.offset(self.facts.node_id))

    def release(self, stage: int, at: int) -> None:
        self._command.remote("release", stage, at + self._fleet.offset(self.facts.node_id))

    def grant(self, grant: Grant) -> None:
        self._command.remote("grant", *grant)

    def end_stage(self, stage: int) -> None:
        self._command.remote("past", stage + 1)

    def abandon(self, stage: int) -> None:
        self._command.remote("abandoned", stage + 1)

    def stop(self, level: int) -> None:
        self._command.remote("stop", level)

    def is_alive(self) -> bool:
        if not self._ended.is_set() and now() - self._heard > _SILENT_S * NS:
            self.die(f"was given up: its Ray node {self.facts.address} did not respond for {_SILENT_S:.0f} s")
        return not self._ended.is_set()

    def silence(self) -> int:
        return self._copy.silence()

    def wait(self, seconds: float) -> None:
        self._ended.wait(seconds)

    def kill(self) -> None:
        self.die("was ended")
        self.actor.close.remote()

    def result(self) -> WorkerResult | str:
        return self._result if self._result is not None else "ended without a result"


@contextlib.contextmanager
def opened(settings: Fleet, count: Callable[[int], int]) -> Iterator[RayFleet]:
    """Connect to the cluster and create the actors. `count` returns the number of shards, from the number that there is room for."""
    with ray_cluster.connected(settings) as (ray, thread):
        late = UserError("the Ray cluster does not respond", "check it with `ray status`", "fleet.address")
        room = ray_cluster.slots(thread.call(ray.nodes, float(settings.wait), late), settings)
        fleet = RayFleet(ray, thread, settings, count(room))
        try:
            yield fleet
        finally:
            fleet.close()
