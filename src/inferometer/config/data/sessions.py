"""Conversations that are generated."""

from typing import Annotated

from msgspec import Meta

from inferometer.config.fields import Seconds, Section
from inferometer.config.lengths import Length


class Conversation(Section, tag_field="type", tag="conversation"):
    """Conversations of several turns, each of which contains the turns before it and the responses to them."""

    turns: Annotated[Length, Meta(description="Turns of each conversation.")] = 4
    system: Annotated[
        int, Meta(description="Tokens of the system prompt, which all conversations share; 0: none.", ge=0)
    ] = 0
    input: Annotated[Length, Meta(description="Tokens that the user adds in each turn.")] = 64
    output: Annotated[Length, Meta(description="Tokens requested per response.")] = 64
    think: Annotated[Seconds, Meta(description="Time from the end of a response to the next turn.")] = Seconds(0)
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
