"""Caches of what clients send again and again have a bounded size."""

from inferometer.serve.bounded_cache import BoundedCache


def test_a_full_cache_starts_again() -> None:
    cache: BoundedCache[int, str] = BoundedCache(2)
    assert [cache.keep(number, str(number)) for number in range(3)] == ["0", "1", "2"]
    assert cache == {2: "2"}
