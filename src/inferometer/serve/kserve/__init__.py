"""KServe v2 with Triton's extensions, over HTTP and gRPC.

messages       the protocol's messages, shared by all
control        server and model metadata, statistics, loading: shared by HTTP and gRPC
routes         HTTP: the paths under /v2
http_codec     HTTP: bodies of infer requests and responses
generate       HTTP: bodies of generate requests and responses
responders     HTTP: from an inference to its response
backpressure   the limit for responses that a client does not read
grpc           gRPC: all services on one port
grpc_infer     gRPC: ModelInfer
stream         gRPC: ModelStreamInfer
grpc_codec     gRPC: messages to inferences and back
grpc_control   gRPC: metadata and control methods
"""
