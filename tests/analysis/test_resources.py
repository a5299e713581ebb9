"""The use of resources over the windows of runs in which every value is known."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import synthetic_run as made

from inferometer import manifest
from inferometer.analysis.resources import ResourceUse
from inferometer.analysis.summary import Summary, summarise
from inferometer.records import Run, StagePlan
from inferometer.report import console
from inferometer.series import TimeSeries

LONG = 30.0
"""Seconds for which there are series; the run takes about half of it."""
GIB = 1 << 30
REMOTE = {"has_server": False}
"""manifest.host if the server is on another machine."""


def series(
    source: str,
    name: str,
    value: Callable[[Any], Any] | float,
    /,
    every: float = 1.0,
    until: float = LONG,
    **labels: str,
) -> TimeSeries:
    """Samples of a function of the time in seconds, or of a constant, from 1 s before the run."""
    seconds = np.arange(-1.0, until, every)
    values = value(seconds) if callable(value) else np.full(len(seconds), value)
    return TimeSeries(source, name, labels, (seconds * made.SECOND).astype(np.int64), values.astype(np.float64))


HOST = (
    series("host", "cpu_busy", lambda at: 1.5 * at),
    series("host", "cpu_idle", lambda at: 0.5 * at),
    series("host", "cpus", 2.0, until=0.0),
    series("host", "usable_cpus", 2.0, until=0.0),
    series("host", "memory_total", 8.0 * GIB, until=0.0),
    series("host", "memory_used", lambda at: GIB * (1 + at / 100)),
    series("host", "load", 1.25),
    series("host", "network_received", lambda at: 2e6 * at, interface="others"),
    series("host", "network_sent", lambda at: 1e6 * at, interface="others"),
    series("host", "network_received", lambda at: 5e6 * at, interface="loopback"),
    series("host", "network_sent", lambda at: 5e6 * at, interface="loopback"),
    series("host", "disk_read", lambda at: 3e6 * at),
    series("host", "disk_written", lambda at: 4e6 * at),
)
PROCESS = (
    series("process", "cpu", lambda at: 0.75 * at, process="vllm", name="vllm"),
    series("process", "memory", 3.0 * GIB, process="vllm", name="vllm"),
    series("process", "threads", 40.0, process="vllm", name="vllm"),
    series("process", "processes", 5.0, process="vllm", name="vllm"),
)


def gpu(
    index: int, watts: float = 400.0, every: float = 0.1, counter: float = 1.0, until: float = LONG
) -> tuple[TimeSeries, ...]:
    label = {"gpu": str(index)}
    return (
        TimeSeries("nvml", "gpu_info", label | {"name": "NVIDIA H200"}, np.array([0]), np.ones(1)),
        series("nvml", "gpu_memory_total", 141.0 * GIB, until=0.0, **label),
        series("nvml", "gpu_power", watts, every, until, **label),
        series("nvml", "gpu_energy", lambda at: counter * watts * (at + 100), every, until, **label),
        series("nvml", "gpu_use", 0.9, **label),
        series("nvml", "gpu_memory", 70.0 * GIB, **label),
        series("nvml", "gpu_temperature", lambda at: 40 + at, **label),
        series("nvml", "gpu_clock", 1980.0, **label),
        series("nvml", "gpu_throttle", 4.0, **label),
    )


def run_with(*recorded: TimeSeries, stages: int = 1, **about: object) -> Run:
    rows, chunks = made.closed_rows()
    rows["stage"] = rows["id"] * stages // len(rows)
    plan = tuple(
        StagePlan(type="closed", open=False, name=f"{number + 1} closed", concurrency=8, requests=600 // stages)
        for number in range(stages)
    )
    run = made.run(rows, chunks, plan=plan, **about)
    return msgspec.structs.replace(run, series=lambda: recorded)


def summary_of(*recorded: TimeSeries, stages: int = 1, **about: object) -> Summary:
    return summarise(run_with(*recorded, stages=stages, **about))


def use_of(*recorded: TimeSeries, **about: object) -> ResourceUse:
    found = summary_of(*recorded, **about).resources
    assert found is not None
    return found


def config(url: str, **observe: object) -> dict[str, object]:
    return {"server": {"url": url, "model": "m", "api": "completions", "stream": True}, "observe": observe}


def test_a_machine_has_rates_of_its_counters_and_the_highest_of_its_values() -> None:
    use = use_of(*HOST)
    host = use.host
    assert host is not None
    assert host.cpu == pytest.approx(0.75) and host.cpu_max == pytest.approx(0.75)
    assert (host.cpus, host.usable_cpus, host.memory_total, host.load_max) == (2, 2, 8 * GIB, 1.25)
    assert host.network_received == pytest.approx(2e6) and host.network_sent == pytest.approx(1e6)
    assert host.loopback == pytest.approx(5e6)
    assert (host.disk_read, host.disk_written) == (pytest.approx(3e6), pytest.approx(4e6))
    assert GIB < (host.memory_max or 0) < 1.3 * GIB
    assert not use.missing and use.is_servers_machine


def test_figures_are_over_the_time_of_the_rates() -> None:
    summary = summary_of(*HOST)
    assert summary.resources is not None
    assert summary.resources.span == pytest.approx(summary.throughput.span)


def test_a_process_has_its_busy_cores_and_its_memory() -> None:
    process = use_of(*PROCESS).processes["vllm"]
    assert process.cpu == pytest.approx(0.75) and process.cpu_max == pytest.approx(0.75)
    assert (process.memory_max, process.threads_max, process.processes_max) == (3 * GIB, 40, 5)
    assert process.disk_read is None
    assert use_of(*PROCESS).missing["processes.vllm.disk"] == "it was not recorded"


def test_energy_per_request_and_token_is_of_all_gpus_over_what_was_completed() -> None:
    summary = summary_of(*gpu(0), *gpu(1, watts=100.0))
    use, rates = summary.resources, summary.throughput
    assert use is not None and use.energy is not None and rates.requests and rates.output_tokens
    assert use.gpus["0"].energy == pytest.approx(400 * use.span) and use.gpus["0"].power == pytest.approx(400)
    assert use.energy.joules == pytest.approx(500 * use.span)
    assert use.energy.per_request == pytest.approx(500 / rates.requests)
    assert use.energy.per_output_token == pytest.approx(500 / rates.output_tokens)
    assert (use.gpus["0"].use, use.gpus["0"].clock) == (pytest.approx(0.9), 1980)
    assert use.gpus["0"].throttled == {"power cap": 1.0}
    assert use.notes == ()


def test_energy_is_missing_with_a_reason_when_samples_are_missing() -> None:
    use = use_of(*gpu(0), *gpu(1, until=5.0))
    assert use.energy is not None
    assert (use.energy.joules, use.energy.per_request) == (None, None)
    assert use.energy.reason.startswith("GPU 1: the last sample was taken ")
    assert use.gpus["0"].energy is not None and use.gpus["1"].energy is None
    assert use_of(*gpu(0, every=2.0)).energy.reason == "GPU 0: no sample was taken for 2 s"  # type: ignore[union-attr]


def test_a_counter_that_disagrees_with_the_integral_is_noted() -> None:
    assert not use_of(*gpu(0, counter=1.04)).notes
    (note,) = use_of(*gpu(0, counter=1.2)).notes
    assert note.startswith("GPU 0: its own counter reports ") and note.endswith(
        "20 % more than the integral of its power"
    )


def test_figures_of_another_machine_than_the_servers_say_so() -> None:
    use = use_of(*HOST, *gpu(0), host=REMOTE)
    assert not use.is_servers_machine and use.energy is not None
    assert use.energy.joules and use.energy.per_request is None
    assert use.energy.reason == "the server is not known to be on this machine"
    run = run_with(*HOST, host=REMOTE)
    assert "client machine" in console.render(run, summarise(run))


@pytest.mark.parametrize(
    ("host", "observe", "is_here"),
    [
        ({"has_server": True}, {}, True),
        ({"has_server": False}, {"gpu": "auto"}, False),
        ({"has_server": False}, {"gpu": True}, True),
        ({"has_server": False}, {"processes": ["vllm"]}, True),
        ({}, {}, False),
    ],
)
def test_the_server_is_here_by_its_address_or_because_the_config_says_so(
    host: dict[str, object], observe: dict[str, object], is_here: bool
) -> None:
    found = use_of(*HOST, host=host, config=config("http://server:8000", **observe))
    assert found.is_servers_machine == is_here


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["127.0.0.1"], True),
        (["127.8.9.1"], True),
        (["::1"], True),
        (["0.0.0.0"], True),
        (["192.0.2.7"], True),
        (["fe80::1%eth0"], True),
        (["127.0.0.1", "192.0.2.8"], False),
        (["2001:db8::1"], False),
    ],
)
def test_the_server_is_here_if_its_addresses_are_those_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], expected: bool
) -> None:
    own = {"eth0": [SimpleNamespace(address="192.0.2.7"), SimpleNamespace(address="fe80::1%eth0")]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: own)
    assert manifest.is_here((2, (host, 8000)) for host in hosts) == expected


def test_a_saturated_machine_is_noted_if_the_server_is_on_it() -> None:
    busy = (series("host", "cpu_busy", lambda at: 1.96 * at), series("host", "cpu_idle", lambda at: 0.04 * at))
    (note,) = use_of(*busy).notes
    assert note == "the CPU was 98 % busy: the client and the server may have slowed each other down"
    assert not use_of(*busy, host=REMOTE).notes
    lines = section(run_with(*busy, *PROCESS, stages=2), 100)
    assert lines[1] == f" ! {note}", "right below the CPU's line"


def test_the_maximum_is_not_below_the_mean() -> None:
    def early(at: Any) -> Any:  # before the second whole second, where two samples within the window begin
        return np.minimum(at, 1.0)

    busy, idle = series("host", "cpu_busy", early), series("host", "cpu_idle", lambda at: at - early(at))
    use = use_of(busy, idle, series("process", "cpu", early, process="vllm", name="vllm"))
    assert use.host is not None and use.host.cpu_max is not None and use.host.cpu is not None
    assert use.host.cpu_max >= use.host.cpu
    process = use.processes["vllm"]
    assert process.cpu_max is not None and process.cpu is not None and process.cpu_max >= process.cpu > 0


def test_each_stage_has_its_own_figures_and_the_run_their_sum() -> None:
    changing = series("nvml", "gpu_power", lambda at: 100 + 10 * at, 0.1, gpu="0")
    summary = summary_of(*HOST, changing, stages=2)
    first, second = (stage.resources for stage in summary.stages)
    whole = summary.resources
    assert first and second and whole and first.energy and second.energy and whole.energy
    assert first.energy.joules and second.energy.joules and first.energy.joules < second.energy.joules
    assert whole.energy.joules == pytest.approx(first.energy.joules + second.energy.joules)
    assert whole.span == pytest.approx(first.span + second.span)
    assert second.energy.per_request == pytest.approx(
        second.energy.joules / (summary.stages[1].throughput.requests * second.span)  # type: ignore[operator]
    )


def test_a_window_that_is_shorter_than_the_interval_has_no_rates() -> None:
    slow = tuple(msgspec.structs.replace(each, at=each.at * 60) for each in HOST)
    use = use_of(*slow, config=config("http://127.0.0.1:1", interval=60.0))
    assert use.host is not None and use.host.cpu is None and use.host.disk_read is None
    assert "is shorter than observe.interval, 60 s" in use.missing["host.cpu"]


def test_a_short_window_has_figures_from_the_samples_right_before_and_after_it() -> None:
    edges = [series(each.source, each.name, 0.0, until=0.0, **each.labels) for each in PROCESS]
    for end, cores in ((20.0, 0.75), (60.0, None)):
        at = (np.array([-0.01, end]) * made.SECOND).astype(np.int64)
        values = {"cpu": 0.75 * at / made.SECOND, "memory": np.array([1.0, 2.0]) * GIB}
        short = [msgspec.structs.replace(each, at=at, value=values.get(each.name, np.ones(2))) for each in edges]
        process = use_of(*short, config=config("http://127.0.0.1:1", interval=60.0)).processes["vllm"]
        assert process.cpu == (None if cores is None else pytest.approx(cores)) and process.memory_max == 2 * GIB


def test_an_added_sample_does_not_make_a_peak() -> None:
    def stepped(at: Any) -> Any:
        return np.round(1.0 * at, 1)

    every, soon = series("host", "cpu_busy", stepped), series("host", "cpu_busy", stepped, every=1.0)
    soon = msgspec.structs.replace(soon, at=soon.at + 5 * made.MS, value=soon.value + 0.1)
    at = np.concatenate([every.at, soon.at])
    order = np.argsort(at)
    busy = msgspec.structs.replace(every, at=at[order], value=np.concatenate([every.value, soon.value])[order])
    idle = msgspec.structs.replace(busy, name="cpu_idle")
    host = use_of(busy, idle).host
    assert host is not None and host.cpu_max == pytest.approx(0.5, abs=0.05)


def test_what_observing_took_is_a_share_of_a_core() -> None:
    use = use_of(observer_cpu={"host": 0.03, "gpu": 0.01})
    assert use.host is None and use.observing == {"host": 0.03, "gpu": 0.01}
    ended = made.closed_rows()[0]["done"].max() / made.SECOND
    assert use.observing_share == pytest.approx(0.04 / ended)


def test_without_observers_there_is_nothing() -> None:
    assert summary_of().resources is None


# --- the report ------------------------------------------------------------------------------------------------------


def section(run: Run, width: int) -> list[str]:
    """The lines of the report from `this machine` to the next empty line."""
    lines = console.render(run, summarise(run), width=width).splitlines()
    assert max(map(len, lines)) <= width
    start = next(number for number, line in enumerate(lines) if line.startswith(" this machine"))
    return lines[start : lines.index("", start)]


@pytest.mark.parametrize("width", [80, 100])
def test_a_plain_run_has_at_most_two_lines_about_its_machine(width: int) -> None:
    lines = section(run_with(*HOST[:-4], observer_cpu={"host": 0.03}), width)
    assert len(lines) <= 2
    text = " ".join(" ".join(lines).split())
    assert text.startswith("this machine CPU 75 % (max 75 %) of 2 cores memory 1.1")
    assert text.endswith(" % of a core") and "observing took 0." in text


def test_a_container_says_how_many_cores_it_may_use() -> None:
    limited = (*(each for each in HOST if each.name != "usable_cpus"), series("host", "usable_cpus", 1.5, until=0.0))
    assert "CPU 75 % (max 75 %) of 2 cores, 1.5 usable" in section(run_with(*limited), 100)[0]


@pytest.mark.parametrize("width", [80, 100])
def test_processes_gpus_and_energy_have_rows(width: int) -> None:
    lines = section(run_with(*HOST, *PROCESS, *gpu(0)), width)
    assert any(line.startswith(" vllm ") and "0.750" in line and "3 GiB" in line for line in lines)
    assert any(line.startswith(" 0 H200 ") and "90 %" in line and "400 W" in line for line in lines)
    text = " ".join(lines)
    assert "J per request" in text and "J per output token" in text
    assert "clocks were lowered (power cap): GPU 0 in 100 % of the samples" in text


@pytest.mark.parametrize("width", [80, 100])
def test_each_stage_has_a_row(width: int) -> None:
    lines = section(run_with(*HOST, *PROCESS, *gpu(0), stages=2), width)
    rows = [line for line in lines if line.startswith((" 1 closed", " 2 closed"))]
    assert len(rows) == 2 and all("0.750" in row and " 400 W " in row and " 75 % " not in row for row in rows)
    assert not any(line.startswith(" 1 closed") for line in section(run_with(*HOST, stages=2), width))


def test_stages_have_the_cpu_if_they_differ_in_it() -> None:
    busy = series("host", "cpu_busy", lambda at: at**2 / 40)
    idle = series("host", "cpu_idle", lambda at: at - at**2 / 40)
    run = run_with(busy, idle, stages=2)
    same = tuple(msgspec.structs.replace(plan, name="same") for plan in run.manifest.plan)
    run = msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, plan=same))
    lines = section(run, 80)
    assert [line.split()[0] for line in lines[-3:]] == ["resources", "same", "same"]
    shares = [int(line.split()[1]) for line in lines[-2:]]
    assert shares[0] + 10 <= shares[1]


def test_what_the_machine_cannot_tell_is_below_its_figures_and_not_below_the_verdict() -> None:
    errors = {
        "disk of this machine": "the system has no counters of disks",
        "GPU energy counter": "Not Supported (GPU 0)",
        "host": "did not end within 10 s",
    }
    run = run_with(*HOST, observer_errors=errors)
    assert section(run, 100)[-2:] == [
        " not recorded: disk of this machine: the system has no counters of disks",
        " not recorded: GPU energy counter: Not Supported (GPU 0)",
    ]
    report = console.render(run, summarise(run))
    assert "observer host: did not end within 10 s" in report and report.count("no counters of disks") == 1
    nothing = run_with(observer_errors=errors)
    assert "observer disk of this machine: " in console.render(nothing, summarise(nothing))


def test_missing_energy_is_not_known_with_the_reason() -> None:
    lines = section(run_with(*HOST, *gpu(0, until=5.0)), 100)
    assert any(line.startswith(" energy") and "not known: GPU 0: the last sample was taken" in line for line in lines)
