"""Protocol buffers for any service, without generated code: KServe, server reflection, or one that only its user knows.

Nothing here is on the hot path: requests are encoded before the run starts.

    schema.py       messages and methods by name, from descriptors
    descriptors.py  descriptor sets: from bytes, files, compiled .proto files, or the package itself
    json_codec.py   JSON values <-> the bytes of a message
"""

from inferometer.wire.protobuf.descriptors import BUNDLED, bundled, compile, load
from inferometer.wire.protobuf.json_codec import decode, encode, parse
from inferometer.wire.protobuf.schema import Method, Schema, method_name

__all__ = [
    "BUNDLED",
    "Method",
    "Schema",
    "bundled",
    "compile",
    "decode",
    "encode",
    "load",
    "method_name",
    "parse",
]
