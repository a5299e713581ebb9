"""Prompts that are generated with an exact number of tokens."""

from typing import Annotated, Literal

from msgspec import Meta

from inferometer.config.fields import ChatTemplate, Count, PromptAs, Salt, Section, TokenizerName
from inferometer.config.lengths import Length


class Synthetic(Section, tag_field="type", tag="synthetic"):
    """Prompts of an exact number of tokens, from a corpus of natural text."""

    input: Annotated[Length, Meta(description="Tokens in each prompt.")] = 256
    output: Annotated[Length, Meta(description="Tokens requested per response.")] = 128
    corpus: Annotated[
        str | None,
        Meta(
            description="Text file in UTF-8, or one compressed with gzip, that prompts are cut from. At most 8 Mi characters are used. Default: a built-in corpus."
        ),
    ] = None
    tokenizer: TokenizerName = None
    chat_template: ChatTemplate = "auto"
    prompt_as: PromptAs = "text"
    salt: Salt = "run"


class Random(Section, tag_field="type", tag="random"):
    """Prompts of random tokens, which have nothing in common with one another."""

    input: Annotated[Length, Meta(description="Tokens in each prompt.")] = 256
    output: Annotated[Length, Meta(description="Tokens requested per response.")] = 128
    of: Annotated[
        Literal["words", "ids"],
        Meta(
            description="What is random: `words` of a text, or token `ids`, which are sent as such if the API takes them (completions, embeddings). Special tokens are left out."
        ),
    ] = "words"
    tokenizer: TokenizerName = None
    chat_template: ChatTemplate = "auto"
    salt: Salt = "run"


class SharedPrefix(Section, tag_field="type", tag="shared_prefix"):
    """Groups of prompts that start with the same text, which a server with a prefix cache computes once."""

    groups: Annotated[Count, Meta(description="Number of different prefixes.")] = 8
    prompts: Annotated[Count, Meta(description="Number of different questions per prefix.")] = 16
    prefix: Annotated[Length, Meta(description="Tokens of each prefix.")] = 512
    question: Annotated[Length, Meta(description="Tokens of each question, which follows the prefix.")] = 64
    output: Annotated[Length, Meta(description="Tokens requested per response.")] = 128
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
