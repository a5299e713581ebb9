"""gRPC over HTTP/2, on a Transport and the codec of wire/http2: it knows nothing about inference.

server.py             all methods by path, access control, the listener, and the end
connection.py         one client connection: events of the codec to calls, and what to send to the transport
call.py               one call: its messages in both directions, its deadline and its status
headers.py            headers (method, timeout, compression, access) and trailers (status, the server's times)
standard_services.py  grpc.health.v1, and server reflection, v1 and v1alpha
"""
