"""The section of the report about the use of resources: this machine, server processes, GPUs and energy."""

from collections.abc import Iterator, Mapping

from inferometer.analysis.resources import EnergyUse, GpuUse, ResourceUse, unreadable
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import formatting
from inferometer.report.document import Block, Facts, Note, Section, Table, Words, figure
from inferometer.units import format_bytes

_LABEL = 15
"""The least width of the labels on the left."""
_ENOUGH = 1 << 20
"""Bytes per second of network and disk from which on they are worth showing."""
_CPU_DIFFERS = 0.1
"""By how much the CPU's share must differ between stages to be worth a column."""
_OPTIONAL_PROCESSES = ("threads", "written/s", "disk read/s")
_OPTIONAL_GPUS = ("temperature", "clock", "power max", "memory max")
_OPTIONAL_STAGES = ("J per token", "GPU", "power")
"""Columns that a narrow table leaves out, the first of them first."""


def resources(run: Run, summary: Summary) -> Section:
    """CPU, memory, GPUs and energy."""
    use = summary.resources
    if use is None:
        return Section("resources", "Resources", [])
    head = list(_host(use)) if use.host is not None else []
    if use.observing_share is not None:
        head.append(((f"observing took {_cost(use.observing_share)} of a core", "dim"),))
    machine = "this machine" if use.is_servers_machine else "client machine"
    blocks: list[Block] = [Facts([(machine, head)], _LABEL)] if head else []
    blocks += [Note(note, "warn", "!") for note in use.notes if not _is_about_gpu(note)]
    blocks += [*_by_stage(summary), *_processes(use), *_gpus(use)]
    if use.energy is not None:
        blocks.append(Facts([("energy", list(_energy(use.energy, use.span)))], _LABEL))
    blocks += [Note(note, "warn", "!") for note in use.notes if _is_about_gpu(note)]
    blocks += [
        Note(formatting.one_line(f"not recorded: {name}: {why}", 1000))
        for name, why in unreadable(run.manifest).items()
    ]
    lead = "This machine, which the server runs on, too." if use.is_servers_machine else "The client's machine."
    return Section("resources", "Resources", blocks, lead)


def _is_about_gpu(note: str) -> bool:
    return note.startswith("GPU ")


# --- this machine ----------------------------------------------------------------------------------------------------


def _host(use: ResourceUse) -> Iterator[Words]:
    host = use.host
    assert host is not None
    if host.cpu is None:
        yield ((f"CPU not known: {use.missing.get('host.cpu', 'it was not recorded')}", "dim"),)
        return
    highest = f" (max {_percent(host.cpu_max)})" if host.cpu_max is not None else ""
    cores = f" of {host.cpus:,} cores" if host.cpus else ""
    if host.cpus and host.usable_cpus and host.usable_cpus < host.cpus:
        cores += f", {host.usable_cpus:.3g} usable"
    yield _figure("CPU", _percent(host.cpu), f"{highest}{cores}")
    if host.memory_max is not None and host.memory_total:
        yield _figure("memory", format_bytes(host.memory_max), f" of {format_bytes(host.memory_total)}")
    network = max(host.network_received or 0.0, host.network_sent or 0.0)
    for name, rate in {"network": network, "loopback": host.loopback or 0.0}.items():
        if rate >= _ENOUGH:
            yield _figure(name, f"{format_bytes(rate)}/s")
    if (disk := (host.disk_read or 0.0) + (host.disk_written or 0.0)) >= _ENOUGH:
        yield _figure("disk", f"{format_bytes(disk)}/s")


def _figure(name: str, value: str, rest: str = "") -> Words:
    return ((f"{name} ", "dim"), (value, "strong"), (rest, "dim"))


def _cost(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else _percent(share)


# --- processes and GPUs ----------------------------------------------------------------------------------------------


def _processes(use: ResourceUse) -> list[Block]:
    """One row per name or id. Columns that say nothing are left out: one process each, a disk that was hardly used."""
    uses = list(use.processes.values())
    columns = {
        "CPU cores": [formatting.number(each.cpu) for each in uses],
        "CPU max": [formatting.number(each.cpu_max) for each in uses],
        "memory max": [_bytes(each.memory_max) for each in uses],
    }
    if any((each.processes_max or 0) > 1 for each in uses):
        columns["processes"] = [formatting.count(each.processes_max) for each in uses]
    columns["threads"] = [formatting.count(each.threads_max) for each in uses]
    for name, rates in {
        "disk read/s": [each.disk_read for each in uses],
        "written/s": [each.disk_written for each in uses],
    }.items():
        if any((rate or 0.0) >= _ENOUGH for rate in rates):
            columns[name] = [_bytes(rate) for rate in rates]
    rows = []
    for (given, each), cells in zip(use.processes.items(), zip(*columns.values(), strict=True), strict=True):
        label = given if given == each.name or not each.name else f"{given} {each.name}"
        rows.append((formatting.one_line(label, 24), *cells))
    return [Table("server processes", list(columns), rows, _OPTIONAL_PROCESSES)] if rows else []


def _gpus(use: ResourceUse) -> list[Block]:
    columns = ["use", "memory max", "power", "power max", "temperature", "clock", "energy"]
    rows = [
        (
            formatting.one_line(f"{index} {gpu.name.removeprefix('NVIDIA ')}", 24),
            _percent(gpu.use),
            _bytes(gpu.memory_max),
            *(_with_unit(value, "W") for value in (gpu.power, gpu.power_max)),
            _with_unit(gpu.temperature_max, "°C"),
            _with_unit(gpu.clock, "MHz"),
            _joules(gpu.energy),
        )
        for index, gpu in use.gpus.items()
    ]
    return [Table("GPUs", columns, rows, _OPTIONAL_GPUS, notes=list(_throttled(use.gpus)))] if rows else []


def _throttled(gpus: Mapping[str, GpuUse]) -> Iterator[str]:
    for reason in dict.fromkeys(reason for gpu in gpus.values() for reason in gpu.throttled):
        shares = {index: gpu.throttled[reason] for index, gpu in gpus.items() if reason in gpu.throttled}
        each = ", ".join(f"GPU {index} in {_percent(share)}" for index, share in shares.items())
        yield f"clocks were lowered ({reason}): {each} of the samples"


def _energy(energy: EnergyUse, span: float) -> Iterator[Words]:
    if energy.joules is None:
        yield ((f"not known: {energy.reason}", "dim"),)
        return
    yield ((_joules(energy.joules), "strong"), (f" of all GPUs in {formatting.number(span)} s", "dim"))
    for value, what in ((energy.per_request, "per request"), (energy.per_output_token, "per output token")):
        if value is not None:
            yield figure(_joules(value), what)
    if energy.reason:
        yield ((f"not known per request: {energy.reason}", "dim"),)


# --- stages ----------------------------------------------------------------------------------------------------------


def _by_stage(summary: Summary) -> list[Block]:
    """One row per stage: the CPU of the machine, if stages differ in it, and of each process, the use and energy of all GPUs."""
    stages = [(stage.name, stage.resources) for stage in summary.stages if stage.resources is not None]
    uses = [use for _, use in stages]
    if not uses:
        return []
    named = [given for given in uses[0].processes][:3]
    busy = [use.host.cpu for use in uses if use.host is not None and use.host.cpu is not None]
    has_cpu = bool(busy) and max(busy) - min(busy) >= _CPU_DIFFERS
    columns = ["CPU"] if has_cpu else []
    columns += [f"{formatting.one_line(uses[0].processes[given].name or given, 12)} cores" for given in named]
    columns += ["GPU", "power", "energy", "J per request", "J per token"] if uses[0].gpus else []
    if not columns:
        return []
    rows = [(formatting.one_line(name, 24), *_stage_cells(use, has_cpu, named)) for name, use in stages]
    return [Table("resources", columns, rows, _OPTIONAL_STAGES)]


def _stage_cells(use: ResourceUse, has_cpu: bool, named: list[str]) -> Iterator[str]:
    if has_cpu:
        yield _percent(use.host.cpu if use.host is not None else None)
    for given in named:
        yield formatting.number(use.processes[given].cpu) if given in use.processes else "-"
    if use.gpus and use.energy is not None:
        used = [gpu.use for gpu in use.gpus.values() if gpu.use is not None]
        power = [gpu.power for gpu in use.gpus.values()]
        yield _percent(sum(used) / len(used) if used else None)
        yield _with_unit(None if None in power else sum(each or 0.0 for each in power), "W")
        yield _joules(use.energy.joules)
        yield formatting.number(use.energy.per_request)
        yield formatting.number(use.energy.per_output_token)


# --- numbers ---------------------------------------------------------------------------------------------------------


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _bytes(value: float | None) -> str:
    return "-" if value is None else format_bytes(value)


def _with_unit(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:,.0f} {unit}"


def _joules(value: float | None) -> str:
    """Three significant digits, with a suitable unit."""
    for unit, scale in (("MJ", 1e6), ("kJ", 1e3), ("J", 1.0)):
        if value is not None and value >= 0.9995 * scale:
            return f"{value / scale:.3g} {unit}"
    return "-" if value is None else f"{1e3 * value:.3g} mJ"
