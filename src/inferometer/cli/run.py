"""`inferometer run`: measure an endpoint."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from inferometer.apis import scheme_of
from inferometer.errors import UserError, named

_NAMES = {"output": "--set output=DIR (`output` in the file)", "server.model": "--model NAME"}
"""Settings that have a flag of their own."""
_HOST = re.compile(r"(localhost|\[[0-9a-fA-F:]+\]|[\w.-]+(?=:\d)|[\w.-]+(?=/v1/?$))(:\d+)?(/[^?#]*)?")
"""A URL without a scheme: `localhost`, `host:8000`, `[::1]:8000/prefix`, `host/v1`."""


def _level(kind: type[int] | type[float]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Reads a number, and leaves a range of them (start:end[:step]) to the config."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
        if value is None or ":" in value:
            return value
        try:
            return kind(value)
        except ValueError:
            raise click.BadParameter(
                f"{value!r} is neither a {'whole ' * (kind is int)}number nor a range (START:END[:STEP])."
            ) from None

    return read


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="URL|FILE")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the file: --set load.rate=50. Repeatable.",
)
@click.option("--model", help="Model to ask for (default: the first that the server lists).")
@click.option(
    "--rate",
    callback=_level(float),
    metavar="N|START:END[:STEP]",
    help="Open loop: so many requests a second, Poisson. Short for --set load.type=poisson ... 100:500:100 is a stage for each.",
)
@click.option(
    "--concurrency",
    callback=_level(int),
    metavar="N|START:END[:STEP]",
    help="Closed loop: so many requests in flight. 1:8:2 is a stage for 1, 3, 5 and 7.",
)
@click.option("--duration", help="How long: 30s, 5m.")
@click.option("--requests", type=int, help="How many requests.")
@click.option("--input", "input_tokens", type=int, help="Tokens in each prompt.")
@click.option("--output", "output_tokens", type=int, help="Tokens wanted in each answer.")
@click.option(
    "--prompt", "prompts", multiple=True, help="Send this prompt instead of synthetic ones. Repeatable: in turn."
)
@click.option("--json", "json_path", metavar="PATH", help="Write summary.json there too (- is standard output).")
@click.option("--csv", "csv_path", metavar="PATH", help="Write one row a request there (- is standard output).")
@click.option(
    "--perf-csv",
    "perf_csv_path",
    metavar="PATH",
    help="Write one row a stage there, as perf_analyzer does (- is standard output).",
)
@click.option("--explain", is_flag=True, help="Print what each number means.")
@click.option("--quiet", "-q", is_flag=True, help="No live view.")
def command(
    source: str,
    overrides: tuple[str, ...],
    model: str | None,
    rate: float | str | None,
    concurrency: int | str | None,
    duration: str | None,
    requests: int | None,
    input_tokens: int | None,
    output_tokens: int | None,
    prompts: tuple[str, ...],
    json_path: str | None,
    csv_path: str | None,
    perf_csv_path: str | None,
    explain: bool,
    quiet: bool,
) -> int:
    """Measure the endpoint at URL, or as FILE (YAML) says, and give a verdict.

    \b
    inferometer run http://127.0.0.1:8000                    16 in flight for 30 s
    inferometer run http://127.0.0.1:8000 --rate 20 --duration 1m
    inferometer run http://127.0.0.1:8000 --concurrency 1:8:2 --duration 10s
    inferometer run grpc://127.0.0.1:8001 --model resnet     KServe v2, over gRPC
    inferometer run http://127.0.0.1:8000 --set server.api=kserve --model resnet
    inferometer run bench.yaml --set load.rate=50 --json out.json

    Results go to a folder of their own under runs/ (see `output` in docs/config.md). Ctrl-C ends the run early and reports
    what there is; a second Ctrl-C does not wait for answers. Exit status: 0 VALID, 1 INVALID, 2 bad input.
    """
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.config import from_mapping, read_tree  # noqa: PLC0415
    from inferometer.probe.scheme import with_scheme  # noqa: PLC0415
    from inferometer.report.live import LiveView  # noqa: PLC0415
    from inferometer.report.out import check_paths, deliver  # noqa: PLC0415

    is_url = _is_url(source)
    tree: dict[str, Any] = {"server": {"url": source}} if is_url else read_tree(source)
    _load(tree, rate, concurrency, duration, requests, any(one.startswith("load.stable=") for one in overrides))
    _data(tree, input_tokens, output_tokens, prompts)
    if model is not None:
        _section(tree, "server")["model"] = model
    origin = "command line" if is_url else source
    check_paths(json_path, csv_path, perf_csv_path)
    outputs = (json_path, csv_path, explain, perf_csv_path)
    try:
        with named(_NAMES, origin):
            config = from_mapping(tree, overrides, origin, with_scheme)
            run, summary = conduct.measure(config, None if quiet else LiveView())
    except conduct.UnsavedError as error:
        deliver(error.run, error.summary, *outputs)
        raise
    return deliver(run, summary, *outputs)


def _is_url(source: str) -> bool:
    """Whether the argument is a URL, with or without a scheme, rather than a file."""
    return "://" in source or (_HOST.fullmatch(source) is not None and not Path(source).exists())


def _load(
    tree: dict[str, Any],
    rate: float | str | None,
    concurrency: int | str | None,
    duration: str | None,
    requests: int | None,
    stable: bool,
) -> None:
    """The load's flags, on top of what the file says; `stable`: an override ends the load when it is."""
    if rate is not None and concurrency is not None:
        raise UserError(
            "--rate and --concurrency are two kinds of load", "give one; a cap on an open loop is load.max_concurrency"
        )
    ends = {name: value for name, value in (("duration", duration), ("requests", requests)) if value is not None}
    if rate is not None:
        tree["load"] = {"type": "poisson", "rate": rate} | _ends_of(tree, ends, stable)
    elif concurrency is not None:
        tree["load"] = {"type": "closed", "concurrency": concurrency} | _ends_of(tree, ends, stable)
    elif ends:
        load = _section(tree, "load")
        if "stages" in load:
            raise UserError(
                "--duration and --requests: the file has several stages",
                "use --set load.stages.0.duration=... for one of them",
            )
        for name in ("duration", "requests"):
            load.pop(name, None)
        load.update(ends)


def _section(tree: dict[str, Any], name: str) -> dict[str, Any]:
    """The file's section to put a flag into; where it is no section, the config's own check will say so."""
    found = tree.get(name)
    if found is None:
        found = tree[name] = {}
    return found if isinstance(found, dict) else {}


def _ends_of(tree: dict[str, Any], given: dict[str, Any], stable: bool) -> dict[str, Any]:
    """What ends the load: as given, as the file says, or after 30 s, unless it ends when it is stable."""
    load = _section(tree, "load")
    settling = {name: load[name] for name in ("stable", "window") if name in load}
    ends = given or {name: load[name] for name in ("duration", "requests") if name in load}
    if not ends and not stable and "stable" not in settling:
        ends = {"duration": "30s"}
    return ends | settling


def _data(tree: dict[str, Any], input_tokens: int | None, output_tokens: int | None, prompts: tuple[str, ...]) -> None:
    if prompts:
        if input_tokens is not None:
            raise UserError("--input and --prompt: a given prompt has the length it has", "drop one of them")
        tree["data"] = {"type": "prompts", "prompts": list(prompts)}
    server = tree.get("server")
    url = server.get("url") if isinstance(server, dict) else None
    if (input_tokens or output_tokens) and isinstance(url, str) and scheme_of(url) == "grpc":
        raise UserError(
            "--input and --output are tokens of prompts; over gRPC tensors or messages are sent",
            "use --set data.shape=... or --set data.batch=...",
        )
    for name, value in (("input", input_tokens), ("output", output_tokens)):
        if value is not None:
            _section(tree, "data")[name] = value
