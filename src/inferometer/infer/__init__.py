"""One request by hand, with its timing taken apart: `inferometer infer`.

    options.py    what the command line says, and the server section that it means
    infer.py      from options to a result: reach the server (whom.py), ask, tell
    text.py       what to ask: a prompt; tensors.py  a model's inputs; method.py  any gRPC method
    inputs.py     tensors from the command line and its files; image.py  from an image
    classes.py    the best classes of an answer; tokens.py  a text's numbers
    spent.py      where the time went; result.py  all there is to tell
    show.py       for people; export.py  for programs

What is sent are the bytes that a run would send; the connection is the request's own (probe/roundtrip.py).
"""
