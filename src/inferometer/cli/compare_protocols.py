"""`inferometer compare-protocols`: what gRPC, HTTP and JSON cost for the same model."""

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from inferometer.cli.options import Command, check_server_settings, names_of, options_of, put_options
from inferometer.cli.uploads import write_json
from inferometer.errors import UserError, named

_NAMES = names_of("compare-protocols") | {
    "output": "--output FOLDER",
    "server.url": "URL and --grpc",
    "server.model": "--model",
    "server.api": "`inferometer run` with server.api",
}
"""What this command calls its settings."""
_SERVER = ("header", "api_key_env", "api_key_file", "insecure")


@click.command(cls=Command)
@click.argument("url", required=False)
@options_of("compare-protocols")
def command(url: str | None, grpc: str | None, quiet: bool, **given: Any) -> int:
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
    from inferometer.report.output import check_paths, wants_color  # noqa: PLC0415
    from inferometer.report.safe_console import SafeConsole  # noqa: PLC0415

    json_path, chart_path = given["json"], given["chart"]
    check_server_settings(given["set"], "url", "model", "api", "stream")
    if chart_path is not None:
        report.check_chart(chart_path)
    check_paths({"--json": json_path, "--chart": chart_path})
    progress = SafeConsole(stderr=True)

    def note(number: int, of: int, way: str, size: int) -> None:
        if not quiet:
            progress.print(f"[dim]{number}/{of}[/dim] {report.describe_cell(way, size)}", highlight=False)

    tree: dict[str, Any] = {}
    put_options(tree, "compare-protocols", {name: given[name] for name in _SERVER})
    options = compare_protocols.ComparisonOptions(
        model=given["model"],
        sizes=_sizes(given["sizes"]) if given["sizes"] is not None else (),
        data=_data(given),
        concurrency=given["concurrency"],
        duration=_duration(given["duration"], given["requests"]),
        requests=given["requests"],
        rounds=given["rounds"],
        out=given["output"],
        server=tree.get("server", {}),
        overrides=tuple(given["set"]),
    )
    with named(_NAMES), _server(url, grpc) as (http_url, grpc_url):
        found = compare_protocols.compare(msgspec.structs.replace(options, http=http_url, grpc=grpc_url), note)
    if json_path != "-":
        click.echo(report.render(found, color=wants_color()), nl=False, color=True)
    write_json(json_path, found)
    if chart_path is not None:
        report.draw(found, chart_path)
    return 0 if found.is_valid else 1


def _data(given: dict[str, Any]) -> dict[str, Any] | None:
    """The data section that the options describe; None if none of them is given."""
    from inferometer.config import read_tree  # noqa: PLC0415

    data, fill = given["data"], given["fill"]
    tree: dict[str, Any] = {}
    if data is not None:
        tree = read_tree(data) if not data.lstrip().startswith("{") else _parsed(data, "--data")
        tree = tree.get("data", tree)
    if fill is not None:
        tree["fill"] = fill if fill.startswith("@") else _parsed(fill, "--fill")
    for text in given["shape"]:
        name, _, numbers = text.partition("=")
        shape = _parsed(f"[{numbers.strip('[] ')}]", "--shape")
        tree.setdefault("shape", {})[name] = shape
    config = {"data": tree}
    put_options(config, "compare-protocols", {name: given[name] for name in ("image", "scaling", "crop")})
    tree = config["data"]
    if tree and given["sizes"] is not None:
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
