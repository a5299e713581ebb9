"""The reference server: several protocols in front of several model backends.

sockets/    sockets on the event loop, with the kernel's receive timestamps and TLS; no protocol
http/       HTTP/1.1 on these sockets
grpc/       gRPC on these sockets and wire/http2: calls, health checks, reflection
kserve/     the KServe v2 protocol with Triton's extensions over HTTP and gRPC
processes/  several front ends on the same ports, and models in processes of their own
models/     between protocols and backends: the repository, queues and batches, instances, statistics, shared memory
backends/   what computes: identity, python, torch (and the classifier), onnxruntime, transformers, sim
openai/     the OpenAI endpoints (and Anthropic's messages) of every text model
sim/        a simulator of text models with known timing, which logs the ground truth
web         routes HTTP paths to these parts
settings    all settings of the server
access      the token, and the access log
bounded_cache  remembers a limited number of results
offload     background threads, and when work leaves the event loop
compression gzip and deflate, of HTTP bodies and gRPC messages
prometheus  the text format of metrics, and latency histograms
app         assembles the server and runs it, from start to drain
background  runs the server in a child process
"""
