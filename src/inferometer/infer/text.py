"""A prompt and its answer: OpenAI's chat and completions, Triton's generate."""

from collections.abc import Callable, Sequence

from inferometer.apis import APIS
from inferometer.infer import time_split
from inferometer.infer.endpoint import Endpoint
from inferometer.infer.result import Result, TextOutput
from inferometer.probe import roundtrip
from inferometer.types import Decoder, Event, Request, ServerTiming, Tokens, Usage
from inferometer.wire import calls
from inferometer.wire.http1 import TimedResponseDecoder

Hear = Callable[[str], None]
"""Is told the text as it comes."""


def ask(whom: Endpoint, prompt: str, max_tokens: int, hear: Hear) -> Result:
    server, reached = whom.server, whom.reached
    made = calls.encode(whom.context, [Request(0, prompt, 0, max_tokens)])
    body_decoder = calls.CODECS[server.api].body
    assert body_decoder is not None
    answer = _TextResponse(TimedResponseDecoder(body_decoder(bool(server.stream))), hear)
    statistics = time_split.StatisticsDelta(whom) if reached.facts is not None else None
    request = made.heads[0] + b"0" + made.tails[0]
    instants, fail = roundtrip.over_http(whom.peer, request, answer.decoder, answer.heard)
    whom.raise_for(fail)
    arrivals = tuple((at - instants.sent, count) for at, count in answer.arrivals)
    return Result(
        kind="text",
        url=whom.peer.target.url,
        api=f"{APIS[server.api].label}, {'streamed' if server.stream else 'not streamed'}",
        model=reached.model,
        version=server.version or "",
        instants=instants,
        server=time_split.from_timing(answer.timing) or (statistics.since() if statistics else None),
        spoken=TextOutput(answer.decoder.text, arrivals, answer.usage),
    )


class _TextResponse:
    """What came of an answer so far."""

    def __init__(self, decoder: Decoder, hear: Hear) -> None:
        self.decoder = decoder
        self.arrivals: list[tuple[int, int]] = []
        self.usage: Usage | None = None
        self.timing: ServerTiming | None = None
        self._hear = hear
        self._heard = 0

    def heard(self, at: int, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Tokens):
                self.arrivals.append((at, event.n))
            elif isinstance(event, Usage):
                self.usage = event
            elif isinstance(event, ServerTiming):
                self.timing = event
        text = self.decoder.text
        if len(text) > self._heard:
            self._hear(text[self._heard :])
            self._heard = len(text)
