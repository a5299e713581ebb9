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

    The content of files is included but their paths are not, so that the same run has the same digest on another machine.
    """
    settings = msgspec.to_builtins(spec)
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
