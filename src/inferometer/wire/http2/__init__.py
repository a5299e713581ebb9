"""HTTP/2 (RFC 9113, RFC 7541), client and server side: bytes in, events out; requests or responses in, bytes out.

`client.Http2Client` and `server.Http2Server` are one connection each. `hpack.encode` makes the header block of a request or
response once, ahead of time. A block does not refer to the state of any connection, so it serves any number of requests on
any connection.

    client.py     the client's connection: what received frames mean, as events
    server.py     the server's connection
    floods.py     the server's protection against floods of frames
    connection.py what both share: received bytes to frames
    outbox.py     what both inherit: bytes to send: order of frames, flow-control windows, fairness between streams
    control.py    handlers for the frames that are neither HEADERS nor DATA
    fields.py     validation of headers, cached by header block
    hpack.py      header blocks <-> lists of fields
    huffman.py    HPACK's string code
    frames.py     numbers, names and layouts of frames
    events.py     events of a connection, and Http2Error for protocol violations
"""
