"""Compares what the protocols cost: the same model over gRPC unary, gRPC streaming, HTTP with binary tensors, and HTTP JSON.

A cell of the comparison is one protocol with one request size. Each cell is an ordinary closed-loop run per round, stored and
checked like any other. A model with one input of any size is measured with tensors of several sizes, each generated once; any
other model with the data section that is given, or with random inputs, which have one size. All protocols send the same requests.
They take turns: in each round all protocols run at one size before the next size, and each time a different protocol starts, so
that a machine that slows down over time does not favor one of them.

    mean = server + overhead

    server    queue and compute time as the server reports it, per request or as averages (see analysis/breakdown.py)
    overhead  the rest: transport both ways, and the handling of the protocol unless the server counts it as compute time;
              0 if the server reports a longer time than the client measured (`excess`). Reports show its two parts, protocol and network, if the server reports how long it had
              each request

Requests are encoded before t=0 and responses are not decoded into numbers, so the client's cost of JSON is in neither.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from inferometer import tensors, triton_client, workload
from inferometer.analysis.protocol_comparison import PROTOCOLS, Comparison, cell_of
from inferometer.analysis.summary import Measured
from inferometer.analysis.sweep import MeasuredCell
from inferometer.conduct import experiment
from inferometer.conduct.measuring import completed
from inferometer.config import from_mapping
from inferometer.config.observe import NO_OBSERVERS
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.probe import reach
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.roundtrip import OtherProtocol
from inferometer.store.folder import disk_errors
from inferometer.tensors import Tensor
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
    sizes: tuple[int, ...] = ()
    """Sizes of the tensor in bytes; empty: SIZES if the model has one input of any size, otherwise those of its random inputs."""
    data: dict[str, Any] | None = None
    """The data section of the runs, instead of tensors of these sizes."""
    concurrency: int = 1
    duration: float = 3.0
    """Seconds per run, unless `requests` is given."""
    requests: int | None = None
    """Requests per run."""
    rounds: int = 1
    out: str | None = None
    """Folder to keep the runs in; None deletes them after the comparison."""
    server: dict[str, Any] = {}
    """Keys of the config's section server: API keys, headers, TLS."""
    overrides: tuple[str, ...] = ()
    """Config keys of the server, in the format of `--set`."""


SIZES = (1_000, 100_000, 10_000_000)
"""The default sizes of the tensor in bytes."""

CellKey = tuple[str, int]
"""A protocol and a size."""
Data = dict[str, Any]
"""A data section of the config."""


def compare(options: ComparisonOptions, note: Callable[[int, int, str, int], None] = lambda *_: None) -> Comparison:
    """Measure all cells. `note` is called when a run starts: its number, the number of runs, its protocol and its size."""
    protocols = protocols_of(options)
    reached, urls = _reach(options, protocols)
    model = reached.facts
    assert model is not None
    with _folder(options.out) as folder:
        data = _data(options, reached, folder)
        protocols, left_out = _that_work(options, protocols, reached, data)
        order = run_order(protocols, list(data), options.rounds)

        def choose(_: list[MeasuredCell]) -> Iterator[experiment.Cell]:
            for number, (protocol, size) in enumerate(order, 1):
                note(number, len(order), protocol, size)
                settings = {"protocol": protocol, "size": size}
                yield experiment.Cell(settings=settings, config=_config(options, protocol, data[size]))

        kept = experiment.Experiment(folder, experiment.RunList(kind="sweep", keys=("protocol", "size")))
        experiment.measure_cells(kept, choose, keeps_interrupted=True)
        measured: dict[CellKey, list[Measured]] = {}
        for settings, run, summary in kept.measured:
            measured.setdefault((settings["protocol"], settings["size"]), []).append((run, summary))
        keys = [(protocol, size) for size in data for protocol in protocols if (protocol, size) in measured]
        cells = tuple(cell_of(*key, measured[key], options.out is not None) for key in keys)
    first = kept.runs[0][0].manifest
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
        interrupted=kept.listed.interrupted,
        left_out=left_out,
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


def _reach(options: ComparisonOptions, protocols: Sequence[str]) -> tuple[reach.Reached, dict[bool, str]]:
    """Query both ports for the model, which must be the same.

    Returns what the first said, and the URLs of the ports without credentials: that of gRPC under True, of HTTP under False.
    """
    found: list[reach.Reached] = []
    urls: dict[bool, str] = {}
    for protocol in protocols:
        is_grpc = PROTOCOLS[protocol].grpc
        try:
            reached = reach.reach(_config(options, protocol).server)
        except OtherProtocol as error:
            raise UserError(error.what, _right_port(options, is_grpc)) from None
        found.append(reached)
        urls[is_grpc] = reached.targets[0].url
    assert found[0].facts is not None and found[-1].facts is not None
    first, last = found[0].facts.metadata, found[-1].facts.metadata
    if (first.inputs, first.outputs) != (last.inputs, last.outputs):
        raise UserError(
            f"{' and '.join(urls.values())} have different models named {options.model}",
            "give two ports of the same server",
        )
    return found[0], urls


def _right_port(options: ComparisonOptions, grpc: bool) -> str:
    """The remedy when the URL of one port was given for the other."""
    if grpc or options.http is None:
        return "give the server's gRPC port with --grpc, and its HTTP port as the argument"
    parts = urlsplit(options.http)
    swapped = f"grpc{'s' * (parts.scheme == 'https')}://{parts.netloc.rpartition('@')[2]}"
    return f"give the URL of the server's HTTP port as the argument, and this one with --grpc: http://HOST:PORT --grpc {swapped}"


def _data(options: ComparisonOptions, reached: reach.Reached, folder: Path) -> dict[int, Data]:
    """The data sections to measure, by the size of a request in bytes."""
    model = reached.facts
    assert model is not None
    if options.data is None and (options.sizes or _has_any_size(model)):
        triton_client.only_input(model, "leave out --sizes to send random inputs, or say what to send with --data")
        sizes = options.sizes or SIZES
        _check_sizes(sizes, model)
        return {size: _payload(folder, size, model) for size in sizes}
    data = options.data or {"type": "tensors"}
    return {sum(len(one.data) for one in _first_request(options, reached, data)): data}


def _has_any_size(model: ModelFacts) -> bool:
    """Whether the model has one input of any size, which JSON can carry as numbers."""
    try:
        triton_client.only_input(model)
    except UserError:
        return False
    return model.metadata.inputs[0].datatype not in _NOT_IN_JSON


def _first_request(options: ComparisonOptions, reached: reach.Reached, data: Data) -> tuple[Tensor, ...]:
    config = _config(options, next(iter(protocols_of(options))), data)
    (request,) = workload.build(completed(config, reached).data, config.seed, [0])
    assert isinstance(request.payload, tuple)
    return request.payload


def _that_work(
    options: ComparisonOptions, protocols: list[str], reached: reach.Reached, data: dict[int, Data]
) -> tuple[list[str], tuple[str, ...]]:
    """The protocols that the server reads and that can carry the data, and why one is left out if it is."""
    assert reached.facts is not None
    if "http" in protocols and reached.facts.server.name in reach.JSON_ONLY:
        kept = [name for name in protocols if name != "http"]
        return kept, ("HTTP binary was not measured: the server reads JSON only",)
    others = [name for name in protocols if PROTOCOLS[name].api != "kserve-json"]
    try:
        for one in _first_request(options, reached, next(iter(data.values()))) if others != protocols else ():
            if one.datatype in _NOT_IN_JSON:
                tensors.json_fields(one)
    except UserError as error:
        return others, (f"HTTP JSON was not measured: {error.what}",)
    return protocols, ()


def _check_sizes(sizes: Sequence[int], model: ModelFacts) -> None:
    (one,) = model.metadata.inputs
    if one.datatype in _NOT_IN_JSON:
        raise UserError(
            f"the input {one.name} of the model {model.metadata.name} is {one.datatype}, which cannot be sent as JSON numbers",
            "use a model that takes FP32, or leave --sizes out",
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


def _payload(folder: Path, size: int, model: ModelFacts) -> Data:
    """Write the tensor of this size to a file, and return the data section that sends it.

    It is the same for all protocols and in every comparison.
    """
    (one,) = model.metadata.inputs
    count = size // tensors.datatype_of(one.name, one.datatype).size
    shape = [1, count] if model.max_batch else [count]
    path = folder / f"tensor-{size}.npy"
    with disk_errors(folder):
        np.save(path, tensors.to_numpy(random_tensors.random(one.name, one.datatype, shape, _SEED, "comparison")))
    return {"type": "tensors", "fill": f"@{path}", "shape": {one.name: shape}}


def _config(options: ComparisonOptions, protocol: str, data: Data | None = None) -> Config:
    """The config of a run."""
    variant = PROTOCOLS[protocol]
    # The first response of each user is left out: TCP slow start delays it.
    ends = {"requests": options.requests + options.concurrency} if options.requests else {"duration": options.duration}
    tree = {
        "server": options.server
        | {
            "url": options.grpc if variant.grpc else options.http,
            "model": options.model,
            "api": variant.api,
            "stream": variant.stream,
        },
        "data": data or {"type": "tensors"},
        "load": {"type": "closed", "concurrency": options.concurrency} | ends,
        "client": {"probe": False},
        "measure": {"warmup": str(options.concurrency)},
        "observe": dict(NO_OBSERVERS),  # only the HTTP port has metrics: scraping would slow that one down
    }
    return from_mapping(tree, options.overrides, "command line")
