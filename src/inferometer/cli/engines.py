"""`inferometer engines`: start several engines with the same model, measure them with the same workload, and recommend one."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from inferometer.cli.options import cost_options
from inferometer.cli.uploads import finish
from inferometer.errors import UserError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", metavar="[FILE]", required=False)
@click.option(
    "--model", metavar="PATH|NAME", help="The model that every engine serves: a folder, or a name on the hub."
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="TYPE[:MODE][,KEY=VALUE...]",
    help="An engine, instead of those of the file: vllm, transformers:serial, transformers:batched,batch=8, "
    "'command,url=http://127.0.0.1:9000', vllm,max-model-len=1024,env.OMP_NUM_THREADS=1. Can be repeated.",
)
@click.option(
    "--concurrency", metavar="N,N...", help="The levels: requests in flight, or the batch size. Default: 1,8."
)
@click.option("--requests", type=click.IntRange(min=1), metavar="N", help="Requests per level. Default: 64.")
@click.option(
    "--input",
    "input_tokens",
    type=int,
    metavar="N",
    help="The number of tokens in each prompt, without what a chat template adds.",
)
@click.option("--output", "output_tokens", type=int, metavar="N", help="The number of tokens to generate per request.")
@click.option("--repeat", type=click.IntRange(min=1), metavar="N", help="Measure everything in N interleaved rounds.")
@click.option("--slo", "slos", multiple=True, metavar="OBJECTIVE", help="What interactive use requires, such as 'ttft.p95 < 500ms'. Can be repeated.")  # fmt: skip
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set any key of the file. Can be repeated."
)
@click.option(
    "--resume", metavar="FOLDER", help="Continue the campaign in FOLDER: finished parts are not measured again."
)
@click.option("--json", "json_path", metavar="PATH", help="Write the results as JSON. Use - for standard output.")
@click.option("--html", "html_path", metavar="PATH", help="Write a report with charts as one HTML file.")
@click.option("--markdown", "markdown_path", metavar="PATH", help="Write the results as Markdown.")
@click.option("--csv", "csv_path", metavar="PATH", help="Write a line per engine and level as CSV.")
@click.option("--junit", "junit_path", metavar="PATH", help="Write JUnit XML, a test case per engine.")
@cost_options
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def command(
    file: str | None,
    model: str | None,
    engines: tuple[str, ...],
    concurrency: str | None,
    requests: int | None,
    input_tokens: int | None,
    output_tokens: int | None,
    repeat: int | None,
    slos: tuple[str, ...],
    overrides: tuple[str, ...],
    resume: str | None,
    json_path: str | None,
    html_path: str | None,
    markdown_path: str | None,
    csv_path: str | None,
    junit_path: str | None,
    cost: dict[str, Any],
    quiet: bool,
) -> int:
    """Start each engine of FILE (YAML), measure it with the same workload, stop it, and say which is best for what.

    \b
    Three ways to serve a model
      inferometer engines --model ./llama --engine vllm \\
        --engine transformers:serial --engine transformers:batched,batch=8
    A file, with a report for colleagues
      inferometer engines engines.yaml --html engines.html
    Two rounds, objectives and a price
      inferometer engines engines.yaml --repeat 2 --slo chat --price-per-hour 2.5
    Continue after a Ctrl-C
      inferometer engines engines.yaml --resume runs/LATEST

    \b
    A file:
      model: ./llama
      engines:
        - {type: vllm, args: {max-num-seqs: [32, 64]}}    # a list: two variants
        - {type: transformers, mode: continuous}
        - {type: llamacpp, model: ./llama.gguf}
        - {type: command, command: "./my-server --port {port}"}
      data: {input: 256, output: 128}
      load: {type: closed, concurrency: [1, 8, 32], requests: 64}
      slo: ["ttft.p95 < 500ms"]

    An engine that cannot be started, or dies, is reported with the reason and its last output, and the others go on. Nothing is left
    running. `inferometer docs choose-an-engine` explains the rest.

    Exit status: 0 at least one engine was measured, 1 none was, 2 bad input, 3 internal error, 130 interrupted.
    """
    from inferometer.conduct.campaign import run_campaign  # noqa: PLC0415
    from inferometer.conduct.campaign_reading import open_campaign  # noqa: PLC0415
    from inferometer.config import read_tree  # noqa: PLC0415
    from inferometer.config.engines import campaign_from  # noqa: PLC0415
    from inferometer.report.engines_export import ENGINES  # noqa: PLC0415
    from inferometer.report.engines_view import CampaignView  # noqa: PLC0415
    from inferometer.report.output import check_exports, deliver  # noqa: PLC0415

    paths = {"json": json_path, "html": html_path, "markdown": markdown_path, "csv": csv_path, "junit": junit_path}
    check_exports(paths)
    tree: dict[str, Any] = read_tree(file) if file is not None else {}
    _set_flags(tree, model, engines, concurrency, requests, input_tokens, output_tokens, repeat, slos)
    if cost.pop("cheapest_at", None):
        raise UserError(
            "--cheapest-at is about the loads of one server", "use it with `inferometer report RUN`, or leave it out"
        )
    if cost:
        tree["cost"] = (tree.get("cost") or {}) | cost
    if not tree.get("model") or not tree.get("engines"):
        raise UserError(
            "there is nothing to compare",
            "give a FILE, or --model and at least one --engine; see `inferometer engines --help`",
        )
    campaign = campaign_from(tree, overrides, file or "command line")
    folder = run_campaign(campaign, CampaignView(quiet), Path(resume) if resume else None)
    results = open_campaign(folder)
    status = finish(folder, deliver(ENGINES, results, paths), quiet)
    return 130 if results.interrupted else status


def _set_flags(
    tree: dict[str, Any],
    model: str | None,
    engines: tuple[str, ...],
    concurrency: str | None,
    requests: int | None,
    input_tokens: int | None,
    output_tokens: int | None,
    repeat: int | None,
    slos: tuple[str, ...],
) -> None:
    """Put the flags over the file."""
    if model is not None:
        tree["model"] = model
    if engines:
        tree["engines"] = [_engine(text) for text in engines]
    if repeat is not None:
        tree["repeat"] = repeat
    if slos:
        tree["slo"] = list(slos)
    if concurrency is not None or requests is not None:
        load = tree.setdefault("load", {"type": "closed", "concurrency": [1, 8], "requests": 64})
        load |= {"concurrency": _levels(concurrency)} if concurrency is not None else {}
        load |= {"requests": requests} if requests is not None else {}
    data = {"input": input_tokens, "output": output_tokens}
    if any(value is not None for value in data.values()):
        tree["data"] = (tree.get("data") or {}) | {name: value for name, value in data.items() if value is not None}


def _levels(text: str) -> Any:
    if ":" in text:
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--concurrency {text}: not whole numbers", "write --concurrency 1,8,64") from None


def _engine(text: str) -> dict[str, Any]:
    """Read `transformers:batched,batch=8`. Keys that an engine does not have are its flags: `vllm,max-num-seqs=32`."""
    from inferometer.config.engines import Campaign, EngineSpec  # noqa: PLC0415
    from inferometer.config.load import put  # noqa: PLC0415
    from inferometer.config.yaml_text import parse  # noqa: PLC0415

    kind, *settings = text.split(",")
    name, _, mode = kind.partition(":")
    entry: dict[str, Any] = {"type": name.strip()} | ({"mode": mode.strip()} if mode else {})
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--engine {text}: {setting!r} is not KEY=VALUE", "write --engine vllm,max-num-seqs=32")
        section, dot, name = key.strip().partition(".")
        near = get_close_matches(section, {*EngineSpec.__struct_fields__, *Campaign.__struct_fields__}, 1, 0.8)
        if dot and section in ("env", "server"):
            put(entry, key.strip(), value if section == "env" else parse(value), f"--engine {text}")
        elif dot and near:
            own = {"args": "", "env": "env.", "server": "server."}.get(near[0])
            correct = f"--set {near[0]}.{name}={value}" if own is None else f"--engine {kind},{own}{name}={value}"
            raise UserError(f"--engine {text}: an engine has no key {key.strip()!r}", f"write {correct}")
        else:
            (entry if section in EngineSpec.__struct_fields__ else entry.setdefault("args", {}))[key.strip()] = parse(
                value
            )
    return entry
