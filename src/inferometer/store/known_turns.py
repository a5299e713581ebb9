"""Later turns whose prompts are known before the run: they are encoded before t=0, so that sending one is a copy.

Each prompt usually continues the one before it. So the longest is stored, and a turn has what comes before and after the part of it
that it sends: a session takes about as many bytes as its last prompt.

    entry: length of the table (4 bytes), the table of turns as MessagePack, the prompts
"""

from collections.abc import Callable, Sequence

import msgspec

from inferometer.types import Request, Session, Turn

_SIZE = 4


class _KnownTurn(msgspec.Struct, frozen=True, array_like=True):
    """A turn's tail is `before`, the bytes of the prompts from `start` to `end`, and `after`."""

    n_in: int
    n_out: int
    think: int
    before: bytes
    start: int
    end: int
    after: bytes


_encode_table = msgspec.msgpack.Encoder().encode
_decode_table = msgspec.msgpack.Decoder(list[_KnownTurn]).decode


def encode(turns: Sequence[Request], tail: Callable[[Request], bytes]) -> bytes:
    """Encode the later turns of a session. `tail` encodes one turn."""
    prompts: list[bytes] = []  # from the last turn's on
    table, size, start = [], 0, 0
    for turn in reversed(turns):
        encoded = tail(turn)
        prompt = (
            bytes(turn.payload)[:-1] if isinstance(turn.payload, msgspec.Raw) else b""
        )  # without its closing bracket
        at = encoded.find(prompt)
        if not prompts or not prompts[-1].startswith(prompt):
            start = size
            prompts.append(prompt)
            size += len(prompt)
        before, after = encoded[:at], encoded[at + len(prompt) :]
        table.append(_KnownTurn(turn.n_in, turn.n_out, turn.think, before, start, start + len(prompt), after))
    head = _encode_table(table[::-1])
    return b"".join((len(head).to_bytes(_SIZE, "little"), head, *prompts))


def run(entry: memoryview) -> Session:
    """Yield the turns of a session that was encoded, each with its tail as the payload. The first is the one already sent."""
    size = _SIZE + int.from_bytes(entry[:_SIZE], "little")
    table, prompts = _decode_table(entry[_SIZE:size]), entry[size:]
    yield Request(0, b"", 0, 0, later=(_LATER,) * len(table))
    for number, turn in enumerate(table, 1):
        tail = b"".join((turn.before, prompts[turn.start : turn.end], turn.after))
        yield Request(0, tail, turn.n_in, turn.n_out, turn=number, think=turn.think)


def single() -> Session:
    """Yield the only turn of a session, the one already sent."""
    yield Request(0, b"", 0, 0)


_LATER = Turn([], 0, 0)
