"""`--set` of the commands that make up their runs themselves: how to reach the server, as the config's section has it."""

from collections.abc import Callable
from typing import Any

import click

from inferometer.errors import UserError

_Command = Callable[..., Any]


def server_settings(*said: str) -> Callable[[_Command], _Command]:
    """The option, whose values the command gets as `overrides`; the keys `said` are what it says itself."""

    def check(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
        for one in given:
            key = one.partition("=")[0]
            section, _, name = key.strip().partition(".")
            if section != "server" or not name:
                raise UserError(
                    f"--set {key}: here it sets keys of `server` alone", "write for example --set server.tls.ca=FILE"
                )
            if name in said:
                raise UserError(f"--set {key}: the command itself says that", "leave it out; --help has its flags")
        return given

    return click.option(
        "--set",
        "overrides",
        multiple=True,
        callback=check,
        metavar="server.KEY=VALUE",
        help="Set a key of the server's section in docs/reference/config.md: server.api_key_env=VARIABLE, server.tls.ca=FILE. Repeatable.",
    )
