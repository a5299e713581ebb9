"""The hot path of one shard: send, stamp, record. One event loop, raw sockets, kernel receive stamps, columns.

job.py               what a shard is given
shard.py             runs one shard, from its job to its spool
course.py            runs the plan's stages in order
drivers.py           decide when the next request is sent: planned instants (open loop) or users (closed loop)
user_starts.py       when the users of a closed loop start;  id_supply.py  the ids of their requests
requests.py          makes the requests;  sequences.py  which request of a sequence comes next;  sessions.py  the next turns;  due_turns.py  those that wait for a user
dispatcher.py        sends requests and enforces the cap on requests in flight
inflight.py          a request in flight, which becomes a row
http1_connection.py  HTTP/1.1, one request at a time;  http1_pool.py  the connections to one base URL
http2_connection.py  HTTP/2, many streams;  http2_pool.py  the connections to one base URL
connector.py         opens connections to one base URL
transport.py         a socket;  tls_transport.py  the same with TLS
reader.py            reads every socket that has data, with kernel stamps, then decodes
poller.py            reports which sockets have data
deadlines.py         runs callbacks at absolute deadlines, on one timer
awake.py             keeps the processor awake while a send or a short response is near
timeouts.py          ends requests that exceeded a timeout;  patience.py  ends the wait for the last responses of a load
recorder.py          records how requests ended;  telemetry.py  publishes counts and samples to the parent
run_state.py         the state that all of these share
self_monitor.py      this process's CPU, memory, stalls and clock
"""
