"""The counters of this machine."""

from collections import namedtuple
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from inferometer.observe import host
from inferometer.observe.host import HostWatch
from inferometer.series import TimeSeries

Net = namedtuple("Net", "bytes_recv bytes_sent")
Disk = namedtuple("Disk", "read_bytes write_bytes")


def watched(samples: int = 3) -> tuple[HostWatch, dict[str, TimeSeries]]:
    watch = HostWatch(1.0)
    watch.start()
    for _ in range(samples):
        watch.sample()
    series = watch.end()
    assert {each.source for each in series} == {"host"}
    return watch, {" ".join([each.name, *each.labels.values()]): each for each in series}


def test_counters_never_fall_and_gauges_are_within_their_limits() -> None:
    watch, series = watched()
    for name in ("cpu_busy", "cpu_idle", "network_received loopback", "network_sent loopback"):
        assert len(series[name].at) == 5
        assert all(first <= second for first, second in pairwise(series[name].value.tolist())), name
    assert 0 < series["memory_used"].value.max() < series["memory_total"].value[0]
    assert 0 < series["usable_cpus"].value[0] <= series["cpus"].value[0]
    assert series["cpu_busy"].at.tolist() == series["cpu_idle"].at.tolist()
    assert not {name for name in watch.problems() if "disk" not in name}


def test_cpu_time_of_guests_counts_once_and_waiting_for_disks_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    times = namedtuple("times", "user nice system idle iowait irq softirq steal guest guest_nice")
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(10, 2, 3, 80, 5, 0.5, 0.25, 1, 4, 2))
    _, series = watched()
    assert (series["cpu_busy"].value[0], series["cpu_idle"].value[0]) == (16.75, 85)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> SimpleNamespace:
    """Interfaces and disks that a test sets; eth0 and sda have hardware."""
    for name in ("net/eth0/device", "net/docker0", "block/sda/device", "block/dm-0"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(host, "_NET", tmp_path / "net")
    monkeypatch.setattr(host, "_BLOCK", tmp_path / "block")
    made = SimpleNamespace(
        net={"lo": Net(5, 5), "eth0": Net(100, 10), "docker0": Net(70, 7)},
        disks={"sda": Disk(1000, 200), "sda1": Disk(1000, 200), "dm-0": Disk(900, 100)},
    )
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: made.net)
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: made.disks)
    return made


def test_bytes_count_at_the_hardware_and_loopback_apart(devices: SimpleNamespace) -> None:
    _, series = watched()
    firsts = {name: each.value[0] for name, each in series.items() if name.startswith(("network", "disk"))}
    assert firsts == {
        "network_received loopback": 5,
        "network_sent loopback": 5,
        "network_received others": 100,
        "network_sent others": 10,
        "disk_read": 1000,
        "disk_written": 200,
    }


def test_a_container_without_hardware_counts_what_it_has(devices: SimpleNamespace) -> None:
    devices.net = {"lo": Net(5, 5), "docker0": Net(70, 7)}
    devices.disks = {"dm-0": Disk(900, 100)}
    _, series = watched()
    assert series["network_received others"].value[0] == 70 and series["disk_read"].value[0] == 900


def test_an_interface_that_comes_or_goes_does_not_make_the_sum_jump(devices: SimpleNamespace) -> None:
    devices.net = {"docker0": Net(70, 7), "veth1": Net(30, 3)}
    watch = HostWatch(1.0)
    watch.start()
    devices.net = {"docker0": Net(80, 8), "veth2": Net(1_000_000, 9)}
    (received,) = [each for each in watch.end() if each.name == "network_received"]
    assert received.value.tolist() == [100, 110]


def test_a_counter_that_cannot_be_read_is_missing_with_a_reason(devices: SimpleNamespace) -> None:
    devices.disks = {}
    watch, series = watched()
    assert watch.problems() == {"disk of this machine": "the system has no counters of disks"}
    assert "disk_read" not in series and "cpu_busy" in series
