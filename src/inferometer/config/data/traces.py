"""Traces of real traffic: when requests arrived, and how long they were."""

from typing import Annotated, Literal

from msgspec import Meta, field

from inferometer.config.data.trace_formats import ColumnName, FormatName
from inferometer.config.fields import Count, Positive, Salt, Seconds, Section, TokenizerName


class Trace(Section, tag_field="type", tag="trace"):
    """A recorded trace: prompts and responses of the lengths in the file; with `load: {type: trace}`, at its times too."""

    path: Annotated[
        str, Meta(description="The file: CSV or one JSON object per line; it may be compressed with gzip (`.gz`).")
    ]
    format: Annotated[
        FormatName,
        Meta(
            description="`azure` (2023 and 2024), `burstgpt`, `mooncake` (also its sessions with delays), `bailian`, `vidur` (and Splitwise), `tracelab`, `aiperf` (sessions with `turns`); `csv` and `jsonl`: a plain file of times and lengths, "
            "with `columns`. `auto`: by the names of the columns."
        ),
    ] = "auto"
    columns: Annotated[
        dict[ColumnName, str],
        Meta(
            description="Plain files: the names of the columns time, input, output (tokens), prompt (a text, instead of input), session, delay and hash_ids, such as `{time: arrived, input: prompt_len}`. "
            "Default: these names and usual ones, such as timestamp or input_tokens."
        ),
    ] = field(default_factory=dict)
    unit: Annotated[
        Literal["auto", "s", "ms", "us", "ns"],
        Meta(
            description="Unit of times and delays that are numbers. `auto`: that of the format; seconds in plain files."
        ),
    ] = "auto"
    speed: Annotated[
        Positive,
        Meta(description="How many times faster than recorded the trace is replayed, including delays in sessions."),
    ] = 1.0
    start: Annotated[
        Seconds, Meta(description="Leave out what arrived earlier than this after the first row, in the trace's time.")
    ] = Seconds(0)
    end: Annotated[
        Seconds,
        Meta(
            description="Leave out what arrived this long after the first row or later, in the trace's time. 0: nothing."
        ),
    ] = Seconds(0)
    rows: Annotated[int, Meta(description="Read at most this many rows of the file; 0: all.", ge=0)] = 0
    loop: Annotated[
        Count,
        Meta(
            description="How many times the trace is replayed. Each round has the same requests, and starts the length of the trace after the one before: from `start` to `end`, or its last arrival and a mean gap."
        ),
    ] = 1
    sort: Annotated[
        bool, Meta(description="Sort rows by time. Otherwise, a row that is earlier than the one before is an error.")
    ] = False
    sessions: Annotated[
        Literal["auto"] | bool,
        Meta(
            description="Whether rows of the same session are sent as its turns: each when the response to the one before is complete, after the recorded delay. If the trace has arrival times instead of delays, the delay is "
            "the time between them, less the recorded duration of the request if there is one. `auto`: if the trace has delays; otherwise every row is sent at its own time."
        ),
    ] = "auto"
    turns: Annotated[
        Literal["auto", "whole", "added"],
        Meta(
            description="What the length and the hash ids of a later turn count: `whole`: the whole prompt; `added`: what it adds to the turns before. `auto`: by the format; by the hash ids if there are any."
        ),
    ] = "auto"
    prompt: Annotated[
        Literal["messages", "text"],
        Meta(
            description="What the turns of a session are for the API. `messages`: the text of each turn has its tokens by itself. `text`: each text continues the one before it. Default: what the API takes."
        ),
    ] = "messages"
    block: Annotated[
        int,
        Meta(
            description="Tokens per hash id. 0: that of the format (Mooncake 512, Bailian 16), or the power of two that fits all rows.",
            ge=0,
        ),
    ] = 0
    output: Annotated[
        int,
        Meta(description="Tokens requested per response, for rows without a length; 0 leaves it to the server.", ge=0),
    ] = 128
    tokenizer: TokenizerName = None
    salt: Salt = "run"
