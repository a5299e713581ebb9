"""An observer of server processes on this machine, each with all of its children.

Series of the source `process`, labelled with `process`, as it is in the config, and with `name`:

    cpu                       s, also of children that have ended
    memory                    bytes of resident memory; what processes share counts for each of them
    threads, processes        how many there are
    disk_read, disk_written   bytes read from and written to storage, also by children that have ended

The kernel does not count network traffic by process.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import psutil

from inferometer.observe.observer import Observer
from inferometer.observe.process_names import Found
from inferometer.series import Columns, TimeSeries
from inferometer.timing.clock import now

SOURCE = "process"

_Counters = dict[str, float]
_COUNTED = ("cpu", "disk_read", "disk_written")
"""Counters, which must not fall when a child ends. The other values are those of the processes that are there."""


class _Reading(NamedTuple):
    """One process at one time."""

    parent: int
    values: _Counters
    """Counters include those of children that it has waited for."""
    inherited: _Counters
    """The counters that grow when it waits for a child that has ended."""


class ProcessWatch(Observer):
    """Reads groups of processes, by the way they are given in the config, every `interval` seconds."""

    def __init__(self, groups: Mapping[str, Found], interval: float) -> None:
        self.interval = interval
        self._groups = {given: _Group(given, found) for given, found in groups.items()}
        self._columns = Columns(SOURCE)

    def start(self) -> None:
        self.sample()

    def mark(self, stage: int) -> None:
        self.sample()

    def sample(self) -> None:
        for given, group in self._groups.items():
            at = now()
            labels = {"process": given, "name": group.name}
            for name, value in group.read().items():
                self._columns.append(name, labels, at, value)

    def end(self) -> Sequence[TimeSeries]:
        self.sample()
        return self._columns.series()

    def problems(self) -> Mapping[str, str]:
        return {what: why for group in self._groups.values() for what, why in group.problems.items()}


class _Group:
    """The processes that a name or an id stands for, and all of their children.

    A child stays in the group when its parent has ended and another process has become its parent.
    """

    def __init__(self, given: str, found: Found) -> None:
        self.name = found.name
        self.problems: dict[str, str] = {}
        self._given = given
        self._roots = {process.pid for process in found.processes}
        self._members = {process.pid: process for process in found.processes}
        self._readings: dict[int, _Reading] = {}
        self._ended: _Counters = dict.fromkeys(_COUNTED, 0.0)
        self._totals: _Counters = {}
        self._unreadable: set[str] = set()
        me = psutil.Process()
        self._has_us = bool(self._roots & {parent.pid for parent in me.parents()})

    def read(self) -> _Counters:
        """Return the sums over all living processes; nothing if none is left."""
        self._members = {process.pid: process for process in self._living()}
        readings = {}
        for pid, process in self._members.items():
            try:
                readings[pid] = self._read(process)
            except psutil.NoSuchProcess:
                continue
        for name, value in lost(self._readings, readings).items():
            self._ended[name] += value
        self._readings = readings
        running = {pid for pid, reading in readings.items() if reading.values["processes"]}
        for pid in self._roots - running:
            self._note_end(pid)
        return self._sums() if running else {}

    def _living(self) -> Iterator[psutil.Process]:
        """All members that are running, and their children."""
        seen = (
            {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
            if self._has_us
            else set()
        )
        for member in self._members.values():
            if member.pid in seen or not _is_running(member):
                continue
            try:
                tree = [member, *member.children(recursive=True)]
            except psutil.Error:
                tree = [member]
            for process in tree:
                if process.pid not in seen:
                    seen.add(process.pid)
                    yield process

    def _read(self, process: psutil.Process) -> _Reading:
        with process.oneshot():
            # Until its parent waits for it, a process that has ended is still there with its counters.
            is_running = process.status() != psutil.STATUS_ZOMBIE
            times = process.cpu_times()
            of_children = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            values = {
                "cpu": times.user + times.system + of_children,
                "threads": float(process.num_threads() if is_running else 0),
                "processes": float(is_running),
            }
            try:
                values["memory"] = float(process.memory_info().rss)
            except psutil.AccessDenied:
                self._deny("memory", process, ("memory",))
            values |= self._read_disk(process)
            inherited = {name: of_children if name == "cpu" else values[name] for name in _COUNTED if name in values}
            return _Reading(process.ppid(), values, inherited)

    def _read_disk(self, process: psutil.Process) -> _Counters:
        if "disk_read" in self._unreadable:
            return {}
        try:
            counters = process.io_counters()
        except psutil.AccessDenied:
            self._deny("disk I/O", process, ("disk_read", "disk_written"))
            return {}
        except AttributeError:  # not every system has them
            self._unreadable |= {"disk_read", "disk_written"}
            return {}
        return {"disk_read": float(counters.read_bytes), "disk_written": float(counters.write_bytes)}

    def _deny(self, what: str, process: psutil.Process, names: Sequence[str]) -> None:
        """Leave a value out from now on: a sum without this process would be too small."""
        self._unreadable |= set(names)
        self.problems[f"process {self._given}: {what}"] = (
            f"access to process {process.pid} was denied: run inferometer as the user of that process"
        )

    def _note_end(self, pid: int) -> None:
        self._roots.discard(pid)
        at = datetime.now(UTC).strftime("%H:%M:%S")
        self.problems[f"process {self._given}"] = f"process {pid} ({self.name}) ended during the run, before {at} UTC"

    def _sums(self) -> _Counters:
        names = {name for reading in self._readings.values() for name in reading.values} - self._unreadable
        sums = {}
        for name in sorted(names):
            total = math.fsum(reading.values.get(name, 0.0) for reading in self._readings.values())
            if name in _COUNTED:
                total = max(total + self._ended[name], self._totals.get(name, 0.0))
            sums[name] = total
        self._totals |= sums
        return sums


def _is_running(process: psutil.Process) -> bool:
    """Whether it has not ended, and its id has not been given to another process."""
    try:
        return process.is_running()
    except psutil.Error:
        return False


def lost(before: Mapping[int, _Reading], after: Mapping[int, _Reading]) -> _Counters:
    """What ended processes had counted that no other process has inherited.

    A parent that waits for a child inherits its counters. A parent that ignores its children does not, nor does one that has ended
    itself; then what was last read of the child must be kept.
    """
    left: dict[int, _Counters] = {}
    for pid, reading in before.items():
        if pid not in after:
            sums = left.setdefault(_heir(reading.parent, before, after), dict.fromkeys(_COUNTED, 0.0))
            for name in reading.inherited:
                sums[name] += reading.values[name]
    total = dict.fromkeys(_COUNTED, 0.0)
    for heir, sums in left.items():
        for name, value in sums.items():
            inherited = after[heir].inherited.get(name, 0.0) - before[heir].inherited.get(name, 0.0) if heir else 0.0
            total[name] += max(value - max(inherited, 0.0), 0.0)
    return total


def _heir(pid: int, before: Mapping[int, _Reading], after: Mapping[int, _Reading]) -> int:
    """The closest ancestor that is still there; 0 if there is none in the group."""
    while pid in before:
        if pid in after:
            return pid
        pid = before[pid].parent
    return 0
