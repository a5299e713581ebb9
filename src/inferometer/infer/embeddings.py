"""A text and its embedding: OpenAI's /v1/embeddings."""

from inferometer.apis import APIS
from inferometer.infer import time_split
from inferometer.infer.endpoint import Endpoint
from inferometer.infer.result import Result
from inferometer.probe import roundtrip
from inferometer.types import Request
from inferometer.wire import calls, embeddings, reported_times
from inferometer.wire.http1 import ID, TimedResponseDecoder
from inferometer.wire.text_body import WholeBody


def request(endpoint: Endpoint, text: str) -> Result:
    """Send the text, and decode the vectors that come back."""
    encoded = calls.encode(endpoint.context, [Request(0, text, 0, 0)])
    body = WholeBody(embeddings.EXTRACTOR)
    decoder = reported_times.timed(lambda: TimedResponseDecoder(body), endpoint.context)()
    data = encoded.heads[0] + ID % 0 + encoded.tails[0]
    instants, fail = roundtrip.over_http(endpoint.peer, data, decoder, lambda at, events: None)
    endpoint.raise_for(fail)
    return Result(
        kind="embeddings",
        url=endpoint.peer.target.url,
        api=APIS[endpoint.server.api].label,
        model=endpoint.reached.model,
        version="",
        instants=instants,
        server=time_split.from_timing(decoder.received.timing),
        vectors=embeddings.vectors(body.content),
        usage=decoder.received.usage,
    )
