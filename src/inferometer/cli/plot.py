"""`inferometer plot`: the charts of the HTML report as PNG or SVG files."""

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run_dir", metavar="RUN_DIR")
@click.option(
    "--chart",
    "charts",
    metavar="NAME",
    multiple=True,
    help="Draw this chart, or those that a pattern such as 'time-*' matches. Can be repeated. Default: all.",
)
@click.option(
    "-o", "--output", metavar="FOLDER|FILE", help="Folder for the files, or one file (.png, .svg) for one chart."
)
@click.option(
    "--format",
    type=click.Choice(["png", "svg"]),
    default="png",
    show_default=True,
    help="Format of the files in a folder.",
)
@click.option("--dark", is_flag=True, help="Light lines on a dark background.")
@click.option("--list", "is_listed", is_flag=True, help="Print the names of the charts instead.")
def command(
    run_dir: str, charts: tuple[str, ...], output: str | None, format: str, dark: bool, is_listed: bool
) -> None:
    """Write the charts of the HTML report of RUN_DIR as PNG or SVG files, for slides and papers.

    \b
    inferometer plot runs/LATEST --list
    inferometer plot runs/LATEST -o charts/
    inferometer plot runs/LATEST --chart latency-ttft-all -o ttft.svg
    inferometer plot runs/LATEST --chart 'time-*' -o charts/ --dark

    RUN_DIR may also be the folder of a sweep, of a search for the capacity, of `run --repeat`, of `ab`, or of `engines`, or the URL of any of
    these in a bucket. The charts need matplotlib: pip install 'inferometer[plot]'.
    """
    from inferometer.conduct.kinds import open_page  # noqa: PLC0415
    from inferometer.report.plot import check_plotting, choose, write_charts  # noqa: PLC0415

    if not is_listed:
        check_plotting(output)
    page = open_page(run_dir)
    chosen = choose(page, charts)
    if is_listed:
        width = max(map(len, chosen))
        for name, chart in chosen.items():
            click.echo(f"{name:<{width}}  {chart['title'].rstrip('.')}")
        return
    assert output is not None
    for path in write_charts(page, chosen, output, format, dark):
        click.echo(path)
