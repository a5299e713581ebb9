"""Another process of the server, started by its hub: a front end, or a model.

    python -m inferometer.serve.processes SOCKET PARENT

It does what the hub calls on that socket. It ends with the connection, and when its parent has died.
"""

import socket
import sys
from typing import Any

import msgspec

from inferometer.serve.app import serve
from inferometer.serve.background import run_process
from inferometer.serve.processes import model_process
from inferometer.serve.processes.link import attach
from inferometer.serve.settings import Settings


async def _work(number: int) -> None:
    async def front_end(settings: dict[str, Any]) -> None:
        await serve(msgspec.convert(settings, Settings), lambda at: link.tell("ready", at), link=link)

    async def model(*arguments: Any) -> tuple[bytes, model_process.Description]:
        return await model_process.load(link, *arguments)

    link = await attach(socket.socket(fileno=number), {"front_end": front_end, "model": model})
    await link.lost
    if close := link.handlers.get("close"):
        await close()


if __name__ == "__main__":
    number, parent = map(int, sys.argv[1:])
    run_process(_work(number), parent)
