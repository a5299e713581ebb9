"""`inferometer`: the verbs, each imported when it is called, so that `--help` is instant."""

import difflib
import importlib
import os
import sys

import click

from inferometer import __version__
from inferometer.errors import UserError

VERBS = {
    "run": "Measure an endpoint: from a URL or a YAML file to a verdict.",
    "infer": "Ask once, by hand: the answer, and where its time went.",
    "triton": "Triton's simple performance client: one request after the other to a model, its flags and its output.",
    "compare-protocols": "The same model over gRPC, HTTP and JSON: rates, times and bytes side by side.",
    "serve": "Start the reference server: tensor models (KServe v2, as Triton), OpenAI endpoints on a simulator.",
    "report": "Print the report of a stored run again, or export it.",
    "calibrate": "Measure this machine's own ceiling and added latency, against a null server.",
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"inferometer.cli.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], VERBS, 1, 0.5)
            remedy = f"write inferometer {near[0]}" if near else f"there are {', '.join(VERBS)}"
            raise UserError(f"there is no command '{args[0]}'", remedy)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="inferometer")
def main() -> None:
    """Says how fast a model server really is.

    \b
    inferometer run http://127.0.0.1:8000   measure what runs there
    inferometer run grpc://127.0.0.1:8001   a tensor server: Triton, KServe v2
    inferometer run bench.yaml --set load.rate=50
    inferometer infer http://127.0.0.1:8000 --prompt Hello    one by hand
    inferometer serve identity              a server to try it on
    inferometer report runs/LATEST          the same report again

    Exit status: 0 the measurement is VALID, 1 it is INVALID, 2 bad input, 130 interrupted.

    Shell completion: eval "$(_INFEROMETER_COMPLETE=bash_source inferometer)" (or zsh_source, fish_source).
    """


def entry() -> None:
    """The console script: a UserError is one line on stderr and status 2."""
    try:
        status = main(prog_name="inferometer", standalone_mode=False)
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
    except BrokenPipeError:  # the reader of our output went away: `inferometer report RUN | head`
        _drop_output()
        sys.exit(0)
    except OSError as error:  # standard output is on a full disk: `inferometer report RUN > FILE`
        _drop_output()
        click.echo(f"inferometer: {error.strerror or error}\n  next: check where the output goes", err=True)
        sys.exit(2)


def _drop_output() -> None:
    """What is still buffered goes nowhere, so that Python's own end does not stumble over it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
