"""One ModelStreamInfer stream that carries many requests, one at a time (`server.stream: persistent`).

Each request gets an id, which the server repeats in its responses (Triton does), so that a response is matched to its request.
A request has one response or, if the model is decoupled, any number: then it asks for an empty last response, which has the
parameter `triton_final_response`. An error is a message of its own, after which the stream goes on.
"""

from collections.abc import Sequence

from inferometer.errors import UserError
from inferometer.types import ONE_TOKEN, End, Event, Fail
from inferometer.wire.failures import bounded
from inferometer.wire.grpc import Fields, GrpcResponse
from inferometer.wire.grpc_framing import MessageSplitter, framed, plain
from inferometer.wire.http1 import ID, id_prefix
from inferometer.wire.kserve import grpc

FINAL_REQUESTED = {"triton_enable_empty_final_response": True}
"""Parameters of requests to a decoupled model."""

_FINAL = b"\x0a\x15triton_final_response\x12\x02\x08\x01"
"""The parameter `triton_final_response: true` as an entry of a protobuf map."""
_ID = b"\x1a"
"""Field 3, a string: the id, of ModelInferRequest and of ModelInferResponse."""
_HEAD = 1024
"""The id is expected among the first bytes of a response; if it is not there, the response is decoded."""
_SMALL = 512
"""Only messages below this size may be an empty last response."""

_END = End(keep_alive=True)


class PersistentStream:
    """Encodes the requests of a stream and interprets its frames. Implements types.StreamResponse."""

    __slots__ = ("_call", "_decoupled", "_id", "_id_prefix", "_is_echoed", "_keeps", "_kept", "_messages", "is_usable")

    def __init__(self, tag: str, decoupled: bool, keeps: bool = False) -> None:
        """`keeps`: the first message of each response is kept for `content`."""
        self.is_usable = True
        """Whether the stream can carry another request."""
        self._call = GrpcResponse(True)  # interprets headers and trailers
        self._decoupled = decoupled
        self._id = b""  # of the request in flight
        self._is_echoed = True
        self._keeps = keeps
        self._kept = b""
        self._messages = MessageSplitter()
        self._id_prefix = id_prefix(tag).encode()

    def request(self, id: int, message: bytes) -> bytes:
        """Encode the next request: a message without its id, to which the id is added."""
        self._id = self._id_prefix + ID % id
        self._kept = b""
        return framed(b"".join((message, _ID, bytes([len(self._id)]), self._id)))

    @property
    def status(self) -> int:
        return self._call.status

    @property
    def encoding(self) -> bytes:
        return self._call.encoding

    @property
    def text(self) -> str:
        return ""

    @property
    def content(self) -> tuple[tuple[str, ...], bytes]:
        """What kserve/validation.py compares."""
        return (), self._kept

    def complete(self, headers: Fields, data: bytes, trailers: Fields) -> Sequence[Event]:
        return (*self.headers(headers, False), *self.data(data, False), *self.headers(trailers, True))

    def headers(self, headers: Fields, end: bool) -> Sequence[Event]:
        events = self._call.headers(headers, end)
        if not events:
            return ()
        self.is_usable = False
        last = events[-1]
        if isinstance(last, End):
            last = Fail("cut_short", "the server ended the stream before it had responded to the request", True)
        return (last,)

    def data(self, data: bytes, end: bool) -> Sequence[Event]:
        events: list[Event] = []
        for flag, message in self._messages.feed(data):
            try:
                self._take(plain(flag, message, self._call.encoding), events)
            except (ValueError, UserError) as error:
                self.is_usable = False
                reason = error.what if isinstance(error, UserError) else str(error)
                events.append(Fail("malformed_grpc", bounded(reason), True))
        if end:
            self.is_usable = False
            events.append(Fail("cut_short", "the stream ended without trailers", True))
        return events

    def _take(self, message: bytes, events: list[Event]) -> None:
        """Interpret a message; one that does not belong to the request in flight is ignored."""
        if not self._id or not self._is_matching(message):
            return
        error = grpc.stream_error(message)
        if error:
            self._id = b""
            events.append(Fail("error_frame", bounded(error), True))
            return
        is_final = not self._decoupled or _FINAL in message
        if not (self._decoupled and is_final and len(message) < _SMALL and _is_empty(message)):
            events.append(ONE_TOKEN)
            if self._keeps and not self._kept:
                self._kept = message
        if is_final:
            self._id = b""
            events.append(_END)

    def _is_matching(self, message: bytes) -> bool:
        if not self._is_echoed:
            return True
        expected = b"".join((_ID, bytes([len(self._id)]), self._id))
        if message.find(expected, 0, _HEAD) >= 0:
            return True
        found = grpc.stream_id(message)
        if not found:  # the server does not repeat ids: responses belong to the only request in flight
            self._is_echoed = False
        return not found or found == self._id.decode()


def _is_empty(message: bytes) -> bool:
    response = grpc.stream_response(message)
    return not isinstance(response, str) and not response.outputs
