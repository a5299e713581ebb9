"""Handlers for the frames that are neither HEADERS nor DATA: their effect on the streams and on what we may send.

A handler takes (outbox, flags, stream id, payload, events), appends to the events, and raises Http2Error when the frame
violates the protocol.
"""

from collections.abc import Callable
from typing import Any

from inferometer.wire.http2 import frames
from inferometer.wire.http2.events import GoAway, Http2Error, Reset
from inferometer.wire.http2.frames import PROTOCOL_ERROR, code_name, kind_name, unpack_number
from inferometer.wire.http2.outbox import Outbox, OutgoingStream

_MAX_SETTINGS = 100
"""Maximum number of settings in one frame; the RFCs define fewer than ten."""

# --- streams ---------------------------------------------------------------------------------------------------------


def check_was_open(outbox: Outbox, kind: int, number: int) -> None:
    """Raise unless the stream, which is not open now, was open before: only then is the frame allowed."""
    if not number:
        raise Http2Error(PROTOCOL_ERROR, f"{outbox.peer} sent {kind_name(kind)} on stream 0")
    if not number & 1 or number >= outbox.next:
        raise Http2Error(
            PROTOCOL_ERROR, f"{outbox.peer} sent {kind_name(kind)} on stream {number}, which was never opened"
        )


def fail_stream(outbox: Outbox, stream: OutgoingStream, code: int, message: str, events: list[Any]) -> None:
    """Reset a stream after a violation that affects only this stream."""
    outbox.reset_stream(stream, code)
    events.append(Reset(stream.number, code, message, False))


def on_rst_stream(outbox: Outbox, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
    if len(payload) != 4:
        raise _wrong_size(outbox, frames.RST_STREAM, payload)
    stream = outbox.streams.get(number)
    if stream is None:
        check_was_open(outbox, frames.RST_STREAM, number)
        return
    code = unpack_number(payload)[0]
    outbox.drop(stream)
    events.append(
        Reset(number, code, f"{outbox.peer} reset the stream: {code_name(code)}", code == frames.REFUSED_STREAM)
    )


def on_priority(outbox: Outbox, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
    if not number:
        raise Http2Error(PROTOCOL_ERROR, f"{outbox.peer} sent PRIORITY on stream 0")
    stream = outbox.streams.get(number)
    if stream is not None and len(payload) != 5:
        fail_stream(
            outbox, stream, frames.FRAME_SIZE_ERROR, _wrong_size(outbox, frames.PRIORITY, payload).message, events
        )


def on_push_promise(outbox: Outbox, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
    raise Http2Error(PROTOCOL_ERROR, f"{outbox.peer} sent PUSH_PROMISE although push is disabled")


def on_window_update(outbox: Outbox, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
    if len(payload) != 4:
        raise _wrong_size(outbox, frames.WINDOW_UPDATE, payload)
    increment = unpack_number(payload)[0] & frames.MAX_NUMBER
    if not number:
        if not increment:
            raise Http2Error(PROTOCOL_ERROR, f"{outbox.peer} sent a WINDOW_UPDATE of 0")
        outbox.widen(increment)
        return
    stream = outbox.streams.get(number)
    if stream is None:
        check_was_open(outbox, frames.WINDOW_UPDATE, number)
    elif not increment:
        fail_stream(outbox, stream, PROTOCOL_ERROR, f"{outbox.peer} sent a WINDOW_UPDATE of 0", events)
    elif not outbox.widen_stream(stream, increment):
        message = f"{outbox.peer} enlarged the stream's window beyond 2^31-1 bytes"
        fail_stream(outbox, stream, frames.FLOW_CONTROL_ERROR, message, events)


# --- the connection --------------------------------------------------------------------------------------------------


def on_settings(outbox: Outbox, flags: int, number: int, payload: bytes) -> bool:
    """Apply and acknowledge the peer's SETTINGS; return True if the frame only acknowledges ours."""
    if number:
        raise Http2Error(PROTOCOL_ERROR, f"{outbox.peer} sent SETTINGS on stream {number}")
    if len(payload) % 6 or (flags & frames.ACK and payload):
        raise _wrong_size(outbox, frames.SETTINGS, payload)
    if flags & frames.ACK:
        return True
    if len(payload) > 6 * _MAX_SETTINGS:
        raise Http2Error(frames.ENHANCE_YOUR_CALM, f"{outbox.peer} sent {len(payload) // 6} settings in one frame")
    window = outbox.initial_window
    for name, value in frames.iter_settings(payload):
        if name == frames.INITIAL_WINDOW_SIZE:
            if value > frames.MAX_NUMBER:
                raise Http2Error(frames.FLOW_CONTROL_ERROR, f"{outbox.peer} set INITIAL_WINDOW_SIZE to {value}")
            window = value
        else:
            _apply(outbox, name, value)
    if window != outbox.initial_window:  # once per frame, because it affects all streams
        outbox.set_initial_window(window)
    outbox.acknowledge()
    return False


def _apply(outbox: Outbox, name: int, value: int) -> None:
    if name == frames.MAX_CONCURRENT_STREAMS:
        outbox.max_streams = value
    elif name == frames.MAX_FRAME_SIZE:
        if not frames.MIN_MAX_FRAME <= value <= frames.MAX_MAX_FRAME:
            raise Http2Error(PROTOCOL_ERROR, f"{outbox.peer} set MAX_FRAME_SIZE to {value}")
        outbox.max_frame = value
    elif name == frames.HEADER_TABLE_SIZE:
        outbox.set_table_size(value)
    elif name == frames.ENABLE_PUSH and value > outbox.max_push:
        raise Http2Error(PROTOCOL_ERROR, f"{outbox.peer} set ENABLE_PUSH to {value}")


def on_ping(outbox: Outbox, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
    if number:
        raise Http2Error(PROTOCOL_ERROR, f"{outbox.peer} sent PING on stream {number}")
    if len(payload) != 8:
        raise _wrong_size(outbox, frames.PING, payload)
    if not flags & frames.ACK:
        outbox.put_urgent(frames.frame(frames.PING, frames.ACK, 0, payload))


def on_goaway(outbox: Outbox, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
    """Handle a GOAWAY. A server may send two: a graceful one with the largest id, then one with the last id it accepted."""
    event = _goaway(outbox, number, payload)
    outbox.is_closing = True
    events.append(event)
    for stream in [stream for number, stream in outbox.streams.items() if number > event.last]:
        outbox.drop(stream)
        message = f"{outbox.peer} is closing the connection ({code_name(event.code)}) and did not process this request"
        events.append(Reset(stream.number, frames.REFUSED_STREAM, message, True))


def on_client_goaway(outbox: Outbox, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
    """Check a GOAWAY of a client: it opens no more streams; those in flight continue."""
    _goaway(outbox, number, payload)


def _goaway(outbox: Outbox, number: int, payload: bytes) -> GoAway:
    if number:
        raise Http2Error(PROTOCOL_ERROR, f"{outbox.peer} sent GOAWAY on stream {number}")
    if len(payload) < 8:
        raise _wrong_size(outbox, frames.GOAWAY, payload)
    return GoAway(unpack_number(payload)[0] & frames.MAX_NUMBER, unpack_number(payload, 4)[0], payload[8:])


CLIENT_HANDLERS: dict[int, Callable[[Outbox, int, int, bytes, list[Any]], None]] = {
    frames.PRIORITY: on_priority,
    frames.RST_STREAM: on_rst_stream,
    frames.PUSH_PROMISE: on_push_promise,
    frames.PING: on_ping,
    frames.GOAWAY: on_goaway,
    frames.WINDOW_UPDATE: on_window_update,
}
SERVER_HANDLERS = CLIENT_HANDLERS | {frames.GOAWAY: on_client_goaway}


def _wrong_size(outbox: Outbox, kind: int, payload: bytes) -> Http2Error:
    return Http2Error(
        frames.FRAME_SIZE_ERROR, f"{outbox.peer} sent {kind_name(kind)} with a payload of {len(payload)} bytes"
    )
