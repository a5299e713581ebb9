"""`inferometer inference-perf`: runs inference-perf's config files, with its flags, exit statuses and report files."""

from dataclasses import dataclass, field
from pathlib import Path

import click

from inferometer.errors import UserError

_ONE = {"--config_file": "config_file", "--unified_analysis_dir": "unified", "--log-level": "log_level"}
_SWITCHES = {"--lenient": "lenient", "--strict-exit": "strict_exit"}
_SHORT = {"-c": "--config_file", "-a": "--analyze", "-u": "--unified_analysis_dir"}
_MAIN = (*_ONE, *_SWITCHES, "--analyze")
_CONFIG_ERROR, _FLAG_ERROR = 1, 2
_SEE_HELP = "see `inferometer inference-perf --help`"


@dataclass
class Flags:
    """The command line."""

    config_file: str | None = None
    analyze: list[str] = field(default_factory=list)
    unified: str | None = None
    log_level: str = "INFO"
    lenient: bool = False
    strict_exit: bool = False
    options: dict[str, str] = field(default_factory=dict)
    """Values by dotted key."""


def parse(arguments: list[str]) -> Flags:
    """Read the command line. Raises UserError for a flag that does not exist, or that has no value."""
    flags = Flags()
    rest = list(arguments)
    while rest:
        name, equals, value = _split(rest.pop(0))
        if name == "--analyze":
            flags.analyze += [value] if equals else []
            while rest and not rest[0].startswith("-"):
                flags.analyze.append(rest.pop(0))
        elif name in _SWITCHES:
            if equals:
                raise UserError(f"{name} takes no value", "leave it out")
            setattr(flags, _SWITCHES[name], True)
        else:
            if not equals and not rest:
                raise UserError(f"{name} has no value", f"write {name} VALUE, or {name}=VALUE")
            text = value if equals else rest.pop(0)
            if name in _ONE:
                setattr(flags, _ONE[name], text)
            else:
                flags.options[name.removeprefix("--")] = text
    return flags


def _split(argument: str) -> tuple[str, str, str]:
    """Split `--flag=value`; the names of main flags may be abbreviated."""
    if argument[:2] in _SHORT:
        value = argument[2:].removeprefix("=")
        return _SHORT[argument[:2]], "=" if value else "", value
    if not argument.startswith("--") or argument == "--":
        raise UserError(f"{argument}: not a flag", f"the config is given with --config_file FILE; {_SEE_HELP}")
    name, equals, value = argument.partition("=")
    if "." in name or name == "--compat" or name in _MAIN:
        return name, equals, value
    meant = [flag for flag in _MAIN if flag.startswith(name)]
    if len(meant) > 1:
        raise UserError(f"{name} may be {' or '.join(meant)}", "write it out")
    return meant[0] if meant else name, equals, value


class _Command(click.Command):
    """Leaves the command line to `parse`: about 390 keys are flags, and main flags may be abbreviated."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if {"-h", "--help"} & set(args):
            click.echo(ctx.get_help())
            ctx.exit()
        ctx.params = {"arguments": list(args)}
        return []

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["--config_file FILE [--DOTTED.KEY VALUE]..."]


@click.command(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-c",
    "--config_file",
    metavar="FILE",
    help="The config, as YAML. Every key can also be given, or changed, as a flag.",
)
@click.option(
    "-a",
    "--analyze",
    metavar="FOLDER...",
    help="Write charts from the report files in these folders, instead of a run.",
)
@click.option(
    "-u",
    "--unified_analysis_dir",
    metavar="DIR",
    help="With -a: write charts of all folders together into this folder.",
)
@click.option("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING, ERROR or CRITICAL. Default: INFO.")
@click.option(
    "--compat", metavar="exact", help="Repeat inference-perf's known flaws, for figures that compare with its own."
)
@click.option(
    "--lenient", is_flag=True, help="Drop unknown keys with a warning, as releases before 0.7 did without one."
)
@click.option("--strict-exit", is_flag=True, help="Exit with status 1 if the run is INVALID or misses an objective.")
def command(arguments: list[str]) -> int:
    """Run a config file of inference-perf as it is, and write its report files.

    \b
    A config, unchanged
      inferometer inference-perf --config_file config.yml
    Another server, and other stages
      inferometer inference-perf -c config.yml --server.base_url http://host \\
          --load.stages '[{"rate": 5, "duration": 30}]'
    Charts of a run's report files
      inferometer inference-perf --analyze reports-20260930-142501

    Every key of the config is a flag: --load.interval 5. Lists and maps are JSON. `inferometer docs inference-perf` lists the keys.

    The report files go where the config's section `storage` says, by default to reports-TIMESTAMP; the run itself is stored in the
    folder inferometer/ there, for `inferometer report`. An executable called inference-perf, such as a symbolic link to inferometer,
    is this command.

    Exit status, as that of inference-perf: 0 the run reached its end, however bad its results are (see --strict-exit), 1 the config
    is invalid or something that it needs is missing, 2 a flag is invalid.
    """
    from inferometer.compat.inference_perf.logging import LEVELS, Log  # noqa: PLC0415
    from inferometer.compat.inference_perf.reading import OptionError  # noqa: PLC0415

    try:
        flags = parse(arguments)
        if flags.log_level not in LEVELS:
            raise UserError(
                f"--log-level {flags.log_level}: there is no such level", f"it is one of {', '.join(LEVELS)}"
            )
    except UserError as error:
        return _show(error, _FLAG_ERROR)
    log = Log(flags.log_level)
    try:
        if flags.analyze:
            return _analyze(flags)
        from inferometer.compat.inference_perf.running import run  # noqa: PLC0415

        path = Path(flags.config_file) if flags.config_file is not None else None
        return run(path, flags.options, flags.lenient, log, flags.strict_exit)
    except UserError as error:
        return _show(error, _FLAG_ERROR if isinstance(error, OptionError) else _CONFIG_ERROR)


def _analyze(flags: Flags) -> int:
    """Write charts. As in inference-perf, the status is 0 whatever happens: problems are in the log."""
    from inferometer.compat.inference_perf.analyze import analyze  # noqa: PLC0415

    analyze([Path(folder) for folder in flags.analyze], Path(flags.unified) if flags.unified is not None else None)
    return 0


def _show(error: UserError, status: int) -> int:
    click.echo(f"inference-perf: {error.line}", err=True)
    if error.next_step:
        click.echo(f"  next: {error.next_step}", err=True)
    return status
