"""What crosses over between the parent and the process of an engine, besides the commands themselves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferometer.engines.launching import EngineError
from inferometer.types import Request


class Row(msgspec.Struct, frozen=True):
    """What became of one request. Times are nanoseconds of CLOCK_MONOTONIC; None for what the engine does not say."""

    id: int
    """In the order of sending, from 0."""
    request: int
    """Which one of the requests it is: they are used again if there are fewer than were wanted."""
    sent: int
    """Before the prompt was tokenized. Requests of a static batch have the same time."""
    done: int
    """When the caller had the whole text. In a static batch: all of the batch."""
    first: int | None
    last: int | None
    n_in: int
    """-1: not known; likewise `n_out` and `cached`."""
    n_out: int
    n_want: int
    arrivals: tuple[int, ...]
    """When each token, or several at once, was there; empty: not known."""
    tokens: tuple[int, ...]
    """How many tokens came each time."""
    cached: int
    failure: str
    """Code of the failure; empty: it succeeded."""
    message: str


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """A level of an engine."""

    rows: tuple[Row, ...]
    began: int
    ended: int
    padding: float | None = None
    """Static batches: the share of the processed tokens that was padding, or went on for longer requests of the batch."""
    notes: tuple[str, ...] = ()

    @property
    def distinct(self) -> int:
        """How many different requests were made."""
        return len({row.request for row in self.rows})


class Progress(msgspec.Struct, frozen=True):
    """How far a level is."""

    completed: int
    failed: int
    in_flight: int
    tokens: int
    """Output tokens of the requests that have ended."""


class Encoded(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of an encoder at one batch size and sequence length."""

    seconds: tuple[float, ...]
    began: int
    """When the first measured call began, and the last one ended."""
    ended: int
    memory: int | None = None
    """Peak memory of the device in bytes; on a CPU, of the process."""


def write_requests(path: Path, requests: Sequence[Request]) -> None:
    """Write what an engine is to complete, one line each. Raises EngineError for requests that only a server can take."""
    with path.open("wb") as lines:
        for request in requests:
            lines.write(msgspec.json.encode(_plain(request)) + b"\n")


def _plain(request: Request) -> dict[str, Any]:
    if request.later:
        raise EngineError(
            "an engine without a server takes single requests, but the data has conversations of several turns",
            "use data without conversations, or set data.turns to first",
        )
    payload = request.payload
    if isinstance(payload, str) or (isinstance(payload, list) and payload and isinstance(payload[0], int | dict)):
        return {"prompt": payload, "n_out": request.n_out, "n_in": request.n_in}
    raise EngineError(
        "an engine without a server takes prompts, chat messages and token ids",
        "use data that is text, such as synthetic",
    )


def read_rows(path: Path) -> tuple[Row, ...]:
    decoder = msgspec.json.Decoder(Row)
    return tuple(decoder.decode_lines(path.read_bytes()))
