"""Send, stamp, store: one event loop, readers on raw sockets, kernel receive stamps, columns.

shard.py       the run of one shard, from its plan to its spool
stages.py      what decides when the next request goes: instants, or users
flight.py      one request under way
connection.py  a socket, its decoder and the request it carries
tls.py         the same, encrypted
inbox.py       what was read and is not yet decoded
pool.py        the connections to one base URL
agenda.py      what is due when, on one timer
spool.py       rows and chunks on disk as they happen, and the few numbers that processes tell each other
health.py      how this process fares meanwhile
before.py      what happens before t=0: names, limits, TLS, the model
"""
