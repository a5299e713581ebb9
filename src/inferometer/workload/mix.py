"""Traffic classes: requests of several kinds in one run, each class with its share of them.

The class of a request depends on (weights, seed, id) alone. Ids are divided into blocks of 64. How many requests of a block
belong to each class follows from the weights: at the end of each block, the counts since the first id are off by less than the
number of classes. Which requests of a block they are is random, so that classes do not keep step with users, URLs or client processes.

The nth request of a class has the content of request n of the class's data, so each class goes through the rows of a file in
order, as it would alone. The seed of its data depends on its name: two classes with the same data send different requests.
"""

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import workload
from inferometer.config.data import Images, Mix, Tensors, TrafficClass
from inferometer.config.data.mix import Unmixed
from inferometer.errors import UserError
from inferometer.random_numbers import random_bits
from inferometer.types import NO_OPTIONS, Request, RequestOptions

BuildClass = Callable[[Unmixed, int, Sequence[int]], list[Request]]
"""(data, seed, numbers) -> the requests of a class with these numbers, counted from 0 within the class."""

BLOCK = 64
_MAX_TOTAL = 1 << 20
"""Weights are whole numbers with at most this sum: multiplied by an id, they fit into 64 bits."""


def build(spec: Mix, seed: int, ids: Sequence[int]) -> list[Request]:
    return compose(spec, seed, ids, workload.build)


def compose(spec: Mix, seed: int, ids: Sequence[int], build_class: BuildClass) -> list[Request]:
    """Build the requests with these ids; `build_class` builds those of a class from its data."""
    classes, ranks = assign(spec, seed, ids)
    requests: list[Request | None] = [None] * len(ids)
    for index, class_ in enumerate(spec.classes):
        own = np.flatnonzero(classes == index).tolist()
        with class_named(index, class_):
            made = build_class(class_.data, seed_of(class_, seed), ranks[own].tolist()) if own else []
        options = RequestOptions(model=class_.model or "", body=class_.body)
        for at, request in zip(own, made, strict=True):
            requests[at] = msgspec.structs.replace(
                request, id=ids[at], class_=index, options=_merged(request.options, options)
            )
    return [request for request in requests if request is not None]


def _merged(own: RequestOptions, of_class: RequestOptions) -> RequestOptions:
    """The options of a class's request: what the class says overrides what its data says."""
    if own is NO_OPTIONS:
        return of_class
    return RequestOptions(of_class.model or own.model, own.headers, own.body | of_class.body)


def distinct(spec: Mix) -> int | None:
    """None for text: every id has its own request. Tensors may be large, so the mix repeats after each class has sent all of its own."""
    if not all(isinstance(class_.data, Tensors | Images) for class_ in spec.classes):
        return None
    weights = _whole_weights(spec)
    counts = [_distinct(*each) for each in enumerate(spec.classes)]
    if None in counts:
        return None
    longest = max(-(-(count or 1) * sum(weights) // weight) for count, weight in zip(counts, weights, strict=True))
    return -(-longest // BLOCK) * BLOCK


def content(spec: Mix) -> bytes:
    """The content of all classes."""
    parts = (workload.KINDS[type(class_.data)].content(class_.data) for class_ in spec.classes)
    return b"".join(hashlib.sha256(part).digest() for part in parts)


def has_sessions(spec: Mix) -> bool:
    return any(_has_sessions(*each) for each in enumerate(spec.classes))


def _distinct(index: int, class_: TrafficClass) -> int | None:
    with class_named(index, class_):
        return workload.distinct(class_.data)


def _has_sessions(index: int, class_: TrafficClass) -> bool:
    with class_named(index, class_):
        return workload.has_sessions(class_.data)


@contextlib.contextmanager
def class_named(index: int, class_: TrafficClass) -> Iterator[None]:
    """Let errors of the block, which are about the data of a class, say which class it is."""
    try:
        yield
    except UserError as error:
        if error.key.startswith("data"):
            error.key = f"data.classes.{index}.{error.key}"
        else:
            error.what = f"class {class_.name}: {error.what}"
        raise


def seed_of(class_: TrafficClass, seed: int) -> int:
    """The seed of a class's data."""
    return int.from_bytes(hashlib.sha256(f"{seed} class {class_.name}".encode()).digest()[:6], "little")


# --- the class of a request ------------------------------------------------------------------------------------------


def assign(spec: Mix, seed: int, ids: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each id, its class, and how many requests of that class have smaller ids."""
    all_ids = np.asarray(ids, np.int64)
    blocks, of_id = np.unique(all_ids // BLOCK, return_inverse=True)
    first = blocks[:, None] * BLOCK
    bounds = _counts(_whole_weights(spec), first + np.arange(BLOCK + 1))
    planned = np.argmax(np.diff(bounds, axis=2) > 0, axis=0)  # the classes of each block, in regular order
    slots = (first + np.arange(BLOCK)).astype(np.uint64)
    order = np.argsort(random_bits(seed, slots, "traffic class"), axis=1, kind="stable")
    classes = np.take_along_axis(planned, order, axis=1)
    ranks = np.empty_like(classes)
    for index, before in enumerate(bounds[:, :, 0]):
        is_own = classes == index
        ranks[is_own] = (before[:, None] + np.cumsum(is_own, axis=1) - 1)[is_own]
    at = of_id, all_ids % BLOCK
    return classes[at], ranks[at]


def _counts(weights: Sequence[int], n: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the first n requests belong to each class.

    The first class gets its share of n, rounded down; the next one gets its share of what is left, and so on. From n to
    n + 1, exactly one of these numbers grows, by 1.
    """
    counts, left, total = [], n, sum(weights)
    for weight in weights:
        counts.append(left * weight // total)
        left = left - counts[-1]
        total -= weight
    return np.array(counts)


def _whole_weights(spec: Mix) -> list[int]:
    """The weights as whole numbers in the same proportions; beyond _MAX_TOTAL, in nearly the same."""
    weights = [Fraction(str(class_.weight)) for class_ in spec.classes]
    common = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * common) for weight in weights]
    divisor = math.gcd(*whole)
    whole = [weight // divisor for weight in whole]
    total = sum(whole)
    return whole if total <= _MAX_TOTAL else [max(weight * (_MAX_TOTAL - len(whole)) // total, 1) for weight in whole]
