"""A drop-in for Triton's simple_perf_client.py: one request at a time to a model with one input and one output.

It is an ordinary run (closed loop, one request in flight, a number of warm-up requests): its records are stored, and the
numbers are those of its report. The requirements on the model and the output are those of Triton's client.
"""

import msgspec

from inferometer import conduct
from inferometer.analysis.summary import Summary
from inferometer.config import from_mapping
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.probe import reach
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.scheme import with_scheme
from inferometer.records import Run
from inferometer.tensors import shown

PORTS = {"http": 8000, "grpc": 8001}
PERCENTILES = ("p50", "p90", "p95", "p99")


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


def measure(options: TritonOptions, show: conduct.Show | None = None) -> tuple[Run, Summary]:
    """Check that the model suits this client, then run."""
    config = _config(options)
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


def _config(options: TritonOptions) -> Config:
    server = {"url": url_of(options.url, options.protocol), "model": options.model, "api": "kserve"}
    if options.version:
        server["version"] = options.version
    tree = {
        "server": server,
        "data": {"type": "tensors", "fill": "zeros"},
        "load": {"type": "closed", "concurrency": 1, "requests": options.warmups + options.iterations},
        "client": {"probe": False},
        "measure": {"warmup": str(options.warmups)},
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


def only_input(facts: ModelFacts) -> str:
    """The name of the model's only input. Raises UserError when the model does not suit this client."""
    metadata = facts.metadata
    remedy = "this command measures models with one input and one output of one variable size; use `inferometer run` for others"
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


def text(summary: Summary) -> str:
    """The report in the format of Triton's client."""
    latency = summary.metrics["e2e"]
    lines = [f"Throughput: {summary.throughput.requests or 0:.1f} infer/sec", "Latencies:"]
    for label, seconds in [("Avg", latency.mean), *((name, latency.value(name)) for name in PERCENTILES)]:
        lines.append(f"    {label}: {'-' if seconds is None else f'{seconds * 1e3:.2f}'} ms")
    return "\n".join(lines) + "\n"


def csv(summary: Summary) -> str:
    """The report as CSV, in the format of Triton's client: a header and one line, with latencies in microseconds."""
    latencies = [summary.metrics["e2e"].value(name) for name in PERCENTILES]
    cells = ["1", f"{summary.throughput.requests or 0:.1f}"]
    cells += ["" if seconds is None else f"{seconds * 1e6:.0f}" for seconds in latencies]
    header = ["Concurrency", "Inferences/Second", *(f"{name} latency" for name in PERCENTILES)]
    return f"{','.join(header)}\n{','.join(cells)}\n"
