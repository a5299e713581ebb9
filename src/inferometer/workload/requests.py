"""Builds the requests of any kind of data, and says what they are: how many, how long, in which sessions."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import memory
from inferometer.apis import Api
from inferometer.config.data import Conversation, Data, Images, Mix, Random, SharedPrefix, Synthetic, Tensors, Trace
from inferometer.types import Messages as ChatMessages
from inferometer.types import Request
from inferometer.workload import chat_template, kinds, lengths, mix, number_files, tensors, tokenizer, traces

KINDS = kinds.KINDS | {Mix: kinds.kind(mix, has_sessions=mix.has_sessions)}
"""Every kind of data, mixes included."""
_SAMPLE = 256
"""Requests that go into the digest."""
_TURNS_SAMPLE = 4096
"""Sessions whose mean number of turns stands for that of all."""
_LENGTHS = 8192
"""Generated prompts whose lengths are compared with the model's context."""
_MOST_TOKENS = 4_000_000
"""Tokens of these prompts, at most: they take less than a second."""
_PLAIN = {"tokenizer": None, "chat_template": "ignore", "corpus": None, "prompt_as": "text", "of": "words"}
"""Settings of generated prompts that do not change their lengths, with the values that take the least time."""
_TENSOR_SAMPLE = 4
"""The same for tensors, which may be large."""


@memory.enough_for("data")
def build(spec: Data, seed: int, ids: Sequence[int]) -> list[Request]:
    """Build the requests with these ids."""
    requests = KINDS[type(spec)].build(spec, seed, ids)
    return _with_template(spec, requests) if getattr(spec, "chat_template", "") == "count" else requests


def _parts(spec: Data) -> Sequence[Data]:
    """The data, or that of each class of a mix."""
    return [each.data for each in spec.classes] if isinstance(spec, Mix) else [spec]


def _changed(spec: Data, change: Callable[[Any], Any]) -> Data:
    """The data after a change or, if it is a mix, after the same change of each class's data."""
    if not isinstance(spec, Mix):
        changed: Data = change(spec)
        return changed
    classes = [msgspec.structs.replace(each, data=change(each.data)) for each in spec.classes]
    return msgspec.structs.replace(spec, classes=classes)


def _with_template(spec: Data, requests: list[Request]) -> list[Request]:
    """Count the tokens that the chat template adds to each prompt."""
    payloads = [cast("str | ChatMessages", request.payload) for request in requests]
    contents = [request.n_in for request in requests]
    counts = chat_template.whole_counts(tokenizer.load(tokenizer_of(spec)), payloads, contents)
    rows = zip(requests, counts, strict=True)
    return [msgspec.structs.replace(request, n_in=count) if request.n_in else request for request, count in rows]


def completed(spec: Data, has_chat_template: bool) -> Data:
    """Decide `chat_template: auto`. `has_chat_template`: the API puts prompts into the model's template."""

    def decided(part: Any) -> Any:
        if getattr(part, "chat_template", "") != "auto":
            return part
        name = tokenizer_of(part)
        is_counted = has_chat_template and name is not None and chat_template.is_available(tokenizer.load(name))
        return msgspec.structs.replace(part, chat_template="count" if is_counted else "ignore")

    return _changed(spec, decided)


def salted(spec: Data, word: str, instead_of: str | None = "run") -> Data:
    """Replace `salt: run` by the run's own word, if this kind of data has a salt. `instead_of` None replaces any salt."""

    def changed(part: Any) -> Any:
        has_salt = hasattr(part, "salt") and instead_of in (None, part.salt)
        return msgspec.structs.replace(part, salt=word) if has_salt else part

    return _changed(spec, changed)


def salt_of(spec: Data) -> str | None:
    """The salt of the prompts, after `salted`; None if they have none."""
    salts = (getattr(each, "salt", "none") for each in _parts(spec))
    return next((salt for salt in salts if salt != "none"), None)


def tokenizer_of(spec: Data) -> str | None:
    """The model's own tokenizer, as the user names it; None: none is given, or classes have different ones, and tokens can only
    be counted by the server."""
    if isinstance(spec, Mix):
        names = {tokenizer_of(each.data) for each in spec.classes}
        return names.pop() if len(names) == 1 else None
    name: str | None = getattr(spec, "tokenizer", None)
    return name


def uses_tokenizer(spec: Data, name: str) -> bool:
    """Whether the data, or that of one of its classes, names this tokenizer."""
    return any(getattr(each, "tokenizer", None) == name for each in _parts(spec))


def probe_requests(spec: Data, seed: int, count: int, word: str) -> list[Request]:
    """Build requests like those of the run for the probe before it.

    They must not fill the server's prefix cache with prompts of the run. So generated prompts get a salt of their own; and of a
    list or a file, the last entries are used: a run may not get that far. Each class of a mix follows the same rule.
    """

    def from_the_end(part: Data, seed: int, numbers: Sequence[int]) -> list[Request]:
        there_are = distinct(part)
        first = -len(numbers) % there_are if there_are else 0
        return build(part, seed, [first + number for number in numbers])

    spec = salted(spec, word, None)
    if isinstance(spec, Mix):
        return mix.compose(spec, seed, range(count), from_the_end)
    return from_the_end(spec, seed, range(count))


def arrivals(spec: Data) -> NDArray[np.int64] | None:
    """When the requests of a trace are due, in nanoseconds after the first; None: the data has no times."""
    return traces.arrivals(spec) if isinstance(spec, Trace) else None


def has_sessions(spec: Data) -> bool:
    """Whether requests are the turns of sessions."""
    return KINDS[type(spec)].has_sessions(spec)


def session_classes(spec: Data) -> frozenset[int] | None:
    """The traffic classes whose requests are the turns of sessions; None: there are no classes."""
    if not isinstance(spec, Mix):
        return None
    return frozenset(index for index, class_ in enumerate(spec.classes) if has_sessions(class_.data))


def mean_turns(spec: Data, seed: int) -> float:
    """Turns per session, on average over some sessions; 1 without sessions."""
    if isinstance(spec, Mix):
        means = [mean_turns(each.data, mix.seed_of(each, seed)) for each in spec.classes]
        weights = [each.weight for each in spec.classes]
        return sum(mean * weight for mean, weight in zip(means, weights, strict=True)) / sum(weights)
    if not has_sessions(spec):
        return 1.0
    ids = range(min(_TURNS_SAMPLE, distinct(spec) or _TURNS_SAMPLE))
    turns = KINDS[type(spec)].turns
    counts = turns(spec, seed, ids) if turns else [1 + len(request.later) for request in build(spec, seed, ids)]
    return float(sum(counts)) / len(counts)


def classes_of(spec: Data, seed: int, ids: Sequence[int]) -> list[int]:
    """The traffic class of each id; -1 if there are no classes."""
    if not isinstance(spec, Mix):
        return [-1] * len(ids)
    period = mix.distinct(spec)
    classes: list[int] = mix.assign(spec, seed, [id % period for id in ids] if period else ids)[0].tolist()
    return classes


def notes(spec: Data) -> dict[str, Any]:
    """What a user should know about the data, for the manifest: `notes` are sentences, and `skipped` counts broken rows."""
    if isinstance(spec, Mix):
        each = {part.name: notes(part.data) for part in spec.classes}
        lines = [f"{name}: {line}" for name, noted in each.items() for line in noted.get("notes", ())]
        skipped = {name: noted["skipped"] for name, noted in each.items() if "skipped" in noted}
        return ({"notes": lines} if lines else {}) | ({"skipped": skipped} if skipped else {})
    return KINDS[type(spec)].notes(spec)


def check(spec: Data, api: Api) -> None:
    """Raise UserError if the data is for another API."""
    for part in _parts(spec):
        KINDS[type(part)].check(part, api)


def pinned(spec: Data, seed: int = 0) -> Data:
    """Replace what may change from one process to the next, such as a branch of a dataset on a hub."""
    return _changed(spec, lambda part: KINDS[type(part)].pinned(part, seed))


def distinct(spec: Data) -> int | None:
    """How many different requests there are; None if every id has its own."""
    return KINDS[type(spec)].distinct(spec)


def sample(spec: Data, seed: int) -> list[Request]:
    """Some of the requests: the first ones."""
    return build(spec, seed, range(min(_SAMPLE, distinct(spec) or _SAMPLE)))


def mean_output(spec: Data, seed: int) -> float:
    """Output tokens requested per response, on average over some requests; 0: they are left to the server, or there are none."""
    requests = sample(spec, seed)
    return sum(request.n_out for request in requests) / len(requests)


def longest(spec: Data, seed: int, count: int, size: Callable[[Request], int]) -> Request:
    """The largest request of the first `count`. Only some are looked at, if there are many."""
    if has_given_lengths(spec):  # they do not depend on the tokenizer
        plain: Data = msgspec.structs.replace(spec, **{name: _PLAIN[name] for name in _PLAIN if hasattr(spec, name)})
        last = min(count, _LENGTHS, distinct(spec) or _LENGTHS)
    else:
        plain, last = spec, min(count, _SAMPLE, distinct(spec) or _SAMPLE)
    id, most, tokens = 0, -1, 0
    for start in range(0, last, _SAMPLE):
        for request in build(plain, seed, range(start, min(start + _SAMPLE, last))):
            total = size(request)
            tokens += total
            if total > most:
                id, most = request.id, total
        if tokens > _MOST_TOKENS:
            break
    return build(spec, seed, [id])[0]


def has_given_lengths(spec: Data) -> bool:
    """Whether prompts are generated with numbers of tokens that the spec or a trace gives, rather than read from a file."""
    return isinstance(spec, Synthetic | Random | SharedPrefix | Conversation | Trace)


@memory.enough_for("data")
def digest(spec: Data, seed: int) -> str:
    """Identify the workload: a different spec, seed, tokenizer, file content or algorithm gives a different digest.

    The content of files is included but their paths are not, so that the same run has the same digest on another machine. The
    salt is not included either, because it makes runs of the same workload differ only in the first words of their prompts.
    """
    spec = salted(spec, "none", None)
    if isinstance(spec, Mix):
        order = mix.assign(spec, seed, range(_SAMPLE))[0].tolist()
        each = [
            [class_.name, class_.weight, class_.model, class_.body, digest(class_.data, mix.seed_of(class_, seed))]
            for class_ in spec.classes
        ]
        return hashlib.sha256(msgspec.json.encode([order, each], order="sorted")).hexdigest()
    settings = msgspec.to_builtins(lengths.without_paths(spec), enc_hook=float)  # Seconds
    settings.pop("salt", None)
    settings.pop("path", None)
    settings.pop("generated", None)
    settings.pop("tokenizer", None)
    settings.pop("corpus", None)
    if settings.get("chat_template") != "include":  # it does not change prompts, and their counts are in the sample
        settings.pop("chat_template", None)
    sample = _SAMPLE
    if isinstance(spec, Tensors | Images):
        sample = _TENSOR_SAMPLE
        settings["fill"] = tensors.portable_fill(spec.fill)
    first = build(spec, seed, range(min(sample, distinct(spec) or sample)))
    parts = (
        msgspec.json.encode([settings, seed], order="sorted"),
        tokenizer.load(tokenizer_of(spec)).identity if hasattr(spec, "tokenizer") else b"",
        KINDS[type(spec)].content(spec),
        *(number_files.read(path) for path in lengths.files(spec)),
        msgspec.msgpack.encode(first),
    )
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
