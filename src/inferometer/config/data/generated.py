"""Prompts that are generated with an exact number of tokens."""

from typing import Annotated, Literal

from msgspec import Meta, field

from inferometer.config.fields import ChatTemplate, Count, Positive, PromptAs, Salt, Section, TokenizerName
from inferometer.config.lengths import CORRELATION, JOINT, Length, LengthPairs


class Synthetic(Section, tag_field="type", tag="synthetic"):
    """Prompts of an exact number of tokens, from a corpus of natural text."""

    input: Annotated[Length, Meta(description="Tokens in each prompt.")] = 256
    output: Annotated[Length, Meta(description="Tokens requested per response.")] = 128
    correlation: Annotated[float, CORRELATION] = 0.0
    lengths: Annotated[LengthPairs | None, JOINT] = None
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
    correlation: Annotated[float, CORRELATION] = 0.0
    lengths: Annotated[LengthPairs | None, JOINT] = None
    of: Annotated[
        Literal["words", "ids"],
        Meta(
            description="What is random: `words` of a text, or token `ids`, which are sent as such if the API takes them (completions, embeddings). Special tokens are left out."
        ),
    ] = "words"
    tokenizer: TokenizerName = None
    chat_template: ChatTemplate = "auto"
    salt: Salt = "run"


class PrefixTier(Section):
    """Texts that several groups share, before their own prefixes."""

    groups: Annotated[Count, Meta(description="Number of different texts in this tier.")]
    length: Annotated[Length, Meta(description="Tokens of each.")]


class SharedPrefix(Section, tag_field="type", tag="shared_prefix"):
    """Groups of prompts that start with the same text, which a server with a prefix cache computes once."""

    groups: Annotated[Count, Meta(description="Number of groups: different prefixes.")] = 8
    prompts: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Number of different questions per group, after which they repeat (and the server may have cached the whole prompt). 0: every request has a question of its own. Default: 16; with `hit`, 0."
        ),
    ] = None
    prefix: Annotated[Length, Meta(description="Tokens of each group's prefix.")] = 512
    tiers: Annotated[
        list[PrefixTier],
        Meta(
            description="Broader prefixes in front of `prefix`, the broadest first: with `[{groups: 1, length: 1024}, {groups: 2, length: 256}]`, all prompts start with the same 1024 tokens, half of the groups continue with one text of 256 tokens and half with another, and then each group has its own `prefix`. Text i of a tier, or group i, continues text i modulo `groups` of the tier before it."
        ),
    ] = field(default_factory=list)
    question: Annotated[Length, Meta(description="Tokens of each question, which follows the prefix.")] = 64
    output: Annotated[Length, Meta(description="Tokens requested per response.")] = 128
    correlation: Annotated[float, CORRELATION] = 0.0
    popularity: Annotated[
        Literal["uniform", "round_robin", "zipf"],
        Meta(
            description="How often groups are used. `uniform`: equally often, in random order; until prompts repeat, each is used once. `round_robin`: the groups in turn. `zipf`: each request draws its group, and the kth group has a weight of 1 / k^exponent."
        ),
    ] = "uniform"
    exponent: Annotated[
        Positive, Meta(description="Exponent of `zipf`: the larger, the more popular are the first groups.")
    ] = 1.0
    hit: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(
            description="Share of all prompt tokens that a server with a prefix cache can take from it, once every prefix has been used and apart from rounding to its blocks. As many requests as this takes start with the prefix of their group; the others start with a text of the same length that no other request has. Default: all start with the prefix of their group."
        ),
    ] = None
    prefix_as: Annotated[
        Literal["system", "text"],
        Meta(
            description="`system`: prefix and question are the system message and the user message of a chat. `text`: one text. Default: `system` for `server.api: chat`, otherwise `text`."
        ),
    ] = "system"
    tokenizer: TokenizerName = None
    salt: Salt = "run"
