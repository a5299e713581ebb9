"""The hot path of one shard: send, stamp, store. One event loop, raw sockets, kernel receive stamps, columns.

shard.py             the run of one shard, from its plan to its spool
drivers.py           decide when the next request is sent: planned instants (open loop) or users (closed loop)
sequences.py         which request of a sequence a user sends next
inflight.py          one request in flight: a row in the making
http1_connection.py  HTTP/1.1: one request at a time;  http1_pool.py  the connections to one base URL
http2_connection.py  HTTP/2: many streams;  http2_pool.py  the connections to one base URL
connector.py         how to reach one base URL
transport.py         a socket read with kernel stamps;  tls_transport.py  the same with TLS
reader.py            reads every socket that has data, then decodes
poller.py            which sockets have data
deadlines.py         callbacks at absolute deadlines, on one timer
self_monitor.py      this process's CPU, memory, stalls and clock
"""
