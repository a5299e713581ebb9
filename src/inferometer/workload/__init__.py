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

kinds.py has a row for each kind of data, with the functions that build its requests. requests.py chooses the row; its
functions are those of this package, and are imported with everything above when one is first used: what needs a tokenizer
only, such as the reference server, starts in two thirds of the time.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferometer.workload.requests import *  # noqa: F403

__all__ = (  # noqa: F405
    "KINDS", "arrivals", "build", "check", "classes_of", "completed", "digest", "distinct", "has_given_lengths", "has_sessions",
    "longest", "mean_output", "mean_turns", "notes", "pinned", "probe_requests", "salt_of", "salted", "sample", "session_classes",
    "tokenizer_of", "uses_tokenizer",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("inferometer.workload.requests"), name)
