"""A single request, with its time split into parts: `inferometer infer`.

flags.py        the command line's flags, and the config's server section that they amount to
infer.py        from flags to a result: reach the server (endpoint.py), send the request, decode the response
text.py         a prompt; embeddings.py  a text to embed; tensors.py  a model's inputs; grpc_method.py  any gRPC method
inputs.py       tensors from the command line, from files and from images
classes.py      the top classes of a response; tokens.py  token counts and rates of a text
time_split.py   where the time went; result.py  everything there is to show
show.py         for people; export.py  for programs

The bytes sent are those that a run would send; the request has its own connection (probe/roundtrip.py).
"""
