"""A drop-in for Triton's simple_perf_client.py: one request at a time to a model with one input and one output.

It is an ordinary run (closed loop, one request in flight, a number of warm-up requests). Its records are kept only on request, as Triton's client leaves nothing behind. The requirements on the model and the
output are those of Triton's client.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from inferometer import conduct
from inferometer.analysis import exact
from inferometer.analysis.summary import Summary
from inferometer.analysis.window import START, STEADY
from inferometer.config import from_mapping
from inferometer.config.observe import NO_OBSERVERS
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.probe import reach
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.scheme import with_scheme
from inferometer.records import Run
from inferometer.tensors import shown
from inferometer.units import NS

PORTS = {"http": 8000, "grpc": 8001}
PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
GIVEN_UP_AFTER = 2
"""Seconds without a connection to the server after which the run ends."""
_IN_MEMORY = "/dev/shm"
"""Where temporary folders go on a machine whose usual places for them cannot be written."""


class TritonOptions(msgspec.Struct, frozen=True):
    """The command line of `inferometer triton`."""

    model: str
    version: str = ""
    batch: int = 1
    size: int = 1
    """Size of the variable dimension."""
    url: str | None = None
    protocol: str | None = None
    """http or grpc."""
    iterations: int = 1000
    """Number of measured requests."""
    warmups: int = 500
    """Number of requests before them, which are not measured."""
    overrides: tuple[str, ...] = ()
    """Config keys of the server, in the format of `--set`."""


@contextlib.contextmanager
def folder_for_records(kept: str | None) -> Iterator[str]:
    """Yield the folder that is to be `kept`, or a temporary one, which is deleted at the end."""
    if kept is not None:
        yield kept
        return
    with contextlib.ExitStack() as stack:
        try:
            folder = tempfile.mkdtemp(prefix="inferometer-")
        except FileNotFoundError:  # none of the places that tempfile knows can be written
            folder = tempfile.mkdtemp(prefix="inferometer-", dir=_IN_MEMORY)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def measure(options: TritonOptions, folder: str, show: conduct.Show | None = None) -> tuple[Run, Summary]:
    """Check that the model suits this client, then run. The records are stored in a new folder under `folder`."""
    config = _config(options, folder)
    facts = reach.reach(config.server).facts
    assert facts is not None
    return conduct.measure(_with_data(config, options, facts), show)


def url_of(url: str | None, protocol: str | None) -> str:
    """The URL with a scheme: that of `protocol`, which must match an explicit one, or the one that the port speaks."""
    if url is None:
        scheme = protocol or "http"
        return f"{scheme}://127.0.0.1:{PORTS[scheme]}"
    scheme, sep, _ = url.partition("://")
    if not sep:
        return f"{protocol}://{url}" if protocol else with_scheme(url)
    if protocol is not None and not scheme.lower().startswith(protocol):
        raise UserError(
            f"-u {url} does not match the protocol {protocol}", f"leave -i out, or write {protocol}://HOST:PORT"
        )
    return url


def _config(options: TritonOptions, folder: str) -> Config:
    server: dict[str, object] = {
        "url": url_of(options.url, options.protocol),
        "model": options.model,
        "api": "kserve",
        "timeouts": {"unreached": GIVEN_UP_AFTER},
    }
    if options.version:
        server["version"] = options.version
    tree = {
        "server": server,
        "data": {"type": "tensors", "fill": "zeros"},
        "load": {
            "type": "closed",
            "concurrency": 1,
            "requests": options.warmups + options.iterations,
            "ramp_up": 0,  # as Triton's client, which sends its first request at once
        },
        "client": {"probe": False},
        "measure": {"warmup": str(options.warmups)},
        "observe": dict(NO_OBSERVERS),  # as Triton's client, which sends nothing but its requests
        "output": folder,
    }
    return from_mapping(tree, options.overrides, "command line")


def _with_data(config: Config, options: TritonOptions, facts: ModelFacts) -> Config:
    name = only_input(facts)
    if options.batch > 1 and not facts.max_batch:
        raise UserError(f"-b {options.batch}: the model {options.model} takes no batches", "leave -b out")
    if facts.max_batch and options.batch > facts.max_batch:
        raise UserError(
            f"-b {options.batch}: the model {options.model} takes batches of at most {facts.max_batch}", "lower -b"
        )
    shape = [options.batch, options.size] if facts.max_batch else [options.size]
    data = msgspec.structs.replace(config.data, shape={name: shape}, batch=options.batch)
    return msgspec.structs.replace(config, data=data)


_OTHERS = (
    "this command measures models with one input and one output of one variable size; use `inferometer run` for others"
)


def only_input(facts: ModelFacts, remedy: str = _OTHERS) -> str:
    """The name of the model's only input. Raises UserError, with this remedy, when the model has other inputs or outputs."""
    metadata = facts.metadata
    dimensions = 2 if facts.max_batch else 1
    for kind, tensors in (("input", metadata.inputs), ("output", metadata.outputs)):
        if len(tensors) != 1:
            names = ", ".join(one.name for one in tensors)
            raise UserError(
                f"expecting 1 {kind}, the model {metadata.name} has {len(tensors)}{': ' if names else ''}{names}",
                remedy,
            )
        (one,) = tensors
        which = f"the {kind} {one.name} of the model {metadata.name}"
        if len(one.shape) != dimensions:
            wanted = "2 dimensions (batch and size)" if dimensions == 2 else "1 dimension"
            raise UserError(f"expecting {kind} with {wanted}, {which} has {len(one.shape)}: {shown(one.shape)}", remedy)
        if one.shape[-1] != -1:
            raise UserError(f"expecting {kind} of a variable size [-1], {which} has {shown(one.shape)}", remedy)
    return metadata.inputs[0].name


# --- output ----------------------------------------------------------------------------------------------------------


def without_folder(run: Run) -> Run:
    """The run for a report, which names the folder of the records, if that will be deleted."""
    return msgspec.structs.replace(run, folder=Path("records not kept: --output FOLDER keeps them"))


def gave_up(run: Run) -> str | None:
    """Say that the run ended early because the server could not be reached; None if it did not."""
    if not run.manifest.outcome.given_up:
        return None
    planned = sum(stage.requests for stage in run.manifest.plan)
    return f"the server could not be reached for {GIVEN_UP_AFTER} s, after {len(run.records.rows):,} of {planned:,} requests"


class Figures(NamedTuple):
    """What Triton's client prints: of the measured requests that succeeded."""

    throughput: float
    """Requests per second, by the time from the first send to the last response."""
    mean: float | None
    """Seconds; None if no request succeeded, like the percentiles."""
    percentiles: tuple[float | None, ...]
    """Interpolated as numpy does and Triton's client with it, whereas reports show a value that was measured (nearest rank)."""


def figures(run: Run) -> Figures:
    """Count every request after the warm-up, the first as well, which the report of a closed loop may leave out."""
    records = run.records
    rows = records.rows[np.isin(records.phase, (STEADY, START)) & (records.rows["failure"] == 0)]
    if not len(rows):
        return Figures(0.0, None, (None,) * len(PERCENTILES))
    latencies = (rows["done"] - rows["sent"]) / NS
    span = int(rows["done"].max() - rows["sent"].min()) / NS
    found = np.percentile(latencies, list(PERCENTILES.values())).tolist()
    return Figures(len(rows) / span, exact.mean(latencies), tuple(found))


def text(run: Run) -> str:
    """The report in the format of Triton's client, which does not round."""
    found = figures(run)
    lines = [f"Throughput: {found.throughput} infer/sec", "Latencies:"]
    for label, seconds in zip(("Avg", *PERCENTILES), (found.mean, *found.percentiles), strict=True):
        lines.append(f"\t{label}: {'-' if seconds is None else seconds * 1e3} ms")
    return "\n".join(lines) + "\n"


def csv(run: Run) -> str:
    """The report as CSV, in the format of Triton's client: a header and one line, with latencies in microseconds."""
    found = figures(run)
    cells = ["1", str(found.throughput)]
    cells += ["" if seconds is None else str(seconds * 1e6) for seconds in found.percentiles]
    header = ["Concurrency", "Inferences/Second", *(f"{name} latency" for name in PERCENTILES)]
    return f"{','.join(header)}\n{','.join(cells)}\n"
