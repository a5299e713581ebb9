"""Token counts equal the tokenizer's, and each word of a response is one token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.serve.sim.prompts import LONGEST_TOKEN, Prompts, Slow, response_words, text
from inferometer.workload.tokenizer import load, words


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts()


@given(st.text(alphabet=st.sampled_from(list("ab'sS1 \n\t.-é\u00a0\u2003漢")), max_size=40) | st.text(max_size=40))
def test_piecewise_tokenizing_matches_the_tokenizer(prompts: Prompts, prompt: str):
    assert prompts.ids((prompt,)) == load().encode(prompt)
    assert prompts.count((prompt,)) == load().count(prompt)
    assert prompts.slow_ids(([5, 6], prompt)) == [5, 6, *load().encode(prompt)]


@pytest.mark.parametrize(
    "prompt",
    [
        " the" * 20_000,
        "the  end " * 1000,
        "x" * 10_000,
        "the\n" * 3000,
        " ".join(f"{n:x}" for n in range(10**5, 10**5 + 2000)),
    ],
    ids=["long", "irregular", "without a space", "lines", "many new words"],
)
def test_a_prompt_that_would_delay_streams_is_left_to_a_thread(prompts: Prompts, prompt: str):
    for parts in ((prompt,), (prompt[:100], prompt[100:])):
        for tokens in (prompts.count, prompts.ids):
            with pytest.raises(Slow):
                tokens(parts)
        assert prompts.slow_ids(parts) == [token for part in parts for token in load().encode(part)]
    assert prompts.count((" the the",)) == 2


def test_no_token_is_longer_than_the_longest():
    ordinary = load().ordinary_ids()
    assert max(len(load().decode([token]).encode()) for token in ordinary) == LONGEST_TOKEN


@given(st.integers(0, 10**6), st.integers(1, 8000))
def test_every_word_is_one_token(at: int, count: int):
    made = text(_WORDS, at, count).decode()
    assert made.count(" ") == count
    if count < 300:
        assert load().count(made) == count


def test_the_words_repeat():
    n = len(words())
    assert text(_WORDS, n - 1, 2) == text(_WORDS, n - 1, 1) + text(_WORDS, 0, 1)
    assert text(_WORDS, 5, 2 * n + 3) == text(_WORDS, 5, n) * 2 + text(_WORDS, 5, 3)


_WORDS = response_words()
