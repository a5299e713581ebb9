"""KServe v2 with Triton's extensions, over HTTP and gRPC.

messages       the protocol's messages, shared by all
control        server and model metadata, statistics, loading: shared by HTTP and gRPC
routes         HTTP: the paths under /v2
http_codec     HTTP: bodies of infer requests and responses
generate       HTTP: bodies of generate requests and responses
responders     HTTP: from an inference to its response
backpressure   the limit for responses that a client does not read
grpc           gRPC: the server and its services
handlers       gRPC: access control and error handling around every method
grpc_calls     gRPC: ModelInfer
stream         gRPC: ModelStreamInfer and InferStream
chunked        gRPC: InferChunked
grpc_codec     gRPC: messages to inferences and back
grpc_fields    gRPC: finding large fields without parsing them
grpc_typed     gRPC: typed tensor contents
grpc_control   gRPC: metadata and control methods
grpc_batches   gRPC: frees memory that grpcio would leak for cancelled calls
health         grpc.health.v1
reflection     server reflection
"""
