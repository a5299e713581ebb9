"""A shard's requests to a KServe v2 server as bytes: over HTTP, over gRPC, and for Triton's generate."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat

import msgspec

from inferometer import __version__
from inferometer.config.schema import Server
from inferometer.types import Calls, Decoder, Request
from inferometer.wire import grpc as grpc_wire
from inferometer.wire.http1 import BodyDecoder, TimedResponseDecoder, numbered
from inferometer.wire.kserve import generate, grpc, http
from inferometer.wire.kserve.http import CountedResponse, InferOptions, ShmRef
from inferometer.wire.target import Target

Parameters = dict[str, bool | int | float | str]
AGENT = {"User-Agent": f"inferometer/{__version__}"}


class Sequenced(msgspec.Struct, frozen=True):
    """Requests in sequences of these lengths, one after the other; their correlation ids run on from the first. Empty: in none."""

    lengths: tuple[int, ...] = ()
    first_id: int = 1

    def parameters(self) -> Iterator[Parameters]:
        """Of one request after the other; without end where there are no sequences."""
        if not self.lengths:
            yield from repeat({})
        for number, length in enumerate(self.lengths):
            for turn in range(length):
                yield {
                    "sequence_id": self.first_id + number,
                    "sequence_start": turn == 0,
                    "sequence_end": turn == length - 1,
                }


class SharedRefs(msgspec.Struct, frozen=True):
    """Where the tensors of a shard's nth request lie in shared memory; both begin again at their end."""

    inputs: tuple[dict[str, ShmRef], ...]
    outputs: tuple[dict[str, ShmRef], ...]


def _options(server: Server, n: int, own: Parameters, shared: SharedRefs | None) -> InferOptions:
    return InferOptions(
        parameters=server.parameters | own,
        outputs=tuple(server.outputs),
        binary=server.api != "kserve-json",
        shm_inputs=shared.inputs[n % len(shared.inputs)] if shared else {},
        shm_outputs=shared.outputs[n % len(shared.outputs)] if shared else {},
    )


def over_http(
    server: Server,
    model: str,
    targets: Sequence[Target],
    secrets: dict[str, str],
    requests: Sequence[Request],
    tag: str,
    sequenced: Sequenced,
    shared: SharedRefs | None = None,
) -> Calls:
    bodies = []
    for n, (request, parameters) in enumerate(zip(requests, sequenced.parameters(), strict=False)):
        assert isinstance(request.payload, tuple)
        own, body = http.encode(request.payload, _options(server, n, parameters, shared))
        packed, body = http.compressed(body, server.compression)
        bodies.append((own | packed, body))
    path = http.infer_path(model, server.version or "")
    heads, tails = numbered(targets, path, AGENT | server.headers | secrets, bodies, tag)
    return _calls(heads, tails, requests, sequenced, decoder=partial(_decoder, CountedResponse))


def over_grpc(
    server: Server,
    model: str,
    targets: Sequence[Target],
    secrets: dict[str, str],
    requests: Sequence[Request],
    sequenced: Sequenced,
    shared: SharedRefs | None = None,
) -> Calls:
    tails = []
    for n, (request, parameters) in enumerate(zip(requests, sequenced.parameters(), strict=False)):
        assert isinstance(request.payload, tuple)
        options = _options(server, n, parameters, shared)
        message = grpc.infer_request(model, server.version or "", request.payload, options)
        tails.append(grpc_wire.framed(message, server.compression))
    path = grpc.STREAM_INFER if server.stream else grpc.INFER
    answer = partial(grpc_wire.GrpcResponse, True, grpc.stream_error) if server.stream else grpc_wire.GrpcResponse
    return _calls(grpc_heads(server, targets, secrets, path), tuple(tails), requests, sequenced, answer=answer)


def grpc_heads(server: Server, targets: Sequence[Target], secrets: dict[str, str], path: str) -> tuple[bytes, ...]:
    """The header block of a call for each target."""
    heads = []
    for target in targets:
        credentials = {"authorization": target.credentials} if target.credentials else {}
        metadata = credentials | AGENT | server.headers | secrets
        heads.append(
            grpc_wire.header_block(path, target.authority, target.tls, metadata, server.deadline, server.compression)
        )
    return tuple(heads)


def generated(
    server: Server,
    model: str,
    targets: Sequence[Target],
    secrets: dict[str, str],
    requests: Sequence[Request],
    tag: str,
) -> Calls:
    """Triton's generate and generate_stream."""
    stream = bool(server.stream)
    fixed = AGENT | {"Content-Type": "application/json"}
    none: dict[str, str] = {}
    bodies = (
        (none, generate.request_body(_prompt(request), request.n_out, stream, server.parameters | server.body))
        for request in requests
    )
    path = generate.generate_path(model, server.version or "", stream)
    heads, tails = numbered(targets, path, fixed | server.headers | secrets, bodies, tag)
    return Calls(
        heads=heads,
        tails=tails,
        n_in=tuple(request.n_in or -1 for request in requests),
        n_out=tuple(request.n_out for request in requests),
        decoder=partial(_decoder, generate.StreamedText if stream else generate.WholeText),
    )


def _prompt(request: Request) -> str:
    """The text of a request; of chat messages, what they say one after the other."""
    if isinstance(request.payload, str):
        return request.payload
    return "\n".join(str(turn.get("content", "")) for turn in request.payload if isinstance(turn, dict))


def _decoder(body: Callable[[], BodyDecoder]) -> Decoder:
    return TimedResponseDecoder(body())


def _calls(
    heads: tuple[bytes, ...],
    tails: tuple[bytes, ...],
    requests: Sequence[Request],
    sequenced: Sequenced,
    **kind: Callable[[], object],
) -> Calls:
    return Calls(
        heads=heads,
        tails=tails,
        n_in=(-1,) * len(requests),
        n_out=(0,) * len(requests),
        is_text=False,
        sequences=sequenced.lengths,
        **kind,  # type: ignore[arg-type]
    )
