"""Compares what the protocols cost: the same model over gRPC unary, gRPC streaming, HTTP with binary tensors, and HTTP JSON.

A cell of the comparison is one protocol with one tensor size. Each cell is an ordinary closed-loop run per round, stored and
checked like any other. All protocols send the same tensor of random numbers, generated once per size. They take turns: in
each round all protocols run at one size before the next size, and each time a different protocol starts, so that a machine
that slows down over time does not favor one of them.

    mean = server + network

    server    queue and compute time as the server reports it, per request or as averages (see analysis/breakdown.py)
    network   the rest: transport both ways, and the handling of the protocol unless the server counts it as compute time;
              0 if the server reports a longer time than the client measured (`excess`)

Requests are encoded before t=0 and responses are not decoded into numbers, so the client's cost of JSON is in neither.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np

from inferometer import conduct, tensors, triton_client
from inferometer.analysis.protocol_comparison import PROTOCOLS, Comparison, Measured, cell_of
from inferometer.config import from_mapping
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.probe import reach
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.roundtrip import OtherProtocol
from inferometer.store.folder import disk_errors
from inferometer.workload import random_tensors

_NOT_IN_JSON = ("FP16", "BF16", "BYTES")
_SEED = 4
"""Seed of the tensor."""


class ComparisonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `inferometer compare-protocols`."""

    http: str | None = None
    grpc: str | None = None
    """URLs of the HTTP and the gRPC port; the protocols of a port without a URL are left out."""
    model: str = "identity"
    sizes: tuple[int, ...] = (1_000, 100_000, 10_000_000)
    """Sizes of the tensor in bytes."""
    concurrency: int = 1
    duration: float = 3.0
    """Seconds per run, unless `requests` is given."""
    requests: int | None = None
    """Requests per run."""
    rounds: int = 1
    out: str | None = None
    """Folder to keep the runs in; None deletes them after the comparison."""
    overrides: tuple[str, ...] = ()
    """Config keys of the server, in the format of `--set`."""


CellKey = tuple[str, int]
"""A protocol and a size."""


def compare(options: ComparisonOptions, note: Callable[[int, int, str, int], None] = lambda *_: None) -> Comparison:
    """Measure all cells. `note` is called when a run starts: its number, the number of runs, its protocol and its size."""
    protocols = protocols_of(options)
    model, urls = _reach(options, protocols)
    _check_sizes(options.sizes, model)
    order = run_order(protocols, options.sizes, options.rounds)
    measured: dict[CellKey, list[Measured]] = {}
    interrupted = False
    with _folder(options.out) as folder:
        payloads = {size: _payload(folder, size, model) for size in options.sizes}
        for number, (protocol, size) in enumerate(order, 1):
            note(number, len(order), protocol, size)
            run, summary = conduct.measure(config_of(options, protocol, payloads[size], folder, model))
            measured.setdefault((protocol, size), []).append((run, summary))
            if run.manifest.outcome.interrupted:
                interrupted = True
                break
        keys = [(protocol, size) for size in options.sizes for protocol in protocols if (protocol, size) in measured]
        cells = tuple(cell_of(*key, measured[key], options.out is not None) for key in keys)
    first = next(iter(measured.values()))[0][0].manifest
    return Comparison(
        started=first.started,
        model=options.model,
        server=" ".join(part for part in (model.server.name, model.server.version) if part),
        http=urls.get(False),
        grpc=urls.get(True),
        concurrency=options.concurrency,
        duration=None if options.requests else options.duration,
        requests=options.requests,
        rounds=options.rounds,
        interrupted=interrupted,
        cells=cells,
    )


def run_order(protocols: Sequence[str], sizes: Sequence[int], rounds: int) -> list[CellKey]:
    """The order of the runs: at each size all protocols, each time starting with the next one."""
    order = []
    for round_index in range(rounds):
        for size_index, size in enumerate(sizes):
            first = (round_index + size_index) % len(protocols)
            order += [(protocol, size) for protocol in (*protocols[first:], *protocols[:first])]
    return order


# --- before the runs -------------------------------------------------------------------------------------------------


def protocols_of(options: ComparisonOptions) -> list[str]:
    """The protocols for which there is a URL."""
    urls = {True: options.grpc, False: options.http}
    protocols = [name for name, variant in PROTOCOLS.items() if urls[variant.grpc] is not None]
    if not protocols:
        raise UserError("no server was given", "give the URL of its HTTP port, or that of its gRPC port with --grpc")
    return protocols


def _reach(options: ComparisonOptions, protocols: Sequence[str]) -> tuple[ModelFacts, dict[bool, str]]:
    """Query both ports for the model, which must be the same.

    Returns its description, and the URLs of the ports without credentials: that of gRPC under True, of HTTP under False.
    """
    models: list[ModelFacts] = []
    urls: dict[bool, str] = {}
    for protocol in protocols:
        is_grpc = PROTOCOLS[protocol].grpc
        try:
            reached = reach.reach(_config(options, protocol).server)
        except OtherProtocol as error:
            raise UserError(error.what, _right_port(options, is_grpc)) from None
        assert reached.facts is not None
        triton_client.only_input(reached.facts)
        models.append(reached.facts)
        urls[is_grpc] = reached.targets[0].url
    first, last = models[0].metadata, models[-1].metadata
    if (first.inputs, first.outputs) != (last.inputs, last.outputs):
        raise UserError(
            f"{' and '.join(urls.values())} have different models named {options.model}",
            "give two ports of the same server",
        )
    return models[0], urls


def _right_port(options: ComparisonOptions, grpc: bool) -> str:
    """The remedy when the URL of one port was given for the other."""
    if grpc or options.http is None:
        return "give the server's gRPC port with --grpc, and its HTTP port as the argument"
    parts = urlsplit(options.http)
    swapped = f"grpc{'s' * (parts.scheme == 'https')}://{parts.netloc.rpartition('@')[2]}"
    return f"give the URL of the server's HTTP port as the argument, and this one with --grpc: http://HOST:PORT --grpc {swapped}"


def _check_sizes(sizes: Sequence[int], model: ModelFacts) -> None:
    (one,) = model.metadata.inputs
    if one.datatype in _NOT_IN_JSON:
        raise UserError(
            f"the input {one.name} of the model {model.metadata.name} is {one.datatype}, which cannot be sent as JSON numbers",
            "use a model that takes FP32",
        )
    width = tensors.datatype_of(one.name, one.datatype).size
    for size in sizes:
        if size < width or size % width:
            raise UserError(
                f"{size:,} bytes is not a multiple of the size of {one.datatype}", f"give a multiple of {width}"
            )
    if len(set(sizes)) < len(sizes):
        raise UserError("a size is given twice", "give each size once")


@contextlib.contextmanager
def _folder(out: str | None) -> Iterator[Path]:
    """The folder for the runs and the tensors that they send."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
            yield Path(folder)
        return
    with disk_errors(Path(out)):
        Path(out).mkdir(parents=True, exist_ok=True)
    yield Path(out).resolve()


def _payload(folder: Path, size: int, model: ModelFacts) -> Path:
    """Write the tensor of this size to a file. It is the same for all protocols and in every comparison."""
    (one,) = model.metadata.inputs
    count = size // tensors.datatype_of(one.name, one.datatype).size
    shape = [1, count] if model.max_batch else [count]
    path = folder / f"tensor-{size}.npy"
    with disk_errors(folder):
        np.save(path, tensors.to_numpy(random_tensors.random(one.name, one.datatype, shape, _SEED, "comparison")))
    return path


def _config(options: ComparisonOptions, protocol: str) -> Config:
    variant = PROTOCOLS[protocol]
    # The first response of each user is left out: TCP slow start delays it.
    ends = {"requests": options.requests + options.concurrency} if options.requests else {"duration": options.duration}
    tree = {
        "server": {
            "url": options.grpc if variant.grpc else options.http,
            "model": options.model,
            "api": variant.api,
            "stream": variant.stream,
        },
        "data": {"type": "tensors"},
        "load": {"type": "closed", "concurrency": options.concurrency} | ends,
        "client": {"probe": False},
        "measure": {"warmup": str(options.concurrency)},
    }
    return from_mapping(tree, options.overrides, "command line")


def config_of(options: ComparisonOptions, protocol: str, payload: Path, folder: Path, model: ModelFacts) -> Config:
    """The config of a run that sends the tensor in the file `payload`."""
    config = _config(options, protocol)
    (one,) = model.metadata.inputs
    shape = list(np.load(payload, mmap_mode="r").shape)
    data = msgspec.structs.replace(config.data, fill=f"@{payload}", shape={one.name: shape})
    return msgspec.structs.replace(config, data=data, output=str(folder))
