"""Times that a server reports in its responses, in a parameter (KServe) or a field: `server.timing`.

A stand-in for the decoder reads them. It parses what is otherwise only counted, so there is one only if the setting names something.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.types import End, Event, Fail, Received, ServerTiming
from inferometer.wire import server_timing
from inferometer.wire.context import CallContext
from inferometer.wire.failures import MALFORMED
from inferometer.wire.grpc import Fields
from inferometer.wire.grpc_framing import MessageSplitter, plain
from inferometer.wire.http1 import ResponseDecoder
from inferometer.wire.kserve import grpc, http

Read = Callable[[bytes], ServerTiming | None]
"""Reads the times in the JSON of a body, or in a message."""

_UNITS = {"s": 1e9, "us": 1e3, "ns": 1.0}
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def timed(create: Callable[[], Any], context: CallContext) -> Callable[[], Any]:
    """What creates decoders that also read the times; `create` itself if `context.timing` names none."""
    return partial(_created, create, _reader(context)) if context.timing else create


def _created(create: Callable[[], Any], read: Read) -> Any:
    decoder = create()
    if not isinstance(decoder, ResponseDecoder):
        return _TimedStream(decoder, read)
    decoder.body = _TimedBody(decoder, read)
    return decoder


def _reader(context: CallContext) -> Read:
    find: Callable[[bytes], Callable[[str], Any]] = lambda data: partial(_json_value, _decode_object(data))  # noqa: E731
    if context.targets[0].grpc:
        find = _finder_for_method(context) if context.method else lambda data: grpc.response_parameters(data).get
    parts = [context.timing.get(part, "").partition(" ") for part in ServerTiming.__struct_fields__]
    fields = [(name, _UNITS.get(unit or name.rpartition("_")[2], 1e6)) for name, _, unit in parts]

    def read(data: bytes) -> ServerTiming | None:
        with suppress(UserError, *MALFORMED):  # if that is a failure, the decoder says so
            value = find(data)
            return server_timing.timing(
                *(server_timing.nanoseconds(name and value(name), unit) for name, unit in fields)
            )
        return None

    return read


def _json_value(tree: dict[str, msgspec.Raw], name: str) -> Any:
    for first, *rest in (("parameters", name), name.split(".")):
        value = msgspec.json.decode(tree.get(first, b"null"))
        for key in rest:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _finder_for_method(context: CallContext) -> Callable[[bytes], Callable[[str], Any]]:
    """Raises UserError if the method's response has no such field."""
    from inferometer.wire import protobuf  # noqa: PLC0415 - only gRPC needs it, and it takes long to import

    output = protobuf.load(context.descriptors).method(context.method).output
    for name in context.timing.values():
        try:
            _message_value(output(), name.partition(" ")[0])
        except (AttributeError, TypeError):
            what = f"{output.DESCRIPTOR.full_name} has no field {name!r}"
            raise UserError(what, "name a field, with dots for those within others", "server.timing") from None
    return lambda data: partial(_message_value, protobuf.parse(output, data))


def _message_value(message: Any, name: str) -> Any:
    for key in name.split("."):
        message = message[key] if isinstance(message, Mapping) else getattr(message, key)
    return message


class _TimedBody:
    """Stands in for the decoder of a body (http1.BodyDecoder)."""

    def __init__(self, decoder: ResponseDecoder, read: Read) -> None:
        self._decoder, self._body, self._read = decoder, decoder.body, read
        self._pieces: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)

    def reset(self) -> None:
        self._pieces.clear()
        self._body.reset()

    def feed(self, pieces: Sequence[bytes], stamps: Sequence[int], into: Received) -> Fail | None:
        self._pieces += pieces
        return self._body.feed(pieces, stamps, into)

    def finish(self, into: Received) -> Fail | None:
        texts = [body := b"".join(self._pieces)]
        with suppress(UserError):
            if hasattr(self._body, "reads_compressed"):
                texts = [http.json_of(self._decoder.header, body)]
            elif self._body.is_stream:
                texts = [line[5:] for line in body.splitlines() if line.startswith(b"data:")]
        into.timing = next(filter(None, map(self._read, reversed(texts))), into.timing)
        return self._body.finish(into)


class _TimedStream:
    """Stands in for the decoder of a stream (types.StreamResponse). Of several messages, the last one with times counts."""

    def __init__(self, response: Any, read: Read) -> None:
        self._response, self._read, self._messages = response, read, MessageSplitter()
        self._timing: ServerTiming | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    def headers(self, headers: Fields, end: bool) -> Sequence[Event]:
        return self._with_times(self._response.headers(headers, end))

    def data(self, data: bytes, end: bool) -> Sequence[Event]:
        with suppress(ValueError):
            for flag, message in self._messages.feed(data):
                self._timing = self._read(plain(flag, message, self._response.encoding)) or self._timing
        return self._with_times(self._response.data(data, end))

    def complete(self, headers: Fields, data: bytes, trailers: Fields) -> Sequence[Event]:
        return (*self.headers(headers, False), *self.data(data, False), *self.headers(trailers, True))

    def _with_times(self, events: Sequence[Event]) -> Sequence[Event]:
        """Put the times before the end of the response, and after those of its trailers."""
        if self._timing is None or not events or not isinstance(events[-1], End | Fail):
            return events
        timing, self._timing = self._timing, None
        return (*events[:-1], timing, events[-1])
