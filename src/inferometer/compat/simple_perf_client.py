"""The command line of Triton's simple_perf_client.py: its options, and the config of ours that means the same."""

from collections.abc import Sequence
from typing import Any

from inferometer.compat.command_line import Given, Option, parse, url_without_password

NAMES = {"server.url": "-u", "server.model": "-m", "server.version": "-x", "data.length": "-s", "data.batch": "-b"}
"""What it calls our settings."""

OPTIONS = (
    Option("-v --verbose", takes="flag", no_effect="the report is the same"),
    Option("-m --model-name", becomes="server.model"),
    Option("-x --model-version", default="", becomes="server.version"),
    Option("-b --batch-size", int, 1, becomes="data.batch"),
    Option("-s --shape", int, 1, becomes="data.length"),
    Option("-u --url", becomes="server.url"),
    Option("-i --protocol", default="http", choices=("http", "grpc", "HTTP", "gRPC"), becomes="server.url"),
    Option("-c --iteration-count", int, 1000, becomes="load.requests"),
    Option("-w --warmup-count", int, 500, becomes="measure.warmup"),
    Option("--csv", no_effect="`inferometer triton` writes the same CSV"),
)


def translate(words: Sequence[str]) -> tuple[dict[str, Any], Given]:
    """Translate the words after `simple_perf_client.py`. Returns our config and the options, with notes."""
    given = parse("simple_perf_client.py", OPTIONS, words)
    if "-m" not in given:
        raise given.refuse("-m", "the name of the model is missing", "add -m NAME")
    scheme = given["-i"].lower()
    host = given["-u"] or f"127.0.0.1:{8001 if scheme == 'grpc' else 8000}"
    url = url_without_password(given, "-u", host if "://" in host else f"{scheme}://{host}")
    given.notes.append("`inferometer triton` takes the same options, and prints what this script prints.")
    config = {
        "server": {"url": url, "model": given["-m"], "version": given["-x"] or None, "api": "kserve"},
        "data": {"type": "tensors", "fill": "zeros", "length": given["-s"], "batch": given["-b"]},
        "load": {"type": "closed", "concurrency": 1, "requests": given["-c"] + given["-w"]},
        "measure": {"warmup": given["-w"]},
    }
    return config, given
