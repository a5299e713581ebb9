"""Generated conversations: exact token counts, system prompts, lengths, reproducibility."""

from typing import Any

import msgspec
import pytest
import small_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import saved

from inferometer import workload
from inferometer.config.data import Conversation
from inferometer.config.fields import Seconds
from inferometer.types import Request, TurnResponse
from inferometer.wire.history import history, joined
from inferometer.workload import tokenizer
from inferometer.workload.session import converse

BUILTIN = tokenizer.load(None)


def prompts(request: Request, form: str, context: int = 0) -> list[Request]:
    """All turns of a session whose history is recorded."""
    session = converse(request, history(form), context)
    turns = [next(session)]
    while True:
        try:
            turns.append(session.send(TurnResponse("unused", -1, -1)))
        except StopIteration:
            return turns


def tokens(payload: Any, form: str, counter: tokenizer.Tokenizer = BUILTIN) -> int:
    if isinstance(payload, msgspec.Raw):
        payload = msgspec.json.decode(payload)
    texts = [message["content"] for message in payload] if isinstance(payload, list) else [payload]
    return sum(counter.count_batch(["".join(texts)] if form == "text" else texts))


def prompt_tokens(request: Request, form: str, counter: tokenizer.Tokenizer) -> int:
    """Tokens of a request as it is sent."""
    payload: Any = request.payload
    if isinstance(payload, list) and form == "text":
        payload = joined(payload)
    return tokens(payload, form, counter)


@pytest.mark.parametrize("name", small_tokenizers.NAMES)
@settings(max_examples=8)
@given(
    form=st.sampled_from(["messages", "text"]),
    system=st.sampled_from([0, 1, 40]),
    sizes=st.tuples(*[st.integers(2, 40)] * 2),
    seed=st.integers(0, 99),
)
def test_prompts_are_exact_with_any_tokenizer(
    name: str, form: Any, system: int, sizes: tuple[int, int], seed: int
) -> None:
    """Also with one whose tokens span words, so that the tokens of texts do not add up."""
    spec = Conversation(
        turns=4, system=system, input=sizes[0], output=sizes[1], history="recorded", prompt=form, tokenizer=saved(name)
    )
    for request in workload.build(spec, seed, range(3)):
        turns = prompts(request, form)
        assert [turn.n_in for turn in turns] == [system + sizes[0] + turn * sum(sizes) for turn in range(4)]
        counted = [prompt_tokens(turn, form, tokenizer.load(spec.tokenizer)) for turn in turns]
        assert counted == [turn.n_in for turn in turns]


@given(context=st.integers(60, 300), form=st.sampled_from(["messages", "text"]))
def test_prompts_never_exceed_the_context_and_keep_the_system_prompt(context: int, form: Any) -> None:
    spec = Conversation(turns=8, system=20, input=15, output=10, history="recorded", prompt=form)
    (request,) = workload.build(spec, 0, [7])
    found = prompts(request, form, context)
    for number, turn in enumerate(found):
        whole = 20 + 15 + number * 25
        fits = 20 + 15 + (context - 45) // 25 * 25
        assert turn.n_in == tokens(turn.payload, form) == min(whole, fits)
    messages: Any = request.payload
    last = msgspec.json.decode(found[-1].payload)
    assert (last[0]["content"] if form == "messages" else last).startswith(messages[0]["content"])


def test_reasoning_takes_no_room_in_the_context() -> None:
    """The history does not contain it."""
    (request,) = workload.build(Conversation(turns=3, input=10, output=100), 0, [0])
    for reasoning, turns in ((0, 1), (90, 2)):
        session = converse(request, history("messages"), 140)
        next(session)
        second = session.send(TurnResponse("hi", 10, 100, reasoning=reasoning))
        users = [each for each in msgspec.json.decode(second.payload) if each["role"] == "user"]  # type: ignore[arg-type]
        assert len(users) == turns


@pytest.mark.parametrize(("share", "different"), [(True, 1), (3, 3), (False, 6)])
def test_system_prompts_are_shared_as_configured(share: bool | int, different: int) -> None:
    spec = Conversation(turns=1, system=12, share_system=share)
    payloads: list[Any] = [request.payload for request in workload.build(spec, 0, range(6))]
    assert len({payload[0]["content"] for payload in payloads}) == different
    assert len({payload[1]["content"] for payload in payloads}) == 6


def test_a_conversation_depends_on_its_id_alone() -> None:
    spec = Conversation(turns=3, system=5, input=9, think=Seconds(0.5))
    everything = workload.build(spec, 4, range(20))
    assert workload.build(spec, 4, [17, 3]) == [everything[17], everything[3]]
    assert {turn.think for turn in everything[0].later} == {500_000_000}


def test_another_salt_changes_the_texts_and_not_the_digest() -> None:
    spec, salted = Conversation(), workload.salted(Conversation(), "abc")
    assert workload.build(spec, 0, [0]) != workload.build(salted, 0, [0])
    assert workload.digest(spec, 0) == workload.digest(salted, 0)
    assert workload.digest(spec, 0) != workload.digest(Conversation(turns=5), 0)


@pytest.mark.parametrize("kind", ["exponential", "lognormal"])
def test_think_time_varies_around_its_mean(kind: Any) -> None:
    spec = Conversation(turns=11, input=2, think=Seconds(0.2), think_distribution=kind)
    thinks = [turn.think for request in workload.build(spec, 0, range(200)) for turn in request.later]
    assert 0.18e9 < sum(thinks) / len(thinks) < 0.22e9
    assert len(set(thinks)) > 1900
