"""The peer: a closed loop of unary calls in grpcio, as load generators write it.

`grpcio_client.py threads|asyncio ADDRESS CONCURRENCY SECONDS` prints JSON: calls, CPU seconds, p50 latency. asyncio is
grpc.aio on its own poller; threads share one channel, as tritonclient's do.
"""

import asyncio
import json
import sys
import threading
import time

import grpc
import grpc.aio

PATH = "/inference.GRPCInferenceService/ModelInfer"
MESSAGE = b"\x0a\x01m\x3a\xc8\x01" + bytes(200)


def with_threads(address: str, concurrency: int, seconds: float) -> list[float]:
    taken: list[float] = []
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(PATH)
        call(MESSAGE)
        end = time.perf_counter() + seconds

        def user() -> None:
            while (start := time.perf_counter()) < end:
                call(MESSAGE)
                taken.append(time.perf_counter() - start)

        users = [threading.Thread(target=user) for _ in range(concurrency)]
        for thread in users:
            thread.start()
        for thread in users:
            thread.join()
    return taken


async def with_asyncio(address: str, concurrency: int, seconds: float) -> list[float]:
    taken: list[float] = []
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(PATH)
        await call(MESSAGE)
        end = time.perf_counter() + seconds

        async def user() -> None:
            while (start := time.perf_counter()) < end:
                await call(MESSAGE)
                taken.append(time.perf_counter() - start)

        await asyncio.gather(*(user() for _ in range(concurrency)))
    return taken


if __name__ == "__main__":
    kind, address, concurrency, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    begin = time.process_time()
    found = (
        with_threads(address, concurrency, seconds)
        if kind == "threads"
        else asyncio.run(with_asyncio(address, concurrency, seconds))
    )
    cpu = time.process_time() - begin
    print(json.dumps({"calls": len(found), "cpu": cpu, "p50": sorted(found)[len(found) // 2]}))
