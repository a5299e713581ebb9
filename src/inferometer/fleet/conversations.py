"""Adds to the requests of a shard what sessions need while the run is in progress. Their later turns were stored before t=0."""

import pickle
from collections.abc import Callable

import msgspec

from inferometer.apis import APIS
from inferometer.engine.job import SessionRules
from inferometer.store import known_turns
from inferometer.store.request_file import KNOWN, MappedBytes
from inferometer.types import Calls, Session
from inferometer.wire import calls
from inferometer.wire.context import CallContext
from inferometer.wire.history import history


def with_sessions(
    encoded: Calls, entries: MappedBytes, are_live: bool, rules: SessionRules, context: CallContext
) -> Calls:
    """The same requests, as the first turns of sessions, whose later turns are in the `entries`. `are_live`: some of them depend on the
    responses."""
    live = _live(rules, context) if are_live else known_turns.run

    def start(index: int) -> Session:
        entries.prefault(index)
        entry = entries.view[entries.offsets[index] : entries.offsets[index + 1]]
        if not entry:
            return known_turns.single()
        return (known_turns.run if entry[:1] == KNOWN else live)(entry[1:])

    return msgspec.structs.replace(
        encoded,
        session=start,
        session_classes=rules.classes,
        encode=calls.turn_encoder(context),
        session_header=f"\r\n{rules.header}: {context.tag}-".encode() if rules.header else b"",
        token_header=rules.token_header,
        is_failure_final=rules.is_failure_final,
    )


def _live(rules: SessionRules, context: CallContext) -> Callable[[memoryview], Session]:
    """Return what starts a session whose prompts are made from the responses. Only such a shard imports the workload."""
    from inferometer.workload.session import converse  # noqa: PLC0415

    form = APIS[context.api].history_form
    return lambda entry: converse(pickle.loads(entry), history(form), rules.context)
