"""Stores the sessions of a shard before t=0, and adds to its requests what sessions need while the run is in progress."""

import pickle
from collections.abc import Sequence

import msgspec

from inferometer.apis import APIS
from inferometer.config.data.sessions import Sessions
from inferometer.fleet import known_turns
from inferometer.store.request_file import MappedBytes
from inferometer.types import Calls, Request, Session
from inferometer.wire import calls
from inferometer.wire.context import CallContext
from inferometer.wire.history import history
from inferometer.wire.http1 import TokenResponseDecoder
from inferometer.workload.session import converse

_NONE, _KNOWN, _LIVE = b"", b"k", b"l"
"""What an entry of the file of sessions starts with: it is empty if there are no later turns."""


def encode_sessions(requests: Sequence[Request], settings: Sessions, context: CallContext) -> list[bytes]:
    """Encode the later turns of sessions, one entry for each first turn: as they are sent, if they do not depend on the responses."""
    form, tail = APIS[context.api].history_form, calls.turn_encoder(context)

    def entry(request: Request) -> bytes:
        if not request.later:
            return _NONE
        if known_turns.are_known(request.later, settings):
            return _KNOWN + known_turns.encode(request, history(form), tail)
        return _LIVE + pickle.dumps(request)

    return list(map(entry, requests))


def with_sessions(encoded: Calls, entries: MappedBytes, settings: Sessions, context: CallContext) -> Calls:
    """The same requests, as the first turns of sessions, whose later turns are in the `entries`."""
    form = APIS[context.api].history_form

    def start(index: int) -> Session:
        entries.prefault(index)
        entry = entries.view[entries.offsets[index] : entries.offsets[index + 1]]
        if entry[:1] == _KNOWN:
            return known_turns.run(entry[1:])
        first: Request = pickle.loads(entry[1:]) if entry else Request(0, "", 0, 0)
        return converse(first, history(form), settings.context)

    if settings.token_header:
        make_body = calls.CODECS[context.api].body
        assert make_body is not None  # as for all APIs with sessions
        encoded = msgspec.structs.replace(
            encoded,
            decoder=lambda: TokenResponseDecoder(make_body(context.stream), settings.token_header),
            token_header=f"\r\n{settings.token_header}: ".encode(),
        )
    return msgspec.structs.replace(
        encoded,
        session=start,
        encode=calls.turn_encoder(context),
        content=calls.CODECS[context.api].content,
        session_header=f"\r\n{settings.header}: {context.tag}-".encode() if settings.header else b"",
        is_failure_final=settings.on_failure == "end",
    )
