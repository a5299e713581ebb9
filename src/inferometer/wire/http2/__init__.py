"""HTTP/2, the client's side (RFC 9113, RFC 7541): bytes in, events out; requests in, bytes out.

`client.Client` is one connection. A request's header block is made by `hpack.encode`, once, before it is needed: it names
nothing of a connection's state, so it serves any number of requests on any connection.

    events.py   what a server said, and Http2Error: what it did wrong
    frames.py   numbers, names and layouts
    huffman.py  HPACK's string code
    hpack.py    header blocks <-> lists of fields
    fields.py   what an answer's fields mean, remembered by the block that said it
    outbox.py   what is to be written: order, windows, fairness
    control.py  what the frames do that are neither headers nor bodies
    whole.py    answers that come in one piece and look like one before them
    client.py   the connection: what was read
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
