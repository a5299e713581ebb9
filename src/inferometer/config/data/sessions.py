"""Sessions: conversations that are generated, and what holds for the sessions of every kind of data."""

from typing import Annotated, Literal

from msgspec import Meta

from inferometer.config.fields import Count, Salt, Seconds, Section, TokenizerName
from inferometer.config.lengths import Length


class Conversation(Section, tag_field="type", tag="conversation"):
    """Conversations of several turns. Each prompt contains the turns before and the responses to them."""

    turns: Annotated[Length, Meta(description="Turns of each conversation.")] = 4
    system: Annotated[int, Meta(description="Tokens of the system prompt; 0: there is none.", ge=0)] = 0
    share_system: Annotated[
        bool | Count,
        Meta(
            description="`true`: all conversations have the same system prompt. `false`: each has its own. A number: there are this many, used in turn."
        ),
    ] = True
    own_system: Annotated[
        Length | Literal[0],
        Meta(description="Tokens that each conversation adds to the system prompt, with a text of its own."),
    ] = 0
    input: Annotated[Length, Meta(description="Tokens that the user adds in each turn.")] = 64
    output: Annotated[Length, Meta(description="Tokens requested per response.")] = 64
    think: Annotated[Seconds, Meta(description="Mean time from the end of a response to the next turn.")] = Seconds(0)
    think_distribution: Annotated[
        Literal["constant", "exponential", "lognormal"], Meta(description="How `think` varies from turn to turn.")
    ] = "constant"
    think_std: Annotated[
        Seconds, Meta(description="Standard deviation of a lognormal `think`; 0: the same as `think`.")
    ] = Seconds(0)
    history: Annotated[
        Literal["live", "recorded"],
        Meta(
            description="Which responses the later prompts contain: those of the server, or generated ones of exactly `output` tokens. With `recorded`, all prompts are known before the run and are the same for every server."
        ),
    ] = "live"
    prompt: Annotated[
        Literal["messages", "text"],
        Meta(
            description="What the texts are made for: chat messages, or one text in which each turn continues the one before, with exact token counts in either case. Default: `text` with `server.api: completions`, otherwise `messages`."
        ),
    ] = "messages"
    tokenizer: TokenizerName = None
    salt: Salt = "run"


class Sessions(Section):
    """Sessions of any kind of data: generated conversations, datasets and traces with several turns."""

    header: Annotated[
        str,
        Meta(
            description="Header that carries the session's id in each of its requests, such as `X-Session-ID`. The id is unique to the session and the run. Empty: no header."
        ),
    ] = ""
    context: Annotated[
        int,
        Meta(
            description="The model's context window in tokens: the oldest turns are dropped when the prompt and the requested response would exceed it. The system prompt and the newest message always stay. Turns of datasets and traces that were recorded with their whole prompt are sent as they are, never shortened. 0: no limit.",
            ge=0,
        ),
    ] = 0
    on_failure: Annotated[
        Literal["end", "continue"],
        Meta(
            description="What happens when a turn fails: the session ends, or it continues with its next turn, whose prompt does not contain the failed one. A turn that does not reach the server always ends its session."
        ),
    ] = "end"
