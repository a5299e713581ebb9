"""What to send: turns a data spec and a seed into requests. A request depends on (spec, seed, id) alone, in any process.

    synthetic.py      generated prompts with an exact number of tokens
    prompts.py        prompts from the command line or the config
    datasets/         prompts, conversations and whole requests from files, hubs and Python code
    mix.py            traffic classes, each with data of its own
    conversation.py   sessions: conversations of several turns
    tensors.py        tensors, generated from a model's metadata (fill.py, random_tensors.py) or read from a file
    tensor_files.py   the formats of such files; input_files.py  a file of one input
    images.py         images, which image_tensors.py turns into tensors
    traces/           recorded traces: lengths, shared prefixes, sessions and arrivals
    messages.py       messages for a gRPC method
    lengths.py        lengths of prompts and responses, by a number or a distribution
    number_files.py   files of numbers, such as observed lengths
    tokenizer.py      tokenizers: the built-in one, or any other by its name
    encodings/        the libraries and files behind them
    text.py           texts with an exact number of tokens, composed from what material.py has measured of a corpus

Each kind of data is a module with three functions: build(spec, seed, ids) returns the requests with these ids,
distinct(spec) returns how many different ones there are, and content(spec) returns the bytes outside the spec that they
depend on, such as a file. Optional are has_sessions(spec), which says whether requests are the turns of sessions; turns(spec, seed,
ids), how many turns each has, without building them; notes(spec), what the manifest says about the data; check(spec, api), which
raises UserError if it is for another API; and pinned(spec), the same spec without anything that may change from one process to
the next.
"""

import hashlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import memory
from inferometer.apis import Api
from inferometer.config.data import (
    Conversation,
    Csv,
    Data,
    Hub,
    Images,
    Jsonl,
    Messages,
    Mix,
    OpenAiBatch,
    Parquet,
    Prompts,
    PythonCode,
    Random,
    SharedPrefix,
    ShareGpt,
    Synthetic,
    Tensors,
    Trace,
)
from inferometer.types import Messages as ChatMessages
from inferometer.types import Request
from inferometer.workload import (
    chat_template,
    conversation,
    datasets,
    images,
    lengths,
    messages,
    mix,
    number_files,
    prompts,
    random_tokens,
    shared_prefix,
    synthetic,
    tensors,
    tokenizer,
    traces,
)

KINDS: dict[type, ModuleType] = {
    Synthetic: synthetic,
    Random: random_tokens,
    SharedPrefix: shared_prefix,
    Conversation: conversation,
    Prompts: prompts,
    Jsonl: datasets,
    ShareGpt: datasets,
    Csv: datasets,
    Parquet: datasets,
    Hub: datasets,
    OpenAiBatch: datasets,
    PythonCode: datasets,
    Trace: traces,
    Mix: mix,
    Tensors: tensors,
    Images: images,
    Messages: messages,
}
_SAMPLE = 256
"""Requests that go into the digest."""
_TURNS_SAMPLE = 4096
"""Sessions whose mean number of turns stands for that of all."""
_LENGTHS = 8192
"""Generated prompts whose lengths are compared with the model's context."""
_PLAIN = {"tokenizer": None, "chat_template": "ignore", "corpus": None, "prompt_as": "text", "of": "words"}
"""Settings of generated prompts that do not change their lengths, with the values that take the least time."""
_TENSOR_SAMPLE = 4
"""The same for tensors, which may be large."""


@memory.enough_for("data")
def build(spec: Data, seed: int, ids: Sequence[int]) -> list[Request]:
    """Build the requests with these ids."""
    requests: list[Request] = KINDS[type(spec)].build(spec, seed, ids)
    return _with_template(spec, requests) if getattr(spec, "chat_template", "") == "count" else requests


def _with_template(spec: Data, requests: list[Request]) -> list[Request]:
    """Count the tokens that the chat template adds to each prompt."""
    payloads = [cast("str | ChatMessages", request.payload) for request in requests]
    contents = [request.n_in for request in requests]
    counts = chat_template.whole_counts(tokenizer.load(tokenizer_of(spec)), payloads, contents)
    rows = zip(requests, counts, strict=True)
    return [msgspec.structs.replace(request, n_in=count) if request.n_in else request for request, count in rows]


def completed(spec: Data, has_chat_template: bool) -> Data:
    """Decide `chat_template: auto`. `has_chat_template`: the API puts prompts into the model's template."""
    if isinstance(spec, Mix):
        classes = [msgspec.structs.replace(each, data=completed(each.data, has_chat_template)) for each in spec.classes]
        return msgspec.structs.replace(spec, classes=classes)
    if getattr(spec, "chat_template", "") != "auto":
        return spec
    name = tokenizer_of(spec)
    is_counted = has_chat_template and name is not None and chat_template.is_available(tokenizer.load(name))
    return msgspec.structs.replace(spec, chat_template="count" if is_counted else "ignore")


def salted(spec: Data, word: str, instead_of: str | None = "run") -> Data:
    """Replace `salt: run` by the run's own word, if this kind of data has a salt. `instead_of` None replaces any salt."""
    if isinstance(spec, Mix):
        classes = [msgspec.structs.replace(each, data=salted(each.data, word, instead_of)) for each in spec.classes]
        return msgspec.structs.replace(spec, classes=classes)
    has_salt = hasattr(spec, "salt") and instead_of in (None, spec.salt)
    return msgspec.structs.replace(spec, salt=word) if has_salt else spec


def salt_of(spec: Data) -> str | None:
    """The salt of the prompts, after `salted`; None if they have none."""
    kinds = [each.data for each in spec.classes] if isinstance(spec, Mix) else [spec]
    salts = (getattr(each, "salt", "none") for each in kinds)
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
    kinds = [each.data for each in spec.classes] if isinstance(spec, Mix) else [spec]
    return any(getattr(each, "tokenizer", None) == name for each in kinds)


def probe_requests(spec: Data, seed: int, count: int, word: str) -> list[Request]:
    """Build requests like those of the run for the probe before it.

    Generated prompts get a salt of their own, so that they do not fill the server's prefix cache with prompts of the run. Of a
    list or a file, the last entries are used: a run may not get that far.
    """
    if salt_of(salted(spec, word, None)):
        return build(salted(spec, word, None), seed, range(count))
    last = distinct(spec) or count
    return build(spec, seed, range(max(last - count, 0), max(last, count)))


def arrivals(spec: Data) -> NDArray[np.int64] | None:
    """When the requests of a trace are due, in nanoseconds after the first; None: the data has no times."""
    return traces.arrivals(spec) if isinstance(spec, Trace) else None


def has_sessions(spec: Data) -> bool:
    """Whether requests are the turns of sessions."""
    kind = KINDS[type(spec)]
    return hasattr(kind, "has_sessions") and bool(kind.has_sessions(spec))


def mean_turns(spec: Data, seed: int) -> float:
    """Turns per session, on average over some sessions; 1 without sessions."""
    if not has_sessions(spec):
        return 1.0
    ids = range(min(_TURNS_SAMPLE, distinct(spec) or _TURNS_SAMPLE))
    kind = KINDS[type(spec)]
    counts = (
        kind.turns(spec, seed, ids)
        if hasattr(kind, "turns")
        else [1 + len(request.later) for request in build(spec, seed, ids)]
    )
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
    kind = KINDS[type(spec)]
    noted: dict[str, Any] = kind.notes(spec) if hasattr(kind, "notes") else {}
    return noted


def check(spec: Data, api: Api) -> None:
    """Raise UserError if the data is for another API."""
    for part in [each.data for each in spec.classes] if isinstance(spec, Mix) else [spec]:
        kind = KINDS[type(part)]
        if hasattr(kind, "check"):
            kind.check(part, api)


def pinned(spec: Data) -> Data:
    """Replace what may change from one process to the next, such as a branch of a dataset on a hub."""
    if isinstance(spec, Mix):
        classes = [msgspec.structs.replace(each, data=pinned(each.data)) for each in spec.classes]
        return msgspec.structs.replace(spec, classes=classes)
    kind = KINDS[type(spec)]
    return kind.pinned(spec) if hasattr(kind, "pinned") else spec


def distinct(spec: Data) -> int | None:
    """How many different requests there are; None if every id has its own."""
    count: int | None = KINDS[type(spec)].distinct(spec)
    return count


def sample(spec: Data, seed: int) -> list[Request]:
    """Some of the requests: the first ones."""
    return build(spec, seed, range(min(_SAMPLE, distinct(spec) or _SAMPLE)))


def mean_output(spec: Data, seed: int) -> float:
    """Output tokens requested per response, on average over some requests; 0: they are left to the server, or there are none."""
    requests = sample(spec, seed)
    return sum(request.n_out for request in requests) / len(requests)


def longest(spec: Data, seed: int, count: int) -> Request:
    """The request with the most tokens, of the first `count`. Only some are looked at, if there are many."""
    if isinstance(spec, Synthetic | Random):  # their lengths do not depend on the tokenizer
        plain: Data = msgspec.structs.replace(spec, **{name: _PLAIN[name] for name in _PLAIN if hasattr(spec, name)})
        last = min(count, _LENGTHS)
    else:
        plain, last = spec, min(count, _SAMPLE, distinct(spec) or _SAMPLE)
    id, most = 0, -1
    for start in range(0, last, _SAMPLE):
        for request in build(plain, seed, range(start, min(start + _SAMPLE, last))):
            if request.n_in + request.n_out > most:
                id, most = request.id, request.n_in + request.n_out
    return build(spec, seed, [id])[0]


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
    settings.pop("tokenizer", None)
    settings.pop("corpus", None)
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
