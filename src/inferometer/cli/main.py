"""`inferometer`: the command line. Each command is imported when it is called, so that `--help` is instant."""

import difflib
import errno
import gc
import importlib
import os
import sys
import tempfile
import traceback
from pathlib import Path

import click

from inferometer import __version__
from inferometer.cli import visible_keys
from inferometer.errors import UserError
from inferometer.printable import printable

GROUPS = {
    "Measure": {
        "run": "Measure a server under load: a report and a verdict.",
        "capacity": "Find the highest load that holds the objectives.",
        "ab": "Measure two servers in turn and compare them.",
        "engines": "Start several engines, measure them alike, choose one.",
        "compare-protocols": "Measure one model over gRPC, HTTP and JSON.",
        "infer": "Send one request and show where its time went.",
        "data": "Show what a workload sends, or convert samples.",
    },
    "Stored runs": {
        "report": "Print the report of a stored run again, or export it.",
        "compare": "Compare stored runs: which is better, by how much.",
        "plot": "Write the charts of a stored run as PNG or SVG.",
        "runs": "List the runs in a folder or a bucket, or upload one.",
        "merge": "Make one run of the parts that several clients measured.",
    },
    "For users of other tools": {
        "inference-perf": "Run a config file of inference-perf unchanged.",
        "perf-analyzer": "Run a command line of perf_analyzer.",
        "triton": "Run a command line of Triton's simple client.",
        "convert": "Turn a config or a command line into a YAML file.",
    },
    "Servers, and this machine": {
        "serve": "Start the reference server, or a simulated LLM.",
        "calibrate": "Measure how much load this machine can generate.",
        "docs": "Print a page of the documentation.",
    },
}
"""The commands as `--help` lists them."""

COMMANDS = [name for group in GROUPS.values() for name in group]
_NAME_WIDTH = max(map(len, COMMANDS))

INTERNAL_ERROR = 3
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
"""What a write to standard output may fail with."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"inferometer.cli.{cmd_name.replace('-', '_')}").command
        if ctx.resilient_parsing:
            _complete_files(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            if "://" in args[0]:
                raise UserError("there is no command before the URL", "measure the server with inferometer run URL")
            near = difflib.get_close_matches(args[0], COMMANDS, 1, 0.5)
            remedy = f"did you mean inferometer {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}"
            raise UserError(f"there is no command '{args[0]}'", remedy)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(_NAME_WIDTH), text) for name, text in group.items()])


def _complete_files(command: click.Command) -> None:
    """Let the shell complete file names wherever a parameter has no values of its own, as it does for programs without completion."""
    for parameter in command.params:
        if parameter.type in (click.STRING, click.UNPROCESSED):
            parameter.type = click.Path()


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="inferometer")
def main() -> None:
    """Measure how fast a model server is, how much load it holds, and whether the figures can be trusted.

    \b
    inferometer serve                               a server to try it on
    inferometer run http://127.0.0.1:8000           measure what runs there
    inferometer run grpc://127.0.0.1:8001           a tensor server: Triton, KServe v2
    inferometer run bench.yaml --set load.rate=50   a file, with one key changed
    inferometer capacity http://127.0.0.1:8000      how much load it holds
    inferometer engines engines.yaml                which engine to choose
    inferometer infer http://127.0.0.1:8000 --prompt Hello
    inferometer report runs/LATEST                  the last report again
    inferometer report runs/LATEST --open           the same with charts
    inferometer compare runs/A runs/B               is B better than A?

    `inferometer COMMAND --help` explains a command and its options.

    Exit status: 0 the measurement is VALID and meets its objectives, 1 it does not, 2 bad input, 3 internal error, 130 interrupted.

    Shell completion: eval "$(_INFEROMETER_COMPLETE=bash_source inferometer)" (or zsh_source, fish_source).
    """


def entry() -> None:
    """The console script. No error ends with a traceback on the terminal."""
    if (line := visible_keys.warning(sys.argv[1:])) is not None:
        click.echo(line, err=True)
    try:
        status = _command()(prog_name=_name(), standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except UserError as error:
        click.echo(f"inferometer: {error.line}", err=True)
        if error.next_step:
            click.echo(f"  next: {error.next_step}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("inferometer: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output is gone: `inferometer report RUN | head`
        _discard_output()
        sys.exit(0)
    except OSError as error:  # standard output is on a full disk: `inferometer report RUN > FILE`
        if error.errno not in _OUTPUT_ERRORS:
            sys.exit(_internal_error(error))
        _discard_output()
        click.echo(f"inferometer: {error.strerror}\n  next: check where the output is written to", err=True)
        sys.exit(2)
    except Exception as error:  # a bug: it must not look like an INVALID measurement
        sys.exit(_internal_error(error))
    finally:
        gc.freeze()  # or Python, as it ends, looks for garbage among all that was imported (80 ms)


_ALIAS = "inference-perf"
"""An executable of this name, such as a symbolic link, is that command."""


def _name() -> str:
    return _ALIAS if Path(sys.argv[0]).name == _ALIAS else "inferometer"


def _command() -> click.Command:
    if _name() != _ALIAS:
        return main
    command: click.Command = importlib.import_module("inferometer.cli.inference_perf").command
    return command


def _discard_output() -> None:
    """Drop what is still buffered, so that Python does not fail to write it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _internal_error(error: Exception) -> int:
    """Say what happened in one line, write the traceback to a file, and return the exit status."""
    if os.environ.get("INFEROMETER_DEBUG"):
        traceback.print_exception(error)
    log = _write_log(error)
    summary = printable(" ".join(f"{type(error).__name__}: {error}".split())[:200])
    click.echo(f"inferometer: internal error: {summary}{f'; the traceback is in {log}' if log else ''}", err=True)
    click.echo(f"  next: this is a bug in inferometer: please report it{' with that file' if log else ''}", err=True)
    return INTERNAL_ERROR


def _write_log(error: Exception) -> str:
    """Write the traceback to a new file that only the user can read, and return its path; "" when that fails."""
    try:
        descriptor, path = tempfile.mkstemp(".log", "inferometer-")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"inferometer {__version__}, Python {sys.version}\n")
            traceback.print_exception(error, file=file)
    except OSError:
        return ""
    return path
