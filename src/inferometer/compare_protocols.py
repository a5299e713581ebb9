"""The same model over gRPC unary, gRPC streaming, HTTP with binary tensors and HTTP with JSON: what the protocol itself costs.

A cell is one protocol with one size of tensor: an ordinary closed-loop run (or one a round), stored and judged like any other.
All protocols send the very same tensor: random numbers, made once for each size. They take turns: in each round every protocol
has its turn at a size before the next size comes, and who begins moves on by one, so that a machine that gets slower does not
favour one of them.

    mean = server + network

server   queue and compute as the server tells them, of each request or as averages (see analysis/breakdown.py)
network  the rest: the way there and back, and the handling of the protocol as far as the server does not count it as compute;
         0 where the server says that it took longer than the client saw (`excess`)

Requests are encoded before t=0 and answers are not taken apart into numbers, so what a client's own JSON costs is in neither.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np

from inferometer import conduct, tensors, triton_client
from inferometer.analysis.protocol_comparison import WAYS, Comparison, Measured, cell_of
from inferometer.config import from_mapping
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.probe import reach
from inferometer.probe.kserve import ModelFacts
from inferometer.probe.roundtrip import OtherProtocol
from inferometer.store.folder import disk_errors

_NOT_IN_JSON = ("FP16", "BF16", "BYTES")
_SEED = 4


class ComparisonOptions(msgspec.Struct, frozen=True, kw_only=True):
    http: str | None = None
    """URLs; without one, its protocols are left out."""
    grpc: str | None = None
    model: str = "identity"
    sizes: tuple[int, ...] = (1_000, 100_000, 10_000_000)
    """Bytes of the tensor."""
    concurrency: int = 1
    duration: float = 3.0
    """Seconds a run; `requests` takes its place."""
    requests: int | None = None
    rounds: int = 1
    out: str | None = None
    """Folder that keeps the runs; None: they are dropped when all is measured."""
    overrides: tuple[str, ...] = ()
    """Of the server's keys, as `--set` has them."""


Place = tuple[str, int]
"""Which cell: a protocol and a size."""


def compare(options: ComparisonOptions, note: Callable[[int, int, str, int], None] = lambda *_: None) -> Comparison:
    """Measure all cells; `note` is told of each run that begins: which one of how many, its protocol and size."""
    ways = ways_of(options)
    model, shown = _reach(options, ways)
    _check_sizes(options.sizes, model)
    order = turns(ways, options.sizes, options.rounds)
    found: dict[Place, list[Measured]] = {}
    interrupted = False
    with _folder(options.out) as folder:
        payloads = {size: _payload(folder, size, model) for size in options.sizes}
        for number, (way, size) in enumerate(order, 1):
            note(number, len(order), way, size)
            run, summary = conduct.measure(config_of(options, way, payloads[size], folder, model))
            found.setdefault((way, size), []).append((run, summary))
            if run.manifest.outcome.interrupted:
                interrupted = True
                break
        places = [(way, size) for size in options.sizes for way in ways if (way, size) in found]
        cells = tuple(cell_of(way, size, found[way, size], options.out is not None) for way, size in places)
    first = next(iter(found.values()))[0][0].manifest
    return Comparison(
        started=first.started,
        model=options.model,
        server=" ".join(part for part in (model.server.name, model.server.version) if part),
        http=shown.get(False),
        grpc=shown.get(True),
        concurrency=options.concurrency,
        duration=None if options.requests else options.duration,
        requests=options.requests,
        rounds=options.rounds,
        interrupted=interrupted,
        cells=cells,
    )


def turns(ways: Sequence[str], sizes: Sequence[int], rounds: int) -> list[Place]:
    """The order of the runs: at each size all protocols, begun by another one each time."""
    order = []
    for turn in range(rounds):
        for place, size in enumerate(sizes):
            first = (turn + place) % len(ways)
            order += [(way, size) for way in (*ways[first:], *ways[:first])]
    return order


# --- before ----------------------------------------------------------------------------------------------------------


def ways_of(options: ComparisonOptions) -> list[str]:
    """The protocols that there is a URL for."""
    urls = {True: options.grpc, False: options.http}
    found = [name for name, way in WAYS.items() if urls[way.grpc] is not None]
    if not found:
        raise UserError("there is no server to ask", "give the URL of its HTTP port, and --grpc with that of the other")
    return found


def _reach(options: ComparisonOptions, ways: Sequence[str]) -> tuple[ModelFacts, dict[bool, str]]:
    """What the server says about the model, the same behind both ports, and the ports' URLs (gRPC's at True), without credentials."""
    found: list[ModelFacts] = []
    shown: dict[bool, str] = {}
    for way in ways:
        try:
            reached = reach.reach(_config(options, way).server)
        except OtherProtocol as error:
            raise UserError(error.what, _right_port(options, WAYS[way].grpc)) from None
        assert reached.facts is not None
        triton_client.only_input(reached.facts)
        found.append(reached.facts)
        shown[WAYS[way].grpc] = reached.targets[0].url
    first, last = found[0].metadata, found[-1].metadata
    if (first.inputs, first.outputs) != (last.inputs, last.outputs):
        raise UserError(
            f"{' and '.join(shown.values())} have different models {options.model}", "give two ports of the same server"
        )
    return found[0], shown


def _right_port(options: ComparisonOptions, grpc: bool) -> str:
    """What to give where the one port was taken for the other."""
    if grpc or options.http is None:
        return "give the server's gRPC port with --grpc, and its HTTP port without"
    parts = urlsplit(options.http)
    swapped = f"grpc{'s' * (parts.scheme == 'https')}://{parts.netloc.rpartition('@')[2]}"
    return f"give the URL of the server's HTTP port first, and this one with --grpc: http://HOST:PORT --grpc {swapped}"


def _check_sizes(sizes: Sequence[int], model: ModelFacts) -> None:
    (one,) = model.metadata.inputs
    if one.datatype in _NOT_IN_JSON:
        raise UserError(
            f"the input {one.name} of the model {model.metadata.name} is {one.datatype}, which JSON has no numbers for",
            "give a model that takes FP32",
        )
    width = tensors.datatype_of(one.name, one.datatype).size
    for size in sizes:
        if size < width or size % width:
            raise UserError(f"{size:,} bytes are no whole number of {one.datatype}", f"give a multiple of {width}")
    if len(set(sizes)) < len(sizes):
        raise UserError("a size is there twice", "give each once")


@contextlib.contextmanager
def _folder(out: str | None) -> Iterator[Path]:
    """Where the runs and what they send lie."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
            yield Path(folder)
        return
    with disk_errors(Path(out)):
        Path(out).mkdir(parents=True, exist_ok=True)
    yield Path(out).resolve()


def _payload(folder: Path, size: int, model: ModelFacts) -> Path:
    """A file with the tensor of this size, the same for all protocols and every time."""
    (one,) = model.metadata.inputs
    count = size // tensors.datatype_of(one.name, one.datatype).size
    shape = [1, count] if model.max_batch else [count]
    generator = np.random.Generator(np.random.Philox(key=_SEED))
    path = folder / f"tensor-{size}.npy"
    with disk_errors(folder):
        np.save(path, tensors.to_numpy(tensors.random(one.name, one.datatype, shape, generator)))
    return path


def _config(options: ComparisonOptions, way: str) -> Config:
    spoken = WAYS[way]
    # Each user's first answer is left out: it pays for a connection's slow start.
    ends = {"requests": options.requests + options.concurrency} if options.requests else {"duration": options.duration}
    tree = {
        "server": {
            "url": options.grpc if spoken.grpc else options.http,
            "model": options.model,
            "api": spoken.api,
            "stream": spoken.stream,
        },
        "data": {"type": "tensors"},
        "load": {"type": "closed", "concurrency": options.concurrency} | ends,
        "measure": {"warmup": str(options.concurrency)},
    }
    return from_mapping(tree, options.overrides, "command line")


def config_of(options: ComparisonOptions, way: str, payload: Path, folder: Path, model: ModelFacts) -> Config:
    config = _config(options, way)
    (one,) = model.metadata.inputs
    shape = list(np.load(payload, mmap_mode="r").shape)
    data = msgspec.structs.replace(config.data, fill=f"@{payload}", shape={one.name: shape})
    return msgspec.structs.replace(config, data=data, output=str(folder))
