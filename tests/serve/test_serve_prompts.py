"""Token counts equal the tokenizer's, and each word of a response is one token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.serve.sim.prompts import Prompts, Words
from inferometer.workload.tokenizer import load, prose, words


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts()


@given(st.text(alphabet=st.sampled_from(list("ab'sS1 \n\t.-é\u00a0\u2003漢")), max_size=40) | st.text(max_size=40))
def test_piecewise_tokenizing_matches_the_tokenizer(prompts: Prompts, text: str):
    assert prompts.ids([text]) == load().encode(text)
    assert prompts.count([text]) == load().count(text)


def test_prose_is_counted_exactly(prompts: Prompts):
    text = prose()[:20_000]
    assert prompts.ids([text]) == load().encode(text)


def test_several_texts_add_up(prompts: Prompts):
    assert prompts.count(["one two", " three"]) == load().count("one two") + 1


@given(st.integers(0, 10**6), st.integers(1, 8000))
def test_every_word_is_one_token(at: int, count: int):
    text = _WORDS.text(at, count).decode()
    assert text.count(" ") == count
    if count < 300:
        assert load().count(text) == count


def test_the_words_repeat():
    n = len(words())
    assert _WORDS.text(n - 1, 2) == _WORDS.text(n - 1, 1) + _WORDS.text(0, 1)
    assert _WORDS.text(5, 2 * n + 3) == _WORDS.text(5, n) * 2 + _WORDS.text(5, 3)


_WORDS = Words()
