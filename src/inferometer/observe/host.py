"""An observer of this machine: CPU, memory, network and disk.

Series of the source `host`, read at the same times:

    cpu_busy, cpu_idle               s, all cores together, since the machine started
    load                             processes that ran or wanted to, over the last minute
    memory_used                      bytes that are not available to new processes
    network_received, network_sent   bytes; label `interface`: `loopback`, which local servers use, or `others`
    disk_read, disk_written          bytes

and, read once: `cpus`, `memory_total`, and what this process may use of them (`usable_cpus`, `usable_memory`), which is less in a
container that has a limit.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from inferometer import memory, processors
from inferometer.observe.observer import Observer
from inferometer.series import Columns, TimeSeries
from inferometer.timing.clock import now

SOURCE = "host"
LOOPBACK, OTHERS = "loopback", "others"

_Values = list[tuple[str, str, float]]
"""Names, interfaces ("" if the value is not about one) and values."""
_NET, _BLOCK = Path("/sys/class/net"), Path("/sys/block")


class HostWatch(Observer):
    """Reads the counters of this machine every `interval` seconds."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._columns = Columns(SOURCE)
        self._problems: dict[str, str] = {}
        devices = _Devices()
        self._readings: dict[str, Callable[[], _Values]] = {
            "CPU": _cpu,
            "load": _load,
            "memory": _memory,
            "network": devices.network,
            "disk": devices.disk,
        }

    def start(self) -> None:
        self._read("limits", now(), _limits)
        self.sample()

    def mark(self, stage: int) -> None:
        self.sample()

    def sample(self) -> None:
        at = now()
        for what, read in list(self._readings.items()):
            if not self._read(what, at, read):
                del self._readings[what]

    def end(self) -> Sequence[TimeSeries]:
        self.sample()
        return self._columns.series()

    def problems(self) -> Mapping[str, str]:
        return self._problems

    def _read(self, what: str, at: int, read: Callable[[], _Values]) -> bool:
        """Record the values. If they cannot be read, note why and return False."""
        try:
            values = read()
        except (OSError, RuntimeError, ValueError, psutil.Error) as error:  # NotImplementedError is a RuntimeError
            self._problems[f"{what} of this machine"] = str(error) or type(error).__name__
            return False
        for name, interface, value in values:
            self._columns.append(name, {"interface": interface} if interface else {}, at, float(value))
        return True


def _limits() -> _Values:
    limits = {
        "cpus": float(os.cpu_count() or 1),
        "usable_cpus": processors.usable(),
        "memory_total": float(psutil.virtual_memory().total),
        "usable_memory": float(memory.limit()),
    }
    return [(name, "", value) for name, value in limits.items()]


def _cpu() -> _Values:
    times = psutil.cpu_times()._asdict()
    idle = times["idle"] + times.get("iowait", 0.0)
    counted_twice = times.get("guest", 0.0) + times.get("guest_nice", 0.0)  # they are part of user and nice
    return [("cpu_busy", "", sum(times.values()) - idle - counted_twice), ("cpu_idle", "", idle)]


def _load() -> _Values:
    return [("load", "", os.getloadavg()[0])]


def _memory() -> _Values:
    now = psutil.virtual_memory()
    return [("memory_used", "", now.total - now.available)]


class _Devices:
    """The counters of network interfaces and disks, added up.

    Bytes that pass through a bridge, a bond, a volume group or a loop device are counted there and at the device behind it. So only
    devices with hardware count, unless there are none, as in a container. The devices are those of the first reading: another that
    appears later would bring along what it counted before. One that disappears keeps its last value.
    """

    def __init__(self) -> None:
        self._loopback: dict[str, tuple[int, int]] = {}
        self._interfaces: dict[str, tuple[int, int]] = {}
        self._disks: dict[str, tuple[int, int]] = {}

    def network(self) -> _Values:
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
        current = {name: (each.bytes_recv, each.bytes_sent) for name, each in counters.items()}
        if not self._loopback and not self._interfaces:
            self._loopback = {name: bytes for name, bytes in current.items() if _is_loopback(name)}
            self._interfaces = _hardware(current, _NET, _is_loopback)
        values: _Values = []
        for interface, known in ((LOOPBACK, self._loopback), (OTHERS, self._interfaces)):
            if known:
                values += _sums(known, current, ("network_received", "network_sent"), interface)
        return values

    def disk(self) -> _Values:
        counters = psutil.disk_io_counters(perdisk=True, nowrap=False)
        current = {name: (each.read_bytes, each.write_bytes) for name, each in (counters or {}).items()}
        if not self._disks:
            self._disks = _hardware(current, _BLOCK, _is_partition)
        if not self._disks:
            raise OSError("the system has no counters of disks")
        return _sums(self._disks, current, ("disk_read", "disk_written"))


def _is_loopback(name: str) -> bool:
    return name.rstrip("0123456789") == "lo"


def _is_partition(name: str) -> bool:
    return _BLOCK.is_dir() and not (_BLOCK / name).exists()


def _hardware(
    current: dict[str, tuple[int, int]], folder: Path, leave_out: Callable[[str], bool]
) -> dict[str, tuple[int, int]]:
    """The devices that have hardware; all of them if none has."""
    devices = {name: bytes for name, bytes in current.items() if not leave_out(name)}
    return {name: bytes for name, bytes in devices.items() if (folder / name / "device").exists()} or devices


def _sums(
    known: dict[str, tuple[int, int]], current: dict[str, tuple[int, int]], names: tuple[str, str], interface: str = ""
) -> _Values:
    """Update the known devices, and add them up."""
    known.update((name, current[name]) for name in known if name in current)
    return [(name, interface, sum(each[part] for each in known.values())) for part, name in enumerate(names)]
