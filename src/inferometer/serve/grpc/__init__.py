"""gRPC over HTTP/2, on a Transport and the codec of wire/http2: it knows nothing about inference.

server.py       the methods of all services by path, access control, the listener, and the end
connection.py   one client connection: events of the codec to calls, and what to send to the transport
call.py         one call: its messages in both directions, its deadline and its status
request.py      the headers of a call: method, timeout, compression, access; parsed once for each header block
status.py       status codes and messages, as header blocks
health.py       grpc.health.v1
reflection.py   server reflection, v1 and v1alpha
"""
