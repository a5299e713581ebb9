"""Blocking conversations with a server before and after a run: none of this is on the hot path.

reach.py          resolve URLs, check TLS and keys, find the model
query.py          one request and its complete response, over HTTP/1.1 or gRPC
roundtrip.py      one round trip on a connection of its own, with the instant of each step
kserve.py         metadata, configuration and statistics of a KServe v2 server
shared_memory.py  tensors in system shared memory, registered with the server
"""
