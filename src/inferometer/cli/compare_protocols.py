"""`inferometer compare-protocols`: what gRPC, HTTP and JSON cost for the same model."""

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from inferometer.cli.options import image_options, server_settings
from inferometer.errors import UserError, named

_NAMES = {
    "output": "--out DIR",
    "server.url": "URL and --grpc",
    "server.model": "--model",
    "server.api": "`inferometer run` with server.api",
    "data.path": "--image",
    "data.scaling": "--scaling",
    "data.crop": "--crop",
}
"""What this command calls its settings."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("url", required=False)
@click.option("--grpc", "grpc_url", metavar="URL", help="The server's gRPC port: grpc://HOST:PORT, or HOST:PORT.")
@click.option(
    "--model",
    default="identity",
    show_default=True,
    help="The model. One with one input and one output of any size, such as a model that returns its input, is measured with "
    "tensors of several sizes.",
)
@click.option(
    "--sizes",
    help="The sizes of the tensor, separated by commas, for a model with one input of any size. Default: 1kB,100kB,10MB.",
)
@click.option(
    "--data",
    metavar="FILE|YAML",
    help="What to send, for any model: the data section of a config file, or one as text, such as '{batch: 8, length: 128}'. "
    "Default: random inputs.",
)
@click.option(
    "--fill", metavar="HOW", help="The same as data.fill: zeros, ones, random, @FILE, or '{input_ids: ones}'."
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=1,3,224,224",
    help="Full shape of an input, including the batch. Can be repeated.",
)
@click.option("--image", metavar="FILE|FOLDER", help="Send this image, or those in the folder in turn.")
@image_options
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="The number of requests in flight.",
)
@click.option("--duration", metavar="TIME", help="How long to measure each cell, in each round. Default: 3s.")
@click.option("--requests", type=click.IntRange(min=1), help="How many requests to measure each cell with, instead.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many times to measure all cells; each round begins with another protocol.",
)
@click.option("--out", metavar="DIR", help="Keep the runs in this folder. Default: they are not kept.")
@click.option("--json", "json_path", metavar="PATH", help="Write the figures as JSON. Use - for standard output.")
@click.option("--chart", "chart_path", metavar="FILE", help="Draw a chart: .svg, .png or .html.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@server_settings("url", "model", "api", "stream")
def command(
    url: str | None,
    grpc_url: str | None,
    model: str,
    sizes: str | None,
    data: str | None,
    fill: str | None,
    shapes: tuple[str, ...],
    image: str | None,
    scaling: str | None,
    crop: str | None,
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
    """Measure one model over gRPC unary, gRPC stream, HTTP binary and HTTP JSON, and compare rates, times and bytes.

    \b
    Against the reference server, which is started for it
      inferometer compare-protocols
    Against your own server
      inferometer compare-protocols http://127.0.0.1:8000 --grpc 127.0.0.1:8001
    Three rounds with two sizes, and a chart
      inferometer compare-protocols --sizes 1kB,1MB --rounds 3 --chart out.svg
    Any model, with random inputs or with images
      inferometer compare-protocols URL --model bert --data '{length: 128}'
      inferometer compare-protocols URL --model resnet --image photos/

    URL is the HTTP port of a KServe v2 server, such as Triton. All protocols send the same requests. Every cell of the table is
    an ordinary run with a verdict of its own.

    Exit status: 0 all cells are VALID, 1 one is INVALID (the report says why), 2 bad input, 3 internal error.
    """
    import msgspec  # noqa: PLC0415

    from inferometer import compare_protocols  # noqa: PLC0415
    from inferometer.report import protocol_comparison as report  # noqa: PLC0415
    from inferometer.report.output import check_paths, wants_color, write_file  # noqa: PLC0415
    from inferometer.report.safe_console import SafeConsole  # noqa: PLC0415

    if chart_path is not None:
        report.check_chart(chart_path)
    check_paths({"--json": json_path, "--chart": chart_path})
    progress = SafeConsole(stderr=True)

    def note(number: int, of: int, way: str, size: int) -> None:
        if not quiet:
            progress.print(f"[dim]{number}/{of}[/dim] {report.describe_cell(way, size)}", highlight=False)

    options = compare_protocols.ComparisonOptions(
        model=model,
        sizes=_sizes(sizes) if sizes is not None else (),
        data=_data(sizes, data, fill, shapes, {"path": image, "scaling": scaling, "crop": crop}),
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
        encoded = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
        write_file(json_path, lambda file: file.write(encoded))
    if chart_path is not None:
        report.draw(found, chart_path)
    return 0 if found.is_valid else 1


def _data(
    sizes: str | None, data: str | None, fill: str | None, shapes: tuple[str, ...], images: dict[str, str | None]
) -> dict[str, Any] | None:
    """The data section that the options describe; None if none of them is given."""
    from inferometer.config import read_tree  # noqa: PLC0415

    given = {name: value for name, value in images.items() if value is not None}
    tree: dict[str, Any] = {}
    if data is not None:
        tree = read_tree(data) if not data.lstrip().startswith("{") else _parsed(data, "--data")
        tree = tree.get("data", tree)
    if fill is not None:
        tree["fill"] = fill if fill.startswith("@") else _parsed(fill, "--fill")
    for text in shapes:
        name, _, numbers = text.partition("=")
        shape = _parsed(f"[{numbers.strip('[] ')}]", "--shape")
        tree.setdefault("shape", {})[name] = shape
    if given:
        if "path" not in given and tree.get("type") != "images":
            raise UserError(f"--{next(iter(given))} needs --image", "give --image FILE, or leave it out")
        tree |= given | {"type": "images"}
    if tree and sizes is not None:
        raise UserError("--sizes does not go with data of your own, which has its own sizes", "leave it out")
    return {"type": "tensors"} | tree if tree else None


def _parsed(text: str, option: str) -> Any:
    from inferometer.config import yaml_text  # noqa: PLC0415

    try:
        return yaml_text.parse(text)
    except (ValueError, RecursionError):
        raise UserError(f"{option} {text!r:.60} is not YAML", "quote it: '{name: value}'") from None


def _sizes(given: str) -> tuple[int, ...]:
    from inferometer.units import parse_bytes  # noqa: PLC0415

    try:
        return tuple(parse_bytes(part.strip()) for part in given.split(","))
    except ValueError as error:
        raise UserError(f"--sizes: {error}", "separate sizes by commas: 1kB,100kB,10MB") from None


def _duration(given: str | None, requests: int | None) -> float:
    from inferometer.units import parse_seconds  # noqa: PLC0415

    if given is not None and requests is not None:
        raise UserError("--duration and --requests both limit how long a cell is measured", "give one of them")
    try:
        seconds = parse_seconds("3s" if given is None else given)
    except ValueError as error:
        raise UserError(f"--duration: {error}", "write it as 3s or 500ms") from None
    if not seconds:
        raise UserError("--duration must be greater than 0", "write it as 3s or 500ms")
    return seconds


@contextlib.contextmanager
def _server(url: str | None, grpc_url: str | None) -> Iterator[tuple[str | None, str | None]]:
    """Yield the URLs to measure, HTTP and gRPC: the given ones, or those of a reference server."""
    if url is None and grpc_url is None:
        with _reference_server() as urls:
            yield urls
        return
    yield _with_scheme(url, "http", "URL"), _with_scheme(grpc_url, "grpc", "--grpc")


def _with_scheme(url: str | None, scheme: str, option: str) -> str | None:
    if url is None or "://" not in url:
        return None if url is None else f"{scheme}://{url}"
    given = url.partition("://")[0]
    if given.lower() not in (scheme, f"{scheme}s"):
        port = "an HTTP port" if scheme == "http" else "a gRPC port"
        raise UserError(
            f"{option} {given}://...: this is not the URL of {port}",
            "give the HTTP port first: http://HOST:PORT --grpc grpc://HOST:PORT",
        )
    return url


@contextlib.contextmanager
def _reference_server() -> Iterator[tuple[str, str]]:
    """Run a reference server with the model identity while the block runs, and yield its URLs."""
    from inferometer.serve.background import serving  # noqa: PLC0415  (heavy: not for --help)
    from inferometer.serve.settings import Settings  # noqa: PLC0415

    with serving(Settings(models=("identity",), http=0, grpc=0)) as server:
        yield server.url, server.grpc
