"""Send, stamp, store: one event loop, readers on raw sockets, kernel receive stamps, columns.

shard.py          the run of one shard, from its plan to its spool
stages.py         what decides when the next request goes: instants, or users
flight.py         one request under way
link.py           a socket, read with stamps; tls.py: the same, encrypted
connection.py     HTTP/1.1: a link that carries one request at a time; pool.py: those to one base URL
channel.py        HTTP/2: a link that carries many; channels.py: those to one base URL
dial.py           how to reach one base URL
inbox.py          what was read and is not yet decoded
agenda.py         what is due when, on one timer
spool.py          rows and chunks on disk as they happen, and the few numbers that processes tell each other
health.py         how this process fares meanwhile
before.py         what happens before t=0: names, limits, TLS, the model
exchange.py       one exchange, blocking, with its instants; ask.py: a question and its whole answer
kserve.py         questions to a KServe v2 server
shared_memory.py  tensors in system shared memory
"""
