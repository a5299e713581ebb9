"""gRPC unary calls: beside grpcio (threads and asyncio) on the same null server, in turn.

`calls a CPU second` counts all processes of `inferometer run`, from its start to the printed report, less what a run of one
request costs; for grpcio it counts the client's process while it calls, which has no records, metrics or report to make.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.common import CLIENT_CORE, HERE, Line, compiled_server, measure, median, pinned, show
from bench.grpcio_client import MESSAGE, PATH

ROUNDS = 3
SECONDS = 5
KINDS = ("threads", "asyncio")


def main() -> int:
    per_cpu: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "inferometer")}
    latency: dict[str, list[float]] = {kind: [] for kind in (*KINDS, "inferometer")}
    with (
        tempfile.TemporaryDirectory(prefix="inferometer-") as folder,
        compiled_server("null_grpc_server.c", 0, 64) as port,
    ):
        for _ in range(ROUNDS):
            for kind in KINDS:
                found = _grpcio(kind, port, 64)
                per_cpu[kind].append(found["calls"] / found["cpu"])
                latency[kind].append(_grpcio(kind, port, 1)["p50"])
            per_cpu["inferometer"].append(_calls_per_cpu(folder, port))
            alone = _inferometer(folder, port, "--concurrency", "1", "--duration", f"{SECONDS}s")
            latency["inferometer"].append(alone.summary["metrics"]["e2e_service"]["p50"])
    best = max(median(per_cpu[kind]) for kind in KINDS)
    quickest = min(median(latency[kind]) for kind in KINDS)
    ratio = median(per_cpu["inferometer"]) / best
    slower = median(latency["inferometer"]) / quickest
    lines = [
        *(Line(f"{kind}, 64 in flight", f"{median(found):,.0f} calls a CPU second") for kind, found in per_cpu.items()),
        Line("inferometer / the better grpcio", f"{ratio:.1f}", ">= 5", ratio >= 5),
        *(Line(f"{kind}, 1 in flight", f"{median(found) * 1e6:.0f} us p50") for kind, found in latency.items()),
        Line("inferometer / the quicker grpcio", f"{slower:.2f}", "<= 0.33", slower <= 1 / 3),
    ]
    return show("grpc", lines, per_cpu=per_cpu, latency=latency)


def _grpcio(kind: str, port: int, concurrency: int) -> dict[str, float]:
    command = pinned(
        CLIENT_CORE, sys.executable, HERE / "grpcio_client.py", kind, f"127.0.0.1:{port}", concurrency, SECONDS
    )
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def _inferometer(folder: str, port: int, *options: str):  # type: ignore[no-untyped-def]
    message = Path(folder) / "message.bin"
    message.write_bytes(MESSAGE)
    from inferometer.wire import protobuf  # noqa: PLC0415

    found = measure(
        folder,
        f"grpc://127.0.0.1:{port}",
        *options,
        server__api="grpc",
        server__method=PATH.removeprefix("/"),
        server__proto=str(protobuf.OWN / "kserve.binpb"),
        data__path=str(message),
    )
    assert found.summary["counts"]["failed"] == 0, found.summary["counts"]
    return found


def _calls_per_cpu(folder: str, port: int) -> float:
    nothing = _inferometer(folder, port, "--concurrency", "64", "--requests", "64")
    found = _inferometer(folder, port, "--concurrency", "64", "--duration", f"{SECONDS}s")
    return (len(found.run.records.rows) - 64) / (found.cpu - nothing.cpu)


if __name__ == "__main__":
    sys.exit(main())
