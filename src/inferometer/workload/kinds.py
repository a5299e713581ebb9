"""The kinds of data, except mixes of them: one row per class of the config's `data` section."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import msgspec

from inferometer.config.data import (
    Conversation,
    Csv,
    Hub,
    Images,
    Jsonl,
    Messages,
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
from inferometer.types import Request
from inferometer.workload import (
    conversation,
    datasets,
    images,
    messages,
    prompts,
    random_tokens,
    shared_prefix,
    synthetic,
    tensors,
    traces,
)


class Kind(msgspec.Struct, frozen=True):
    """What a kind of data can do. Its spec is the first argument of every function."""

    build: Callable[[Any, int, Sequence[int]], list[Request]]
    """(spec, seed, ids) -> the requests with these ids."""
    distinct: Callable[[Any], int | None]
    """How many different requests there are; None: every id has its own."""
    content: Callable[[Any], bytes]
    """The bytes outside the spec that requests depend on, such as a file, or a hash of them."""
    has_sessions: Callable[[Any], bool] = lambda spec: False
    """Whether requests are the turns of sessions."""
    turns: Callable[[Any, int, Sequence[int]], Sequence[int]] | None = None
    """(spec, seed, ids) -> how many turns each session has, without building them. None: they have to be built."""
    notes: Callable[[Any], dict[str, Any]] = lambda spec: {}
    """What the manifest says about the data."""
    check: Callable[[Any, Any], None] = lambda spec, api: None
    """Raises UserError if the data is for another API."""
    pinned: Callable[[Any, int], Any] = lambda spec, seed: spec
    """The same spec without anything that may change from one process to the next."""


def kind(module: ModuleType, **more: Callable[..., Any]) -> Kind:
    """The kind of data that is in this module, with the optional functions that it has."""
    return Kind(module.build, module.distinct, module.content, **more)


_DATASET = kind(
    datasets,
    has_sessions=datasets.has_sessions,
    notes=datasets.notes,
    check=datasets.check,
    pinned=datasets.pinned,
)

KINDS: dict[type, Kind] = {
    Synthetic: kind(synthetic),
    Random: kind(random_tokens),
    SharedPrefix: kind(shared_prefix),
    Conversation: kind(conversation, has_sessions=conversation.has_sessions, turns=conversation.turns),
    Prompts: kind(prompts),
    Jsonl: _DATASET,
    ShareGpt: _DATASET,
    Csv: _DATASET,
    Parquet: _DATASET,
    Hub: _DATASET,
    OpenAiBatch: _DATASET,
    PythonCode: _DATASET,
    Trace: kind(traces, has_sessions=traces.has_sessions, turns=traces.turns, notes=traces.notes),
    Tensors: kind(tensors),
    Images: kind(images),
    Messages: kind(messages),
}
