"""Shards on the nodes of a Ray cluster: the parent's end.

One thread polls all actors (ray_actor.py): each always has one poll to respond to, which brings what is new in the shard's folder
to the parent's. The supervisor's messages go to the actors at once, with instants converted to the node's clock. When all shards
are ready, the thread measures the clock of each node; only then does the supervisor see that they are. An actor that dies, or that
does not respond for some seconds, is lost; whoever waits for anything of it waits no longer than that.
"""

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from inferometer.config.fleet import Fleet
from inferometer.config.storage import Storage
from inferometer.engine.job import Job
from inferometer.errors import UserError
from inferometer.fleet import clocks, ray_cluster
from inferometer.fleet.clocks import ClockOffset, NodeClock
from inferometer.fleet.ray_actor import NodeFacts
from inferometer.fleet.ray_actors import Actors
from inferometer.fleet.ray_cluster import RayThread
from inferometer.fleet.ray_shard import RayShard
from inferometer.fleet.shard_store import destination
from inferometer.fleet.shipping import files_of, moved
from inferometer.units import NS

_WAIT_S = 0.02
"""How long the thread waits for responses before it handles those that are there."""
_PING_S = 5.0
_CLOSE_S = 3.0


class RayFleet:
    """The shards of a run. Calling it starts them (control.StartShards)."""

    def __init__(
        self, ray: Any, thread: RayThread, actors: Actors, storage: Storage, classes: Sequence[str] = ()
    ) -> None:
        """`storage` and `classes` say how shards store their records in a bucket; the classes are those of the traffic."""
        self._ray, self._thread, self._actors = ray, thread, actors
        self._storage, self._classes = storage, classes
        self.facts = actors.facts
        self._shards: list[RayShard] = []
        self._is_synchronized = False
        self._closed = threading.Event()
        self._polls_ended = threading.Event()
        self._start_clocks: dict[str, ClockOffset] = {}
        self._end_clocks: dict[str, ClockOffset | None] = {}
        self.start_in = NS // 4 + len(actors.actors) * NS // 200
        """Nanoseconds from the last shard's `ready` to t=0: the message must have reached every node by then."""

    def __call__(self, stored_at: str, jobs: Sequence[Job], /) -> Iterator[RayShard]:
        """Start the shards of a run, which belongs to this URL in a bucket, if any."""
        self._actors.ship(files_of(jobs))
        for job, facts, actor in zip(jobs, self.facts, self._actors.actors, strict=True):
            to = destination(stored_at, self._storage, self._classes, os.environ) if stored_at else None
            handle = RayShard(job, actor, facts, partial(self._offset, facts.node_id))
            handle.begin(pickle.dumps((moved(job, facts.folder), to)))
            self._shards.append(handle)
            if len(self._shards) == 1:
                self._thread.start(self._poll)
            yield handle

    def _poll(self) -> None:
        """Poll all shards until they have ended or the fleet is closed. Runs in the thread for Ray's calls."""
        pending: dict[Any, RayShard] = {}
        try:
            while not self._closed.is_set():
                pending = {reference: shard for reference, shard in pending.items() if shard.is_polled}
                waited_for = {shard.number for shard in pending.values()}
                # Storing takes CPU time and bandwidth, which would disturb shards that are still sending.
                may_store = len(self._shards) == len(self.facts) and all(shard.has_ended for shard in self._shards)
                for shard in self._shards:
                    if shard.is_polled and shard.number not in waited_for:
                        pending[shard.poll(len(self._shards), may_store)] = shard
                if not pending:
                    self._closed.wait(_WAIT_S)
                    continue
                ready, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=_WAIT_S)
                for reference in ready:
                    self._take(pending.pop(reference), reference)
                for shard in self._shards:
                    self._check_calls(shard)
                self._synchronize()
        except Exception as error:  # the run must end with a clear error, whatever it was
            for shard in self._shards:
                shard.die(f"could not be polled any more: {type(error).__name__}: {ray_cluster.first_line(error)}")
        finally:
            self._polls_ended.set()

    def _take(self, shard: RayShard, reference: Any) -> None:
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
            return
        node = shard.facts.node_id
        have_ended = all(other.has_ended for other in self._shards if other.facts.node_id == node)
        if self._is_synchronized and have_ended and node not in self._end_clocks:  # before they store their records
            self._end_clocks[node] = None
            with contextlib.suppress(errors.RayError):  # the node has gone since
                self._end_clocks[node] = self._measure(shard)
        if update.result is not None:
            shard.end(update.result)

    def _check_calls(self, shard: RayShard) -> None:
        """Give up a shard that a message did not reach: it would wait for it forever. Ray does not send it again."""
        while shard.is_polled and shard.calls and self._ray.wait([shard.calls[0]], timeout=0)[0]:
            try:
                self._ray.get(shard.calls.popleft(), timeout=_PING_S)
            except self._ray.exceptions.ActorUnavailableError:
                shard.die(f"was lost: a message did not reach its Ray node {shard.facts.address}")
            except self._ray.exceptions.RayError as error:
                shard.die(_died_of(error, shard.facts))

    def _synchronize(self) -> None:
        """Measure the clocks of all nodes when all shards are ready, and let the supervisor see that they are."""
        if self._is_synchronized or len(self._shards) < len(self.facts):
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

    def _measure(self, shard: RayShard) -> ClockOffset:
        """Measure the clock of a shard's node."""
        ping = shard.actor.clock.options(concurrency_group="clock")
        return clocks.measure(lambda: self._ray.get(ping.remote(), timeout=_PING_S))

    def _offset(self, node_id: str) -> int:
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

    def close(self) -> None:
        """End the thread's polls, and all actors."""
        self._closed.set()
        if self._shards:
            self._polls_ended.wait(_CLOSE_S)
        self._actors.close({shard.number for shard in self._shards if shard.is_lost})


def _died_of(error: Exception, facts: NodeFacts) -> str:
    """How an actor ended, in one line. Ray's own messages go over many."""
    if type(error).__name__ == "NodeDiedError" or "node has died" in str(error):
        return f"was lost with its Ray node {facts.address}"
    if type(error).__name__ == "GetTimeoutError":
        return f"was given up: its Ray node {facts.address} did not respond for {_PING_S:.0f} s"
    return f"was lost: its Ray actor on {facts.address} died"


@contextlib.contextmanager
def opened(
    settings: Fleet, storage: Storage, classes: Sequence[str], count: Callable[[int], int]
) -> Iterator[RayFleet]:
    """Connect to the cluster and create the actors. `count` returns the number of shards, from the number that there is room for."""
    with ray_cluster.connected(settings) as (ray, thread):
        nodes = thread.call(ray.nodes, float(settings.wait), UserError(*ray_cluster.NO_RESPONSE))
        room = ray_cluster.slots(nodes, settings)
        fleet = RayFleet(ray, thread, Actors(ray, thread, settings, count(room)), storage, classes)
        try:
            yield fleet
        finally:
            fleet.close()
