"""Prompts, conversations and whole requests from the config, from files and from dataset hubs."""

from typing import Annotated

from msgspec import Meta

from inferometer.config.fields import Section


class Prompts(Section, tag_field="type", tag="prompts"):
    """A list of prompts, used in turn."""

    prompts: Annotated[list[str], Meta(description="The prompts.", min_length=1)]
    output: Annotated[int, Meta(description="Tokens requested per response; 0 leaves it to the server.", ge=0)] = 128
    tokenizer: Annotated[
        str | None,
        Meta(
            description="Folder with the model's `tokenizer.json`, or that file, which counts tokens if the server does not. Default: only the server counts."
        ),
    ] = None


class Jsonl(Section, tag_field="type", tag="jsonl"):
    """A file with one JSON object per line: `{"prompt": "..."}`, `{"input": "..."}`, `{"messages": [...]}`, or `{"turns": [...], "think": 0.5}` for a conversation; with `output` if it varies."""

    path: Annotated[str, Meta(description="The file.")]
    output: Annotated[
        int,
        Meta(description="Tokens requested per response, for lines without `output`; 0 leaves it to the server.", ge=0),
    ] = 128
    tokenizer: Annotated[
        str | None,
        Meta(
            description="Folder with the model's `tokenizer.json`, or that file, which counts tokens if the server does not. Default: only the server counts."
        ),
    ] = None


class ShareGpt(Section, tag_field="type", tag="sharegpt"):
    """A file of conversations in the format of ShareGPT."""

    path: Annotated[str, Meta(description="The file.")]
    output: Annotated[
        int,
        Meta(description="Tokens requested per response, for lines without `output`; 0 leaves it to the server.", ge=0),
    ] = 128
    tokenizer: Annotated[
        str | None,
        Meta(
            description="Folder with the model's `tokenizer.json`, or that file, which counts tokens if the server does not. Default: only the server counts."
        ),
    ] = None


class Csv(Section, tag_field="type", tag="csv"):
    """A CSV or TSV file with a header line."""

    path: Annotated[str, Meta(description="The file.")]
    output: Annotated[
        int,
        Meta(description="Tokens requested per response, for lines without `output`; 0 leaves it to the server.", ge=0),
    ] = 128
    tokenizer: Annotated[
        str | None,
        Meta(
            description="Folder with the model's `tokenizer.json`, or that file, which counts tokens if the server does not. Default: only the server counts."
        ),
    ] = None


class Parquet(Section, tag_field="type", tag="parquet"):
    """A Parquet or Arrow file."""

    path: Annotated[str, Meta(description="The file.")]
    output: Annotated[
        int,
        Meta(description="Tokens requested per response, for lines without `output`; 0 leaves it to the server.", ge=0),
    ] = 128
    tokenizer: Annotated[
        str | None,
        Meta(
            description="Folder with the model's `tokenizer.json`, or that file, which counts tokens if the server does not. Default: only the server counts."
        ),
    ] = None


class Hub(Section, tag_field="type", tag="hub"):
    """A dataset from a hub, by its name."""

    path: Annotated[str, Meta(description="The file.")]
    output: Annotated[
        int,
        Meta(description="Tokens requested per response, for lines without `output`; 0 leaves it to the server.", ge=0),
    ] = 128
    tokenizer: Annotated[
        str | None,
        Meta(
            description="Folder with the model's `tokenizer.json`, or that file, which counts tokens if the server does not. Default: only the server counts."
        ),
    ] = None


class OpenAiBatch(Section, tag_field="type", tag="openai-batch"):
    """A batch file of OpenAI's API: each line is a request."""

    path: Annotated[str, Meta(description="The file.")]
    output: Annotated[
        int,
        Meta(description="Tokens requested per response, for lines without `output`; 0 leaves it to the server.", ge=0),
    ] = 128
    tokenizer: Annotated[
        str | None,
        Meta(
            description="Folder with the model's `tokenizer.json`, or that file, which counts tokens if the server does not. Default: only the server counts."
        ),
    ] = None


class PythonCode(Section, tag_field="type", tag="python"):
    """A Python file with a function that generates requests."""

    path: Annotated[str, Meta(description="The file.")]
    output: Annotated[
        int,
        Meta(description="Tokens requested per response, for lines without `output`; 0 leaves it to the server.", ge=0),
    ] = 128
    tokenizer: Annotated[
        str | None,
        Meta(
            description="Folder with the model's `tokenizer.json`, or that file, which counts tokens if the server does not. Default: only the server counts."
        ),
    ] = None
