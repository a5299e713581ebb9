"""Blocking requests to a server before and after a run: none of this is on the hot path.

reach.py          resolve URLs, check TLS and keys, find the model
estimate.py       a few requests before the run: how long one takes, and how much CPU time
scheme.py         find out what a port speaks
openai.py         the first model that an OpenAI-style server lists
reflect.py        the definition of a gRPC method
connect.py        addresses and TLS
query.py          one request and its complete response, over HTTP/1.1 or gRPC
roundtrip.py      one round trip, with the instant of each step
kept.py           connections that stay open between round trips
kserve.py         metadata, configuration and statistics of a KServe v2 server
shared_memory.py  tensors in system shared memory, registered with the server
shm_region.py     the file that they are in
"""
