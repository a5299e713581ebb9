"""The KV cache and its prefix cache."""

from hypothesis import given
from hypothesis import strategies as st

from inferometer.serve.sim.batch import Holding, KvCache, block_keys


def test_keys_cover_full_blocks_and_everything_before():
    keys = block_keys([1, 2, 3, 4, 5, 6, 7], 2)
    assert len(keys) == 3
    assert block_keys([1, 2, 3, 4], 2) == keys[:2]
    assert block_keys([9, 2, 3, 4], 2)[1] != keys[1]


def test_blocks_are_shared_only_once_computed():
    cache = KvCache(100, 2)
    keys = block_keys(range(10), 2)
    first = cache.admit(keys, 10)
    assert first is not None
    cache.publish(first, keys, 5)
    second = cache.admit(keys, 10)
    assert second is not None
    assert second.cached == 4


def test_the_least_recently_used_block_is_evicted_first():
    cache = KvCache(8, 2)
    old, new = block_keys([1, 2, 3, 4], 2), block_keys([5, 6, 7, 8], 2)
    for keys in (old, new):
        holding = cache.admit(keys, 4)
        assert holding is not None
        cache.publish(holding, keys, 4)
        cache.release(holding)
    assert len(cache.idle) == 4
    big = cache.admit((), 2)
    assert big is not None
    cache.release(big)
    third = cache.admit((*old, 0), 5)
    assert third is not None
    assert third.cached == 2  # its second block was evicted, its first is still there


@given(st.lists(st.tuples(st.sampled_from("agr"), st.integers(1, 30), st.integers(0, 2)), max_size=60))
def test_blocks_never_exceed_the_capacity(steps: list[tuple[str, int, int]]):
    cache = KvCache(64, 3)
    live: list[tuple[Holding, tuple[int, ...], int]] = []
    for what, size, family in steps:
        if what == "a":
            keys = block_keys([family * 100 + i for i in range(size)], 3)
            holding = cache.admit(keys, size)
            if holding is not None:
                cache.publish(holding, keys, size)
                live.append((holding, keys, size))
        elif live and what == "g":
            holding, keys, had = live.pop(0)
            grown = had + size if cache.grow(holding, had + size) else had
            live.append((holding, keys, grown))
        elif live:
            cache.release(live.pop(size % len(live))[0])
        assert cache.held + len(cache.idle) <= cache.capacity
        assert cache.held >= 0
        assert all(len(h.keyed) + h.private == -(-tokens // 3) for h, _, tokens in live)
    for holding, _, _ in live:
        cache.release(holding)
    assert cache.held == 0
