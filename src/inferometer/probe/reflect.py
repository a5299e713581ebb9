"""Finding the definition of a gRPC method: in a .proto file, in a descriptor set, or by the server's reflection service."""

from pathlib import Path

from inferometer.config.schema import Server
from inferometer.errors import KEY_WANTED, UserError, key_remedy
from inferometer.probe import query
from inferometer.probe.connect import Peer
from inferometer.wire import protobuf, reflection
from inferometer.wire.failures import meaning


def descriptors(peer: Peer, headers: dict[str, str], server: Server) -> bytes:
    """The descriptor set that defines `server.method`: compiled, read from a file, or fetched from the server."""
    if server.proto:
        found, schema = _from_file(Path(server.proto).expanduser())
    else:
        found = _reflected(peer, headers, server.method or "")
        schema = protobuf.load(found, called="the server's description of itself")
    schema.method(server.method or "")
    return found


def _from_file(path: Path) -> tuple[bytes, protobuf.Schema]:
    try:
        found = protobuf.compile(path) if path.suffix == ".proto" else _read(path)
        return found, protobuf.load(found, called=str(path))
    except UserError as error:
        error.key = "server.proto"
        raise


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "give a .proto file or a descriptor set") from None


def _reflected(peer: Peer, headers: dict[str, str], method: str) -> bytes:
    conversation = reflection.describe(method)
    call = next(conversation)
    while True:
        reply = query.grpc(peer, call.path, [call.message], headers)
        if reply.fail is not None and reply.fail.code != "grpc_UNIMPLEMENTED":
            raise UserError(
                f"{peer.target.url}: reflection: {reply.fail.message or meaning(reply.fail.code)}",
                key_remedy(headers) if reply.fail.code in KEY_WANTED else "name the .proto file with {server.proto}",
            )
        try:
            call = conversation.send(reply.pieces[0][1] if reply.pieces else None)
        except StopIteration as end:
            return bytes(end.value)
