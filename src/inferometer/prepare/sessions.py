"""Encodes the later turns of sessions before t=0: as they are sent, if they do not depend on the responses."""

import pickle
from collections.abc import Sequence

from inferometer.apis import APIS
from inferometer.config.data.sessions import Sessions
from inferometer.store import known_turns
from inferometer.store.request_file import KNOWN, LIVE, NONE
from inferometer.types import Request, Turn, TurnResponse
from inferometer.wire import calls
from inferometer.wire.context import CallContext
from inferometer.wire.history import history
from inferometer.workload.session import converse

_UNUSED = TurnResponse("", -1, -1)


def encode_sessions(requests: Sequence[Request], settings: Sessions, context: CallContext) -> list[bytes]:
    """Encode the later turns of sessions, one entry for each first turn."""
    form, tail = APIS[context.api].history_form, calls.turn_encoder(context)

    def entry(request: Request) -> bytes:
        if not request.later:
            return NONE
        if not are_known(request.later, settings):
            return LIVE + pickle.dumps(request)
        session = converse(request, history(form))
        next(session)
        return KNOWN + known_turns.encode([session.send(_UNUSED) for _ in request.later], tail)

    return list(map(entry, requests))


def are_known(later: tuple[Turn, ...], settings: Sessions) -> bool:
    """Whether the prompts of all these turns are known before the run, whatever the server responds."""
    if all(turn.payload is not None for turn in later):
        return True
    has_responses = all(turn.payload is not None or turn.response is not None for turn in later)
    return has_responses and not settings.context and settings.on_failure == "end"
