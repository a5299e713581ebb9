"""What the server is told: where it listens, whom it lets in, what it serves."""

import math
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.serve.sim import settings as simulating
from inferometer.serve.sim.settings import Sim

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LAST_PORT = 65_535
GRPC_MOST = 2**31 - 1
"""What gRPC can count to, a message's bytes included, whatever the limits say."""

_HELP = "run `inferometer serve --help` for the accepted values"


class Tls(msgspec.Struct, frozen=True):
    """PEM files."""

    cert: str
    key: str
    client_ca: str = ""
    """Mutual TLS: clients must show a certificate that this authority signed."""


class Limits(msgspec.Struct, frozen=True):
    message: int = GIB + 64 * KIB
    """Bytes of a request's body (HTTP) or message (gRPC): a tensor of 1 GiB, and what is said about it. An answer has no limit
    of ours. gRPC's own end is at GRPC_MOST."""
    chunked: int = 4 * GIB
    """Bytes of the tensors of a request that comes in pieces (gRPC's InferChunked)."""
    head: int = 64 * KIB
    """Bytes of an HTTP head or of gRPC metadata."""
    streams: int = 10_000
    """gRPC calls at the same time on a connection; the client waits with more."""
    requests: int = 100_000
    """Inferences under way in the whole server; more are refused (429, RESOURCE_EXHAUSTED). Questions are not counted."""
    idle: float = 120.0
    """Seconds that an HTTP connection may stay open without a request; 0: for ever. One whose answer is computed is not idle."""
    stalled: float = 60.0
    """Seconds without progress after which a request that is not complete is given up (408), and an answer that is not read
    (the connection is closed); 0: never. A request's head has to be there within that time."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    models: tuple[str, ...] = ()
    """Built-in names (identity, classifier), model files, model folders, repositories."""
    sim: Sim | None = None
    """The simulator, with its OpenAI endpoints."""
    config: tuple[str, ...] = ()
    """KEY=VALUE, put over the models' configurations: max_batch_size=8, instance_group.count=2, ..."""
    device: str = "auto"
    """Of models whose configuration does not say: auto, cpu, cuda, cuda:1."""

    host: str = "127.0.0.1"
    http: int = 8000
    """Ports; 0: any free one."""
    grpc: int | None = None
    """None: not served."""
    metrics: int | None = None
    """/metrics on a port of its own as well; None: only on the HTTP port."""

    tls: Tls | None = None
    token: str | None = None
    """Asked of every request (Authorization: Bearer ...) but health and metrics."""
    limits: Limits = Limits()
    control: bool = False
    """Clients may load and unload models."""
    access_log: bool = False
    """A line for each request on standard error."""
    drain: float = 0
    """Seconds that requests under way are given when the server is told to stop."""


def simulator(**told: Any) -> Settings:
    """The simulator alone, over HTTP on any free port; `told` are fields of Sim."""
    return Settings(sim=Sim(**told), http=0)


def check(settings: Settings) -> None:
    """Raise UserError for what cannot be."""
    _check_ports({"--http": settings.http, "--grpc": settings.grpc, "--metrics": settings.metrics})
    for option, limit in (
        ("--max-message", settings.limits.message),
        ("--max-header", settings.limits.head),
        ("--max-streams", settings.limits.streams),
        ("--max-requests", settings.limits.requests),
    ):
        if limit < 1:
            raise UserError(f"{option} must be at least 1 (got {limit})", _HELP)
        if limit > GRPC_MOST and option != "--max-message" and settings.grpc is not None:
            raise UserError(
                f"{option} must be at most {GRPC_MOST} for gRPC (got {limit})",
                "lower it, or disable gRPC with --grpc -1",
            )
    for option, seconds in (("--idle", settings.limits.idle), ("--stalled", settings.limits.stalled)):
        if not 0 <= seconds < math.inf:
            raise UserError(f"{option} must be at least 0, which means no limit (got {seconds:g} s)", _HELP)
    if settings.drain < 0:
        raise UserError(f"--drain must be at least 0 (got {settings.drain:g} s)", _HELP)
    if settings.sim is not None:
        simulating.check(settings.sim)


def _check_ports(ports: dict[str, int | None]) -> None:
    taken: dict[int, str] = {}
    for option, port in ports.items():
        if port is None:
            continue
        if not 0 <= port <= LAST_PORT:
            raise UserError(f"{option} must be a port from 0 to {LAST_PORT} (got {port})", "0 means any free port")
        if port in taken:
            raise UserError(
                f"{taken[port]} and {option} use the same port, {port}",
                "give each its own port (--grpc defaults to --http + 1, --metrics to --http + 2), or 0 for any free port",
            )
        if port:
            taken[port] = option
