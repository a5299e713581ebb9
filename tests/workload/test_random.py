"""Random prompts: exact numbers of tokens, nothing in common, no special tokens; and prompts that are sent as token ids."""

import json

import pytest
import small_tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import workload
from inferometer.config import load as configs
from inferometer.config.data import Random, Synthetic
from inferometer.errors import UserError
from inferometer.types import Request
from inferometer.wire import embeddings, openai
from inferometer.wire.context import CallContext
from inferometer.wire.target import parse
from inferometer.workload import text
from inferometer.workload.tokenizer import load

NAMES = small_tokenizers.NAMES
SPECIAL = {"word_piece": 4, "unigram": 1, "spanning": 1, "byte_fallback": 259, "regular_expression": 2}
"""The first ids, which are special tokens."""


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(0, 2**64), st.integers(0, 2**62))
def test_random_words_have_exactly_these_lengths(name: str, wanted: list[int], seed: int, key: int) -> None:
    tokenizer = load(small_tokenizers.saved(name))
    keys = range(key, key + len(wanted))
    made = text.random_words(tokenizer, wanted, seed, keys, salt="s")
    assert tokenizer.count_batch(made) == wanted
    assert made[-1:] == text.random_words(tokenizer, wanted[-1:], seed, keys[-1:], salt="s")


@pytest.mark.parametrize("name", NAMES)
def test_random_ids_are_ordinary_tokens(name: str) -> None:
    tokenizer = load(small_tokenizers.saved(name))
    spec = Random(input=100, of="ids", tokenizer=small_tokenizers.saved(name))
    requests = workload.build(spec, 0, range(20))
    special = set(range(SPECIAL.get(name, 0)))
    for request in requests:
        assert isinstance(request.payload, list)
        assert len(request.payload) == request.n_in == 100
        assert set(request.payload) <= set(tokenizer.ordinary_ids()) - special
    assert workload.build(spec, 0, [7]) == requests[7:8]


@pytest.mark.parametrize("of", ["words", "ids"])
def test_random_prompts_have_nothing_in_common(of: str) -> None:
    requests = workload.build(Random(input=64, of=of), 0, range(500))  # type: ignore[arg-type]
    parts = [r.payload.split(" ") if isinstance(r.payload, str) else list(r.payload) for r in requests]
    assert len({tuple(part[:4]) for part in parts}) == 500
    other = workload.build(Random(input=64, of=of, salt="other"), 0, range(500))  # type: ignore[arg-type]
    assert not {str(r.payload) for r in requests} & {str(r.payload) for r in other}


@pytest.mark.parametrize("name", NAMES)
def test_synthetic_prompts_as_ids_are_those_of_the_text(name: str) -> None:
    tokenizer = small_tokenizers.saved(name)
    as_text = workload.build(Synthetic(input=50, tokenizer=tokenizer), 0, range(5))
    as_ids = workload.build(Synthetic(input=50, tokenizer=tokenizer, prompt_as="ids"), 0, range(5))
    for ids, prompt in zip(as_ids, as_text, strict=True):
        assert ids.payload == load(tokenizer).encode(str(prompt.payload))
        assert isinstance(ids.payload, list) and len(ids.payload) == ids.n_in == 50


def test_ids_are_sent_as_a_list_of_numbers() -> None:
    request = Request(0, [5, 6, 7], 3, 1)
    context = CallContext(api="completions", model="m", targets=(parse("http://h:1"),), tag="tag")
    assert json.loads(openai.completion_body(context, request))["prompt"] == [5, 6, 7]
    assert json.loads(embeddings.request_body(context, request))["input"] == [5, 6, 7]


@pytest.mark.parametrize("data", [{"type": "random", "of": "ids"}, {"prompt_as": "ids"}])
def test_an_api_without_token_ids_is_an_error(data: dict[str, str]) -> None:
    for api in ("chat", "generate"):
        with pytest.raises(UserError, match=rf"data\.(of|prompt_as): {api} requests cannot contain token ids"):
            configs.from_mapping({"server": {"url": "http://h:1", "api": api}, "data": data})
    for api in ("completions", "embeddings"):
        configs.from_mapping({"server": {"url": "http://h:1", "api": api}, "data": data})
