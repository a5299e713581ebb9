"""gRPC over HTTP/2, on a Transport and the codec of wire/http2: it knows nothing about inference.

server.py             the server and its client connections: events of the codec to calls, and what to send to the transport
call.py               one call: its headers, its messages in both directions, its deadline and its status
standard_services.py  grpc.health.v1, and server reflection, v1 and v1alpha
"""
