"""What to send: turns a data spec and a seed into requests. A request depends on (spec, seed, id) alone, in any process.

    synthetic.py      generated prompts with an exact number of tokens
    prompts.py        prompts from the command line or the config
    jsonl.py          a file of prompts, chat messages or conversations
    conversation.py   sessions: conversations of several turns
    tensors.py        tensors, generated from a model's metadata or read from a file
    tensor_files.py   the formats of such files
    messages.py       messages for a gRPC method
    tokenizer.py      counts tokens, with the built-in tokenizer or one from a local folder

Each kind of data is a module with three functions: build(spec, seed, ids) returns the requests with these ids,
distinct(spec) returns how many different ones there are, and content(spec) returns the bytes outside the spec that they
depend on, such as a file.
"""

import hashlib
from collections.abc import Callable, Sequence
from types import ModuleType

import msgspec

from inferometer import memory
from inferometer.config.schema import Data, Jsonl, Messages, Prompts, Synthetic, Tensors
from inferometer.types import Request, Session
from inferometer.workload import jsonl, messages, prompts, synthetic, tensors, tokenizer

KINDS: dict[type, ModuleType] = {
    Synthetic: synthetic,
    Prompts: prompts,
    Jsonl: jsonl,
    Tensors: tensors,
    Messages: messages,
}
_SAMPLE = 256
"""Requests that go into the digest."""
_TENSOR_SAMPLE = 4
"""The same for tensors, which may be large."""


@memory.enough_for("data")
def build(spec: Data, seed: int, ids: Sequence[int]) -> list[Request]:
    """Build the requests with these ids."""
    requests: list[Request] = KINDS[type(spec)].build(spec, seed, ids)
    return requests


def salted(spec: Data, word: str) -> Data:
    """Replace `salt: run` by the run's own word. Only synthetic prompts have a salt."""
    return msgspec.structs.replace(spec, salt=word) if isinstance(spec, Synthetic) and spec.salt == "run" else spec


def salt_of(spec: Data) -> str | None:
    """The salt of the prompts, after `salted`; None if they have none."""
    return spec.salt if isinstance(spec, Synthetic) and spec.salt != "none" else None


def probe_requests(spec: Data, seed: int, count: int, word: str) -> list[Request]:
    """Build requests like those of the run for the probe before it.

    Synthetic prompts get a salt of their own, so that they do not fill the server's prefix cache with prompts of the run. Of a
    list or a file, the last entries are used: a run may not get that far.
    """
    if isinstance(spec, Synthetic):
        return build(msgspec.structs.replace(spec, salt=word), seed, range(count))
    last = distinct(spec) or count
    return build(spec, seed, range(max(last - count, 0), max(last, count)))


def has_sessions(spec: Data) -> bool:
    """Whether requests are the turns of sessions."""
    return isinstance(spec, Jsonl) and jsonl.has_sessions(spec)


def sessions(spec: Data, requests: Sequence[Request]) -> tuple[Callable[[], Session], ...]:
    """Return, for each of these requests, what starts the session whose first turn it is; empty: there are no sessions."""
    return jsonl.sessions(spec, requests) if isinstance(spec, Jsonl) else ()


def distinct(spec: Data) -> int | None:
    """How many different requests there are; None if every id has its own."""
    count: int | None = KINDS[type(spec)].distinct(spec)
    return count


@memory.enough_for("data")
def digest(spec: Data, seed: int) -> str:
    """Identify the workload: a different spec, seed, tokenizer, file content or algorithm gives a different digest.

    The content of files is included but their paths are not, so that the same run has the same digest on another machine. The
    salt is not included either, because it makes runs of the same workload differ only in the first words of their prompts.
    """
    if isinstance(spec, Synthetic):
        spec = msgspec.structs.replace(spec, salt="none")
    settings = msgspec.to_builtins(spec)
    settings.pop("salt", None)
    settings.pop("path", None)
    settings.pop("tokenizer", None)
    sample = _SAMPLE
    if isinstance(spec, Tensors):
        sample = _TENSOR_SAMPLE
        settings["fill"] = "@" if spec.fill.startswith("@") else spec.fill
    first = build(spec, seed, range(min(sample, distinct(spec) or sample)))
    parts = (
        msgspec.json.encode([settings, seed], order="sorted"),
        b"" if isinstance(spec, Tensors | Messages) else tokenizer.load(spec.tokenizer).path.read_bytes(),
        KINDS[type(spec)].content(spec),
        msgspec.msgpack.encode(first),
    )
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
