"""The section `fleet`: where the shards of a run are: on this machine, or on the nodes of a Ray cluster."""

from typing import Annotated, Literal

from msgspec import Meta, field

from inferometer.config.fields import Count, Positive, Seconds, Section
from inferometer.errors import UserError

_AUTO = "auto"


class Fleet(Section):
    """Where the client processes run. Every key but `type` is about Ray."""

    type: Annotated[
        Literal["local", "ray"],
        Meta(
            description="`local`: processes on this machine, by `client.processes`. `ray`: shards on the nodes of a Ray cluster, each an actor with a process of its own (extra `ray`). docs/how-to/ray.md describes it."
        ),
    ] = "local"
    address: Annotated[
        str | None,
        Meta(
            description="Address of the cluster's head, `HOST:PORT`, as `ray start --head` shows it; `auto` for the cluster that this machine is part of. Default: RAY_ADDRESS, or else a cluster of this machine alone that is started for the run."
        ),
    ] = None
    shards: Annotated[
        Count | Literal["auto"],
        Meta(
            description="Number of shards. `auto`: as many as keep each below 40 % of a core, by the rate and the CPU time of a request in the probe, at most as many as the cluster has room for."
        ),
    ] = "auto"
    cpus: Annotated[
        Positive,
        Meta(description="CPUs of the cluster that each shard reserves."),
    ] = 1.0
    per_node: Annotated[
        Count | None, Meta(description="Maximum number of shards per node. Default: no limit but the node's CPUs.")
    ] = None
    labels: Annotated[
        dict[str, str],
        Meta(
            description="Use only nodes with these labels (`ray start --labels`), such as `{role: client}`. A value may be what Ray's label selectors take: `in(a,b)`, `!c`."
        ),
    ] = field(default_factory=dict)
    resources: Annotated[
        dict[str, Positive],
        Meta(description="Custom resources of the cluster that each shard reserves, such as `{load_generator: 1}`."),
    ] = field(default_factory=dict)
    wait: Annotated[
        Seconds,
        Meta(
            description="How long to wait for the cluster: to respond, and to have room for all shards, such as until its autoscaler has added nodes."
        ),
    ] = Seconds(30)


def check_fleet(fleet: Fleet, processes: int | Literal["auto"], shared_memory: bool) -> None:
    """Raise UserError if the settings do not go together."""
    if fleet.type == "local":
        given = next(
            (name for name in Fleet.__struct_fields__[1:] if getattr(fleet, name) != getattr(Fleet(), name)), ""
        )
        if given:
            raise UserError(
                "is a setting of a Ray cluster", "set {fleet.type} to ray, or leave it out", f"fleet.{given}"
            )
        return
    if processes != _AUTO:
        raise UserError(
            "the shards of a Ray cluster are not client processes of this machine",
            "leave it out, and set {fleet.shards}",
            "client.processes",
        )
    if shared_memory:
        raise UserError(
            "shards on other machines do not share memory with the server",
            "leave it out, or use {fleet.type} local",
            "server.shared_memory",
        )
    if fleet.wait <= 0:
        raise UserError("must be more than 0", "give a time such as 30s", "fleet.wait")
    if fleet.address is not None and fleet.address != _AUTO:
        split_address(fleet.address)


def split_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT`; `[::1]:PORT` has an IPv6 address."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise UserError(f"{address!r} is not HOST:PORT", "write, for example, 10.0.0.5:6379, or auto", "fleet.address")
    return host, int(port)
