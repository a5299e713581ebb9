"""`inferometer data convert`: samples into batches for offline engines, and back."""

from pathlib import Path
from typing import Literal

import click
import msgspec

from inferometer.config.data.datasets import Columns
from inferometer.errors import UserError, named
from inferometer.workload.datasets.convert import FORMATS, Conversion
from inferometer.workload.datasets.convert import convert as convert_file

_NAMES = {
    "data.path": "IN",
    "data.template": "--template",
    "data.tokenizer": "--tokenizer",
    "data.rows": "--rows",
    "data.output": "--max-tokens",
    **{f"data.columns.{field.name}": f"--columns {field.name}" for field in msgspec.structs.fields(Columns)},
}
"""What this command calls the settings of a dataset."""


@click.command("convert", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--to", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Requests per batch; for batch APIs, per file.")
@click.option(
    "--columns",
    multiple=True,
    metavar="NAME=COLUMN",
    help="The column of the prompt, messages, system, response or output: prompt=question. May be repeated.",
)
@click.option("--template", metavar="TEXT", help="The prompt, with columns in braces: 'Summarize:\\n{article}'.")
@click.option("--model", default="", metavar="NAME", help="The model that each request names.")
@click.option(
    "--api", type=click.Choice(("chat", "completions", "embeddings")), default="chat", help="Endpoint of the requests."
)
@click.option(
    "--max-tokens",
    metavar="N",
    help="Tokens to request, for rows that do not say it, or `reference`: as many as the reference response has.",
)
@click.option("--sort", type=click.Choice(("length",)), help="Sort by the number of tokens in the prompt.")
@click.option(
    "--pad",
    is_flag=False,
    flag_value="right",
    type=click.Choice(("right", "left")),
    help="With --to batches: add token ids, padded at this side, and an attention mask.",
)
@click.option("--pad-id", type=click.IntRange(0), default=0, metavar="ID", help="The token that pads.")
@click.option("--tokenizer", metavar="PATH", help="Counts and encodes tokens. Default: the built-in one counts.")
@click.option("--rows", type=click.IntRange(1), metavar="N", help="Convert only the first N rows.")
def command(
    source: Path,
    target: Path,
    to: str,
    batch: int | None,
    columns: tuple[str, ...],
    template: str | None,
    model: str,
    api: str,
    max_tokens: str | None,
    sort: str | None,
    pad: Literal["left", "right"] | None,
    pad_id: int,
    tokenizer: str | None,
    rows: int | None,
) -> None:
    """Turn samples into batches for offline engines, and back.

    \b
    Requests for a batch API, 1000 per file
      inferometer data convert qa.csv out.jsonl --to openai-batch --batch 1000
    Batches of 32 prompts of about the same length, padded
      inferometer data convert qa.csv out.jsonl --to batches --batch 32 \\
        --sort length --pad --tokenizer DIR
    The responses of a batch API, one per line
      inferometer data convert output.jsonl responses.jsonl --to jsonl

    IN is JSON, JSONL, CSV, TSV, Parquet, Arrow or text, or what this command or a batch API has written.
    """
    if target.exists() and source.exists() and target.samefile(source):
        raise UserError(f"{target} is the file to convert", "give another file for the output")
    how = Conversion(
        to=to,
        columns=_columns(columns),
        template=template.replace("\\n", "\n") if template else None,
        tokenizer=tokenizer,
        rows=rows or 0,
        output=_output(max_tokens),
        model=model,
        api=api,
        batch=batch or 0,
        pad=pad or "",
        pad_id=pad_id,
        sort=sort is not None,
    )
    with named(_NAMES):
        done = convert_file(str(source), str(target), how)
    where = str(done.files[0]) if len(done.files) == 1 else f"{len(done.files)} files: {done.files[0]} ..."
    click.echo(f"{done.requests:,} request{'s' * (done.requests != 1)} written to {where}")
    for note in done.notes:
        click.echo(f"  {note}", err=True)
    if to in ("openai-batch", "vllm-batch") and not how.model:
        click.echo("  only rows that name a model have one in their requests: give --model", err=True)


def _columns(pairs: tuple[str, ...]) -> Columns:
    named = dict(pair.partition("=")[::2] for text in pairs for pair in text.split(","))
    known = {field.name for field in msgspec.structs.fields(Columns)}
    for name, column in named.items():
        if name not in known or not column:
            raise UserError(
                f"--columns {name}={column}: not of the form NAME=COLUMN", f"the names are {', '.join(sorted(known))}"
            )
    return Columns(**named)


def _output(text: str | None) -> int | Literal["reference"]:
    if text == "reference":
        return "reference"
    if text is None:
        return 0
    if not text.isdecimal():
        raise UserError(f"--max-tokens {text}: not a number", "give a number of tokens, or `reference`")
    return int(text)
