"""The reference server: protocols x backends.

http/       bytes in and out: HTTP/1.1 on raw sockets, with the kernel's receive stamps
kserve/     the KServe v2 protocol with Triton's extensions, over HTTP and over gRPC (grpcio); health and reflection
models/     what lies between: the repository, queues and batches, instances, statistics, shared memory
backends/   what computes: identity, python, torch (and the classifier), onnxruntime, transformers, sim
sim/        OpenAI endpoints on a simulator whose timing is known, which logs the ground truth
web         which of them answers a path;                 metrics     /metrics, with Triton's names
settings    what it is told;  ports  where it listens;    histogram, memory  what several of them need
app         all of it put together, from start to drain;  background  the same in a child process
null        the server that does nothing: what is measured against it is the client
"""
