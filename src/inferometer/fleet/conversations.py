"""Adds to a shard's requests what their sessions need while the run is in progress."""

from collections.abc import Callable

import msgspec

from inferometer.apis import APIS
from inferometer.config.data.sessions import Sessions
from inferometer.types import Calls, Request, Session
from inferometer.wire import calls
from inferometer.wire.context import CallContext
from inferometer.wire.history import history
from inferometer.workload.session import converse


def with_sessions(encoded: Calls, first: Callable[[int], Request], settings: Sessions, context: CallContext) -> Calls:
    """The same requests, as the first turns of sessions. `first` returns the request with an index, with its later turns."""
    form = APIS[context.api].history

    def start(index: int) -> Session:
        return converse(first(index), history(form), settings.context)

    return msgspec.structs.replace(
        encoded,
        session=start,
        encode=calls.turn_encoder(context),
        session_header=f"\r\n{settings.header}: {context.tag}-".encode() if settings.header else b"",
        is_failure_final=settings.on_failure == "end",
    )
