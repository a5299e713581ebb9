"""Another process of the server, started by its hub: a front end, or a model.

    python -m inferometer.serve.processes SOCKET PARENT

It does what the hub calls on that socket. It ends with the connection, and when its parent has died.
"""

import socket
import sys
from functools import partial

import msgspec

from inferometer.serve.app import serve
from inferometer.serve.background import run_process
from inferometer.serve.processes import model_process
from inferometer.serve.processes.link import Handlers, attach
from inferometer.serve.settings import Settings


async def _work(number: int) -> None:
    handlers: Handlers = {
        "front_end": lambda given: serve(msgspec.convert(given, Settings), partial(link.tell, "ready"), link=link),
        "model": lambda *given: model_process.load(link, *given),
    }
    link = await attach(socket.socket(fileno=number), handlers)
    await link.lost
    if close := link.handlers.get("close"):
        await close()


if __name__ == "__main__":
    number, parent = map(int, sys.argv[1:])
    run_process(_work(number), parent)
