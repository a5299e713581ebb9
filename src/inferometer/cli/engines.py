"""`inferometer engines`: start several engines with the same model, measure them with the same workload, and recommend one."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from inferometer.cli.options import Command, options_of, paths_of, put_options
from inferometer.cli.uploads import finish
from inferometer.errors import UserError


@click.command(cls=Command)
@click.argument("file", metavar="[FILE]", required=False)
@options_of("engines")
def command(file: str | None, quiet: bool, **given: Any) -> int:
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

    paths = paths_of(given, "json", "html", "markdown", "csv", "junit")
    check_exports(paths)
    if given["cheapest_at"]:
        raise UserError(
            "--cheapest-at is about the loads of one server", "use it with `inferometer report RUN`, or leave it out"
        )
    tree: dict[str, Any] = read_tree(file) if file is not None else {}
    if given["engine"]:
        tree["engines"] = [_engine(text) for text in given["engine"]]
    if given["concurrency"] is not None or given["requests"] is not None:
        tree.setdefault("load", {"type": "closed", "concurrency": [1, 8], "requests": 64})
    put_options(tree, "engines", given)
    if not tree.get("model") or not tree.get("engines"):
        raise UserError(
            "there is nothing to compare",
            "give a FILE, or --model and at least one --engine; see `inferometer engines --help`",
        )
    campaign = campaign_from(tree, given["set"], file or "command line")
    resume = Path(given["resume"]) if given["resume"] else None
    folder = run_campaign(campaign, CampaignView(quiet), resume)
    results = open_campaign(folder)
    status = finish(folder, deliver(ENGINES, results, paths), quiet)
    return 130 if results.interrupted else status


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
