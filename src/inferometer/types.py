"""The types that cross a border between folders: few, frozen and slotted.

workload -> Request      schedule -> Plan      wire -> Call, Event      engine -> rows (records.py)
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.tensors import Tensor

Messages = list[dict[str, object]]


class Request(msgspec.Struct, frozen=True):
    """One thing to ask, and the lengths that are known beforehand."""

    id: int
    payload: str | Messages | tuple[Tensor, ...] | list[Any]
    """A prompt, chat messages, tensors, or a gRPC method's messages (JSON or bytes)."""
    n_in: int
    """Tokens of the prompt by the workload's tokenizer; 0 where they were not counted."""
    n_out: int
    """Tokens wanted of the answer; 0 leaves the length to the server."""
    session: int = -1
    """The session that the request belongs to: the id of its first request. -1: none."""
    turn: int = -1
    """Its turn in the session, from 0."""
    think: int = 0
    """Nanoseconds between the end of the turn before and this turn's intended instant."""


class TurnResponse(msgspec.Struct, frozen=True):
    """The response to one turn of a session, as far as the next turn may need it."""

    text: str
    n_in: int
    """Tokens by the server's count; -1: not known."""
    n_out: int


Session = Generator[Request, TurnResponse, None]
"""Yields the turns of a conversation, and is sent the response to each before it yields the next. A turn that fails ends it."""

TURN_STEP = 1 << 40
"""A later turn's id is its session's plus this much for each turn: ids stay unique without a counter that shards share."""


# --- what a plan is made of ------------------------------------------------------------------------------------------


class OpenStage(msgspec.Struct, frozen=True):
    """Send at these instants, whatever the server does."""

    instants: NDArray[np.int64]
    """Nanoseconds after the stage's start, ascending."""
    duration: int
    """Nanoseconds until the next stage starts."""
    cap: int = 0
    """Requests in flight at the most; 0 is no cap."""
    drop: bool = False
    """What happens at the cap: wait (the wait is charged to the request) or be dropped (a row, and INVALID)."""
    first_id: int = 0
    id_step: int = 1
    """The requests have the ids first_id, first_id + id_step, ...: a shard's ids and instants are every Kth of the whole."""
    barrier: bool = False
    """Start only when every shard has finished all that it sent before, at an instant that the parent sets."""


class ClosedStage(msgspec.Struct, frozen=True):
    """Keep this many requests in flight; ends after `requests` or `duration` (ns), whichever comes first (0: no such end)."""

    concurrency: int
    requests: int = 0
    duration: int = 0
    ramp_up: int = 0
    """The users start evenly over these nanoseconds: user j at ramp_offset + j ramp_up / concurrency."""
    ramp_offset: int = 0
    """0 in the whole; a shard's users start between those of the others."""
    think: int = 0
    """Nanoseconds between an answer and the user's next request."""
    first_id: int = 0
    id_step: int = 1
    barrier: bool = False


Stage = OpenStage | ClosedStage


class Plan(msgspec.Struct, frozen=True):
    """When to ask: stages in a row. A shard's plan has the same stages; the union of all shards' is exactly the whole."""

    stages: tuple[Stage, ...]


# --- what a decoder says ---------------------------------------------------------------------------------------------


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """A chunk of the answer arrived that carries `n` tokens of content, reasoning or tool call."""

    n: int


ONE_TOKEN = Tokens(1)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """The server's own counts; -1 where it does not say."""

    n_in: int
    n_out: int
    cached: int = -1
    reasoning: int = -1


class ServerTiming(msgspec.Struct, frozen=True, gc=False):
    """What the server says it took of the time: ns of waiting and of work; -1 where it does not say."""

    queue: int
    compute: int


class End(msgspec.Struct, frozen=True, gc=False):
    """The answer is complete. `keep_alive` says whether the connection may carry another request."""

    keep_alive: bool


class Fail(msgspec.Struct, frozen=True, gc=False):
    """The answer is a failure: a short code (see wire/failures.py) and the server's message, bounded."""

    code: str
    message: str
    keep_alive: bool = False


Event = Tokens | Usage | ServerTiming | End | Fail


class Decoder(Protocol):
    """Turns the bytes of a connection's answers, one after the other, into events. Sans-IO: no socket, no clock."""

    def reset(self) -> None:
        """Be ready for the next answer on the same connection."""
        ...

    def feed(self, data: bytes) -> Sequence[Event]:
        """Bytes as they came; the events they complete. After End or Fail nothing more is fed."""
        ...

    def eof(self) -> Sequence[Event]:
        """The server closed the connection; says End or Fail."""
        ...

    @property
    def status(self) -> int:
        """The protocol's status (HTTP: 200, 503 ...); 0 before it is known."""
        ...

    @property
    def text(self) -> str:
        """What was answered, for servers that give no usage: their tokens are counted after the run."""
        ...


class StreamResponse(Protocol):
    """The same for one stream of a connection that carries many (HTTP/2): what its frames mean."""

    def headers(self, headers: tuple[tuple[bytes, bytes], ...], end: bool) -> Sequence[Event]:
        """The answer's headers, or its trailers; `end`: nothing follows."""
        ...

    def data(self, data: bytes, end: bool) -> Sequence[Event]: ...

    def complete(
        self, headers: tuple[tuple[bytes, bytes], ...], data: bytes, trailers: tuple[tuple[bytes, bytes], ...]
    ) -> Sequence[Event]:
        """All of them, where they came at once. Who takes the events stops at the first End or Fail."""
        ...

    @property
    def status(self) -> int: ...

    @property
    def text(self) -> str: ...


class Calls(msgspec.Struct, frozen=True):
    """The requests of a shard as bytes, so that nothing is encoded after t=0. Tails are used in turn.

    HTTP/1.1 (`decoder`): the nth is heads[url] + its id + tails[n]: the request line and headers up to the value of the id's
    header, then the last headers and the body. HTTP/2 (`answer`): heads[url] is the header block, tails[n] the body.
    """

    heads: tuple[bytes, ...]
    """For each base URL."""
    tails: tuple[bytes, ...]
    n_in: tuple[int, ...]
    """-1: not known."""
    n_out: tuple[int, ...]
    decoder: Callable[[], Decoder] | None = None
    """What makes a connection's decoder."""
    answer: Callable[[], StreamResponse] | None = None
    """What makes a stream's."""
    sequences: tuple[int, ...] = ()
    """Tails lie in sequences of so many each, one after the other. One user sends a sequence from its first to its last; or, to
    close it early, some of it and then its last. Empty: there are none."""
    is_text: bool = True
    """Answers are text, whose tokens are counted where the server does not say."""
    sessions: tuple[Callable[[], Session], ...] = ()
    """Parallel to the tails, each of which is then the first turn of a session: starts the session that yields it."""
    encode: Callable[[Request], bytes] | None = None
    """The tail of a request that is made while the run is on: a session's next turn."""
