"""The hot path of one shard: send, stamp, record. One event loop, raw sockets, kernel receive stamps, columns.

job.py               what a shard is given
shard.py             runs one shard, from its job to its spool
course.py            runs the plan's stages in order
open_loop.py, closed_loop.py  decide when the next request is sent: at planned instants, or when users are free
requests.py          makes the requests;  sequences.py  which request of a sequence comes next;  sessions.py  the next turns
dispatcher.py        sends requests and enforces the cap on requests in flight
inflight.py          a request in flight, which becomes a row
http1.py             HTTP/1.1: connections to one base URL, one request at a time each
http2_connection.py  HTTP/2, many streams;  http2_pool.py  the connections to one base URL
connector.py         opens connections to one base URL;  resolver.py  the addresses that they go to
transport.py         a socket;  tls_transport.py  the same with TLS
reader.py            reads every socket that has data, with kernel stamps, then decodes
poller.py            reports which sockets have data
awake.py             keeps the processor awake while a send or a short response is near
timeouts.py          ends requests that exceeded a timeout, and the wait for the last responses of a load
recorder.py          records how requests ended;  telemetry.py  publishes counts, and samples of this process, to the parent
run_state.py         the state that all of these share
"""
