"""The actor of a shard on a Ray node: runs the shard in a process beside it, and responds to the parent's polls.

The shard has a process of its own (worker.py), as on one machine, so Ray's threads do not share an interpreter with the hot path.
It records into a temporary folder of the node, from which each poll takes the next pieces (copying.py). If the run belongs to a bucket,
the shard's chunks and texts are stored there when it has ended, from this node (shard_store.py). The class is ordinary
Python: ray_fleet.py makes an actor of it, and its methods run in threads of their own, one for each concurrency group.
"""

import contextlib
import os
import pickle
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from inferometer import __version__, processors
from inferometer.fleet.clocks import Reading
from inferometer.fleet.control import Outcome, ShardReport
from inferometer.fleet.copying import BULKY, FolderReader, Numbers
from inferometer.fleet.local import LocalProcess
from inferometer.fleet.shard_store import ShardStoring
from inferometer.store.spool import Control
from inferometer.store.spool_columns import Piece
from inferometer.timing.clock import now, wall_offset

GROUPS = {"poll": 1, "control": 1, "clock": 1}
"""Concurrency groups, each with one thread: calls of a group are executed in order, and none waits for another group's."""
_PREFIX = "inferometer-ray-"
_PARENT_GONE_S = 30.0
"""A shard whose parent has not polled for this long is ended: the parent hangs, or the network between them is cut."""


class NodeFacts(msgspec.Struct, frozen=True):
    """What an actor says about where it runs."""

    node_id: str
    address: str
    host: str
    version: str
    cores: float
    niceness: int
    """How much lower than Ray's own the priority of the shard is; 0: not at all."""
    folder: str


class Update(msgspec.Struct):
    """The response to a poll."""

    changes: list[Piece | Numbers]
    heartbeat: int
    """The shard's latest sign of life, by its own clock."""
    has_more: bool
    """There was more to copy than fits into one response."""
    has_ended: bool = False
    """The shard's process has ended; what it recorded may have to be stored and copied yet."""
    result: Outcome | None = None
    """How the shard ended; everything is copied then."""


class ShardActor:
    """One shard, in a process of this node."""

    def __init__(self) -> None:
        _remove_leftovers()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self._process: LocalProcess | None = None
        self._result: Outcome | None = None
        self._storing: ShardStoring | None = None
        self._failure = ""
        self._latest: tuple[int, Update] = (-1, Update([], 0, False))
        self._is_closed = False
        self._polled = time.monotonic()

    def facts(self) -> NodeFacts:
        import ray  # noqa: PLC0415 - the class is used without Ray in tests

        return NodeFacts(
            node_id=ray.get_runtime_context().get_node_id(),
            address=ray.util.get_node_ip_address(),
            host=socket.gethostname(),
            version=__version__,
            cores=processors.usable(),
            niceness=_raise_priority(),
            folder=str(self._folder),
        )

    def clock(self) -> Reading:
        return Reading(now(), wall_offset())

    # --- before the run ----------------------------------------------------------------------------------------------

    def put_file(self, name: str, offset: int, data: bytes) -> None:
        """Write a part of a file that the workload needs."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)

    def link_files(self, folder: str, names: list[str]) -> None:
        """Use the files that another actor of this node has received."""
        for name in names:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(Path(folder) / name, path)

    def begin(self, data: bytes, piece: int) -> None:
        """Start the shard. `data` is the pickled job, and the destination of its chunks and texts, or None;
        `piece` is the most that is read at a time."""
        self._round: Iterator[Piece | Numbers] = iter(())
        self._is_last_round = False
        try:
            job, to = pickle.loads(data)
            job, shard = msgspec.structs.replace(job, spool=self._folder), job.shard
            self._control = Control(self._folder / f"{shard}.control", create=True)
            self._reader = FolderReader(self._folder, shard, self._control, piece)
            if to is not None:
                self._reader.left_out = BULKY
                self._storing = ShardStoring(self._folder, shard, to)
            _raise_priority()  # that of this thread, which a new process inherits
            self._process = LocalProcess(job, {"TMPDIR": str(self._folder)})
        except Exception as error:  # the parent sees it in the response to its next poll
            self._failure = f"could not be started: {type(error).__name__}: {error}"
            return
        self._polled = time.monotonic()
        threading.Thread(target=self._end_without_parent, daemon=True).start()

    # --- during the run ----------------------------------------------------------------------------------------------

    def tell(self, numbers: dict[str, int]) -> None:
        """Pass on a message of the parent. Instants are those of this node's monotonic clock."""
        if self._process is not None:
            self._process.tell(**numbers)

    def poll(self, number: int, wait: float, most: int, may_store: bool = False) -> Update:
        """Return what is new, up to about `most` bytes, after at most `wait` seconds. A poll with the number of the one before
        returns the same again: the response did not arrive. `may_store`: the chunks and texts may be stored (shard_store.py)."""
        self._polled = time.monotonic()
        if may_store and self._storing is not None:
            self._storing.allowed.set()
        if number != self._latest[0]:
            self._latest = number, self._new(wait, most)
        return self._latest[1]

    def _new(self, wait: float, most: int) -> Update:
        if self._process is None:
            time.sleep(wait)
            return Update([], 0, False, result=self._failure or None)
        has_ended = self._has_ended(self._process, wait)  # before the round: what it recorded last is part of it
        changes: list[Piece | Numbers] = []
        size, is_copied = 0, False
        while size < most:
            change = next(self._round, None)
            if change is not None:
                changes.append(change)
                size += len(change.data) if isinstance(change, Piece) else 0
            elif self._is_last_round:
                is_copied = True
                break
            elif changes and not has_ended:
                break  # a round is complete, and the shard goes on
            else:
                self._round, self._is_last_round = self._reader.round(is_last=has_ended), has_ended
        result = self._result if is_copied else None
        return Update(changes, self._control["heartbeat"], size >= most, self._result is not None, result)

    def _has_ended(self, process: LocalProcess, wait: float) -> bool:
        """Wait until the shard has ended and its chunks and texts are stored, if they are to be; return whether that is so. What could
        not be stored becomes part of what the parent copies."""
        if self._result is None:
            process.wait(wait)
            if process.is_alive():
                return False
            self._result = process.result()
        if self._reader.left_out and self._storing is not None:
            is_complete = isinstance(self._result, ShardReport) and self._control["rows"]
            if is_complete and not self._storing.has_ended(wait, self._control["stop"]):
                return False
            if self._storing.is_stored:
                self._control["stored"] = 1
            else:
                self._result = self._storing.noted(self._result)
                self._reader.left_out = frozenset()
        return True

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the shard's process, and remove everything that it left on this node."""
        self._is_closed = True
        if self._process is not None:
            self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_without_parent(self) -> None:
        while time.monotonic() - self._polled < _PARENT_GONE_S:
            if self._is_closed:
                return
            time.sleep(1.0)
        self.close()
        os._exit(1)


def _raise_priority() -> int:
    """Take back the niceness that Ray adds to its workers (15 by default), if that is permitted. Return what is left of it."""
    usual = psutil.Process(os.getppid()).nice()  # the raylet's
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, usual)
    return max(os.getpriority(os.PRIO_PROCESS, 0) - usual, 0)


def _remove_leftovers() -> None:
    """Remove folders of actors that were killed, such as when their parent was."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
