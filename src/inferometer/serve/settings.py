"""Settings of the server: where it listens, who may connect, what it serves, and its limits."""

from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from inferometer.errors import UserError
from inferometer.serve.sim.faults import parse_fault
from inferometer.serve.sim.settings import AtLeastOne, Seconds, Sim

KIB, GIB = 1 << 10, 1 << 30
GRPC_MOST = 2**31 - 1
"""Maximum of protobuf for the size of a message, and of HTTP/2 for counts, whatever the limits say."""
Port = Annotated[int, Meta(ge=0, le=65_535)]
Count = Annotated[int, Meta(ge=1, le=GRPC_MOST)]

_OPTIONS = {"message": "max-message", "head": "max-header", "streams": "max-streams", "requests": "max-requests"}
_OPTIONS |= {"block": "block-size"}
_WORDS = {">=": "at least", ">": "greater than", "<=": "at most", "<": "less than"}
_HELP = "run `inferometer serve --help` for the accepted values"


class Tls(msgspec.Struct, frozen=True):
    """Paths of PEM files."""

    cert: str
    key: str
    client_ca: str = ""
    """Mutual TLS: clients must present a certificate signed by this authority."""


class Limits(msgspec.Struct, frozen=True):
    """Limits that protect the server."""

    message: AtLeastOne = GIB + 64 * KIB
    """Maximum size of a request body (HTTP) or message (gRPC): a tensor of 1 GiB plus its description. Responses are
    not limited. Over gRPC, GRPC_MOST is the limit if it is smaller."""
    head: Count = 64 * KIB
    """Maximum size of HTTP headers or gRPC metadata."""
    streams: Count = 10_000
    """Maximum concurrent gRPC calls per connection; the client holds back further ones."""
    requests: Count = 100_000
    """Maximum inferences in progress, per front end; more are refused (429, RESOURCE_EXHAUSTED)."""
    idle: Seconds = 120.0
    """Seconds that a connection may be open without a request in progress; 0: no limit."""
    stalled: Seconds = 60.0
    """Seconds without progress after which a connection with an incomplete request, or with a response that the client
    does not read, is closed; 0: never."""


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

    processes: AtLeastOne = 1
    """Front ends: processes that listen on the same ports."""
    host: str = "127.0.0.1"
    http: Port = 8000
    """HTTP port; 0: any free port."""
    grpc: Port | None = None
    """gRPC port; None: no gRPC."""
    metrics: Port | None = None
    """Additional port for /metrics; None: only on the HTTP port."""

    tls: Tls | None = None
    token: str | None = None
    """Bearer token required of every request (Authorization: Bearer ...) except health checks and metrics."""
    limits: Limits = Limits()
    control: bool = False
    """Whether clients may load and unload models."""
    access_log: bool = False
    """Whether to log one line per request to standard error."""
    drain: Seconds = 0
    """Seconds to wait for requests in progress when the server is stopped."""


def simulator(**fields: Any) -> Settings:
    """Return settings for the simulator alone, over HTTP on any free port; `fields` are fields of Sim."""
    return Settings(sim=Sim(**fields), http=0)


def check(settings: Settings) -> None:
    """Raise UserError for invalid settings."""
    try:
        msgspec.convert(msgspec.to_builtins(settings), Settings)
    except msgspec.ValidationError as error:
        *_, sign, bound, _, _, path = str(error).split()  # Expected `int` >= 1 - at `$.limits.head`
        path = path.strip("`").removeprefix("$.")
        name, value = path.rpartition(".")[2], attrgetter(path)(settings)
        option = _OPTIONS.get(name, name.replace("_", "-"))
        raise UserError(f"--{option} must be {_WORDS[sign]} {float(bound):.15g} (got {value})", _HELP) from None
    given = [port for port in (settings.http, settings.grpc, settings.metrics) if port]
    if len(set(given)) < len(given):
        raise UserError("--http, --grpc and --metrics must be different ports", "change one, or set it to 0 for any")
    for fault in settings.sim.faults if settings.sim else ():
        parse_fault(fault)
