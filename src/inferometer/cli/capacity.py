"""`inferometer capacity`: the highest load at which a server holds its objectives."""

from typing import Any

import click

from inferometer.cli import startup
from inferometer.cli.options import Command, names_of, options_of, paths_of, put_options
from inferometer.cli.uploads import finish
from inferometer.errors import UserError, named


@click.command(cls=Command)
@click.argument("source", metavar="[URL|FILE]", required=False)
@options_of("capacity")
def command(source: str | None, strict: bool, quiet: bool, **given: Any) -> int:
    """Find the highest load at which the server at URL, or the one that FILE (YAML) describes, holds its objectives.

    \b
    Whatever runs on this machine, as a chat service, in two minutes
      inferometer capacity
    Your own objectives
      inferometer capacity http://127.0.0.1:8000 --slo 'ttft.p90 < 500ms'
    How many people may use it at once, each of whom thinks for 30 s
      inferometer capacity http://127.0.0.1:8000 --by users --think 30s
    A tensor server
      inferometer capacity grpc://127.0.0.1:8001 --model resnet --slo inference
    p99, with the time that it takes
      inferometer capacity http://127.0.0.1:8000 --percentile p99 --budget 20m
    A report with charts
      inferometer capacity http://127.0.0.1:8000 --html capacity.html
    A gate in CI: exit status 1 unless 4 requests/s hold
      inferometer capacity http://127.0.0.1:8000 --at-least 4 --junit out.xml

    A few short closed loops come first: they show the curve of throughput, and where the objectives break. Probes with the load
    that --by names follow there. The answer says apart what was shown to hold with 95 % confidence, what is likely, and what is only
    an estimate from the curve. When the budget is spent, it is what the probes have shown until then; Ctrl-C gives that at any time.
    `inferometer docs capacity` explains it.

    `inferometer report FOLDER` shows the answer again, where FOLDER is the folder of the probes.

    Exit status: 0 a level holds, shown or likely (with --at-least: that level or a higher one; with --strict: only if shown), 1 none
    does, 2 bad input, 3 internal error, 130 interrupted before the first probe was complete.
    """
    import msgspec  # noqa: PLC0415

    startup.prepare()
    from inferometer.apis import is_url  # noqa: PLC0415
    from inferometer.conduct.capacity import Options, find, with_objectives  # noqa: PLC0415
    from inferometer.config import from_mapping, read_tree  # noqa: PLC0415
    from inferometer.probe.local import find_server  # noqa: PLC0415
    from inferometer.probe.scheme import DISCOVERY  # noqa: PLC0415
    from inferometer.report import capacity_view  # noqa: PLC0415
    from inferometer.report.capacity_export import SEARCH, CapacityReport, save  # noqa: PLC0415
    from inferometer.report.output import check_exports, deliver, with_file_exports  # noqa: PLC0415

    search = Options(**{name: given[name] for name in Options.__struct_fields__})
    paths = paths_of(given, "json", "html", "markdown", "junit")
    check_exports(paths)
    for setting in given["set"]:
        if setting.partition("=")[0].partition(".")[0].strip() == "load":
            raise UserError(
                "--set load...: the search sets the load itself", "leave it out; see --by, --start and --budget"
            )
    if source is None:
        source = find_server()
        click.echo(f"found a server at {source}", err=True)
    has_url = is_url(source)
    tree: dict[str, Any] = {"server": {"url": source}} if has_url else read_tree(source, or_url=True)
    tree.pop("load", None)
    origin = "command line" if has_url else source
    with named(names_of("capacity") | {"slo": "--slo", "budget": "--budget"}, origin):
        put_options(tree, "capacity", given)
        config = with_objectives(from_mapping(tree, given["set"], origin, DISCOVERY))
        paths = with_file_exports(paths, config.report.exports, SEARCH)
        found, manifest = find(config, search, capacity_view.SearchView(search.by, quiet))
    report = CapacityReport(msgspec.structs.replace(found, strict=strict), manifest)
    save(report)
    return finish(found.folder, deliver(SEARCH, report, paths), quiet)
