"""Options that several commands share: the exports, objectives, costs, and `--set` for the server's section of the config."""

import functools
import math
from collections.abc import Callable
from typing import Any

import click

from inferometer.errors import ANY_KEY, UserError
from inferometer.report.exporters import EXPORTERS

Command = Callable[..., Any]


def export_options(function: Command) -> Command:
    """Add one option per exporter. The command gets `exports`: the paths that were given, by the exporter's name."""

    @functools.wraps(function)
    def command(**given: Any) -> Any:
        paths = {name: given.pop(_parameter(name)) for name in EXPORTERS}
        return function(exports={name: path for name, path in paths.items() if path is not None}, **given)

    for name, text in reversed(EXPORTERS.items()):
        option = click.option(f"--{name}", _parameter(name), metavar="PATH", help=f"{text} Use - for standard output.")
        command = option(command)
    return command


def _parameter(name: str) -> str:
    return f"export_{name.replace('-', '_')}"


def slo_options(function: Command) -> Command:
    """Add `--slo` and `--strict`; the command gets `slos` and `strict`."""
    slo = click.option(
        "--slo",
        "slos",
        multiple=True,
        metavar="OBJECTIVE",
        help="Judge the run by this service level objective, such as 'ttft.p99 < 500ms' or 'failure_rate < 0.1%', or by a preset "
        "(chat, code, summarize, interactive, inference), instead of those of the config (`slo`). Can be repeated. "
        "`inferometer docs slo` has the grammar.",
    )
    return slo(strict_option(function))


strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Exit with status 1 also if an objective is undecided, even if the measured value is within the limit, or if it is met by "
    "margin only.",
)


def cost_options(function: Command) -> Command:
    """Add `--price-per-hour`, `--gpus` and `--cheapest-at`; the command gets `cost`: the keys of the config's section that were given."""

    @functools.wraps(function)
    def command(price_per_hour: dict[str, Any], gpus: int | None, cheapest_at: tuple[float, ...], **given: Any) -> Any:
        cost = price_per_hour | {
            key: value for key, value in {"gpus": gpus, "cheapest_at": list(cheapest_at)}.items() if value
        }
        return function(cost=cost, **given)

    options = (
        click.option(
            "--price-per-hour",
            callback=lambda ctx, param, value: _price(value),
            metavar="PRICE[/gpu]",
            help="What a server costs per hour, such as 12.5, or a GPU: 2.5/gpu. The report then has the cost per million tokens, or "
            "per million inferences.",
        ),
        click.option(
            "--gpus",
            type=int,
            callback=lambda ctx, param, value: _gpus(value),
            metavar="N",
            help="The number of GPUs that serve the model, of all servers together: rates are also given per GPU.",
        ),
        click.option(
            "--cheapest-at",
            multiple=True,
            type=float,
            callback=lambda ctx, param, values: _user_rates(values),
            metavar="TOKENS/S",
            help="Say which of the measured loads is the cheapest at which a user still sees this many output tokens per second, "
            "interpolated between loads. Can be repeated.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _price(text: str | None) -> dict[str, Any]:
    """Read `12.5`, `12.5/server` or `2.5/gpu` as keys of the section `cost`."""
    if text is None:
        return {}
    number, _, per = text.partition("/")
    example = "write --price-per-hour 12.5 for a server, or --price-per-hour 2.5/gpu for a GPU"
    if per.strip().lower() not in ("", "server", "gpu"):
        raise UserError(f"--price-per-hour {text}: a price is per server or per GPU, not per {per.strip()}", example)
    try:
        price = float(number)
    except ValueError:
        raise UserError(f"--price-per-hour {text}: {number.strip()!r} is not a number", example) from None
    if not (math.isfinite(price) and price > 0):
        raise UserError(f"--price-per-hour {text}: must be more than 0", example)
    return {"price_per_hour": price, "per": per.strip().lower() or "server"}


def _gpus(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise UserError(f"--gpus {value}: must be at least 1", "give the number of GPUs of all servers together")
    return value


def _user_rates(values: tuple[float, ...]) -> tuple[float, ...]:
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise UserError(
                f"--cheapest-at {value:g}: must be more than 0", "give tokens per second and user: --cheapest-at 50"
            )
    return values


def abort_options(function: Command) -> Command:
    """Add `--abort-on`; the command gets `abort_on`."""
    return click.option(
        "--abort-on",
        multiple=True,
        metavar="LIMIT",
        help="End a run early, as INVALID, when this limit is exceeded after the first 10 s: 'failure_rate > 20%', "
        "'consecutive_failures > 50', 'ttft.p99 > 30s' or 'e2e > 60s', for example. Can be repeated. `abort` in the config has more.",
    )(function)


def percentile_option(function: Command) -> Command:
    """Add `--percentiles`; the command gets `percentiles`: numbers, none if the option is not given."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> list[float]:
        if text is None:
            return []
        from inferometer.config.report import parse_percentiles  # noqa: PLC0415 - building the command line must be fast

        return parse_percentiles(text)

    return click.option(
        "--percentiles",
        callback=read,
        metavar="LIST",
        help="Show these percentiles, such as 50,75,99.9, instead of the usual ones.",
    )(function)


SERVER_NAMES = {
    "server.api_key_env": "--api-key-env",
    "server.api_key_file": "--api-key-file",
    "server.tls.verify": "--insecure",
    ANY_KEY: "--set",
}
"""What commands with `server_options` call these settings."""


def server_options(function: Command) -> Command:
    """Add options for the requests' headers, the API key and TLS; the command gets `server`: the config's section as far as it is given."""

    @functools.wraps(function)
    def command(
        headers: tuple[str, ...], api_key_env: str | None, api_key_file: str | None, insecure: bool, **given: Any
    ) -> Any:
        server: dict[str, Any] = {"api_key_env": api_key_env, "api_key_file": api_key_file}
        server |= {"headers": dict(map(_header, headers)), "tls": {"verify": False} if insecure else None}
        return function(server={key: value for key, value in server.items() if value}, **given)

    options = (
        click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header. Can be repeated."),
        click.option("--api-key-env", metavar="VARIABLE", help="Environment variable that holds the API key."),
        click.option("--api-key-file", metavar="FILE", help="File that holds the API key."),
        click.option("--insecure", is_flag=True, help="TLS: do not verify the server's certificate."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UserError("--header: not of the form NAME:VALUE", "write, for example, --header 'X-Team: ours'")
    return name.strip(), value.strip()


def image_options(function: Command) -> Command:
    """Add `--scaling` and `--crop`, which say how images become tensors (workload/image_tensors.py)."""
    crop = click.option(
        "--crop",
        metavar="RESIZE:SIZE",
        help="Image: resize the shorter side and cut out the middle, such as 256:224 (default: resize to the model's size).",
    )
    scaling = click.option(
        "--scaling",
        type=click.Choice(["none", "inception", "vgg", "unit", "imagenet"]),
        help="Image: 0..255; -1..1; minus the mean of each channel; 0..1; or torchvision's mean and std (default: inception "
        "for floats, none for integers).",
    )
    return scaling(crop(function))


def server_settings(*own: str) -> Callable[[Command], Command]:
    """Add `--set server.KEY=VALUE`; the command gets `overrides`. The keys `own` are refused: the command sets them itself."""

    def check(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
        for setting in given:
            key = setting.partition("=")[0]
            section, _, name = key.strip().partition(".")
            if section != "server" or not name:
                raise UserError(
                    f"--set {key}: this command accepts only keys of the section server",
                    "write, for example, --set server.tls.ca=FILE",
                )
            if name in own:
                raise UserError(f"--set {key}: this command sets that key itself", "leave it out; see --help")
        return given

    return click.option(
        "--set",
        "overrides",
        multiple=True,
        callback=check,
        metavar="server.KEY=VALUE",
        help="Set a key of the config's section server, such as server.api_key_env=VARIABLE or server.tls.ca=FILE "
        "(`inferometer docs config` lists them). Can be repeated.",
    )


def comparison_options(function: Command) -> Command:
    """Add what `compare` and `ab` share: `--fail-if`, `--strict`, `--force` and the files."""
    options = (
        click.option(
            "--fail-if",
            multiple=True,
            metavar="CONDITION",
            help="Exit with status 1 if this is shown, such as 'ttft.p99 worse by 5%'. Can be repeated.",
        ),
        click.option(
            "--strict",
            is_flag=True,
            help="Exit with status 1 also if a condition is undecided, even if the measured figures are within it.",
        ),
        click.option("--force", is_flag=True, help="Compare runs that differ or are INVALID; the notes say in what."),
        click.option(
            "--json", "json_path", metavar="PATH", help="Write the comparison as JSON. Use - for standard output."
        ),
        click.option(
            "--html",
            "html_path",
            metavar="PATH",
            help="Write it as one HTML file with charts, which works without a network. Use - for standard output.",
        ),
        click.option(
            "--markdown", "markdown_path", metavar="PATH", help="Write it as Markdown. Use - for standard output."
        ),
        click.option(
            "--junit",
            "junit_path",
            metavar="PATH",
            help="Write conditions and metrics as JUnit XML. Use - for standard output.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function
