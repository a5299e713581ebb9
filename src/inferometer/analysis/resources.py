"""The use of resources over the windows of a run: CPU, memory, network, disk, GPUs and energy.

All figures are over the time that the stage's rates count over (throughput.py), so that energy and requests belong together. Counters
and power are interpolated at the edges of that time. A whole run is all of its stages together, without the time between them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from inferometer.analysis import settings
from inferometer.analysis.series_figures import SeriesFigures, Time
from inferometer.analysis.throughput import Spans, Throughput
from inferometer.records import MISSING, Manifest, Run
from inferometer.series import TimeSeries
from inferometer.units import NS

_SATURATED = 0.95
"""Share of all cores that leaves nothing for bursts."""
_COUNTER_DIFFERS = 0.05
_REASONS = {
    "power cap": 0x4,
    "hardware slowdown": 0x8,
    "temperature": 0x20 | 0x40,
    "power brake": 0x80,
}
"""Why a GPU lowers its clocks under load: bits of NVML's throttle reasons."""


DEFINITIONS = {
    "resources": "use of the machine that the client runs on, over the same time as the rates",
    "resources.host.cpu": "share of all cores that was busy, with the client and everything else on the machine",
    "resources.processes.cpu": "cores that the processes and their children kept busy on average",
    "resources.processes.memory_max": "highest sum of their resident memory; what they share counts for each of them",
    "resources.gpus.energy": "integral of the GPU's power, in J; missing if samples of the power are missing",
    "resources.energy.per_request": "energy of all GPUs of the machine / requests completed in that time",
    "resources.energy.per_output_token": "energy of all GPUs of the machine / output tokens that arrived in that time",
    "resources.observing_share": "CPU time of all observers / length of the run",
}


class HostUse(msgspec.Struct, frozen=True):
    """What all processes of this machine used together; null if it is not known. Rates are in bytes per second."""

    cpu: float | None = None
    """Mean share of all cores, 0 to 1."""
    cpu_max: float | None = None
    """Highest share between two samples, or the mean if that is higher."""
    cpus: int | None = None
    usable_cpus: float | None = None
    """Those that the client may use, because of a container's limit or its affinity."""
    load_max: float | None = None
    memory_max: float | None = None
    memory_total: float | None = None
    network_received: float | None = None
    """Without loopback."""
    network_sent: float | None = None
    loopback: float | None = None
    """Bytes per second that this machine sent to itself."""
    disk_read: float | None = None
    disk_written: float | None = None


class ProcessUse(msgspec.Struct, frozen=True):
    """What a server process and all of its children used."""

    name: str = ""
    cpu: float | None = None
    """Mean number of busy cores."""
    cpu_max: float | None = None
    """Highest number of busy cores between two samples, or the mean if that is higher."""
    memory_max: float | None = None
    """Resident memory in bytes; what processes share counts for each of them."""
    threads_max: float | None = None
    processes_max: float | None = None
    disk_read: float | None = None
    """Bytes per second."""
    disk_written: float | None = None


class GpuUse(msgspec.Struct, frozen=True):
    name: str = ""
    use: float | None = None
    """Mean share of the time in which a kernel ran."""
    memory_use: float | None = None
    """Mean share of the time in which GPU memory was read or written."""
    memory_max: float | None = None
    memory_total: float | None = None
    power: float | None = None
    """Mean, in W."""
    power_max: float | None = None
    temperature_max: float | None = None
    clock: float | None = None
    """Mean, in MHz."""
    energy: float | None = None
    """J: the integral of the power."""
    energy_by_counter: float | None = None
    """J, by the GPU's own counter."""
    throttled: dict[str, float] = {}
    """Why the clocks were lower than they could be, and in which share of the samples."""


class EnergyUse(msgspec.Struct, frozen=True):
    """The energy of all GPUs of this machine."""

    joules: float | None = None
    per_request: float | None = None
    per_output_token: float | None = None
    reason: str = ""
    """Why there is no energy, or none per request."""


class ResourceUse(msgspec.Struct, frozen=True):
    """What a stage, or the whole run, took of the machine that the client runs on."""

    span: float
    """Seconds that the figures are over."""
    is_servers_machine: bool
    """Whether the server is known to be on this machine, too."""
    host: HostUse | None = None
    processes: dict[str, ProcessUse] = {}
    """By the name or id in observe.processes."""
    gpus: dict[str, GpuUse] = {}
    """By index."""
    energy: EnergyUse | None = None
    """None if there are no GPUs."""
    observing: dict[str, float] = {}
    """The whole run: CPU seconds that each observer took."""
    observing_share: float | None = None
    """The whole run: what all observers took of one core."""
    missing: dict[str, str] = {}
    """Why a figure is missing, by its name, such as `host.cpu`."""
    notes: tuple[str, ...] = ()


class ResourceUses(msgspec.Struct, frozen=True):
    whole: ResourceUse | None = None
    stages: tuple[ResourceUse | None, ...] = ()


def resource_uses(run: Run, spans: Spans, rates: Sequence[Throughput]) -> ResourceUses:
    """Return the use of resources in the run and in each stage; None if none was recorded."""
    recorded = [each for each in run.series() if each.source in ("host", "process", "nvml")]
    none = ResourceUses(stages=(None,) * len(spans.windows))
    if not recorded and not run.manifest.observer_cpu:
        return none
    times = _times(spans, rates)
    whole = _use(run.manifest, recorded, times)
    observing = run.manifest.observer_cpu
    ended = run.records.rows["done"][run.records.rows["done"] != MISSING]
    seconds = int(ended.max()) / NS if len(ended) else 0.0
    whole = msgspec.structs.replace(
        whole,
        observing=observing,
        observing_share=math.fsum(observing.values()) / seconds if observing and seconds > 0 else None,
    )
    if not recorded:
        return msgspec.structs.replace(none, whole=whole)
    stages = [whole] if len(times) == 1 else [_use(run.manifest, recorded, [time]) for time in times]
    return ResourceUses(whole, tuple(stages))


def unreadable(manifest: Manifest) -> dict[str, str]:
    """Why values of this machine or its GPUs were not recorded, by what they are about: most often, the machine does not have them."""
    return {
        name: why
        for name, why in manifest.observer_errors.items()
        if name.startswith("GPU ") or name.endswith(" of this machine")
    }


def _times(spans: Spans, rates: Sequence[Throughput]) -> list[Time]:
    """For each stage, the time that its rates count over, or its window if it has no rates."""
    times = []
    for window, span, rate in zip(spans.windows, spans.spans, rates, strict=True):
        start, end = (span.start, span.end) if not span.reason else (round(window.start * NS), round(window.end * NS))
        seconds = (end - start) / NS
        requests, tokens = (None if each is None else each * seconds for each in (rate.requests, rate.output_tokens))
        times.append(Time(start, end, requests, tokens, rate.reason))
    return times


def _use(manifest: Manifest, recorded: Sequence[TimeSeries], times: Sequence[Time]) -> ResourceUse:
    interval = settings.text(manifest, "observe", "interval")
    times = [time for time in times if time.end > time.start] or times  # a stage may have ended without a response
    reader = SeriesFigures(times, float(interval) if isinstance(interval, int | float) else 1.0)
    hosts = [each for each in recorded if each.source == "host"]
    host = _host(reader, hosts) if hosts else None
    processes = {
        given: _process(reader.about(f"processes.{given}"), own)
        for given, own in _by_label(recorded, "process", "process").items()
    }
    gpus = {
        index: _gpu(reader.about(f"gpus.{index}"), own) for index, own in _by_label(recorded, "nvml", "gpu").items()
    }
    gpus = dict(sorted(gpus.items(), key=lambda item: int(item[0]) if item[0].isdecimal() else 0))
    is_servers = _is_servers_machine(manifest)
    return ResourceUse(
        span=math.fsum(time.seconds for time in times),
        is_servers_machine=is_servers,
        host=host,
        processes=processes,
        gpus=gpus,
        energy=_energy(reader, gpus, is_servers) if gpus else None,
        missing=reader.missing,
        notes=tuple(_notes(host, gpus, is_servers)),
    )


def _is_servers_machine(manifest: Manifest) -> bool:
    """Whether the server is on this machine: by its address, or because its processes or GPUs were given as being here."""
    if settings.text(manifest, "observe", "processes") or settings.text(manifest, "observe", "gpu") is True:
        return True
    return manifest.host.get("has_server") is True


def _by_label(recorded: Iterable[TimeSeries], source: str, label: str) -> dict[str, list[TimeSeries]]:
    found: dict[str, list[TimeSeries]] = {}
    for each in recorded:
        if each.source == source:
            found.setdefault(each.labels.get(label, ""), []).append(each)
    return found


# --- host, processes, GPUs -------------------------------------------------------------------------------------------


def _host(reader: SeriesFigures, recorded: Sequence[TimeSeries]) -> HostUse:
    reader = reader.about("host")
    own = {each.name if not each.labels else f"{each.labels['interface']} {each.name}": each for each in recorded}
    cpus = _constant(own.get("cpus"))
    busy, idle = own.get("cpu_busy"), own.get("cpu_idle")
    worked, rested = reader.rate("cpu", busy), reader.rate("cpu", idle)
    share = None if worked is None or rested is None or worked + rested <= 0 else worked / (worked + rested)
    both = None  # busy and idle
    if busy is not None and idle is not None and len(busy.at) == len(idle.at):
        both = msgspec.structs.replace(busy, value=busy.value + idle.value)
    return HostUse(
        cpu=share,
        cpu_max=_at_least(share, reader.highest_rate(busy, both)),
        cpus=None if cpus is None else int(cpus),
        usable_cpus=_constant(own.get("usable_cpus")),
        load_max=reader.highest("load", own.get("load")),
        memory_max=reader.highest("memory", own.get("memory_used")),
        memory_total=_constant(own.get("memory_total")),
        network_received=reader.rate("network", own.get("others network_received")),
        network_sent=reader.rate("network", own.get("others network_sent")),
        loopback=reader.rate("loopback", own.get("loopback network_sent")),
        disk_read=reader.rate("disk", own.get("disk_read")),
        disk_written=reader.rate("disk", own.get("disk_written")),
    )


def _process(reader: SeriesFigures, recorded: Sequence[TimeSeries]) -> ProcessUse:
    own = {each.name: each for each in recorded}
    cpu = reader.rate("cpu", own.get("cpu"))
    return ProcessUse(
        name=recorded[0].labels.get("name", ""),
        cpu=cpu,
        cpu_max=_at_least(cpu, reader.highest_rate(own.get("cpu"))),
        memory_max=reader.highest("memory", own.get("memory")),
        threads_max=reader.highest("threads", own.get("threads")),
        processes_max=reader.highest("processes", own.get("processes")),
        disk_read=reader.rate("disk", own.get("disk_read")),
        disk_written=reader.rate("disk", own.get("disk_written")),
    )


def _gpu(reader: SeriesFigures, recorded: Sequence[TimeSeries]) -> GpuUse:
    own = {each.name: each for each in recorded}
    info = own["gpu_info"].labels if "gpu_info" in own else {}
    power = own.get("gpu_power")
    joules = reader.energy("energy", power)
    return GpuUse(
        name=info.get("name", ""),
        use=reader.mean("use", own.get("gpu_use")),
        memory_use=reader.mean("memory_use", own.get("gpu_memory_use")),
        memory_max=reader.highest("memory", own.get("gpu_memory")),
        memory_total=_constant(own.get("gpu_memory_total")),
        power=None if joules is None else joules / reader.seconds,
        power_max=reader.highest("power", power),
        temperature_max=reader.highest("temperature", own.get("gpu_temperature")),
        clock=reader.mean("clock", own.get("gpu_clock")),
        energy=joules,
        energy_by_counter=reader.growth("energy_by_counter", own.get("gpu_energy")),
        throttled=_throttled(reader, own.get("gpu_throttle")),
    )


def _throttled(reader: SeriesFigures, bits: TimeSeries | None) -> dict[str, float]:
    values = [] if bits is None else [int(value) for value in reader.within(bits)]
    shares = {
        name: sum(bool(value & mask) for value in values) / len(values) for name, mask in _REASONS.items() if values
    }
    return {name: share for name, share in shares.items() if share}


def _at_least(mean: float | None, highest: float | None) -> float | None:
    """The maximum. The mean counts the edges of the window, too, which no two samples within it cover."""
    return highest if mean is None or highest is None else max(mean, highest)


def _constant(series: TimeSeries | None) -> float | None:
    return None if series is None or not len(series.value) else float(series.value[0])


# --- energy and notes ------------------------------------------------------------------------------------------------


def _energy(reader: SeriesFigures, gpus: Mapping[str, GpuUse], is_servers: bool) -> EnergyUse:
    unknown = [index for index, gpu in gpus.items() if gpu.energy is None]
    if unknown:
        return EnergyUse(reason=f"GPU {unknown[0]}: {reader.missing.get(f'gpus.{unknown[0]}.energy', 'not known')}")
    joules = math.fsum(gpu.energy or 0.0 for gpu in gpus.values())
    if not is_servers:
        return EnergyUse(joules, reason="the server is not known to be on this machine")
    if reasons := [time.reason for time in reader.times if time.reason]:
        return EnergyUse(joules, reason=reasons[0])
    requests, tokens = (
        None if None in counts else math.fsum(each or 0.0 for each in counts)
        for counts in ([time.requests for time in reader.times], [time.tokens for time in reader.times])
    )
    return EnergyUse(joules, joules / requests if requests else None, joules / tokens if tokens else None)


def _notes(host: HostUse | None, gpus: Mapping[str, GpuUse], is_servers: bool) -> Iterable[str]:
    if host is not None and is_servers and (host.cpu or 0.0) > _SATURATED:
        yield f"the CPU was {100 * (host.cpu or 0.0):.0f} % busy: the client and the server may have slowed each other down"
    for index, gpu in gpus.items():
        joules, counter = gpu.energy, gpu.energy_by_counter
        if joules and counter and abs(joules - counter) > _COUNTER_DIFFERS * max(joules, counter):
            more = f"{abs(100 * (counter / joules - 1)):.0f} % {'more' if counter > joules else 'less'}"
            yield f"GPU {index}: its own counter reports {counter:,.0f} J, {more} than the integral of its power"
