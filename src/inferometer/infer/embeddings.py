"""A text and its embedding: OpenAI's /v1/embeddings."""

from collections.abc import Sequence

from inferometer.apis import APIS
from inferometer.infer import time_split
from inferometer.infer.endpoint import Endpoint
from inferometer.infer.result import Result
from inferometer.probe import roundtrip
from inferometer.types import Event, Request, ServerTiming, Usage
from inferometer.wire import calls
from inferometer.wire.embeddings import EmbeddingsResponse
from inferometer.wire.http1 import TimedResponseDecoder


def request(endpoint: Endpoint, text: str) -> Result:
    """Send the text, and decode the vectors that come back."""
    encoded = calls.encode(endpoint.context, [Request(0, text, 0, 0)])
    body = EmbeddingsResponse()
    received: list[Event] = []

    def note(_: int, events: Sequence[Event]) -> None:
        received.extend(events)

    data = encoded.heads[0] + b"0" + encoded.tails[0]
    instants, fail = roundtrip.over_http(endpoint.peer, data, TimedResponseDecoder(body), note)
    endpoint.raise_for(fail)
    return Result(
        kind="embeddings",
        url=endpoint.peer.target.url,
        api=APIS[endpoint.server.api].label,
        model=endpoint.reached.model,
        version="",
        instants=instants,
        server=time_split.from_timing(next((event for event in received if isinstance(event, ServerTiming)), None)),
        vectors=body.vectors(),
        usage=next((event for event in received if isinstance(event, Usage)), None),
    )
