"""The text that `Client.generate` returns: complete, or as it arrives."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Self

import msgspec

from inferometer.infer.endpoint import Endpoint
from inferometer.infer.text import TextResponse
from inferometer.infer.tokens import measured
from inferometer.probe.roundtrip import Arriving, Instants
from inferometer.units import NS


class Text(msgspec.Struct, frozen=True):
    """A generated text, with its tokens and times. Times are in seconds since the request was sent. `str()` is the text."""

    text: str
    model: str
    input_tokens: int | None
    """By the server's count; None: it does not report one."""
    output_tokens: int | None
    """By the server's count, or else the number of chunks; None: not known."""
    ttft: float | None
    """Time to the first token; None: no token arrived."""
    e2e: float
    """Time to the last byte."""
    arrivals: tuple[float, ...] = ()
    """When each chunk with tokens arrived."""

    @property
    def gaps(self) -> tuple[float, ...]:
        """Times between chunks."""
        return tuple(late - early for early, late in pairwise(self.arrivals))

    def __str__(self) -> str:
        return self.text


class TextStream:
    """A text while it is generated: iterating yields its pieces as they arrive. `result` has the whole, with its times.

    Leaving it before its end closes the connection: use it in a `with` statement, or call `close`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        start: Callable[[TextResponse], Arriving],
        errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        from inferometer.infer.text import decoder_of  # noqa: PLC0415

        self._pieces: deque[str] = deque()
        self._endpoint, self._errors = endpoint, errors
        self._response = TextResponse(decoder_of(endpoint), self._pieces.append)
        self._arriving = start(self._response)
        self._result: Text | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while not self._pieces:
            if not self._receive():
                raise StopIteration
        return self._pieces.popleft()

    def _receive(self) -> bool:
        """Wait for more; return False at the end. Raises UserError if the response is a failure."""
        with self._errors():
            try:
                at, events = next(self._arriving)
            except StopIteration as end:
                if end.value is not None:
                    instants, fail = end.value
                    self._endpoint.raise_for(fail)
                    self._result = self._made(instants)
                return False
            self._response.on_events(at, events)
            return True

    @property
    def result(self) -> Text:
        """The whole text; waits for the rest of it. Raises Error when the response is a failure, or after `close`."""
        while self._receive():
            pass
        if self._result is None:
            from inferometer.errors import UserError  # noqa: PLC0415

            raise UserError("the text was closed before its end", "read it to its end first")
        return self._result

    def _made(self, instants: Instants) -> Text:
        found = self._response.result(self._endpoint, instants)
        assert found.output is not None
        counted = measured(found)
        return Text(
            text=found.output.text,
            model=found.model,
            input_tokens=counted["input"],
            output_tokens=counted["output"],
            ttft=counted["ttft"],
            e2e=counted["e2e"],
            arrivals=tuple(at / NS for at, _ in found.output.arrivals),
        )

    def close(self) -> None:
        """Close the connection, unless the text has ended."""
        self._arriving.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
