"""Settings of the server: where it listens, who may connect, what it serves, and its limits."""

import math
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.serve.sim import settings as simulating
from inferometer.serve.sim.settings import Sim

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LAST_PORT = 65_535
GRPC_MOST = 2**31 - 1
"""Maximum of protobuf for the size of a message, and of HTTP/2 for counts, whatever the limits say."""

_HELP = "run `inferometer serve --help` for the accepted values"


class Tls(msgspec.Struct, frozen=True):
    """Paths of PEM files."""

    cert: str
    key: str
    client_ca: str = ""
    """Mutual TLS: clients must present a certificate signed by this authority."""


class Limits(msgspec.Struct, frozen=True):
    """Limits that protect the server."""

    message: int = GIB + 64 * KIB
    """Maximum size of a request body (HTTP) or message (gRPC): a tensor of 1 GiB plus its description. Responses are
    not limited. Over gRPC, GRPC_MOST is the limit if it is smaller."""
    head: int = 64 * KIB
    """Maximum size of HTTP headers or gRPC metadata."""
    streams: int = 10_000
    """Maximum concurrent gRPC calls per connection; the client holds back further ones."""
    requests: int = 100_000
    """Maximum inferences in progress in the whole server; more are refused (429, RESOURCE_EXHAUSTED). Other requests
    are not counted."""
    idle: float = 120.0
    """Seconds that an HTTP connection may be open without a request; 0: no limit. It is not idle while a response is
    being computed."""
    stalled: float = 60.0
    """Seconds without progress after which an incomplete request is refused (408) and a response that the client does
    not read is aborted; 0: never. Request headers must be complete within this time."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the server."""

    models: tuple[str, ...] = ()
    """Built-in names (identity, classifier), model files, model folders, repositories."""
    sim: Sim | None = None
    """The simulator, with its OpenAI endpoints."""
    config: tuple[str, ...] = ()
    """KEY=VALUE overrides of the models' configurations: max_batch_size=8, instance_group.count=2, ..."""
    device: str = "auto"
    """Device of models whose configuration does not set one: auto, cpu, cuda, cuda:1."""

    processes: int = 1
    """Front ends: processes that listen on the same ports."""
    host: str = "127.0.0.1"
    http: int = 8000
    """HTTP port; 0: any free port."""
    grpc: int | None = None
    """gRPC port; None: no gRPC."""
    metrics: int | None = None
    """Additional port for /metrics; None: only on the HTTP port."""

    tls: Tls | None = None
    token: str | None = None
    """Bearer token required of every request (Authorization: Bearer ...) except health checks and metrics."""
    limits: Limits = Limits()
    control: bool = False
    """Whether clients may load and unload models."""
    access_log: bool = False
    """Whether to log one line per request to standard error."""
    drain: float = 0
    """Seconds to wait for requests in progress when the server is stopped."""

    @property
    def ports(self) -> dict[str, int | None]:
        """The ports by the names of their options."""
        return {"http": self.http, "grpc": self.grpc, "metrics": self.metrics}


def simulator(**fields: Any) -> Settings:
    """Return settings for the simulator alone, over HTTP on any free port; `fields` are fields of Sim."""
    return Settings(sim=Sim(**fields), http=0)


def check(settings: Settings) -> None:
    """Raise UserError for invalid settings."""
    _check_ports({f"--{name}": port for name, port in settings.ports.items()})
    for option, limit in (
        ("--processes", settings.processes),
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
