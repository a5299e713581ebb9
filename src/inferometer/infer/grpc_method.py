"""Any method of any gRPC service: JSON (or an encoded message) in, JSON out."""

import json
from typing import Any

from inferometer.errors import UserError
from inferometer.infer import files, time_split
from inferometer.infer.endpoint import Endpoint
from inferometer.infer.result import Arrived, Result
from inferometer.probe import roundtrip
from inferometer.types import Fail, Request
from inferometer.wire import calls, protobuf, reported_times
from inferometer.wire.grpc import GrpcResponse
from inferometer.wire.protobuf import Method
from inferometer.workload.messages import is_encoded


def request(endpoint: Endpoint, data: str | None) -> tuple[Result, Fail | None]:
    """Call the method; also return the failure of a stream that failed after its first responses."""
    server, reached = endpoint.server, endpoint.reached
    method = protobuf.load(reached.descriptors).method(server.method or "")
    payload = messages(method, data)
    encoded = calls.encode(endpoint.context, [Request(0, payload, 0, 0)])
    arrived = Arrived()
    response = GrpcResponse(method.server_streaming, None, arrived.kept)
    decoder = reported_times.timed(lambda: response, endpoint.context)()
    instants, fail = roundtrip.over_grpc(
        endpoint.peer, encoded.heads[0], encoded.tails[0], decoder, arrived.note, server.deadline
    )
    if not arrived.messages:
        endpoint.raise_for(fail)
    result = Result(
        kind="method",
        url=endpoint.peer.target.url,
        api=f"gRPC{', streamed' if method.server_streaming or method.client_streaming else ''}",
        model=method.path.removeprefix("/"),
        version="",
        instants=instants,
        server=time_split.from_timing(arrived.timing),
        messages=tuple(
            (at - instants.sent, protobuf.decode(method.output, message)) for at, message in arrived.messages
        ),
    )
    return result, fail


def messages(method: Method, data: str | None) -> list[Any]:
    """The request's messages, as JSON or (from a .bin file) as bytes; a list is several, if the method takes a stream."""
    content = files.read(data[1:], "--data") if data and data.startswith("@") else None
    if content is not None and data and is_encoded(data):
        return [content]
    text = data if content is None else content.decode("utf-8", "replace")
    try:
        value = json.loads(text) if text else {}
    except ValueError as error:
        raise UserError(
            f"--data is not JSON: {error}",
            'write --data \'{"name": "x"}\', or --data @FILE.json; an encoded message is a @FILE.bin',
        ) from None
    if not isinstance(value, list):
        return [value]
    if not method.client_streaming and len(value) != 1:
        raise UserError(
            f"--data has {len(value)} messages, and {method.path.removeprefix('/')} takes one", "give one JSON object"
        )
    return value
