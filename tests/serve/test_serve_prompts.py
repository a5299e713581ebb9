"""Token counts equal the tokenizer's, and each word of a response is one token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.serve.sim.prompts import Prompts, response_words, text
from inferometer.workload.tokenizer import load, prose, words


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts()


@given(st.text(alphabet=st.sampled_from(list("ab'sS1 \n\t.-é\u00a0\u2003漢")), max_size=40) | st.text(max_size=40))
def test_piecewise_tokenizing_matches_the_tokenizer(prompts: Prompts, prompt: str):
    assert prompts.ids((prompt,)) == load().encode(prompt)
    assert prompts.count((prompt,)) == load().count(prompt)


def test_prose_is_counted_exactly(prompts: Prompts):
    prompt = prose()[:20_000]
    assert prompts.ids((prompt,)) == load().encode(prompt)


def test_several_texts_add_up(prompts: Prompts):
    assert prompts.count(("one two", " three")) == load().count("one two") + 1


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
