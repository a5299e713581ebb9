"""Another process of the server, started by its hub: a front end, or a model.

    python -m inferometer.serve.processes SOCKET PARENT COUNTER

It does what the hub calls on that socket. When the connection ends, it ends; and it ends when its parent has died,
whatever it is doing.
"""

import asyncio
import socket
import sys
from typing import Any

import msgspec

from inferometer.serve.background import run_child
from inferometer.serve.processes.link import attach


async def _serve(number: int, counter: int) -> None:
    over = asyncio.Event()

    async def front_end(encoded: bytes) -> None:
        from inferometer.serve.app import serve  # noqa: PLC0415  (heavy: depends on what this process is)
        from inferometer.serve.processes.hub import Group  # noqa: PLC0415
        from inferometer.serve.settings import Settings  # noqa: PLC0415

        settings = msgspec.json.decode(encoded, type=Settings)
        group = Group(link.handlers, link.call, counter)
        await serve(settings, lambda at: link.tell("ready", msgspec.to_builtins(at)), group=group)

    async def model(*arguments: Any) -> str:
        from inferometer.serve.processes import model_process  # noqa: PLC0415

        return await model_process.load(link, over, *arguments)

    link = await attach(socket.socket(fileno=number), {"front_end": front_end, "model": model})
    link.lost.add_done_callback(lambda _: over.set())
    await over.wait()
    if close := link.handlers.get("close"):
        await close()
    link.close()


if __name__ == "__main__":
    number, parent, counter = map(int, sys.argv[1:])
    run_child(parent, lambda: _serve(number, counter))
