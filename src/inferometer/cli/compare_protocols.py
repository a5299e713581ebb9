"""`inferometer compare-protocols`: what gRPC, HTTP and JSON cost for the same model."""

import contextlib
from collections.abc import Iterator

import click

from inferometer.cli.settings import server_settings
from inferometer.errors import UserError, named

_NAMES = {
    "output": "--out DIR",
    "server.url": "URL and --grpc",
    "server.model": "--model",
    "server.api": "`inferometer run` with server.api",
}
"""What this command calls its settings."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("url", required=False)
@click.option("--grpc", "grpc_url", metavar="URL", help="The server's gRPC port: grpc://HOST:PORT, or HOST:PORT.")
@click.option(
    "--model",
    default="identity",
    show_default=True,
    help="A model with one input and one output of one variable size, such as one that gives back what it is given.",
)
@click.option(
    "--sizes", default="1kB,100kB,10MB", show_default=True, help="How large the tensor is: sizes, with commas between."
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=1, show_default=True, help="Requests in flight at a time."
)
@click.option("--duration", help="How long each cell is measured in a round. Default: 3s.")
@click.option("--requests", type=click.IntRange(min=1), help="How many requests each cell is measured by, instead.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How often all cells are gone through; another protocol begins each time.",
)
@click.option("--out", metavar="DIR", help="Keep the runs there, a folder each. Default: they are not kept.")
@click.option("--json", "json_path", metavar="FILE", help="Write the numbers there too (- is standard output).")
@click.option("--chart", "chart_path", metavar="FILE", help="Draw a chart there: .svg, .png or .html.")
@click.option("--quiet", "-q", is_flag=True, help="Do not say what is being measured.")
@server_settings("url", "model", "api", "stream")
def command(
    url: str | None,
    grpc_url: str | None,
    model: str,
    sizes: str,
    concurrency: int,
    duration: str | None,
    requests: int | None,
    rounds: int,
    out: str | None,
    json_path: str | None,
    chart_path: str | None,
    quiet: bool,
    overrides: tuple[str, ...],
) -> int:
    """Measure the same model over gRPC unary, gRPC stream, HTTP binary and HTTP JSON: rates, times, bytes.

    \b
    inferometer compare-protocols
    inferometer compare-protocols http://127.0.0.1:8000 --grpc 127.0.0.1:8001
    inferometer compare-protocols ... --sizes 1kB,1MB --rounds 3 --chart out.svg

    URL is the HTTP port of a KServe v2 server, such as Triton; without one, our own reference server is asked. Every cell is an ordinary run with a verdict of its own, and all protocols send the same
    tensor. Exit status: 0 all cells are VALID, 1 one is INVALID (the report says why), 2 bad input.
    """
    import msgspec  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    from inferometer import compare_protocols  # noqa: PLC0415
    from inferometer.report import protocol_comparison as report  # noqa: PLC0415
    from inferometer.report.out import check_paths, export, wants_color  # noqa: PLC0415

    if chart_path is not None:
        report.check_chart(chart_path)
    check_paths(json_path, chart_path)
    progress = Console(stderr=True)

    def note(number: int, of: int, way: str, size: int) -> None:
        if not quiet:
            progress.print(f"[dim]{number}/{of}[/dim] {report.cell_words(way, size)}", highlight=False)

    options = compare_protocols.ComparisonOptions(
        model=model,
        sizes=_sizes(sizes),
        concurrency=concurrency,
        duration=_duration(duration, requests),
        requests=requests,
        rounds=rounds,
        out=out,
        overrides=overrides,
    )
    with named(_NAMES), _server(url, grpc_url) as (http, grpc):
        found = compare_protocols.compare(msgspec.structs.replace(options, http=http, grpc=grpc), note)
    if json_path != "-":
        click.echo(report.render(found, color=wants_color()), nl=False, color=True)
    if json_path is not None:
        export(json_path, lambda file: file.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"))
    if chart_path is not None:
        report.draw(found, chart_path)
    return 0 if found.is_valid else 1


def _sizes(given: str) -> tuple[int, ...]:
    from inferometer.units import parse_bytes  # noqa: PLC0415

    try:
        return tuple(parse_bytes(part.strip()) for part in given.split(","))
    except ValueError as error:
        raise UserError(f"--sizes: {error}", "write sizes with commas between: 1kB,100kB,10MB") from None


def _duration(given: str | None, requests: int | None) -> float:
    from inferometer.units import parse_seconds  # noqa: PLC0415

    if given is not None and requests is not None:
        raise UserError("--duration and --requests both say how long a cell is measured", "give one of them")
    try:
        seconds = parse_seconds("3s" if given is None else given)
    except ValueError as error:
        raise UserError(f"--duration: {error}", "write it as 3s or 500ms") from None
    if not seconds:
        raise UserError("--duration: 0 s measure nothing", "give more")
    return seconds


@contextlib.contextmanager
def _server(url: str | None, grpc_url: str | None) -> Iterator[tuple[str | None, str | None]]:
    """The URLs to ask, HTTP and gRPC: those that were given, or those of a server of our own."""
    if url is None and grpc_url is None:
        with _own_server() as urls:
            yield urls
        return
    yield _with_scheme(url, "http", "URL"), _with_scheme(grpc_url, "grpc", "--grpc")


def _with_scheme(url: str | None, kind: str, what: str) -> str | None:
    if url is None or "://" not in url:
        return None if url is None else f"{kind}://{url}"
    scheme = url.partition("://")[0]
    if scheme.lower() not in (kind, f"{kind}s"):
        port = "an HTTP port" if kind == "http" else "a gRPC port"
        both = "http://HOST:PORT --grpc grpc://HOST:PORT"
        raise UserError(f"{what} {scheme}://...: not the URL of {port}", f"give that of the HTTP port first: {both}")
    return url


@contextlib.contextmanager
def _own_server() -> Iterator[tuple[str, str]]:
    """The URLs of a reference server with the model identity, as long as the block runs."""
    from inferometer.serve.background import serving  # noqa: PLC0415  (heavy: not for --help)
    from inferometer.serve.settings import Settings  # noqa: PLC0415

    with serving(Settings(models=("identity",), http=0, grpc=0)) as server:
        yield server.url, server.grpc
