"""HTTP/2, client side (RFC 9113, RFC 7541): bytes in, events out; requests in, bytes out.

`client.Http2Client` is one connection. `hpack.encode` makes the header block of a request once, before the run. A block does
not refer to the state of any connection, so it serves any number of requests on any connection.

    client.py     the connection: turns received bytes into events
    outbox.py     bytes to send: order of frames, flow-control windows, fairness between streams
    control.py    handlers for the frames that are neither HEADERS nor DATA
    fast_path.py  responses that arrive in one piece and have the same layout as an earlier one
    fields.py     validation of response headers, cached by header block
    hpack.py      header blocks <-> lists of fields
    huffman.py    HPACK's string code
    frames.py     numbers, names and layouts of frames
    events.py     events of a connection, and Http2Error for protocol violations
"""

from inferometer.wire.http2.client import Http2Client
from inferometer.wire.http2.events import Data, Event, GoAway, Headers, Http2Error, Reset
from inferometer.wire.http2.fast_path import Layout
from inferometer.wire.http2.frames import CANCEL, NO_ERROR, REFUSED_STREAM, code_name
from inferometer.wire.http2.hpack import encode

__all__ = [
    "CANCEL",
    "NO_ERROR",
    "REFUSED_STREAM",
    "Data",
    "Event",
    "GoAway",
    "Headers",
    "Http2Client",
    "Http2Error",
    "Layout",
    "Reset",
    "code_name",
    "encode",
]
