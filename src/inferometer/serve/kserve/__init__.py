"""KServe v2 with Triton's extensions, over HTTP and over gRPC.

messages    the protocol's messages, for all         control          what is said about server and models, for both
web         /v2: routes                              http, generate   the bodies of requests and answers
under_way   from an inference to its HTTP answer     unread           answers that nobody takes
grpc        the server and its services              guard            who is let in, and what failures become
grpc_calls  ModelInfer                               stream, chunked  ModelStreamInfer, InferStream; InferChunked
grpc_codec  messages to inferences and back          grpc_control     questions and orders
health      grpc.health.v1                           reflection       what is served, for clients that ask
grpc_batches  memory that gRPC itself would keep where a call is cancelled
"""
