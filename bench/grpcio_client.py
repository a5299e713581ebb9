"""A peer: a typical closed loop of unary calls with grpcio.

`grpcio_client.py threads|asyncio ADDRESS CONCURRENCY CONNECTIONS SECONDS` prints JSON: calls, CPU seconds, p50 latency.
`asyncio` is grpc.aio on its own poller. Users share the connections in turn; tritonclient uses one for all users.
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


OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


def with_threads(address: str, concurrency: int, connections: int, seconds: float) -> list[float]:
    latencies: list[float] = []
    channels = [grpc.insecure_channel(address, OWN_CONNECTION) for _ in range(connections)]
    calls = [channel.unary_unary(PATH) for channel in channels]
    for call in calls:
        call(MESSAGE)
    end = time.perf_counter() + seconds

    def user(number: int) -> None:
        call = calls[number % connections]
        while (start := time.perf_counter()) < end:
            call(MESSAGE)
            latencies.append(time.perf_counter() - start)

    users = [threading.Thread(target=user, args=(number,)) for number in range(concurrency)]
    for thread in users:
        thread.start()
    for thread in users:
        thread.join()
    for channel in channels:
        channel.close()
    return latencies


async def with_asyncio(address: str, concurrency: int, connections: int, seconds: float) -> list[float]:
    latencies: list[float] = []
    channels = [grpc.aio.insecure_channel(address, OWN_CONNECTION) for _ in range(connections)]
    calls = [channel.unary_unary(PATH) for channel in channels]
    for call in calls:
        await call(MESSAGE)
    end = time.perf_counter() + seconds

    async def user(number: int) -> None:
        call = calls[number % connections]
        while (start := time.perf_counter()) < end:
            await call(MESSAGE)
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*(user(number) for number in range(concurrency)))
    for channel in channels:
        await channel.close()
    return latencies


if __name__ == "__main__":
    kind, address = sys.argv[1:3]
    concurrency, connections, seconds = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    begin = time.process_time()
    latencies = (
        with_threads(address, concurrency, connections, seconds)
        if kind == "threads"
        else asyncio.run(with_asyncio(address, concurrency, connections, seconds))
    )
    cpu = time.process_time() - begin
    print(json.dumps({"calls": len(latencies), "cpu": cpu, "p50": sorted(latencies)[len(latencies) // 2]}))
