"""`inferometer data`: what a workload consists of, without sending it. `inferometer data convert` is in data_convert.py."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import click

from inferometer.cli.options import Command, options_of
from inferometer.cli.uploads import write_json
from inferometer.errors import UserError, named

if TYPE_CHECKING:
    from inferometer.preview import Overview
    from inferometer.types import Request


class _Data(Command):
    """The command, with `convert` as the only command within it."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] != ["convert"]:
            return super().make_context(info_name, args, parent, **extra)
        convert: click.Command = importlib.import_module("inferometer.cli.data_convert").command
        return convert.make_context(f"{info_name} convert", args[1:], parent, **extra)


@click.command(cls=_Data)
@click.argument("source", metavar="FILE|-")
@options_of("data")
@click.option(
    "--samples", type=click.IntRange(min=0), default=3, show_default=True, metavar="N", help="Show N requests."
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Look at the first N requests. Default: those of the load, else of the data; without --jsonl at most 10,000.",
)
@click.option(
    "--jsonl", "jsonl_path", metavar="OUT", help="Write the requests to a file that `data: {type: jsonl}` reads."
)
def command(
    source: str, samples: int, count: int | None, jsonl_path: str | None, json: str | None, set: list[str]
) -> None:
    """Show what the workload in FILE (YAML; - is standard input) consists of, without sending it.

    FILE is a config as for `inferometer run`. Only its `data` section is needed, and `load` for the times of arrival; there is no
    server involved.

    \b
    Samples, lengths, duplicates, shared prefixes, times of arrival
      inferometer data bench.yaml
    The same with one key changed
      inferometer data bench.yaml --set data.input=1024
    Write all requests to a file
      inferometer data bench.yaml --jsonl prompts.jsonl
    The figures as JSON
      inferometer data bench.yaml --json - | jq .input

    `inferometer data convert IN OUT` turns samples into batches for offline engines, and back; see
    `inferometer data convert --help`.
    """
    import msgspec  # noqa: PLC0415

    from inferometer import preview, workload  # noqa: PLC0415
    from inferometer.config import read_tree  # noqa: PLC0415
    from inferometer.report.output import check_paths, wants_color  # noqa: PLC0415
    from inferometer.report.width import columns  # noqa: PLC0415

    if "://" in source:
        raise UserError(
            f"{source} is a URL, and this command does not use a server", "give a config file with a data section"
        )
    check_paths({"--json": json, "--jsonl": jsonl_path})
    name = "standard input" if source == "-" else source
    with named(source=name):
        config, has_load = preview.read(read_tree(source), set, name)
        config = msgspec.structs.replace(config, data=workload.pinned(config.data, config.seed))
        survey = partial(preview.survey, config, has_load, samples, count)
        overview = survey() if jsonl_path is None else _write_jsonl(jsonl_path, survey)
    if "-" not in (json, jsonl_path):
        click.echo(preview.render(overview, columns(), wants_color()), nl=False, color=True)
    write_json(json, overview)


def _write_jsonl(path: str, survey: "Callable[[Callable[[Request, str | None], object]], Overview]") -> "Overview":
    """Write each request as it is looked at, so that memory does not grow with their number."""
    from inferometer import preview  # noqa: PLC0415
    from inferometer.report.output import write_file  # noqa: PLC0415

    made: list[Overview] = []

    def write(file: IO[bytes]) -> None:
        made.append(survey(lambda request, class_: file.write(preview.line(request, class_))))

    write_file(path, write)
    return made[0]
