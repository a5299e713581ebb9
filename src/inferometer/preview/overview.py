"""The figures of a workload, computed from its requests as a run would build them, in blocks and in bounded memory."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import schedule, workload
from inferometer.apis import APIS
from inferometer.config.data import Data, Images, Mix, Tensors
from inferometer.config.loads import Replay
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.preview.prefixes import SharedPrefixes
from inferometer.tensors import Tensor
from inferometer.types import OpenStage, Plan, Request
from inferometer.units import NS
from inferometer.workload import images, tensors, tokenizer

_BLOCK = 1_000
_DEFAULT = 1_000
"""Requests that are looked at if neither the data nor the load says how many there are."""
_MOST = 10_000
"""Requests that are looked at by default."""
_PREFIX_REQUESTS, _PREFIX_TOKENS = 2_000, 1 << 19
"""Prompts whose tokens are compared with those of earlier prompts."""
_MOST_HASHES = 2_000_000
_BINS, _INTERVALS = 12, 60
_SHOWN = 240
"""Characters of a sample's prompt, from its start and from its end."""


class Lengths(msgspec.Struct, frozen=True):
    """A distribution of numbers of tokens or turns."""

    total: int
    mean: float
    min: int
    p50: int
    p90: int
    p99: int
    max: int
    histogram: list[tuple[int, int, int]]
    """How many are from the first number to the second, for each bin."""


class Prefixes(msgspec.Struct, frozen=True):
    """What a prefix cache could share of the first requests."""

    requests: int
    tokens: int
    shared: int
    """Tokens in whole blocks that an earlier prompt started with as well."""


class Arrivals(msgspec.Struct, frozen=True):
    """Requests per interval of an open loop."""

    interval: float
    """Seconds."""
    counts: list[int]


class Sample(msgspec.Struct, frozen=True):
    """One request."""

    id: int
    head: str
    tail: str
    n_in: int
    n_out: int
    turns: int = 1
    class_: str | None = None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    digest: str
    seed: int
    tokenizer: str
    """Who counted the tokens."""
    requests: int
    """How many were looked at."""
    planned: int | None
    """How many requests or sessions the load sends; None: that depends on the server, or there is no load."""
    distinct: int | None
    """How many different requests there are; None: the data has no end after which it repeats."""
    input: Lengths | None
    output: Lengths | None
    turns: Lengths | None
    """Turns per session; None: there are no sessions."""
    duplicates: int
    """Requests whose prompt is that of an earlier one."""
    prefixes: Prefixes | None
    classes: dict[str, int]
    arrivals: Arrivals | None
    notes: list[str]
    samples: list[Sample]


def survey(
    config: Config, has_load: bool, samples: int = 3, count: int | None = None,
    on_request: Callable[[Request, str | None], object] | None = None,
) -> Overview:  # fmt: skip
    """Build the requests of a workload and describe them.

    `has_load`: the load is the user's, not the default. `count`: how many requests to look at. `on_request` is called with each and
    the name of its class; then all of the workload is looked at, unless `count` says otherwise.
    """
    spec = _complete(workload.completed(config.data, APIS[config.server.api].has_chat_template))
    arrivals = workload.arrivals(spec) if isinstance(config.load, Replay) else None
    turns = workload.mean_turns(spec, config.seed) if workload.has_sessions(spec) else 0.0
    has_plan = has_load or arrivals is not None
    plan = schedule.plan(config.load, config.seed, arrivals=arrivals, turns=turns) if has_plan else None
    planned = _planned(plan, turns) if plan is not None else None
    distinct = workload.distinct(spec)
    there_are = planned or distinct or _DEFAULT
    number = count or (there_are if on_request else min(there_are, _MOST))
    names = [each.name for each in spec.classes] if isinstance(spec, Mix) else []
    figures = _Figures(spec, names, samples)
    for request in _requests(spec, config.seed, number):
        figures.add(request)
        if on_request is not None:
            on_request(request, figures.class_of(request))
    return Overview(
        type=str(spec.__struct_config__.tag),
        digest=workload.digest(spec, config.seed),
        seed=config.seed,
        tokenizer=workload.tokenizer_of(spec) or "the built-in tokenizer",
        requests=number,
        planned=planned,
        distinct=distinct,
        input=_lengths(figures.inputs),
        output=_lengths(figures.outputs),
        turns=_lengths(figures.turns) if workload.has_sessions(spec) else None,
        duplicates=figures.duplicates,
        prefixes=figures.prefixes(),
        classes=dict(figures.classes),
        arrivals=_arrivals(plan) if plan is not None else None,
        notes=_notes(spec),
        samples=figures.samples,
    )


def _planned(plan: Plan, turns: float) -> int | None:
    """The number of requests or, if they have turns, of sessions."""
    requests = schedule.total_requests(plan, turns)
    return requests if requests is None or not turns else round(requests / turns)


def _complete(spec: Data) -> Data:
    """Fill in the shapes of tensors, which otherwise come from the server."""
    if not isinstance(spec, Tensors | Images):
        return spec
    if not spec.inputs:
        raise UserError(
            "the model's inputs are not known without a server",
            "list them: data.inputs: [{name: X, datatype: FP32, shape: [-1, 3]}]",
            "data.inputs",
        )
    max_batch = spec.batch if spec.batch > 1 else 0
    if isinstance(spec, Images):
        return images.complete(spec, (), max_batch, {})
    return tensors.complete(spec, (), max_batch)


def _requests(spec: Data, seed: int, count: int) -> Iterator[Request]:
    for first in range(0, count, _BLOCK):
        yield from workload.build(spec, seed, range(first, min(first + _BLOCK, count)))


def _notes(spec: Data) -> list[str]:
    """What a user should know about the data, such as rows that were skipped."""
    if isinstance(spec, Mix):
        return [f"{each.name}: {note}" for each in spec.classes for note in _notes(each.data)]
    kind = workload.KINDS[type(spec)]
    return list(kind.notes(spec).get("notes", [])) if hasattr(kind, "notes") else []


class _Figures:
    """What is counted while requests pass by."""

    def __init__(self, spec: Data, class_names: Sequence[str], samples: int) -> None:
        self._tokenizer = workload.tokenizer_of(spec)
        self._names = class_names
        self._wanted = samples
        self._prefixes = SharedPrefixes()
        self._hashes: set[bytes] = set()
        self.inputs, self.outputs, self.turns = array("q"), array("q"), array("q")
        self.duplicates = 0
        self.classes: Counter[str] = Counter()
        self.samples: list[Sample] = []

    def add(self, request: Request) -> None:
        later = request.later
        self.inputs.append(request.n_in)
        self.inputs.extend(turn.n_in for turn in later)
        self.outputs.append(request.n_out)
        self.outputs.extend(turn.n_out for turn in later)
        self.turns.append(1 + len(later))
        if (name := self.class_of(request)) is not None:
            self.classes[name] += 1
        if len(self._hashes) < _MOST_HASHES:
            digest = hashlib.blake2b(msgspec.msgpack.encode(request.payload), digest_size=8).digest()
            self.duplicates += digest in self._hashes
            self._hashes.add(digest)
        self._add_prefix(request)
        if len(self.samples) < self._wanted:
            self.samples.append(_sample(request, name))

    def class_of(self, request: Request) -> str | None:
        return self._names[request.class_] if 0 <= request.class_ < len(self._names) else None

    def _add_prefix(self, request: Request) -> None:
        found, payload = self._prefixes, request.payload
        if not request.n_in or found.requests >= _PREFIX_REQUESTS or found.tokens >= _PREFIX_TOKENS:
            return
        if isinstance(payload, list) and isinstance(payload[0], int):  # the ids of the tokens
            found.add(cast("list[int]", payload))
        else:  # messages are encoded one by one, as they were when their tokens were counted
            encoded = tokenizer.load(self._tokenizer).encode_batch(_texts(request))
            found.add([id for ids in encoded for id in ids])

    def prefixes(self) -> Prefixes | None:
        found = self._prefixes
        return Prefixes(found.requests, found.tokens, found.shared) if found.tokens else None


def _texts(request: Request) -> list[str]:
    """The prompt: one text, or one per message."""
    payload = request.payload
    if isinstance(payload, str):
        return [payload]
    if isinstance(payload, tuple):
        shapes = (f"{each.name} {each.datatype} {list(each.shape)}" for each in payload if isinstance(each, Tensor))
        return [", ".join(shapes)]
    contents = [each.get("content", each) if isinstance(each, dict) else each for each in payload]
    return [each if isinstance(each, str) else msgspec.json.encode(each).decode() for each in contents]


def _sample(request: Request, class_: str | None) -> Sample:
    text = "\n".join(_texts(request))
    head, tail = (text, "") if len(text) <= 2 * _SHOWN else (text[:_SHOWN], text[-_SHOWN:])
    return Sample(request.id, head, tail, request.n_in, request.n_out, 1 + len(request.later), class_)


def _lengths(values: "array[int]") -> Lengths | None:
    numbers = np.frombuffer(values, dtype=np.int64)
    if not len(numbers) or not numbers.any():
        return None
    p50, p90, p99 = (int(each) for each in np.quantile(numbers, (0.5, 0.9, 0.99), method="inverted_cdf"))
    total = int(numbers.sum())
    least, most = int(numbers.min()), int(numbers.max())
    counts, edges = np.histogram(numbers, min(_BINS, most - least + 1), (least, most + 1))
    lows = [int(edge) for edge in np.ceil(edges)]
    histogram = [(low, high - 1, int(count)) for low, high, count in zip(lows, lows[1:], counts, strict=False)]
    return Lengths(total, total / len(numbers), least, p50, p90, p99, most, histogram)


def _arrivals(plan: Plan) -> Arrivals | None:
    """Return the requests per interval; None if a stage is a closed loop, whose requests follow the server's responses."""
    instants: list[NDArray[np.int64]] = []
    start = 0
    for stage in plan.stages:
        if not isinstance(stage, OpenStage):
            return None
        instants.append(start + stage.instants)
        start += stage.duration
    counts, _ = np.histogram(np.concatenate(instants), _INTERVALS, (0, max(start, 1)))
    return Arrivals(start / _INTERVALS / NS, counts.tolist())
