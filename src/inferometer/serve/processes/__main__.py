"""Another process of the server, started by its hub: a front end, or a model.

    python -m inferometer.serve.processes ADDRESS PARENT COUNTER

It connects to the hub and does what that calls. When the connection ends, it ends; and it ends when its parent has died,
whatever it is doing.
"""

import asyncio
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from inferometer.serve import threads
from inferometer.serve.background import end_with
from inferometer.serve.processes.link import Link, connect, listen
from inferometer.timing.loop import run


async def _front_end(link: Link, counter: int, encoded: bytes) -> None:
    from inferometer.serve.app import Listening, serve_part  # noqa: PLC0415  (heavy: depends on what this process is)
    from inferometer.serve.processes.group import Group  # noqa: PLC0415
    from inferometer.serve.settings import Settings  # noqa: PLC0415

    def ready(listening: Listening) -> None:
        link.tell("ready", msgspec.to_builtins(listening))

    await serve_part(msgspec.json.decode(encoded, type=Settings), Group(link.handlers, link.call, counter), ready)


async def _model(
    link: Link, unused: asyncio.Event, source: tuple[Any, ...], config: str, device: str, overrides: list[str]
) -> str:
    from inferometer.serve import metrics  # noqa: PLC0415
    from inferometer.serve.kserve import control  # noqa: PLC0415
    from inferometer.serve.memory import keep_one_heap  # noqa: PLC0415
    from inferometer.serve.models.registry import Models  # noqa: PLC0415
    from inferometer.serve.models.repository import ModelSource  # noqa: PLC0415
    from inferometer.serve.processes.worker import NO_LIMIT, Worker  # noqa: PLC0415

    keep_one_heap()
    models = Models(link.loop, device=device, overrides=tuple(overrides), limit=NO_LIMIT)
    name, path, root = source
    models.add_source(ModelSource(name, path and Path(path), root and Path(root)))
    await models.start(config)
    link.handlers |= {
        "metrics": partial(metrics.page, models, time.time()),
        "statistics": lambda *which: control.own_statistics(models, *which).SerializeToString(),
    }
    _, address = await listen(Worker(models, name, unused).accept)
    return address


async def _serve(address: str, counter: int) -> None:
    over = asyncio.Event()
    link = await connect(address, {})
    link.handlers |= {"front_end": partial(_front_end, link, counter), "model": partial(_model, link, over)}
    link.lost.add_done_callback(lambda _: over.set())
    await over.wait()
    link.close()


def _main() -> None:
    address, parent, counter = sys.argv[1:]
    threading.Thread(target=end_with, args=(int(parent),), daemon=True).start()
    run(_serve(address, int(counter)))
    threads.leave()


if __name__ == "__main__":
    _main()
