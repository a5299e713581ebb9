"""What a shard is given: its part of the plan, where its requests are, the targets, and the limits.

It is sent to another process, or to another machine, as it is. Importing it must not import the workload or the configuration.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from inferometer.store.request_file import RequestFiles
from inferometer.types import Plan
from inferometer.wire.context import CallContext
from inferometer.wire.target import Target

if TYPE_CHECKING:
    from inferometer.tls import TlsSettings

Address = tuple[int, tuple[object, ...]]
"""Address family and socket address."""

Mode = Literal["auto", "spin", "latency", "off"]


class Limits(msgspec.Struct, frozen=True):
    """The timeouts of `server.timeouts`, in seconds; 0: no limit."""

    connect: float
    first_token: float
    idle: float
    total: float
    unreached: float


class SessionRules(msgspec.Struct, frozen=True):
    """What the shard needs to know about sessions while the run is in progress."""

    header: str
    token_header: str
    context: int
    is_failure_final: bool
    classes: frozenset[int] | None
    """The traffic classes whose requests are the first turns of sessions. None: all requests are."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One shard's part of a run."""

    shard: int
    plan: Plan
    spool: Path
    """The folder to record into. The shard's control file must be there."""
    start_ns: int = 0
    """Wall clock at t=0, nanoseconds since 1970; 0: t=0 is as soon as all shards are ready."""

    # the requests
    requests: RequestFiles
    context: CallContext
    """How requests are sent and responses are decoded."""
    ids: tuple[range, ...] = ()
    """Those of `types.Calls`, like the period."""
    period: int = 0
    sessions: SessionRules | None = None
    counts_tokens: bool = False
    """The client counts the tokens of responses for which the server does not report them."""
    tokenizer: str | None = None
    """What it counts them with, after the run."""
    counts_chunks: bool = False
    """Where neither has counted, the number of chunks is taken for that of tokens."""
    keeps_bodies: bool = False
    """Store the texts of requests and responses (store/body_spool.py)."""

    # the targets
    targets: tuple[Target, ...]
    addresses: tuple[Address, ...]
    """The address of each target that the server was reached at."""
    tls: "TlsSettings | None"
    connections: int
    """Connections opened before t=0, over all targets."""
    warm: tuple[bytes, ...]
    """For each target, the request to send over each connection before t=0; empty: none."""
    reuse: int
    """Requests after which a connection is closed; 0: no limit."""

    # the limits
    timeouts: Limits
    deadline: float
    """Maximum seconds from sending a gRPC call to the end of its response; 0: no limit."""
    grace: float
    patience: tuple[int, ...]
    """For each stage, how long to wait after its end for a response that makes no progress, in ns; 0: no limit."""
    retries: int
    """How often a request is repeated after a fault that came before its response began."""
    retry_statuses: tuple[int, ...]
    """HTTP statuses of responses after which it is repeated as well."""
    retry_backoff: float
    """Seconds before the first repetition."""
    open_files: int
    """Sockets that may be open at the same time."""

    # the client
    kernel_stamps: bool
    awake: Mode
    """How to keep the processor awake (awake.py)."""
    secrets: tuple[str, ...] = ()
    """Words to remove from servers' messages, and from texts that are kept."""
