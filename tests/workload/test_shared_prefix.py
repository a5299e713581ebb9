"""Prompts of a group start with the same tokens; groups, questions and lengths are drawn as the config says."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import shared_prefixes as prefixes
import small_tokenizers
from scipy import stats

from inferometer import workload
from inferometer.config import from_mapping
from inferometer.config.data import PrefixTier, SharedPrefix
from inferometer.config.lengths import LogNormal, PoissonLength, Uniform
from inferometer.errors import UserError
from inferometer.types import Request
from inferometer.workload.tokenizer import load


def built(n: int, seed: int = 1, **settings: Any) -> list[Request]:
    return workload.build(SharedPrefix(**settings), seed, range(n))


def tokens(requests: list[Request], tokenizer: str | None = None) -> list[list[int]]:
    return [prefixes.token_ids(load(tokenizer), request) for request in requests]


def starts(requests: list[Request], n: int) -> Counter[tuple[int, ...]]:
    """How many requests start with the same n tokens."""
    return Counter(tuple(ids[:n]) for ids in tokens(requests))


# --- exact lengths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_as", ["system", "text"])
@pytest.mark.parametrize("name", small_tokenizers.NAMES)
def test_prefix_and_question_have_exactly_their_numbers_of_tokens(name: str, prefix_as: str) -> None:
    tokenizer = small_tokenizers.saved(name)
    tiers = [PrefixTier(groups=1, length=20), PrefixTier(groups=2, length=Uniform(5, 12))]
    requests = built(40, groups=4, prompts=5, prefix=PoissonLength(mean=30), tiers=tiers, question=Uniform(3, 20), prefix_as=prefix_as, tokenizer=tokenizer)  # fmt: skip
    ids = tokens(requests, tokenizer)
    assert [len(row) for row in ids] == [request.n_in for request in requests]
    assert len({tuple(row[:20]) for row in ids}) == 1
    assert len({tuple(row[:25]) for row in ids}) == 2


def test_a_request_does_not_depend_on_the_others_that_are_built() -> None:
    for settings in ({}, {"popularity": "zipf"}, {"hit": 0.5}, {"popularity": "round_robin", "prompts": 0}):
        spec = SharedPrefix(question=Uniform(3, 9), output=LogNormal(mean=50, std=20), **settings)  # type: ignore[arg-type]
        whole = workload.build(spec, 5, range(12))
        assert workload.build(spec, 5, [7]) == whole[7:8]
        assert workload.build(spec, 5, range(1, 12, 3)) == whole[1::3]


def test_a_prefix_is_the_system_message_of_a_chat_and_part_of_the_text_otherwise() -> None:
    def first(api: str, **data: Any) -> Any:
        tree = {"server": {"url": "http://127.0.0.1:1", "api": api}, "data": {"type": "shared_prefix"} | data}
        return workload.build(from_mapping(tree).data, 0, [0])[0].payload

    chat = first("chat")
    assert [message["role"] for message in chat] == ["system", "user"]
    assert isinstance(first("completions"), str)
    assert first("chat", prefix_as="text").startswith(chat[0]["content"])
    with pytest.raises(UserError, match=r"data\.prefix_as: completions has no system message"):
        first("completions", prefix_as="system")


def test_the_salt_changes_the_first_words_of_every_prefix() -> None:
    one, other = (built(64, groups=8, salt=salt, prefix_as="text") for salt in ("a", "b"))
    assert not set(starts(one, 3)) & set(starts(other, 3))
    assert [request.n_in for request in one] == [request.n_in for request in other]


# --- groups and questions ------------------------------------------------------------------------------------------------


def test_every_prompt_is_used_once_before_prompts_repeat() -> None:
    requests = built(128 + 10, groups=8, prompts=16, prefix=30, question=10)
    assert workload.distinct(SharedPrefix(groups=8, prompts=16)) == 128
    assert len({str(request.payload) for request in requests[:128]}) == 128
    assert [request.payload for request in requests[128:]] == [request.payload for request in requests[:10]]
    assert set(starts(requests[:128], 30).values()) == {16}
    assert starts(requests[:8], 30).most_common(1)[0][1] > 1  # in random order
    requests = built(24, groups=4, prompts=3, prefix=30, popularity="round_robin")
    own = [tuple(ids[:30]) for ids in tokens(requests)]
    assert own == own[:4] * 6
    assert [request.payload for request in requests[:12]] == [request.payload for request in requests[12:]]
    assert len({str(request.payload) for request in requests}) == 12


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.7])
def test_popularity_is_zipfs(exponent: float) -> None:
    requests = built(8000, groups=12, prompts=0, prefix=3, question=1, popularity="zipf", exponent=exponent)
    by_group = starts(requests, 3)
    weights = np.arange(1, 13) ** -exponent
    observed = sorted(by_group.values(), reverse=True)
    assert stats.chisquare(observed, 8000 * weights / weights.sum()).pvalue > 1e-3


def test_every_request_may_have_a_question_of_its_own() -> None:
    for popularity in ("uniform", "round_robin", "zipf"):
        requests = built(500, groups=3, prompts=0, prefix=20, question=5, popularity=popularity)
        assert len({str(request.payload) for request in requests}) == 500
        assert len(starts(requests, 20)) == 3
    assert workload.distinct(SharedPrefix(prompts=0)) is None
    assert workload.distinct(SharedPrefix(popularity="zipf")) is None


def test_tiers_are_nested() -> None:
    tiers = [PrefixTier(groups=2, length=10), PrefixTier(groups=3, length=7)]
    requests = built(60, groups=6, prompts=0, prefix=5, tiers=tiers, popularity="round_robin")
    ids = tokens(requests)
    for n, count in ((10, 2), (17, 3), (22, 6)):
        assert len({tuple(row[:n]) for row in ids}) == count
    assert {request.n_in for request in requests} == {10 + 7 + 5 + 64}
    own = [(tuple(row[:10]), tuple(row[10:17]), tuple(row[17:22])) for row in ids[:6]]
    assert [own[i][1] == own[i + 3][1] for i in range(3)] == [True] * 3  # group i has text i modulo 3 ...
    assert own[0][0] == own[2][0] == own[3][0] != own[1][0]  # ... and that one continues text 0, 1, 0


# --- the requested share of hits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hit", "settings"),
    [
        (0.3, {}),
        (0.6, {"popularity": "zipf"}),
        (0.8, {"prefix": LogNormal(mean=90, std=30), "question": PoissonLength(mean=12)}),
        (0.5, {"tiers": [PrefixTier(groups=2, length=20)], "popularity": "round_robin"}),
        (0.0, {}),
    ],
)
def test_the_requested_share_of_tokens_can_be_cached(hit: float, settings: dict[str, Any]) -> None:
    requests = built(600, groups=4, hit=hit, **{"prefix": 60, "question": 9} | settings)
    ids = tokens(requests)
    promised = prefixes.promised_hits(ids, 1)
    assert promised[100:].sum() / sum(map(len, ids[100:])) == pytest.approx(hit, abs=0.02)
    assert workload.distinct(SharedPrefix(hit=hit)) is None


def test_more_hits_than_prefixes_are_an_error() -> None:
    with pytest.raises(UserError, match=r"0\.95 of the prompt tokens cannot be shared: prefixes are 0\.889 of them.*at most 0\.888"):  # fmt: skip
        built(10, hit=0.95)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"hit": 1.5}, r"data\.hit: must be at most 1"),
        ({"hit": 0.5, "prompts": 16}, r"data\.prompts: prompts that repeat are cached as a whole"),
        ({"popularity": "zip"}, r"data\.popularity: there is no 'zip' \(did you mean zipf\? it takes uniform"),
        ({"groups": 4, "tiers": [{"groups": 5, "length": 9}]}, r"data\.tiers\.0\.groups: 5 texts are more than the 4"),
        ({"tiers": [{"groups": 2, "length": {"type": "uniform", "min": 9, "max": 3}}]}, r"data\.tiers\.0\.length\.max: must be at least"),
        ({"tiers": [{"groups": 2}]}, r"data\.tiers\.0\.length: missing"),
        ({"prompts": -1}, r"data\.prompts: must be at least 0"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_an_error(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_mapping({"server": {"url": "http://127.0.0.1:1"}, "data": {"type": "shared_prefix"} | data})


# --- what a cache provides -----------------------------------------------------------------------------------------------


def test_what_a_cache_of_whole_blocks_provides() -> None:
    prompts = ["aaaabbbbcc", "aaaabbbbcc", "aaaabbxx", "xaaabbbb", "aaaabbbb", "aaa", "aaa"]
    assert prefixes.promised_hits(prompts, 4).tolist() == [0, 8, 4, 0, 4, 0, 0]  # the last token is always computed
    assert prefixes.promised_hits(prompts, 1).tolist() == [0, 9, 6, 0, 7, 2, 2]
    assert prefixes.promised_hits(["aabbccx", "zzbbccx"], 2).tolist() == [0, 0]
    sent, ready = [0, 1, 6, 7, 10], [5, 6, 11, 9, 12]
    assert prefixes.promised_hits(["aab"] * 5, 2, sent=sent, ready=ready).tolist() == [0, 0, 2, 2, 2]
