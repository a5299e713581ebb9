"""`make protos`: compiles src/inferometer/proto/*.proto to descriptor sets (*.binpb) beside them.

The package reads the sets at run time, so that nobody needs a protobuf compiler to install or use it.
"""

from inferometer.wire import protobuf

if __name__ == "__main__":
    for proto in sorted(protobuf.BUNDLED.glob("*.proto")):
        proto.with_suffix(".binpb").write_bytes(protobuf.compile(proto))
