"""Synthetic prompts have an exact number of tokens with any tokenizer, all differ, and depend on (seed, id) alone."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import small_tokenizers
from tokenizers import Regex, Tokenizer, models, normalizers

from inferometer import workload
from inferometer.config.data import Synthetic
from inferometer.errors import UserError
from inferometer.workload.text import texts as texts_of
from inferometer.workload.tokenizer import Tokenizer as Counter
from inferometer.workload.tokenizer import load


def prompts(tokenizer: Counter, n: int, seed: int, ids: Sequence[int]) -> list[str]:
    return texts_of(tokenizer, [n] * len(ids), seed, ids)


@pytest.fixture(scope="module")
def saved() -> Callable[[str], str | None]:
    return small_tokenizers.saved


@pytest.mark.parametrize("name", small_tokenizers.NAMES)
def test_prompts_have_exactly_n_tokens(saved: Callable[[str], str | None], name: str) -> None:
    tokenizer = load(saved(name))
    for n in (1, 2, 3, 5, 17, 64, 256, 1000):
        texts = prompts(tokenizer, n, 7, range(20))
        assert tokenizer.count_batch(texts) == [n] * 20
        assert all(text == text.strip() and json.loads(json.dumps(text)) == text for text in texts)


def test_a_prompt_may_be_longer_than_the_corpus() -> None:
    assert load().count(prompts(load(), 150_000, 0, [3])[0]) == 150_000


@pytest.mark.parametrize("name", small_tokenizers.NAMES)
def test_a_request_does_not_depend_on_the_others_that_are_built(saved: Callable[[str], str | None], name: str) -> None:
    spec = Synthetic(input=40, output=9, tokenizer=saved(name))
    whole = workload.build(spec, 3, range(10))
    assert workload.build(spec, 3, [5])[0] == whole[5]
    assert workload.build(spec, 3, range(1, 10, 3)) == whole[1::3]
    assert [(request.id, request.n_in, request.n_out) for request in whole] == [(i, 40, 9) for i in range(10)]


def test_prompts_differ_in_their_first_tokens() -> None:
    encoded = [load().encode(text) for text in prompts(load(), 32, 0, range(5_000))]
    assert len({tuple(ids[:3]) for ids in encoded}) == len(encoded)
    assert len({ids[0] for ids in encoded[:500]}) == 500
    assert len({tuple(ids[3:]) for ids in encoded}) > 2_000


@pytest.mark.parametrize("name", ["byte_level", "word_piece", "unigram"])
def test_prompts_differ_in_their_first_words_with_other_tokenizers(
    saved: Callable[[str], str | None], name: str
) -> None:
    texts = prompts(load(saved(name)), 8, 0, range(2_000))
    assert len({tuple(text.split(" ")[:3]) for text in texts}) == len(texts)


def test_other_seeds_and_ids_give_other_prompts() -> None:
    one, other = (prompts(load(), 32, seed, range(200)) for seed in (1, 2))
    assert not set(one) & set(other)
    ids = [*range(100), *range(1 << 32, (1 << 32) + 100), *range(2 << 32, (2 << 32) + 100)]
    assert len({tuple(load().encode(text)[:3]) for text in prompts(load(), 3, 0, ids)}) == 300
    assert prompts(load(), 5, 0, []) == []


def test_a_tokenizer_without_english_tokens_is_an_error(tmp_path: Path) -> None:
    Tokenizer(models.BPE(vocab={"雪": 0}, merges=[])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"finds no tokens in English text \(use another data\.tokenizer"):
        workload.build(Synthetic(input=5, tokenizer=str(tmp_path)), 0, [0])


@pytest.mark.slow
def test_an_impossible_number_of_tokens_is_an_error(tmp_path: Path) -> None:
    # Every character becomes two tokens, so odd numbers are impossible.
    two_per_character = Tokenizer(models.BPE(vocab={"x": 0}, merges=[]))
    two_per_character.normalizer = normalizers.Replace(Regex("."), "xx")
    two_per_character.save(str(tmp_path / "tokenizer.json"))
    assert (
        load(str(tmp_path)).count(workload.build(Synthetic(input=6, tokenizer=str(tmp_path)), 0, [0])[0].payload) == 6
    )
    with pytest.raises(UserError, match=r"cannot make a prompt of exactly 5 tokens .*\(change data\.input"):
        workload.build(Synthetic(input=5, tokenizer=str(tmp_path)), 0, [0])
