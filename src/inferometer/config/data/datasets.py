"""Prompts, conversations and whole requests from the config, from files, from dataset hubs and from Python code."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from inferometer.config.fields import Count, CountingTokenizer, Seconds, Section
from inferometer.config.lengths import Distribution

Output = Annotated[int, Meta(ge=0)] | Literal["reference"] | Distribution
"""Tokens to request per response."""


class Prompts(Section, tag_field="type", tag="prompts"):
    """A list of prompts, used in turn."""

    prompts: Annotated[list[str], Meta(description="The prompts.", min_length=1)]
    output: Annotated[int, Meta(description="Tokens requested per response; 0 leaves it to the server.", ge=0)] = 128
    tokenizer: CountingTokenizer = None


class Columns(Section):
    """Names of the columns that a request is made from, if they are not the usual ones."""

    prompt: Annotated[str | None, Meta(description="Column of the prompt.")] = None
    messages: Annotated[str | None, Meta(description="Column of the messages, as OpenAI's or ShareGPT's.")] = None
    system: Annotated[str | None, Meta(description="Column of the system prompt.")] = None
    response: Annotated[str | None, Meta(description="Column of the reference response.")] = None
    output: Annotated[str | None, Meta(description="Column of the number of tokens to request.")] = None


class RowsSection(Section, kw_only=True):
    """What all data with rows has."""

    tokenizer: CountingTokenizer = None
    rows: Annotated[int, Meta(description="Use only the first rows, this many; 0: all.", ge=0)] = 0
    shuffle: Annotated[bool, Meta(description="Use the rows in random order, which depends on the seed.")] = False
    min_input: Annotated[
        int,
        Meta(
            description="Leave out rows whose prompt has fewer tokens. Counted by `tokenizer`, or else by the built-in one.",
            ge=0,
        ),
    ] = 0
    max_input: Annotated[int, Meta(description="Leave out rows whose prompt has more tokens; 0: no limit.", ge=0)] = 0


class DatasetSection(RowsSection, kw_only=True):
    """What all data with rows has, whose columns have to be understood."""

    columns: Annotated[
        Columns, Meta(description="Columns that a request is made from. Default: by their usual names.")
    ] = field(default_factory=Columns)
    template: Annotated[
        str | None,
        Meta(
            description='Text of the prompt, with columns in braces: `"Summarize:\\n{article}"`. Write `{{` for a brace. Default: by the columns.'
        ),
    ] = None
    output: Annotated[
        Output,
        Meta(
            description="Tokens requested per response, for rows that do not say it; 0 leaves it to the server. `reference`: as many as the row's reference response has, or 128 if there is none."
        ),
    ] = 128
    min_output: Annotated[
        int,
        Meta(description="Leave out rows whose reference response (or number of output tokens) is shorter.", ge=0),
    ] = 0
    max_output: Annotated[int, Meta(description="Leave out rows where it is longer; 0: no limit.", ge=0)] = 0
    turns: Annotated[
        Literal["auto", "first", "last", "whole", "all"],
        Meta(
            description="What is sent of a conversation. `first`: the prompt before its first response. `last`: everything before its last response, in one request. `whole`: the same with that response, as inference-perf sends it. `all`: every turn, as a session. `auto`: `all` if the row has `turns` or is one of several rows of a conversation, `last` for OpenAI's messages, `first` for ShareGPT's."
        ),
    ] = "auto"
    history: Annotated[
        Literal["live", "recorded"],
        Meta(
            description="With `turns: all`: whether later prompts contain the server's own responses or the recorded ones. A conversation with the results of tools always contains the recorded ones."
        ),
    ] = "live"
    think: Annotated[
        Seconds | None,
        Meta(description="Time from the end of a response to the next turn. Default: what the row says, or no time."),
    ] = None


class Jsonl(DatasetSection, tag_field="type", tag="jsonl", kw_only=True):
    """A file with one JSON object per line: `{"prompt": "..."}`, `{"messages": [...]}`, or `{"turns": [...], "think": 0.5}` for a conversation; with `output` if it varies. Entries of `turns` are texts, or objects such as `{"content": "...", "output": 64, "think": 0.5, "response": "..."}` (`messages` instead of `content` for several; also `text`, and `delay` in milliseconds); `system` is the system prompt, and `"history": "recorded"` puts each `response` into the prompts that follow. `body` has further fields of the request, and `headers` further headers. Also a JSON array of such objects, and a text file with one prompt per line."""

    path: Annotated[str, Meta(description="The file. Like every file of rows, it may be compressed by gzip.")]


class ShareGpt(DatasetSection, tag_field="type", tag="sharegpt", kw_only=True):
    """A file of conversations in the format of ShareGPT: `{"conversations": [{"from": "human", "value": "..."}]}`, in JSON, JSONL or Parquet."""

    path: Annotated[str, Meta(description="The file.")]


class Csv(DatasetSection, tag_field="type", tag="csv", kw_only=True):
    """A CSV or TSV file with a header line. In a TSV file, quotes are ordinary characters."""

    path: Annotated[str, Meta(description="The file.")]


class Parquet(DatasetSection, tag_field="type", tag="parquet", kw_only=True):
    """A Parquet or Arrow file, or a folder of them, as the `datasets` library saves it."""

    path: Annotated[str, Meta(description="The file or the folder.")]


class Hub(DatasetSection, tag_field="type", tag="hub", kw_only=True):
    """A dataset from the Hugging Face hub, of which only the first rows are downloaded. Needs `inferometer[hub]`."""

    path: Annotated[str, Meta(description="Name of the dataset, such as `owner/name`.")]
    subset: Annotated[str | None, Meta(description="Name of the subset (configuration), if it has several.")] = None
    split: Annotated[str, Meta(description="The split.")] = "train"
    revision: Annotated[
        str | None,
        Meta(
            description="Commit, branch or tag. Default: the newest commit. The manifest records the commit that was used."
        ),
    ] = None
    rows: Annotated[Count, Meta(description="How many rows are downloaded and used, from the first on.")] = 1000


class OpenAiBatch(RowsSection, tag_field="type", tag="openai-batch", kw_only=True):
    """An input file of OpenAI's batch API. The body of each line is sent as it is, except that the `server` section decides about streaming. Request i is line i, so that its `custom_id` can be found again."""

    path: Annotated[str, Meta(description="The file.")]
    model: Annotated[
        Literal["server", "file"], Meta(description="Whether `server.model` is requested, or the model of each line.")
    ] = "server"


class PythonCode(DatasetSection, tag_field="type", tag="python", kw_only=True):
    """A Python file with a function that generates requests: prompts, lists of messages, or dicts with the keys of a JSONL line and, if needed, `body` with further fields of the request. It is called once per run, and all processes of the run send what it has generated. If it has an argument `seed`, it gets the seed of the run."""

    path: Annotated[str, Meta(description="The file.")]
    function: Annotated[
        str, Meta(description="The function, usually a generator. It is called with `arguments`.", min_length=1)
    ] = "requests"
    arguments: Annotated[
        dict[str, Any], Meta(description="Keyword arguments of the function, such as `{seed: 1}`.")
    ] = field(default_factory=dict)
    generated: Annotated[
        str,
        Meta(
            description="SHA-256 of what the function generated, as a run records it. With it, a run that generates something else is an error."
        ),
    ] = ""
    rows: Annotated[Count, Meta(description="How many requests are taken from it; longer runs use them in turn.")] = (
        1000
    )
