"""Generated texts have exactly the requested number of tokens, alone and joined, with every kind of tokenizer."""

import pytest
import small_tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferometer.workload import text
from inferometer.workload.tokenizer import Tokenizer, load

NAMES = ("builtin", *small_tokenizers.TOKENIZERS)
SOME = [name if number < 4 else pytest.param(name, marks=pytest.mark.slow) for number, name in enumerate(NAMES)]
"""All of them, the rarer ones in CI only."""
SPANNING = {"spanning", "unsplit_unigram"}

lengths = st.lists(st.integers(1, 400), min_size=1, max_size=8)
seeds = st.integers(0, 2**64)
first_keys = st.integers(0, 2**62)
salts = st.text(max_size=8)


def tokenizer_of(name: str) -> Tokenizer:
    return load(small_tokenizers.saved(name))


@pytest.mark.parametrize("name", NAMES)
def test_which_tokenizers_count_word_by_word(name: str) -> None:
    assert tokenizer_of(name).adds_up == (name not in SPANNING)


@pytest.mark.parametrize("name", SOME)
@settings(max_examples=20, deadline=None)
@given(lengths, seeds, first_keys, salts)
def test_texts_have_exactly_these_lengths(name: str, wanted: list[int], seed: int, key: int, salt: str) -> None:
    tokenizer = tokenizer_of(name)
    keys = range(key, key + len(wanted))
    made = text.texts(tokenizer, wanted, seed, keys, salt=salt)
    assert tokenizer.count_batch(made) == wanted
    assert [len(tokenizer.encode(each)) for each in made] == wanted
    assert made == [text.texts(tokenizer, [n], seed, [k], salt=salt)[0] for n, k in zip(wanted, keys, strict=True)]


@pytest.mark.parametrize("name", SOME)
@settings(max_examples=20, deadline=None)
@given(lengths, seeds, first_keys, salts)
@example([1], 1, 0, "")  # with some tokenizers this is a text without a space
def test_a_continuing_text_adds_exactly_its_length(
    name: str, wanted: list[int], seed: int, key: int, salt: str
) -> None:
    tokenizer = tokenizer_of(name)
    keys = range(key, key + len(wanted))
    start = text.texts(tokenizer, wanted, seed, keys, salt=salt, purpose="prefix")
    added = wanted[::-1]
    made = text.texts(tokenizer, added, seed, keys, purpose="question", continues=True)
    made = text.fit(tokenizer, start, made, added)
    for before, own, n, more in zip(start, made, wanted, added, strict=True):
        ids = tokenizer.encode(before + own)
        assert len(ids) == n + more
        assert ids[:n] == tokenizer.encode(before)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_one_chain_have_the_same_tokens_in_every_prompt(name: str) -> None:
    tokenizer = tokenizer_of(name)
    made = ["", ""]
    for block, keys in enumerate([(0, 0), (1, 1), (2, 7), (3, 8)]):
        parts = text.texts(tokenizer, [16, 16], 0, keys, purpose="block", continues=block > 0)
        made = [
            a + b for a, b in zip(made, text.fit(tokenizer, made, parts, [16, 16]) if block else parts, strict=True)
        ]
    one, other = tokenizer.encode_batch(made)
    assert len(one) == len(other) == 64
    assert one[:32] == other[:32]
    assert one[32:48] != other[32:48]
