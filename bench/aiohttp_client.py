"""A peer: a typical closed loop with aiohttp on uvloop. `aiohttp_client.py URL TASKS SECONDS` prints requests/s."""

import asyncio
import json
import sys
import time

import aiohttp
import uvloop


async def main(url: str, tasks: int, seconds: float) -> float:
    body = json.dumps({"model": "null", "prompt": "hello " * 190, "max_tokens": 1}).encode()
    count = 0
    start = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def user() -> None:
            nonlocal count
            while time.perf_counter() - start < seconds:
                async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
                    await response.read()
                count += 1

        await asyncio.gather(*(user() for _ in range(tasks)))
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    print(uvloop.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
