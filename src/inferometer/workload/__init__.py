"""What to ask: from a spec and a seed to requests. A request is a function of (spec, seed, id), whoever builds it.

    synthetic.py   prompts of exactly so many tokens
    prompts.py     prompts from the command line or the config
    jsonl.py       a file of prompts, messages or conversations
    conversation.py  sessions of several turns
    tensors.py     tensors, made from a model's metadata or read from a file (tensor_files.py)
    messages.py    messages for a gRPC method
    tokenizer.py   counts tokens: the built-in one, or a local folder's

A kind of data is a module with build(spec, seed, ids), distinct(spec) and content(spec).
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
_TENSOR_SAMPLE = 4


@memory.enough_for("data")
def build(spec: Data, seed: int, ids: Sequence[int]) -> list[Request]:
    """The requests with these ids."""
    requests: list[Request] = KINDS[type(spec)].build(spec, seed, ids)
    return requests


def sessions(spec: Data, requests: Sequence[Request]) -> tuple[Callable[[], Session], ...]:
    """Return, for each of these requests, what starts the session whose first turn it is; empty: there are no sessions."""
    return jsonl.sessions(spec, requests) if isinstance(spec, Jsonl) else ()


def distinct(spec: Data) -> int | None:
    """How many different requests there are; None is as many as are asked for."""
    count: int | None = KINDS[type(spec)].distinct(spec)
    return count


@memory.enough_for("data")
def digest(spec: Data, seed: int) -> str:
    """Names the workload: another spec, seed, tokenizer, file content or way of building gives another digest.

    Where files lie is left out, what they hold is not, so that the same run on another machine has the same digest.
    """
    said = msgspec.to_builtins(spec)
    said.pop("path", None)
    said.pop("tokenizer", None)
    sample = _SAMPLE
    if isinstance(spec, Tensors):
        sample = _TENSOR_SAMPLE
        said["fill"] = "@" if spec.fill.startswith("@") else spec.fill
    first = build(spec, seed, range(min(sample, distinct(spec) or sample)))
    parts = (
        msgspec.json.encode([said, seed], order="sorted"),
        b"" if isinstance(spec, Tensors | Messages) else tokenizer.load(spec.tokenizer).path.read_bytes(),
        KINDS[type(spec)].content(spec),
        msgspec.msgpack.encode(first),
    )
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
