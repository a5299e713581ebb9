"""Frames: their kinds, flags, codes and limits, and how they are packed. The names follow RFC 9113."""

from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
_KINDS = (
    *("DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH_PROMISE", "PING", "GOAWAY"),
    *("WINDOW_UPDATE", "CONTINUATION"),
)

END_STREAM = ACK = 0x01
END_HEADERS = 0x04
PADDED = 0x08
PRIORITIZED = 0x20

NO_ERROR = 0x00
PROTOCOL_ERROR = 0x01
INTERNAL_ERROR = 0x02
FLOW_CONTROL_ERROR = 0x03
SETTINGS_TIMEOUT = 0x04
STREAM_CLOSED = 0x05
FRAME_SIZE_ERROR = 0x06
REFUSED_STREAM = 0x07
CANCEL = 0x08
COMPRESSION_ERROR = 0x09
CONNECT_ERROR = 0x0A
ENHANCE_YOUR_CALM = 0x0B
INADEQUATE_SECURITY = 0x0C
HTTP_1_1_REQUIRED = 0x0D
_CODES = (
    *("NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED"),
    *("FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM"),
    *("INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"),
)

HEADER_TABLE_SIZE = 0x01
ENABLE_PUSH = 0x02
MAX_CONCURRENT_STREAMS = 0x03
INITIAL_WINDOW_SIZE = 0x04
MAX_FRAME_SIZE = 0x05
MAX_HEADER_LIST_SIZE = 0x06

HEAD = 9
"""Size of a frame's head in bytes."""
MAX_NUMBER = 2**31 - 1
"""The largest stream id and the largest window: 31 bits."""
DEFAULT_WINDOW = 65_535
DEFAULT_TABLE = 4_096
MIN_MAX_FRAME = 16_384
"""The default and the smallest allowed value of MAX_FRAME_SIZE: frames of this size can always be sent."""
MAX_MAX_FRAME = 2**24 - 1

_HEAD = Struct(">LBL")
head = _HEAD.pack
"""Packs the head of a frame from (length << 8 | kind, flags, stream)."""
unpack_head = _HEAD.unpack_from
"""Unpacks (length << 8 | kind, flags, stream) at an offset; the top bit of the stream is reserved and must be ignored."""
_SETTING = Struct(">HL")
iter_settings = _SETTING.iter_unpack
_NUMBER = Struct(">L")
unpack_number = _NUMBER.unpack_from


def kind_name(kind: int) -> str:
    return _KINDS[kind] if kind < len(_KINDS) else f"a frame of unknown type {kind:#x}"


def code_name(code: int) -> str:
    """The name of an error code, such as REFUSED_STREAM for 7; the number itself if the code has no name."""
    return _CODES[code] if code < len(_CODES) else f"error {code:#x}"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return head(len(payload) << 8 | kind, flags, stream) + payload


def headers(stream: int, block: bytes, end: bool) -> bytes:
    """Encode a HEADERS frame and as many CONTINUATION frames as the block needs."""
    flags = END_STREAM if end else 0
    if len(block) <= MIN_MAX_FRAME:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    parts = [block[at : at + MIN_MAX_FRAME] for at in range(0, len(block), MIN_MAX_FRAME)]
    middle = [frame(CONTINUATION, 0, stream, part) for part in parts[1:-1]]
    return b"".join(
        (frame(HEADERS, flags, stream, parts[0]), *middle, frame(CONTINUATION, END_HEADERS, stream, parts[-1]))
    )


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(increment))


def rst_stream(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def goaway(code: int, debug: bytes, last: int = 0) -> bytes:
    """Encode a GOAWAY. A client's last stream id is 0, because the server opens no streams while push is disabled."""
    return frame(GOAWAY, 0, 0, _NUMBER.pack(last) + _NUMBER.pack(code) + debug)


SETTINGS_ACK = frame(SETTINGS, ACK, 0)
