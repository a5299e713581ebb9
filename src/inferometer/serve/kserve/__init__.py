"""KServe v2 with Triton's extensions, over HTTP and gRPC.

messages       the protocol's messages
requests       inputs, requested outputs and parameters: shared by HTTP and gRPC
control        metadata, statistics, loading, shared memory: shared by HTTP and gRPC
http           HTTP: the paths under /v2, from a body to an inference and from there to the response
http_codec     HTTP: bodies of requests and responses
grpc           gRPC: all services on one port, ModelInfer and ModelStreamInfer
grpc_codec     gRPC: messages to inferences and back
"""
