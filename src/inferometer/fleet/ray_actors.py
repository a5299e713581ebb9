"""The actors of a fleet on Ray: creates them on the cluster's nodes, copies the requests there, and removes them. Every wait has a limit."""

import contextlib
import threading
from typing import Any

from inferometer import __version__
from inferometer.config.fleet import Fleet
from inferometer.errors import UserError
from inferometer.fleet import ray_cluster
from inferometer.fleet.ray_actor import GROUPS, NodeFacts, ShardActor
from inferometer.fleet.ray_cluster import RayThread
from inferometer.fleet.shipping import ShippedFile
from inferometer.timing.clock import now
from inferometer.units import NS, format_seconds

_STEP_S = 0.2
_CLOSE_S = 3.0
_MARGIN_S = 15.0
"""How long a call that should return at once may take, before the cluster counts as one that does not respond."""
_FILES_S = 60.0
"""How long a piece of a file may take to reach all nodes."""
_INLINE = 64 << 10
"""Files up to this size are arguments of calls; larger ones pass through the object store, once for all nodes."""
_FILE_PIECE = 8 << 20


class Actors:
    """One actor for each shard."""

    def __init__(self, ray: Any, thread: RayThread, settings: Fleet, shards: int) -> None:
        """Create them. Raises UserError when the cluster has no room for them, or cannot run them."""
        self._ray, self._thread, self._settings = ray, thread, settings
        self._groups: list[Any] = []
        self._closed = threading.Event()
        self.actors: list[Any] = []
        self.facts: list[NodeFacts] = []
        """Where each of them is."""
        try:
            self._place(shards)
        except BaseException:
            self.close(set())
            raise

    def _place(self, shards: int) -> None:
        ray, settings = self._ray, self._settings
        limit = float(settings.wait)

        def reserve() -> bool:
            self._groups = ray_cluster.reserve(ray, settings, shards)
            return self._has_all([group.ready() for group in self._groups], limit)

        late = UserError(*ray_cluster.NO_RESPONSE)
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
            self.actors.append(kind.options(scheduling_strategy=strategy).remote())
        references = [actor.facts.remote() for actor in self.actors]
        if not self._has_all(references, limit):
            raise UserError(
                f"the shards did not start on the Ray cluster within {format_seconds(limit)}",
                "see the logs of the cluster, or allow more time with {fleet.wait}",
                "fleet.wait",
            )
        try:
            facts: list[NodeFacts] = ray.get(references, timeout=_MARGIN_S)
        except ray.exceptions.RayError as error:
            if "No module named 'inferometer" in str(error):
                what = "a node of the Ray cluster does not have inferometer"
                remedy = "install it on all nodes: pip install 'inferometer[ray]'"
            else:
                what = f"the Ray cluster cannot run the shards: {ray_cluster.first_line(error)}"
                remedy = "see the logs of the cluster"
            raise UserError(what, remedy, "fleet.address") from None
        return facts

    def _has_all(self, references: list[Any], limit: float) -> bool:
        """Wait until all of these are there, in steps, so that `close` ends it; return whether they are."""
        end = now() + limit * NS
        while not self._closed.is_set() and now() < end:
            _, left = self._ray.wait(references, num_returns=len(references), timeout=_STEP_S)
            if not left:
                return True
        return False

    def ship(self, files: list[ShippedFile]) -> None:
        """Copy the files to one actor of each node; the others of the node link to its copies."""
        first: dict[str, int] = {}
        for number, facts in enumerate(self.facts):
            first.setdefault(facts.node_id, number)
        receivers = [self.actors[number] for number in first.values()]

        def ship() -> None:
            get = self._ray.get
            for file in files:
                for offset, data in file.pieces(_FILE_PIECE):
                    sent = data if len(data) <= _INLINE else self._ray.put(data)
                    get([each.put_file.remote(file.name, offset, sent) for each in receivers], timeout=_FILES_S)
            names = [file.name for file in files]
            links = [
                actor.link_files.remote(self.facts[first[facts.node_id]].folder, names)
                for number, (actor, facts) in enumerate(zip(self.actors, self.facts, strict=True))
                if first[facts.node_id] != number
            ]
            get(links, timeout=_FILES_S)

        size = sum(file.size for file in files)
        late = UserError("the requests did not reach the nodes in time", "check the network", "fleet.address")
        try:
            self._thread.call(ship, _FILES_S + size / (1 << 20), late)
        except (self._ray.exceptions.RayError, OSError) as error:
            raise UserError(
                f"the requests cannot be copied to the nodes: {ray_cluster.first_line(error)}",
                "check the disks of the nodes",
                "fleet.address",
            ) from None

    def close(self, lost: set[int]) -> None:
        """End all actors, and give back their room. The shards that are `lost` are not waited for."""
        self._closed.set()
        with contextlib.suppress(UserError, self._ray.exceptions.RayError):
            self._thread.call(lambda: self._remove(lost), 2 * _CLOSE_S, UserError(*ray_cluster.NO_RESPONSE))

    def _remove(self, lost: set[int]) -> None:
        from ray.util.placement_group import remove_placement_group  # noqa: PLC0415

        closing = [actor.close.remote() for number, actor in enumerate(self.actors) if number not in lost]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for actor in self.actors:
            self._ray.kill(actor)
        for group in self._groups:
            remove_placement_group(group)
