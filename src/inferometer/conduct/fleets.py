"""Where the shards of a run are, by the section `fleet`: on this machine, or on a Ray cluster."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from inferometer.config.data import Mix
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.fleet.clocks import described
from inferometer.fleet.control import StartShards
from inferometer.fleet.local import LocalProcess, LocalThread
from inferometer.fleet.supervisor import check_files
from inferometer.prepare.sizing import process_count, shard_count
from inferometer.records import Probe
from inferometer.types import Plan


class OpenFleet(NamedTuple):
    """Ready to start the shards of a run."""

    shards: int
    because: str
    """Why it is this number."""
    starter: Callable[[str], StartShards]
    """Returns what starts them, given the URL in a bucket that the run belongs to, if any."""
    start_in: int = 0
    """Nanoseconds from the last shard's `ready` to t=0; 0: as usual."""
    nodes: tuple[dict[str, object], ...] = ()
    """The machines that the shards are on, for the manifest; none if it is this one."""
    clock: Callable[[], dict[str, object]] = dict
    """What the manifest says about their clocks, after the run."""
    notes: tuple[str, ...] = ()
    """What the user should know about them."""


def check_fleet(config: Config) -> None:
    """Raise UserError if the fleet cannot be there, before the server is contacted."""
    if config.fleet.type == "ray":
        from inferometer.fleet import ray_cluster  # noqa: PLC0415 - few runs need it

        ray_cluster.check_installed()


@contextlib.contextmanager
def opened(config: Config, plan: Plan, probe: Probe, secrets: tuple[str, ...]) -> Iterator[OpenFleet]:
    """Find out how many shards there are, and make ready what starts them."""
    if config.fleet.type == "local":
        shards, because = process_count(config, plan, probe)
        if config.client.processes != 0:
            check_files(shards)
        shard = LocalThread if config.client.processes == 0 else LocalProcess
        yield OpenFleet(shards, because, lambda _: partial(map, shard))
        return
    from inferometer.fleet import ray_fleet  # noqa: PLC0415 - few runs need it

    if any(word in argument for word in secrets for argument in sys.orig_argv):
        raise UserError(
            "Ray shows the command line of this process in its dashboard, and there is a secret in it",
            "put it into the config file, or use {server.api_key_env} or {server.api_key_file}",
            "fleet.type",
        )
    because = ""

    def count(room: int) -> int:
        nonlocal because
        shards, because = shard_count(config, plan, probe, room)
        return shards

    classes = [each.name for each in config.data.classes] if isinstance(config.data, Mix) else []
    with ray_fleet.opened(config.fleet, config.storage, classes, count) as fleet:
        nodes = {facts.node_id: facts for facts in fleet.facts}
        yield OpenFleet(
            len(fleet.facts),
            because,
            lambda stored_at: partial(fleet, stored_at),
            fleet.start_in,
            tuple({"address": node.address, "name": node.host, "cores": node.cores} for node in nodes.values()),
            lambda: described(fleet.clocks()),
            tuple(fleet.notes()),
        )
