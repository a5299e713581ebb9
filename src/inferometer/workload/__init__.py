"""What to send: turns a data spec and a seed into requests. A request depends on (spec, seed, id) alone, in any process.

    synthetic.py      generated prompts with an exact number of tokens
    prompts.py        prompts from the command line or the config
    jsonl.py          a file of prompts, chat messages or conversations
    conversation.py   sessions: conversations of several turns
    tensors.py        tensors, generated from a model's metadata or read from a file
    tensor_files.py   the formats of such files
    messages.py       messages for a gRPC method
    tokenizer.py      tokenizers: the built-in one, or any other by its name
    encodings/        the libraries and files behind them
    text.py           texts with an exact number of tokens, composed from what material.py has measured of a corpus

Each kind of data is a module with three functions: build(spec, seed, ids) returns the requests with these ids,
distinct(spec) returns how many different ones there are, and content(spec) returns the bytes outside the spec that they
depend on, such as a file. If it has sessions, has_sessions(spec) says so.
"""

import hashlib
from collections.abc import Sequence
from types import ModuleType
from typing import cast

import msgspec

from inferometer import memory
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
    jsonl,
    messages,
    mix,
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
    Jsonl: jsonl,
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
    """The model's own tokenizer, as the user names it; None: none is given, and tokens can only be counted by the server."""
    if isinstance(spec, Mix):
        return next((own for each in spec.classes if (own := tokenizer_of(each.data)) is not None), None)
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


def has_sessions(spec: Data) -> bool:
    """Whether requests are the turns of sessions."""
    kind = KINDS[type(spec)]
    return hasattr(kind, "has_sessions") and bool(kind.has_sessions(spec))


def distinct(spec: Data) -> int | None:
    """How many different requests there are; None if every id has its own."""
    count: int | None = KINDS[type(spec)].distinct(spec)
    return count


def mean_output(spec: Data, seed: int) -> float:
    """Output tokens requested per response, on average over some requests; 0: they are left to the server, or there are none."""
    requests = build(spec, seed, range(min(_SAMPLE, distinct(spec) or _SAMPLE)))
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
        settings = [[each.name, each.weight, each.model, each.body, digest(each.data, seed)] for each in spec.classes]
        return hashlib.sha256(msgspec.json.encode(settings, order="sorted")).hexdigest()
    settings = msgspec.to_builtins(spec)
    settings.pop("salt", None)
    settings.pop("path", None)
    settings.pop("tokenizer", None)
    settings.pop("corpus", None)
    sample = _SAMPLE
    if isinstance(spec, Tensors):
        sample = _TENSOR_SAMPLE
        settings["fill"] = "@" if spec.fill.startswith("@") else spec.fill
    first = build(spec, seed, range(min(sample, distinct(spec) or sample)))
    parts = (
        msgspec.json.encode([settings, seed], order="sorted"),
        tokenizer.load(tokenizer_of(spec)).identity if hasattr(spec, "tokenizer") else b"",
        KINDS[type(spec)].content(spec),
        msgspec.msgpack.encode(first),
    )
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
