"""Makes the options of click from the table of options, and what commands do with them: help by sections, exports, `--set` of a section."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from inferometer import options
from inferometer.errors import ANY_KEY, UserError
from inferometer.options import TABLE, Option
from inferometer.report.exporters import EXPORTERS

Function = Callable[..., Any]

_FEW = 12
"""Options that are listed without headings."""
_RESULTS = "Where results go"
_EITHER = {"output", "output_tokens"}
"""Where a command has both, `--output N` is how scripts say --output-tokens."""
_NEARLY_A_NUMBER = re.compile(r"[\d.,_]*\d[kKM]?")


class Command(click.Command):
    """A command whose help lists many options by the headings of the table."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings["context_settings"] = {"help_option_names": ["-h", "--help"]} | settings.get("context_settings", {})
        super().__init__(*arguments, **settings)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        shown = [(each, record) for each in found if (record := each.get_help_record(ctx)) is not None]
        headings = [getattr(option, "section", "") for option, _ in shown]
        has_headings = len(shown) > _FEW and headings.count("") == 1  # that of --help
        sections: dict[str, list[tuple[str, str]]] = {}
        for heading, (_, record) in zip(headings, shown, strict=True):
            sections.setdefault((heading if has_headings else "") or "Options", []).append(record)
        width = min(max(len(record[0]) for _, record in shown), 30)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl([(names.ljust(width), text) for names, text in records])


class _RowOption(click.Option):
    """An option with the heading under which the help lists it."""

    def __init__(self, *arguments: Any, section: str, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.section = section


def flag(name: str) -> str:
    """What messages call an option on the command line."""
    return f"--{name.replace('_', '-')}"


def options_of(command: str) -> Callable[[Function], Function]:
    """Add the options of the table that `command` takes. The function gets their values by name."""
    rows = options.rows_of(command)

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def settled(**given: Any) -> Any:
            _settle(rows, given)
            return function(**given)

        params = [
            _click_option(row, command, section)
            for section, found in TABLE.items()
            for row in found
            if command in row.commands.split()
        ]
        settled.__click_params__ = [*getattr(function, "__click_params__", []), *reversed(params)]  # type: ignore[attr-defined]
        return settled

    return decorate


def _click_option(row: Option, command: str, section: str) -> click.Option:
    kind: Any = click.Choice(row.type) if isinstance(row.type, tuple) else row.type
    if row.least is not None:
        kind = click.IntRange(min=row.least)
    is_repeated = row.repeats or (row.name == "output" and options.rows_of(command).keys() >= _EITHER)
    settings: dict[str, Any] = {"is_flag": True} if row.is_switch else {"type": kind, "multiple": is_repeated}
    if row.default is not None:
        settings |= {"default": row.default, "show_default": True}

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value is None:
            return None
        try:
            return options.read(row, value, flag(row.name))
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return _RowOption(
        [*row.flags, row.name],
        metavar=row.metavar or None,
        help=row.help_for(command) + " (A bare number means --output-tokens.)" * (is_repeated and not row.repeats),
        hidden=not row.help,
        callback=callback,
        section=section,
        **settings,
    )


def _settle(rows: Mapping[str, Option], given: dict[str, Any]) -> None:
    """Replace former spellings: of names, and `--output N` for a number of tokens."""
    if rows.keys() >= _EITHER:
        given["output_tokens"] = _tokens(given["output"], given["output_tokens"])
        given["output"] = next((text for text in reversed(given["output"]) if not text.isdecimal()), None)
    for row in rows.values():
        if row.becomes and (value := given.pop(row.name)) is not None:
            given[row.becomes] = value


def _tokens(places: tuple[str, ...], tokens: int | None) -> int | None:
    """The number of tokens that --output-tokens or a bare number after --output says."""
    for text in places:
        if _NEARLY_A_NUMBER.fullmatch(text) and (tokens is not None or not text.isdecimal()):
            what = (
                "is not a whole number of tokens"
                if tokens is None
                else "and --output-tokens are both a number of tokens"
            )
            raise UserError(f"--output {text} {what}", f"use --output-tokens; a folder is --output ./{text}")
    return next((int(text) for text in reversed(places) if text.isdecimal()), tokens)


def names_of(command: str) -> dict[str, str]:
    """What the messages of a command call settings."""
    return options.names_of(command) | {ANY_KEY: "--set"}


def put_options(tree: dict[str, Any], command: str, given: Mapping[str, Any]) -> list[str]:
    """Put the options that were given over a config, and return the keys that they set. `--set` comes later."""
    from inferometer import conduct  # noqa: PLC0415 - building the command line must be fast

    if given.get("slo"):
        conduct.parse_slos(given["slo"], "--slo", *([given["percentile"]] if "percentile" in given else []))
    if given.get("abort_on"):
        conduct.parse_limits(given["abort_on"], "--abort-on")
    is_stable = any(setting.startswith("load.stable=") for setting in given.get("set", ()))
    return options.put(tree, command, given, flag, is_stable)


def export_options(function: Function) -> Function:
    """Add one option per exporter. The command gets `exports`: the paths that were given, by the exporter's name."""

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        paths = {name: given.pop(_parameter(name)) for name in EXPORTERS}
        return function(exports={name: path for name, path in paths.items() if path is not None}, **given)

    for name, text in reversed(EXPORTERS.items()):
        command = click.option(
            f"--{name}", _parameter(name), metavar="PATH", help=f"{text} Use - for standard output.",
            cls=_RowOption, section=_RESULTS,
        )(command)  # fmt: skip
    return command


def _parameter(name: str) -> str:
    return f"export_{name.replace('-', '_')}"


def paths_of(given: Mapping[str, Any], *names: str) -> dict[str, str]:
    """The files to write, by format: those options of `names` that were given."""
    return {name: given[name] for name in names if given[name] is not None}


def check_server_settings(settings: list[str], *own: str) -> None:
    """Raise UserError unless every `--set` is of the section server, and none is one of `own`, which the command sets itself."""
    for setting in settings:
        key = setting.partition("=")[0]
        section, _, name = key.strip().partition(".")
        if section != "server" or not name:
            raise UserError(
                f"--set {key}: this command accepts only keys of the section server",
                "write, for example, --set server.tls.ca=FILE",
            )
        if name in own:
            raise UserError(f"--set {key}: this command sets that key itself", "leave it out; see --help")
