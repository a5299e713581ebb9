"""A module like pynvml, with GPUs whose values a test sets."""
# ruff: noqa: N802, N815 - the names are NVML's

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {3: "Not Supported", 9: "Driver Not Loaded", 15: "GPU is lost"}.get(self.value, f"error {self.value}")


class FakeNvml:
    """GPUs 0, 1 ...; a value that is an NVMLError is raised. `calls` has the names of all readings."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_FUNCTION_NOT_FOUND = 3, 4, 13
    NVML_FI_DEV_POWER_INSTANT = 186
    nvmlMemory_v2 = 0x2000028
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *gpus: dict[str, Any], init: Exception | None = None) -> None:
        self.gpus = list(gpus)
        self.calls: list[str] = []
        self.is_open = False
        self._init = init

    def nvmlInit(self) -> None:
        if self._init is not None:
            raise self._init
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.1"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        self._value(self.gpus[index], "handle")
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu: dict[str, Any]) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetUUID(self, gpu: dict[str, Any]) -> str:
        return f"GPU-{self.gpus.index(gpu)}"

    def nvmlDeviceGetFieldValues(self, gpu: dict[str, Any], fields: list[int]) -> list[Any]:
        assert fields == [self.NVML_FI_DEV_POWER_INSTANT]
        self.calls.append("instant")
        value = gpu.get("instant")
        return [SimpleNamespace(nvmlReturn=3 if value is None else 0, value=SimpleNamespace(uiVal=value))]

    def nvmlDeviceGetPowerUsage(self, gpu: dict[str, Any]) -> Any:
        return self._value(gpu, "power", 300_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: dict[str, Any]) -> Any:
        return self._value(gpu, "energy", 5_000)

    def nvmlDeviceGetUtilizationRates(self, gpu: dict[str, Any]) -> Any:
        return self._value(gpu, "use", SimpleNamespace(gpu=87, memory=40))

    def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, Any], version: int | None = None) -> Any:
        if version is not None and "memory" in gpu:  # an old driver
            raise NVMLError(self.NVML_ERROR_FUNCTION_NOT_FOUND)
        used = 71 << 30 if version is None else 70 << 30
        return self._value(gpu, "memory", SimpleNamespace(used=used, total=141 << 30))

    def nvmlDeviceGetClockInfo(self, gpu: dict[str, Any], kind: int) -> Any:
        return self._value(gpu, {1: "clock", 2: "memory clock"}[kind], 1980)

    def nvmlDeviceGetTemperature(self, gpu: dict[str, Any], sensor: int) -> Any:
        return self._value(gpu, "temperature", 61)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: dict[str, Any]) -> Any:
        return self._value(gpu, "throttle", 4)

    def _value(self, gpu: dict[str, Any], name: str, default: Any = None) -> Any:
        self.calls.append(name)
        value = gpu.get(name, default)
        if isinstance(value, Exception):
            raise value
        return value
