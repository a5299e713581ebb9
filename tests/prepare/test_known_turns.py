"""Later turns that are encoded before the run: the same bytes as those of turns that are made during the run."""

from pathlib import Path
from typing import Any

import pytest
from helpers import jobs_of

from inferometer import workload
from inferometer.config import from_mapping
from inferometer.config.data import Conversation
from inferometer.config.data.sessions import Sessions
from inferometer.config.fields import Seconds
from inferometer.fleet.runner import requests_of
from inferometer.prepare.requests import are_known, encode_sessions
from inferometer.store import known_turns
from inferometer.store.request_file import KNOWN
from inferometer.types import Request, Session, Turn, TurnResponse
from inferometer.wire import calls
from inferometer.wire.context import CallContext
from inferometer.wire.history import history
from inferometer.wire.target import parse
from inferometer.workload.session import converse

CONTEXTS = {
    "chat": CallContext(api="chat", model="m", targets=(parse("http://127.0.0.1:1"),), tag="ab"),
    "completions": CallContext(api="completions", model="m", targets=(parse("http://127.0.0.1:1"),), tag="ab"),
}
FORMS = {"chat": "messages", "completions": "text"}


def rest(session: Session) -> list[Request]:
    """The turns after the first."""
    next(session)
    turns = []
    while True:
        try:
            turns.append(session.send(TurnResponse("live", 7, 7)))
        except StopIteration:
            return turns


def said(text: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": text}]


SESSIONS = {
    "recorded": workload.build(Conversation(turns=5, system=9, history="recorded", think=Seconds(0.5)), 0, [3])[0],
    "prompts that grow": Request(
        0, "one", 1, 5, later=tuple(Turn([], n, n + 1, payload=" ".join(["one"] * n)) for n in (2, 3, 4))
    ),
    "other prompts": Request(
        0,
        "one",
        1,
        5,
        later=tuple(Turn([], 1, 1, n, payload=said(text)) for n, text in enumerate(("é", "b", "bc", ""))),
    ),
    "both": Request(0, "one", 1, 5, later=(Turn([], 2, 3, payload="x"), Turn(said("y"), 1, 2, 4, "z", 1))),
    "token ids": Request(0, [5, 6], 2, 5, later=(Turn([], 3, 3, payload=[5, 6, 7]), Turn([], 1, 3, payload=[1]))),
}


@pytest.mark.parametrize("api", CONTEXTS)
@pytest.mark.parametrize("name", SESSIONS)
def test_known_turns_are_the_turns_that_a_run_would_make(api: str, name: str) -> None:
    request, encode = SESSIONS[name], calls.turn_encoder(CONTEXTS[api])
    assert are_known(request.later, Sessions())
    (entry,) = encode_sessions([request], Sessions(), CONTEXTS[api])
    assert entry[:1] == KNOWN
    expected = rest(converse(request, history(FORMS[api])))
    turns = rest(known_turns.run(memoryview(entry)[1:]))
    assert [turn.payload for turn in turns] == [encode(turn) for turn in expected]
    assert [(turn.n_in, turn.n_out, turn.think) for turn in turns] == [
        (turn.n_in, turn.n_out, turn.think) for turn in expected
    ]


def test_what_depends_on_responses_is_not_known() -> None:
    live = workload.build(Conversation(turns=3), 0, [0])[0].later
    recorded, prompts = SESSIONS["recorded"].later, SESSIONS["other prompts"].later
    limited, continuing = Sessions(context=1000), Sessions(on_failure="continue")
    known = [[are_known(later, each) for each in (Sessions(), limited, continuing)]
             for later in (live, recorded, prompts)]  # fmt: skip
    assert known == [[False] * 3, [True, False, False], [True] * 3]


@pytest.mark.parametrize("how", ["live", "recorded"])
def test_prepared_sessions_run_from_the_file(tmp_path: Path, how: Any) -> None:
    data = {"type": "conversation", "turns": 30, "input": 50, "output": 50, "history": how}
    load = {"type": "closed", "concurrency": 1, "requests": 20}
    config = from_mapping({"server": {"url": "http://127.0.0.1:1", "model": "m"}, "data": data, "load": load})
    with jobs_of(config, tmp_path) as (job,):
        prepared = requests_of(job)
    assert prepared.session is not None and prepared.encode is not None
    first = next(prepared.session(4))
    assert len(first.later) == 29
    turns = rest(prepared.session(4))
    assert {isinstance(turn.payload, bytes) for turn in turns} == {how == "recorded"}


def test_the_size_of_a_session_is_about_that_of_its_last_prompt() -> None:
    (request,) = workload.build(Conversation(turns=40, input=100, output=100, history="recorded"), 0, [0])
    (entry,) = encode_sessions([request], Sessions(), CONTEXTS["chat"])
    last = rest(known_turns.run(memoryview(entry)[1:]))[-1]
    assert isinstance(last.payload, bytes)
    assert len(entry) < 1.5 * len(last.payload)
