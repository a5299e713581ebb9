"""An observer of the NVIDIA GPUs of this machine, through NVML (the extra `gpu`).

Series of the source `nvml`, labelled with the index of the `gpu`:

    gpu_power          W, sampled ten times as often as the others: instantaneous if the GPU reports that, else averaged by it
    gpu_energy         J since the driver was loaded
    gpu_use            share of the time in which a kernel ran
    gpu_memory_use     share of the time in which GPU memory was read or written
    gpu_memory         bytes in use
    gpu_clock          MHz, of the multiprocessors
    gpu_memory_clock   MHz
    gpu_temperature    degrees Celsius
    gpu_throttle       bits, as NVML defines them, that say why clocks are lower than they could be

and, read once: `gpu_memory_total` in bytes, and `gpu_info`, which is 1 and has the labels `name`, `uuid`, `driver` and `power` (`instant` or
`average`). All GPUs are recorded, whichever of them the server uses: CUDA_VISIBLE_DEVICES of this process says nothing about the server.
"""

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from inferometer.analysis.energy import power_interval
from inferometer.errors import UserError
from inferometer.observe.observer import Observer
from inferometer.series import Columns, TimeSeries
from inferometer.timing.clock import now
from inferometer.units import NS

SOURCE = "nvml"
KEY = "observe.gpu"

Nvml = Any
"""The module pynvml, after nvmlInit."""
_Read = Callable[[Nvml, Any], dict[str, float]]
_ALLOWED_EARLY = 0.5
"""Share of a fast sample's interval by which a slow sample may be early, rather than a whole fast interval late."""


def open_nvml(wanted: Literal["auto"] | bool) -> Nvml | None:
    """Load and initialise NVML; None if GPUs are not wanted, or if `auto` finds none. Raises UserError when true finds none."""
    if wanted is False:
        return None
    try:
        return _opened()
    except UserError:
        if wanted is True:
            raise
        return None


def _opened() -> Nvml:
    otherwise = "or do without: observe.gpu: auto"
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise UserError(
            "reading GPUs needs the package nvidia-ml-py", f"pip install 'inferometer[gpu]', {otherwise}", key=KEY
        ) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise UserError(
            f"NVML cannot be used: {error}", f"check that nvidia-smi works on this machine, {otherwise}", key=KEY
        ) from None
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError:
        count = 0
    if not count:
        raise UserError("this machine has no NVIDIA GPU", f"check nvidia-smi, {otherwise}", key=KEY)
    return nvml


def gpu_names() -> list[str]:
    """The names of this machine's GPUs; empty if there are none, or if the extra `gpu` is not installed."""
    nvml = open_nvml("auto")
    if nvml is None:
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = [nvml.nvmlDeviceGetName(handle) for handle in handles]
        return [name.decode() if isinstance(name, bytes) else str(name) for name in names]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


class GpuWatch(Observer):
    """Reads all GPUs: power as often as `power_interval` says, everything else every `interval` seconds."""

    def __init__(self, nvml: Nvml, interval: float) -> None:
        self.interval = power_interval(interval)
        self._nvml = nvml
        self._slow_every = round((interval - _ALLOWED_EARLY * self.interval) * NS)
        self._slow_at: int | None = None
        self._columns = Columns(SOURCE)
        self._gpus: list[_Gpu] = []
        self._problems: dict[str, dict[int, str]] = {}

    def start(self) -> None:
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                gpu = _Gpu(self._nvml, index)
            except self._nvml.NVMLError as error:
                self._note("GPU", index, str(error))
            else:
                self._gpus.append(gpu)
                gpu.record_facts(self._nvml, now(), self._columns)
        self._take(slow=True)

    def mark(self, stage: int) -> None:
        self._take(slow=True)

    def sample(self) -> None:
        self._take(slow=self._slow_at is None or now() - self._slow_at >= self._slow_every)

    def end(self) -> Sequence[TimeSeries]:
        self._take(slow=True)
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
        return self._columns.series()

    def problems(self) -> Mapping[str, str]:
        """What is missing: one line for each value, with the GPUs that do not have it."""
        return {what: _by_reason(reasons) for what, reasons in self._problems.items()}

    def _take(self, slow: bool) -> None:
        if slow:
            self._slow_at = now()
        for gpu in self._gpus:
            for what, read in list((gpu.fast | gpu.slow if slow else gpu.fast).items()):
                at = now()
                try:
                    values = read(self._nvml, gpu.handle)
                except self._nvml.NVMLError as error:
                    self._note(what, gpu.index, str(error))
                    if _is_permanent(self._nvml, error):
                        gpu.drop(what)
                    continue
                for name, value in values.items():
                    self._columns.append(name, gpu.labels, at, value)

    def _note(self, what: str, index: int, why: str) -> None:
        self._problems.setdefault(what, {}).setdefault(index, why)


class _Gpu:
    """One GPU, and what can be read of it."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self.index = index
        self.handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.labels = {"gpu": str(index)}
        self.has_instant_power = _has_instant_power(nvml, self.handle)
        power = _instant_power if self.has_instant_power else _average_power
        self.fast: dict[str, _Read] = {"GPU power": power}
        self.slow: dict[str, _Read] = {"GPU energy counter": _energy} | _SLOW

    def record_facts(self, nvml: Nvml, at: int, columns: Columns) -> None:
        """Record what does not change during a run."""
        labels = self.labels | {"power": "instant" if self.has_instant_power else "average"}
        for name, read in {
            "name": lambda: nvml.nvmlDeviceGetName(self.handle),
            "uuid": lambda: nvml.nvmlDeviceGetUUID(self.handle),
            "driver": nvml.nvmlSystemGetDriverVersion,
        }.items():
            with contextlib.suppress(nvml.NVMLError):
                text = read()
                labels[name] = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        columns.append("gpu_info", labels, at, 1.0)
        with contextlib.suppress(nvml.NVMLError):
            total = float(_memory_info(nvml, self.handle).total)
            columns.append("gpu_memory_total", self.labels, at, total)

    def drop(self, what: str) -> None:
        self.fast.pop(what, None)
        self.slow.pop(what, None)


def _has_instant_power(nvml: Nvml, handle: Any) -> bool:
    """Whether the GPU reports its power at one instant. nvmlDeviceGetPowerUsage averages over a second on many GPUs."""
    try:
        return bool(_instant_power(nvml, handle))
    except (nvml.NVMLError, AttributeError):  # older drivers and older versions of pynvml do not know it
        return False


def _instant_power(nvml: Nvml, handle: Any) -> dict[str, float]:
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    return {"gpu_power": field.value.uiVal / 1e3}


def _average_power(nvml: Nvml, handle: Any) -> dict[str, float]:
    return {"gpu_power": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3}


def _energy(nvml: Nvml, handle: Any) -> dict[str, float]:
    return {"gpu_energy": nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3}


def _use(nvml: Nvml, handle: Any) -> dict[str, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_use": rates.gpu / 100, "gpu_memory_use": rates.memory / 100}


def _memory(nvml: Nvml, handle: Any) -> dict[str, float]:
    return {"gpu_memory": float(_memory_info(nvml, handle).used)}


def _memory_info(nvml: Nvml, handle: Any) -> Any:
    """The second version counts, as nvidia-smi does, without what the driver reserves for itself. Older drivers do not have it."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError, TypeError):
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def _clock(nvml: Nvml, handle: Any) -> dict[str, float]:
    return {"gpu_clock": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))}


def _memory_clock(nvml: Nvml, handle: Any) -> dict[str, float]:
    return {"gpu_memory_clock": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))}


def _temperature(nvml: Nvml, handle: Any) -> dict[str, float]:
    return {"gpu_temperature": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))}


def _throttle(nvml: Nvml, handle: Any) -> dict[str, float]:
    # its old name, which old and new drivers know
    return {"gpu_throttle": float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))}


_SLOW: dict[str, _Read] = {
    "GPU utilisation": _use,
    "GPU memory": _memory,
    "GPU clock": _clock,
    "GPU memory clock": _memory_clock,
    "GPU temperature": _temperature,
    "GPU throttle reasons": _throttle,
}


def _is_permanent(nvml: Nvml, error: Exception) -> bool:
    codes = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION)
    return getattr(error, "value", None) in codes


def _by_reason(reasons: Mapping[int, str]) -> str:
    """`Not Supported (GPU 0, 1); Unknown Error (GPU 2)`."""
    indices: dict[str, list[str]] = {}
    for index, why in reasons.items():
        indices.setdefault(why, []).append(str(index))
    return "; ".join(f"{why} (GPU {', '.join(each)})" for why, each in indices.items())
