"""Traces of real traffic: when requests arrived, and how long they were."""

from typing import Annotated, Literal

from msgspec import Meta

from inferometer.config.fields import Section


class Trace(Section, tag_field="type", tag="trace"):
    """A recorded trace: prompts and responses of the lengths in the file; with `load: {type: trace}`, at its times too."""

    path: Annotated[str, Meta(description="The file.")]
    format: Annotated[
        Literal["auto", "azure", "burstgpt", "mooncake", "bailian", "csv"], Meta(description="Format of the file.")
    ] = "auto"
    speed: Annotated[float, Meta(description="How many times faster than recorded the trace is replayed.", gt=0)] = 1.0
    tokenizer: Annotated[
        str | None,
        Meta(
            description="Folder with the model's `tokenizer.json`, or that file. It also counts tokens if the server does not. Default: prompts are made with a built-in tokenizer, and only the server counts."
        ),
    ] = None
    salt: Annotated[
        str,
        Meta(
            description="What the first words of each prompt depend on besides the seed. `run`: every run has its own, so that it does not meet what an earlier run left in the server's prefix cache. `none`: the same seed gives the same prompts. Any other word: the same word gives the same prompts; the manifest records the word of every run.",
            min_length=1,
        ),
    ] = "run"
