"""What tests of shards in other processes have in common: the processes, and acting while they run."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from helpers import Client, http_response
from waiting import PATIENCE_S, until

from inferometer.store.spool import Control


def slow(client: Client, seconds: float = 0.005) -> None:
    """Take 5 ms per response."""
    while client.request():
        time.sleep(seconds)
        client.send(http_response())


def workers() -> list[psutil.Process]:
    """Return this process's client processes, in the order of their shards."""
    found = [child for child in psutil.Process().children() if "inferometer.fleet.worker" in child.cmdline()]
    return sorted(found, key=lambda child: child.pid)


def when_recorded(folder: Path, rows: int, act: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Call `act` when every shard has recorded this many rows."""

    def is_recorded() -> bool:
        paths = [path for path in folder.glob("*/spool/*.control") if path.stat().st_size]
        return bool(paths) and all(Control(path, create=False)["rows"] >= rows for path in paths)

    def wait() -> None:
        until(is_recorded, seconds=seconds)
        act()

    threading.Thread(target=wait, daemon=True).start()
