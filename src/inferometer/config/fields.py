"""The types of values in the config that several sections use."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Seconds(float):
    """A duration in seconds; the file may have `10s`, `250ms` or `1m30s`."""


class RampUp(str):
    """Time over which the users of a closed loop start: `0`, a duration (`5s`), or `auto`."""


class Window(str):
    """What to leave out at one end of a stage: `0`, a number of requests, a duration (`5s`), or `auto`."""


Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


_TOKENIZERS = "a folder with its `tokenizer.json`, or that file; `org/name` or `hub:NAME` for one from the hub (extra `hub`); `tiktoken:NAME`, a `.tiktoken`, `tekken.json` or SentencePiece `.model` file (extra `tokenizers`); `server` for the server's own `/tokenize`; or `builtin`."

TokenizerName = Annotated[
    str | None,
    Meta(
        description=f"The model's own tokenizer: {_TOKENIZERS} It also counts tokens if the server does not. Default: prompts are made with the built-in tokenizer, and only the server counts."
    ),
]
CountingTokenizer = Annotated[
    str | None,
    Meta(
        description=f"The model's own tokenizer, which counts tokens if the server does not: {_TOKENIZERS} Default: only the server counts, and limits of length are applied to the counts of the built-in tokenizer."
    ),
]
Salt = Annotated[
    str,
    Meta(
        description="What the first words of each prompt depend on besides the seed. `run`: every run has its own, so that it does not meet what an earlier run left in the server's prefix cache. `none`: the same seed gives the same prompts. Any other word: the same word gives the same prompts; the manifest records the word of every run.",
        min_length=1,
    ),
]
ChatTemplate = Annotated[
    Literal["auto", "ignore", "count", "include"],
    Meta(
        description="What becomes of the tokens that the model's chat template adds around the messages. `ignore`: lengths are those of the messages alone. `count`: the same, but the recorded number of input tokens is that of the whole prompt, as the server sees it. `include`: the whole prompt has the requested length. `auto`: `count` if the API is chat and the tokenizer's folder has a template, otherwise `ignore`."
    ),
]
PromptAs = Annotated[
    Literal["text", "ids"],
    Meta(
        description="How prompts are sent: as text, or as token ids, if the API takes them (completions, embeddings)."
    ),
]


def is_valid_header(name: str, value: str) -> bool:
    """Whether a header can be sent: printable ASCII characters, and a name without colons and spaces."""
    text = name + value
    return text.isprintable() and text.isascii() and bool(name) and not set(name) & set(": ")


class Section(msgspec.Struct, forbid_unknown_fields=True):
    """A section of the file: unknown keys are an error."""
