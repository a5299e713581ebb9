"""The reference server under stress: 1 GiB tensors, 10,000 clients at the same time, and minutes of mixed load.

    python -m bench soak              the mixed load runs for 5 minutes; SOAK_MINUTES=60 for an hour

Large: a tensor to the server and back over HTTP, and over gRPC in one message; the server's peak memory.
Many: streams over 4 connections, and HTTP connections, all open at the same time. Each is served or refused; none may be lost.
Mixed: HTTP, gRPC, streams, invalid requests, clients that disconnect, models that are loaded and unloaded. Memory, open files
and threads are sampled every second; after a quarter of the time they must not grow.
"""

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import msgspec
import numpy as np
from scipy import stats

from bench.common import Line, show

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests/serve"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests/serve/robust"))

import robust_peer as peer
from waiting import until

MIB = peer.MIB
SIZE = 1024 * MIB
TIMES = {"HTTP": 1.1, "gRPC": 1.3}
"""Peak memory in sizes of the tensor, at most."""
MANY = 10_000
MINUTES = float(os.environ.get("SOAK_MINUTES", "5"))
BLOCKS = 12
"""Number of stretches that the samples are cut into. The minimum of each counts: the memory while little is in progress."""
GROWTH = 0.5 * MIB
"""Bytes per minute that count as no growth: over an hour, less than the variation of the allocator."""


def main() -> int:
    lines = [*_large(), *_many(), *_mixed()]
    return show("soak", lines, minutes=MINUTES)


# --- large -----------------------------------------------------------------------------------------------------------


def _large() -> list[Line]:
    lines = []
    for protocol, limit in TIMES.items():
        with peer.child("identity", *peer.PORTS, "--max-message=1500MiB") as server:
            peer.responds(server)
            before, began = server.memory(), time.monotonic()
            server.forget_peak()
            peer.LARGE[protocol](server, SIZE)
            took, peak = time.monotonic() - began, server.peak()
            times = (peak - before) / SIZE
            peer.responds(server)
            found = f"{peak / MIB:.0f} MiB at most, {times:.2f} x; {took:.1f} s; then {server.memory() / MIB:.0f} MiB"
            hold = f"at most {limit:g} x the tensor"
            lines.append(Line(f"1 GiB to the server and back, {protocol}", found, hold, times <= limit))
    return lines


# --- many ------------------------------------------------------------------------------------------------------------


def _many() -> list[Line]:
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        models = peer.write_models(Path(folder), late=peer.delayed("200ms", slots=0))
        with peer.child("identity", models, *peer.PORTS) as server:
            peer.responds(server)
            return [
                _crowd(server, "streams", lambda: peer.many_streams(server.grpc_address, MANY, "late"), MANY),
                _crowd(
                    server,
                    "HTTP connections",
                    lambda: peer.many_connections(server.address, MANY, peer.small("late")),
                    2 * MANY,
                ),
            ]


def _crowd(server: peer.Child, what: str, connect: Callable[[], peer.Tally], expected: int) -> Line:
    """Connect all clients twice: the allocator keeps memory after the first time, but the second must not add to it."""
    files = server.files()
    connect()
    before, began = server.memory(), time.monotonic()
    server.forget_peak()
    tally = connect()
    took, peak = time.monotonic() - began, server.peak()
    with contextlib.suppress(AssertionError):
        until(lambda: server.files() <= files, "the files are closed")
    after, left = server.memory(), server.files() - files
    refused = sum(tally.refused.values())
    good = tally.served + refused == expected and after - before <= 64 * MIB and left <= 0 and not server.errors()
    found = (
        f"{tally.served} served, {refused} refused, {sum(tally.lost.values())} lost; {took:.1f} s; "
        f"{before / MIB:.0f}, {peak / MIB:.0f}, {after / MIB:.0f} MiB; {left} files left"
    )
    return Line(
        f"{MANY} {what} at the same time", found, "none lost; memory and files released", good and peer.responds(server)
    )


# --- mixed -----------------------------------------------------------------------------------------------------------


class Sample(msgspec.Struct):
    at: float
    memory: int
    files: int
    threads: int


class Load:
    """Clients in threads that run until the block ends. Counts their requests and collects unexpected results."""

    def __init__(self, server: peer.Child) -> None:
        self.server = server
        self.counts: dict[str, int] = {}
        self.wrong: dict[str, int] = {}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._client, args=(name, one), daemon=True)
            for name, one, count in (
                ("HTTP", self.http, 2),
                ("gRPC", self.grpc, 2),
                ("stream", self.stream, 2),
                ("wrong", self.wrong_requests, 1),
                ("gone", self.gone, 1),
                ("control", self.control, 1),
            )
            for _ in range(count)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(peer.PATIENCE_S)

    def _client(self, name: str, one: Callable[[], int]) -> None:
        while not self._stop.is_set():
            try:
                self.counts[name] = self.counts.get(name, 0) + one()
            except Exception as error:
                why = f"{name}: {type(error).__name__}: {error}"[:300]
                self.wrong[why] = self.wrong.get(why, 0) + 1
                time.sleep(0.1)

    def http(self) -> int:
        with peer.Http(self.server.address) as client:
            for i in range(50):
                data = peer.small(values=bytes(100_000)) if i % 10 == 0 else peer.small(("identity", "late")[i % 2])
                status, body = client.request(data)
                _hold(status == 200, f"{status} {body[:100]!r} {client.cut}")
        return 50

    def grpc(self) -> int:
        with peer.dialled(self.server.grpc_address) as channel:
            for i in range(50):
                values = bytes(100_000) if i % 10 == 0 else bytes(4)
                peer.infer(channel, peer.a_request(("identity", "late")[i % 2], values))
        return 50

    def stream(self) -> int:
        sent = [peer.a_request(("identity", "words")[i % 2]).SerializeToString() for i in range(20)]
        with peer.dialled(self.server.grpc_address) as channel:
            received = sum(1 for _ in channel.stream_stream(peer.STREAM_INFER)(iter(sent), timeout=peer.PATIENCE_S))
        _hold(received == 10 + 10 * 3, f"{received} responses")
        return 20

    def wrong_requests(self) -> int:
        with peer.Http(self.server.address) as client, peer.dialled(self.server.grpc_address) as channel:
            for _ in range(10):
                _hold(client.request(peer.small("nope"))[0] == 404, "not 404")
                _hold(client.request(peer.infer_head("identity", 4, [1, 7]) + bytes(4))[0] == 400, "not 400")
                _hold(
                    client.request(peer.http_request("POST", "/v2/models/late/infer", b"{" * 50))[0] == 400, "not 400"
                )
                with contextlib.suppress(grpc.RpcError):
                    peer.infer(channel, peer.a_request("nope"))
                with contextlib.suppress(grpc.RpcError):
                    peer.infer(channel, peer.a_request("late"), timeout=0.001)
        with peer.Http(self.server.address) as client:
            _hold(client.request(b"this is not HTTP\r\n\r\n")[0] == 400, "not 400")
        return 51

    def gone(self) -> int:
        with peer.Http(self.server.address) as client:
            client.sock.sendall(peer.small("long"))
        with peer.Http(self.server.address) as client:
            client.sock.sendall(peer.small(values=bytes(4000))[:-2000])
        with peer.dialled(self.server.grpc_address) as channel:
            message = peer.a_request("long").SerializeToString()
            unary = channel.unary_unary(peer.MODEL_INFER).future(message)
            stream = channel.stream_stream(peer.STREAM_INFER)(iter([message]))
            time.sleep(0.02)
            unary.cancel()
            stream.cancel()
        return 4

    def control(self) -> int:
        with peer.Http(self.server.address) as client:
            for path in (
                "/v2/repository/models/other/load",
                "/v2/models/other/infer",
                "/v2/repository/models/other/unload",
            ):
                data = peer.small("other") if path.endswith("infer") else peer.http_request("POST", path, b"{}")
                status, body = client.request(data)
                _hold(status == 200, f"{path}: {status} {body!r}")
            client.json("POST", "/v2/repository/index", {})
            client.request(peer.http_request("GET", "/metrics"))
        time.sleep(0.1)
        return 5


def _hold(good: bool, why: str) -> None:
    if not good:
        raise ValueError(why)


def _mixed() -> list[Line]:
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        decoupled = "model_transaction_policy { decoupled: true }\n"
        models = peer.write_models(
            Path(folder),
            late=peer.delayed("2ms", slots=4),
            long=peer.delayed("10s", slots=0),
            words=peer.delayed("1ms", slots=0, responses=3, more=decoupled),
            other='backend: "python"\n' + PYTHON,
        )
        (Path(folder) / "other/1/model.py").write_text(
            "def infer(inputs, parameters):\n    return {'OUTPUT0': inputs['INPUT0']}\n"
        )
        with peer.child("identity", models, *peer.PORTS, "--allow-control") as server:
            samples: list[Sample] = []
            began = time.monotonic()
            with Load(server) as load:
                while (at := time.monotonic() - began) < 60 * MINUTES:
                    samples.append(Sample(at, server.memory(), server.files(), server.threads()))
                    time.sleep(1)
            until(lambda: peer.pending(server, "long") == 0, "no request is pending")
            return _flat(samples, load, server.errors(), peer.responds(server))


PYTHON = """
input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
output [{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
"""


def _flat(samples: list[Sample], load: Load, errors: str, still_responds: bool) -> list[Line]:
    kept = samples[len(samples) // 4 :]
    slope, half = _slope(kept)
    memory = (
        f"{slope / MIB:+.2f} +- {half / MIB:.2f} MiB/min; {samples[0].memory / MIB:.0f} at the start, "
        f"{kept[0].memory / MIB:.0f} then, {kept[-1].memory / MIB:.0f} at the end"
    )
    what, requests = (
        f"{MINUTES:g} minutes of mixed load",
        ", ".join(f"{name} {n}" for name, n in sorted(load.counts.items())),
    )
    return [
        Line(
            f"{what}: requests",
            requests,
            "all as expected, no error output",
            not load.wrong and not errors and still_responds,
        ),
        *[Line("  not as expected", f"{n} x {why}") for why, n in load.wrong.items()],
        *([Line("  standard error", errors[:300])] if errors else []),
        Line(f"{what}: memory", memory, "flat, or at most 0.5 MiB/min", slope - half <= 0 or slope <= GROWTH),
        _steady(f"{what}: open files", [one.files for one in kept]),
        _steady(f"{what}: threads", [one.threads for one in kept]),
    ]


def _slope(samples: list[Sample]) -> tuple[float, float]:
    """Growth in bytes per minute, and half the width of its 95 % interval."""
    blocks = [
        block for block in np.array_split(np.array([(one.at, one.memory) for one in samples]), BLOCKS) if len(block)
    ]
    at, least = [block[:, 0].mean() / 60 for block in blocks], [block[:, 1].min() for block in blocks]
    fit = stats.linregress(at, least)
    return float(fit.slope), float(fit.stderr * stats.t.ppf(0.975, len(blocks) - 2))


def _steady(what: str, counts: list[int]) -> Line:
    third = max(len(counts) // 3, 1)
    first, last = float(np.median(counts[:third])), float(np.median(counts[-third:]))
    found = f"{first:g} in the first third, {last:g} in the last; {min(counts)} to {max(counts)}"
    return Line(what, found, "last third like the first", last - first <= max(3, 0.1 * first))
