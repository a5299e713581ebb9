"""`inferometer run`: measure an endpoint."""

from typing import Any

import click

from inferometer.errors import UserError


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
    "--rate", type=float, help="Open loop: so many requests a second, Poisson. Short for --set load.type=poisson ..."
)
@click.option("--concurrency", type=int, help="Closed loop: so many requests in flight.")
@click.option("--duration", help="How long: 30s, 5m.")
@click.option("--requests", type=int, help="How many requests.")
@click.option("--input", "input_tokens", type=int, help="Tokens in each prompt.")
@click.option("--output", "output_tokens", type=int, help="Tokens wanted in each answer.")
@click.option(
    "--prompt", "prompts", multiple=True, help="Send this prompt instead of synthetic ones. Repeatable: in turn."
)
@click.option("--json", "json_path", metavar="PATH", help="Write summary.json there too (- is standard output).")
@click.option("--csv", "csv_path", metavar="PATH", help="Write one row a request there.")
@click.option("--explain", is_flag=True, help="Print what each number means.")
@click.option("--quiet", "-q", is_flag=True, help="No live view.")
def command(
    source: str,
    overrides: tuple[str, ...],
    model: str | None,
    rate: float | None,
    concurrency: int | None,
    duration: str | None,
    requests: int | None,
    input_tokens: int | None,
    output_tokens: int | None,
    prompts: tuple[str, ...],
    json_path: str | None,
    csv_path: str | None,
    explain: bool,
    quiet: bool,
) -> int:
    """Measure the endpoint at URL, or as FILE (YAML) says, and give a verdict.

    \b
    inferometer run http://127.0.0.1:8000                    16 in flight for 30 s
    inferometer run http://127.0.0.1:8000 --rate 20 --duration 1m
    inferometer run bench.yaml --set load.rate=50 --json out.json

    Results go to a folder of their own under runs/ (see `output` in docs/config.md). Ctrl-C ends the run early and reports
    what there is; a second Ctrl-C does not wait for answers. Exit status: 0 VALID, 1 INVALID, 2 bad input.
    """
    from inferometer import conduct  # noqa: PLC0415
    from inferometer.config import from_mapping, read_tree  # noqa: PLC0415
    from inferometer.report.live import LiveView  # noqa: PLC0415
    from inferometer.report.out import check_paths, deliver  # noqa: PLC0415

    is_url = "://" in source
    tree: dict[str, Any] = {"server": {"url": source}} if is_url else read_tree(source)
    _load(tree, rate, concurrency, duration, requests)
    _data(tree, input_tokens, output_tokens, prompts)
    if model is not None:
        _section(tree, "server")["model"] = model
    config = from_mapping(tree, overrides, "command line" if is_url else source)
    check_paths(json_path, csv_path)
    outputs = (json_path, csv_path, explain)
    try:
        run, summary = conduct.measure(config, None if quiet else LiveView())
    except conduct.UnsavedError as error:
        deliver(error.run, error.summary, *outputs)
        raise
    return deliver(run, summary, *outputs)


def _load(
    tree: dict[str, Any], rate: float | None, concurrency: int | None, duration: str | None, requests: int | None
) -> None:
    """The load's flags, on top of what the file says."""
    if rate is not None and concurrency is not None:
        raise UserError(
            "--rate and --concurrency are two kinds of load", "give one; a cap on an open loop is load.max_concurrency"
        )
    ends = {name: value for name, value in (("duration", duration), ("requests", requests)) if value is not None}
    if rate is not None:
        tree["load"] = {"type": "poisson", "rate": rate} | (ends or _ends_of(tree))
    elif concurrency is not None:
        tree["load"] = {"type": "closed", "concurrency": concurrency} | (ends or _ends_of(tree))
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


def _ends_of(tree: dict[str, Any]) -> dict[str, Any]:
    load = _section(tree, "load")
    return {name: load[name] for name in ("duration", "requests") if name in load} or {"duration": "30s"}


def _data(tree: dict[str, Any], input_tokens: int | None, output_tokens: int | None, prompts: tuple[str, ...]) -> None:
    if prompts:
        if input_tokens is not None:
            raise UserError("--input and --prompt: a given prompt has the length it has", "drop one of them")
        tree["data"] = {"type": "prompts", "prompts": list(prompts)}
    for name, value in (("input", input_tokens), ("output", output_tokens)):
        if value is not None:
            _section(tree, "data")[name] = value
