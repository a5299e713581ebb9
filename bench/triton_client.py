"""A peer: a typical load generator with tritonclient's asyncio clients.

`triton_client.py http|grpc ADDRESS MODEL closed|open LOAD SECONDS`, run with the python of the Triton environment: a closed
loop of LOAD tasks, or LOAD new tasks per second (Poisson). Prints JSON: p50 and p99 latency in seconds, the number of requests,
the start of the first and the end of the last (wall clock, ns).
"""

import asyncio
import importlib
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine

import numpy as np


async def run(protocol: str, address: str, model: str, kind: str, load: int, seconds: float) -> list[float]:
    library = importlib.import_module(f"tritonclient.{protocol}.aio")
    tensor = library.InferInput("INPUT0", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.random.default_rng(0).random((1, 16), np.float32))
    latencies: list[float] = []
    async with library.InferenceServerClient(address) as client:

        async def infer() -> None:
            start = time.perf_counter()
            await client.infer(model, [tensor])
            latencies.append(time.perf_counter() - start)

        await (closed if kind == "closed" else opened)(infer, load, time.perf_counter() + seconds)
    return latencies


async def closed(infer: Callable[[], Awaitable[None]], tasks: int, end: float) -> None:
    async def user() -> None:
        while time.perf_counter() < end:
            await infer()

    await asyncio.gather(*(user() for _ in range(tasks)))


async def opened(infer: Callable[[], Coroutine[None, None, None]], rate: int, end: float) -> None:
    due = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        while due < end:
            tasks.create_task(infer())
            due += random.expovariate(rate)
            await asyncio.sleep(due - time.perf_counter())


if __name__ == "__main__":
    began = time.time_ns()
    latencies = asyncio.run(run(*sys.argv[1:5], int(sys.argv[5]), float(sys.argv[6])))
    ended = time.time_ns()
    p50, p99 = np.percentile(latencies, [50, 99]).tolist()
    print(json.dumps({"p50": p50, "p99": p99, "requests": len(latencies), "began": began, "ended": ended}))
