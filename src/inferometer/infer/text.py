"""A prompt and its response: OpenAI's chat and completions, Anthropic's messages, Triton's generate."""

from collections.abc import Callable, Sequence

from inferometer.apis import APIS
from inferometer.infer import time_split
from inferometer.infer.endpoint import Endpoint
from inferometer.infer.result import Result, TextOutput
from inferometer.probe import roundtrip
from inferometer.probe.roundtrip import Instants
from inferometer.types import Decoder, Event, Messages, Request
from inferometer.wire import calls, reported_times
from inferometer.wire.http1 import ID, TimedResponseDecoder
from inferometer.wire.text_body import body_decoder

OnText = Callable[[str], None]
"""Called with text as it arrives."""


def request(endpoint: Endpoint, prompt: str, max_tokens: int, on_text: OnText) -> Result:
    """Send the prompt and pass the response on as it arrives; raises UserError if the response is a failure."""
    response = TextResponse(decoder_of(endpoint), on_text)
    statistics = time_split.StatisticsDelta(endpoint) if endpoint.reached.facts is not None else None
    data = encoded(endpoint, prompt, max_tokens)
    instants, fail = roundtrip.over_http(endpoint.text_peer, data, response.decoder, response.on_events)
    endpoint.raise_for(fail)
    return response.result(endpoint, instants, statistics)


def encoded(endpoint: Endpoint, prompt: str | Messages, max_tokens: int) -> bytes:
    """The bytes of the request."""
    calls_of = calls.encode(endpoint.context, [Request(0, prompt, 0, max_tokens)])
    return calls_of.heads[0] + ID % 0 + calls_of.tails[0]


def decoder_of(endpoint: Endpoint) -> TimedResponseDecoder:
    """The decoder of the response."""
    extractor = calls.codec_of(endpoint.server.api).extractor
    assert extractor is not None
    body = body_decoder(extractor, bool(endpoint.server.stream))
    decoder: TimedResponseDecoder = reported_times.timed(lambda: TimedResponseDecoder(body), endpoint.context)()
    return decoder


class TextResponse:
    """What has been received of a response."""

    def __init__(self, decoder: Decoder, on_text: OnText) -> None:
        self.decoder = decoder
        self._on_text = on_text
        self._passed_on = 0

    def on_events(self, at: int, events: Sequence[Event]) -> None:
        texts = self.decoder.received.texts
        if len(texts) > self._passed_on:
            self._on_text("".join(texts[self._passed_on :]))
            self._passed_on = len(texts)

    def result(
        self, endpoint: Endpoint, instants: Instants, statistics: time_split.StatisticsDelta | None = None
    ) -> Result:
        """The result, when the response is complete."""
        server = endpoint.server
        received = self.decoder.received
        arrivals = tuple(
            (at - instants.sent, count) for at, count in zip(received.arrivals, received.counts, strict=True)
        )
        return Result(
            kind="text",
            url=endpoint.peer.target.url,
            api=f"{APIS[server.api].label}, {'streamed' if server.stream else 'not streamed'}",
            model=endpoint.reached.model,
            version=server.version or "",
            instants=instants,
            server=time_split.from_timing(
                received.timing, is_streamed=bool(server.stream) and not endpoint.context.timing
            )
            or (statistics.since() if statistics else None),
            output=TextOutput(received.text, arrivals, received.usage),
        )
