"""The types that are passed between folders: few, frozen and slotted.

workload -> Request      schedule -> Plan      wire -> Call, Event      engine -> rows (records.py)
"""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from inferometer.tensors import Tensor


Messages = list[dict[str, object]]


class RequestOptions(msgspec.Struct, frozen=True):
    """What a request sends in addition to, or instead of, what the `server` section says. Requests of one class share an object."""

    model: str = ""
    """Empty: the model of the run."""
    headers: dict[str, str] = {}
    """Further headers, with names that the run's headers and those of the request's class do not have."""
    body: dict[str, Any] = {}
    """Further fields of the body, which override those of `server.body`."""


NO_OPTIONS = RequestOptions()


class Turn(msgspec.Struct, frozen=True):
    """A later turn of a session, as far as it is known before the run.

    Its prompt is that of the turn before, the response to it, and `messages`; or `payload` alone, if there is one.
    """

    messages: Messages
    """The messages that the turn adds: usually one of the user."""
    n_in: int
    """Tokens that these messages add; with `payload`, its tokens. 0: not counted."""
    n_out: int
    think: int = 0
    """Nanoseconds between the end of the turn before and this turn's intended instant."""
    response: str | None = None
    """A recorded response to the turn before, which stands in the prompt in place of the live one. None: the live one."""
    n_response: int = 0
    """Tokens of `response`; 0: not counted."""
    payload: "str | Messages | list[int] | None" = None
    """The whole prompt, if it does not continue that of the turn before."""


class Request(msgspec.Struct, frozen=True):
    """What one request sends, before it is encoded for an API."""

    id: int
    payload: "str | Messages | tuple[Tensor, ...] | list[Any] | msgspec.Raw | bytes"
    """A prompt, chat messages, tensors, the messages of a gRPC method (JSON or bytes), or the ids of a prompt's tokens. A later
    turn of a session: the prompt or the messages as JSON (wire/history.py), or all of its tail, encoded before the run."""
    n_in: int
    """Tokens in the prompt, counted by the workload's tokenizer; 0 if they were not counted."""
    n_out: int
    """Output tokens to request; 0 leaves the length of the response to the server."""
    session: int = -1
    """The session that the request belongs to: the id of its first request. -1: none."""
    turn: int = -1
    """Its turn in the session, from 0."""
    think: int = 0
    """Nanoseconds between the end of the turn before and this turn's intended instant."""
    later: tuple[Turn, ...] = ()
    """The turns that follow this one, which is then the first of a session."""
    class_: int = -1
    """Index of its traffic class in data.classes; -1: there are no classes."""
    options: RequestOptions = NO_OPTIONS
    n_system: int = 0
    """Tokens of its system prompt, which a limited context never drops; 0: there is none, or they were not counted."""


class TurnResponse(msgspec.Struct, frozen=True):
    """The response to one turn of a session, as far as the next turn may need it."""

    text: str
    n_in: int
    """Tokens by the server's count; -1: not known."""
    n_out: int
    """The same for the response, with its reasoning."""
    is_failed: bool = False
    """The turn failed: it is dropped from the history."""
    reasoning: int = 0
    """Those tokens of the response that are reasoning, which the history does not contain; 0: not known."""


Session = Generator[Request, TurnResponse, None]
"""Yields the turns of a conversation, and is sent the response to each before it yields the next."""


class History(Protocol):
    """The prompt of a session, which grows with every turn (wire/history.py)."""

    def begin(self, payload: "str | Messages") -> None:
        """Start again with this prompt, whose messages after the system prompt are the first turn."""
        ...

    def add(self, messages: Messages) -> None:
        """Start a turn with these messages."""
        ...

    def respond(self, text: str, is_live: bool) -> None:
        """End the latest turn with the server's response (`is_live`), or with a recorded one."""
        ...

    def withdraw(self) -> None:
        """Drop the latest turn."""
        ...

    def drop_oldest(self) -> None:
        """Drop the oldest turn."""
        ...

    def json(self) -> msgspec.Raw:
        """The prompt as the body of a request has it."""
        ...


TURN_STEP = 1 << 40
"""A later turn's id is its session's plus this much for each turn: ids stay unique without a counter that shards share."""


# --- plans -----------------------------------------------------------------------------------------------------------


class UserTurns(msgspec.Struct, frozen=True):
    """The schedule of an open stage whose sessions take turns: instant i belongs to session i modulo `users`."""

    users: int
    instants: NDArray[np.int64]
    """Of all requests of the whole plan, in nanoseconds since the start of the stage, ascending."""
    first_id: int
    """The id of the first session of the whole plan."""

    def due(self, session: int, turn: int) -> int | None:
        """The instant of a turn of the session with this id; None: the stage has no such turn."""
        index = session - self.first_id + turn * self.users
        return int(self.instants[index]) if index < len(self.instants) else None


class OpenStage(msgspec.Struct, frozen=True):
    """Open loop: requests are sent at planned instants, however fast the server responds."""

    instants: NDArray[np.int64]
    """Nanoseconds since the start of the stage, ascending."""
    duration: int
    """Nanoseconds until the next stage starts."""
    cap: int = 0
    """Maximum number of requests in flight; 0 means no limit."""
    drop: bool = False
    """What happens to a request that is due while the cap is reached: it is dropped, which is recorded as a failure; or, if
    False, it is sent late, and the wait counts in its latency."""
    first_id: int = 0
    id_step: int = 1
    """The nth request has the id first_id + n * id_step. Shard k of K has every Kth id and instant of the whole plan."""
    barrier: bool = False
    """Start only when every shard has finished all that it sent before, at an instant that the parent sets."""
    pause: int = 0
    """Nanoseconds between the end of the stage before, or the barrier, and the start of this stage."""
    turns: UserTurns | None = None
    """When the later turns of sessions are due; None: when their users have thought. `instants` are those of first turns."""


class ClosedStage(msgspec.Struct, frozen=True):
    """Closed loop: a fixed number of users, each of which sends its next request when its response is complete.

    The stage ends after `requests` or `duration`, whichever comes first. User u's first request has the id first_id + u * id_step,
    so the first requests of all users have the ids from first_id up to first_id + concurrency of the whole plan, whichever
    process sends them. (Except with sequences, whose requests are numbered in the order in which they are sent.)
    """

    concurrency: int
    """Number of users."""
    requests: int = 0
    """0 means no limit. A shard with `granted` may send more or fewer: this is what it sends if all shards are equally fast."""
    granted: int = 0
    """The number of requests that are this shard's own, if the parent deals out the others during the stage (fleet/dealing.py),
    so that all shards finish together. 0: all of `requests` are its own."""
    dealt_step: int = 1
    """The difference between neighbours of the ids that the parent deals out: more than 1 in a part of a run (schedule.part)."""
    duration: int = 0
    """Nanoseconds; 0 means no limit."""
    ramp_up: int = 0
    """Nanoseconds over which the users start, evenly: user j at ramp_offset + j * ramp_up / concurrency."""
    ramp_is_limit: bool = False
    """The duration of a request is not known, and `ramp_up` is an upper limit: after the first response, the users who have not
    started yet start within the time that this response took."""
    ramp_offset: int = 0
    """Start of the first user; 0 in the whole plan. The users of a shard start in between those of the other shards."""
    think: int = 0
    """Nanoseconds from the end of a response to the user's next request."""
    first_id: int = 0
    id_step: int = 1
    barrier: bool = False
    pause: int = 0
    by_request: bool = False
    """Sessions: `concurrency` and `requests` count requests instead of sessions. A user then sends whichever turn is due, of any
    session, and starts a new session when no turn is."""


Stage = OpenStage | ClosedStage


class Plan(msgspec.Struct, frozen=True):
    """When to send: stages, one after the other. Each shard's plan has the same stages; together they are the whole plan."""

    stages: tuple[Stage, ...]


# --- what decoders report --------------------------------------------------------------------------------------------


class Tokens(msgspec.Struct, frozen=True, gc=False):
    """A chunk arrived that carries `n` tokens of content, reasoning or a tool call."""

    n: int


ONE_TOKEN = Tokens(1)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts reported by the server; -1 if it does not report one."""

    n_in: int
    n_out: int
    cached: int = -1
    reasoning: int = -1
    is_per_chunk: bool = False
    """The server has counted the tokens of every chunk so far (`continuous_usage_stats`)."""
    is_stopped: bool = False
    """The response ended with a stop token, which counts as an output token and is never sent."""


class ServerTiming(msgspec.Struct, frozen=True, gc=False):
    """Nanoseconds that the server reports; -1 if it does not report them."""

    queue: int
    compute: int
    total: int = -1
    """From receiving the request to sending the response."""


class End(msgspec.Struct, frozen=True, gc=False):
    """The response is complete. `keep_alive`: the connection can be used for another request."""

    keep_alive: bool


class Fail(msgspec.Struct, frozen=True, gc=False):
    """The request failed: a short code (see wire/failures.py) and the server's message, truncated."""

    code: str
    message: str
    keep_alive: bool = False
    retry_after: int = 0
    """Seconds after which the server wants the request again; 0: it does not say."""


Event = Tokens | ServerTiming | End | Fail


class Received:
    """What a response over HTTP/1.1 has brought so far."""

    __slots__ = (
        *("arrivals", "contents", "counted", "counts", "finish_reason", "first_content", "is_ended", "messages"),
        *("partial_usage", "texts", "timing", "usage"),
    )

    def __init__(self) -> None:
        self.arrivals: list[int] = []
        """When each chunk with tokens arrived, and in `counts` how many it had."""
        self.counts: list[int] = []
        self.first_content = 0
        """When the first token arrived that is not reasoning; 0: not yet."""
        self.usage: Usage | None = None
        """The server's latest token counts."""
        self.timing: ServerTiming | None = None
        self.texts: list[str] = []
        """The text of each chunk, reasoning included."""
        self.contents: list[str] | None = None
        """The same without reasoning and placeholders; None as long as there is no difference."""
        self.finish_reason: str | None = None
        self.is_ended = False
        """The stream has said that it is complete."""
        self.messages = 0
        """Events of the stream."""
        self.counted = 0
        """Tokens so far, by the server's usage in each chunk; -1: a chunk had none."""
        self.partial_usage: Any = None
        """What the API has reported so far, if several events have a part of the usage."""

    @property
    def text(self) -> str:
        """Generated text, reasoning included, with placeholders for what has no text."""
        return "".join(self.texts)

    @property
    def content(self) -> str:
        """What a client sends back in the next turn: neither reasoning nor placeholders."""
        return self.text if self.contents is None else "".join(self.contents)

    def token(self, at: int, text: str, content: str, is_content: bool = True) -> None:
        """Add the text of a chunk, which counts as one token."""
        self.add_text(text, content)
        self.arrivals.append(at)
        self.counts.append(1)
        if is_content and not self.first_content:
            self.first_content = at

    def add_text(self, text: str, content: str) -> None:
        if content != text and self.contents is None:
            self.contents = self.texts.copy()
        self.texts.append(text)
        if self.contents is not None:
            self.contents.append(content)


class Decoder(Protocol):
    """Decodes the responses that arrive on a connection, one after the other. Sans-IO: it knows no socket and no clock."""

    received: Received
    """What the current response has brought."""

    def reset(self) -> None:
        """Prepare for the next response on the same connection."""
        ...

    def feed(self, pieces: Sequence[bytes], stamps: Sequence[int]) -> End | Fail | None:
        """Take the bytes of one or more reads, and when each arrived. Return how the response ended, after which it is not called."""
        ...

    def eof(self) -> End | Fail:
        """The server closed the connection."""
        ...

    @property
    def ending(self) -> bytes:
        """Bytes that do not end with this (and are longer than 3) cannot end the response, so they may be fed later, together with
        those that follow. Empty: bytes have to be fed as they arrive."""
        ...

    @property
    def status(self) -> int:
        """Status of the protocol (HTTP: 200, 503 ...); 0 until it is known."""
        ...

    @property
    def text(self) -> str:
        """Generated text. If the server reports no usage, its tokens are counted after the run."""
        ...


class StreamResponse(Protocol):
    """Decodes the response on one stream of a connection that carries many (HTTP/2)."""

    def headers(self, headers: tuple[tuple[bytes, bytes], ...], end: bool) -> Sequence[Event]:
        """Take the headers or the trailers. `end`: these are the last bytes of the stream."""
        ...

    def data(self, data: bytes, end: bool) -> Sequence[Event]:
        """Take bytes of the body. `end`: these are the last bytes of the stream."""
        ...

    def complete(
        self, headers: tuple[tuple[bytes, bytes], ...], data: bytes, trailers: tuple[tuple[bytes, bytes], ...]
    ) -> Sequence[Event]:
        """Take a complete response that arrived at once. The caller stops at the first End or Fail."""
        ...

    @property
    def status(self) -> int: ...

    @property
    def text(self) -> str: ...


class PersistentResponse(StreamResponse, Protocol):
    """Decodes the responses on a stream that carries many requests, one after the other."""

    is_usable: bool
    """Whether the stream can carry another request."""

    def request(self, id: int, message: bytes) -> bytes:
        """Encode the next request; the events that follow are those of its response."""
        ...


class ResponseCheck(Protocol):
    """Checks the content of responses, after the requests that follow them have been sent."""

    def keep(self, response: Any) -> Any:
        """Take what the check needs from a complete response, before its decoder is used again."""
        ...

    def failure(self, index: int, kept: Any) -> Fail | None:
        """The failure of the response to the tail with this index, if it is not right."""
        ...


class Calls(msgspec.Struct, frozen=True):
    """The requests of a shard as bytes, so that nothing is encoded after t=0.

    HTTP/1.1 (`decoder`): request n is heads[url] + its id + tails[n]: the request line and the headers up to the value of
    the id header, then the id, then the remaining headers and the body.
    HTTP/2 (`response`): heads[url] is the header block, tails[n] the body.
    With `trace_header`, one more header is added to each request when it is made.
    """

    heads: tuple[bytes, ...]
    """One for each base URL."""
    tails: Sequence[bytes]
    """One for each distinct request, as are `n_in` and `n_out`. A shard's are in a mapped file (store/request_file.py)."""
    n_in: Sequence[int]
    """Input tokens; -1 if not known."""
    n_out: Sequence[int]
    """Output tokens to request; 0 leaves the length to the server."""
    decoder: Callable[[], Decoder] | None = None
    """HTTP/1.1: creates the decoder of a connection."""
    response: Callable[[], StreamResponse] | None = None
    """HTTP/2: creates the decoder of a stream."""
    is_persistent: bool = False
    """HTTP/2: a stream carries many requests, one after the other. `response` creates the decoder of a stream, which also encodes
    the requests on it from their tails (PersistentResponse)."""
    ids: tuple[range, ...] = ()
    """The ids of the requests that the tails are made for, one range after the other. A request with an id that continues a range
    uses the tails of that range again. Empty: all requests use the tails in turn, whatever their ids."""
    period: int = 0
    """With `ids`: requests whose ids differ by this much are the same; 0: no two are."""
    sequences: tuple[int, ...] = ()
    """Lengths of the sequences that the tails form, one after the other; empty if there are none. One user sends a sequence
    from its first request to its last; to close it early, it skips to the last."""
    max_response: int = 1 << 30
    """Maximum bytes of a response."""
    counts_tokens: bool = True
    """The client counts the tokens of responses for which the server does not report them."""
    session: Callable[[int], Session] | None = None
    """Starts the session whose first turn is the tail with this index. None: there are no sessions."""
    check: ResponseCheck | None = None
    """Checks the content of responses; None: it is not checked."""
    encode: Callable[[Request], bytes] | None = None
    """The tail of a request that is made while the run is on: a session's next turn."""
    session_classes: frozenset[int] | None = None
    """The traffic classes whose requests are the first turns of sessions. None: all requests are."""
    classes: Sequence[int] = ()
    """Parallel to the tails: the index of each one's traffic class. Empty: there are no classes."""
    class_heads: tuple[tuple[bytes, ...], ...] = ()
    """The heads for each traffic class, which has headers of its own; empty: `heads` are those of all requests."""
    session_header: bytes = b""
    """HTTP/1.1: what comes between a request's id and its tail, followed by the session's id: the start of a header. Empty: none."""
    token_header: str = ""
    """HTTP/1.1: the header that carries the token of a session, as its latest response had it. Empty: none."""
    trace_header: Callable[[int], bytes] | None = None
    """Returns the header with the trace of the request that has this id (wire/traceparent.py): HTTP/1.1: it follows the id; HTTP/2: the
    header block. None: no such header is sent."""
    is_failure_final: bool = True
    """A turn that fails ends its session. False: the next turn is sent without it."""

    def head(self, url: int, class_: int) -> bytes:
        """The head of a request."""
        return (self.class_heads[class_] if self.class_heads else self.heads)[url]
