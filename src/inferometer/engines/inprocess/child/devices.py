"""Devices and data types of torch, its memory, and its profiler."""

import gc
import importlib.metadata
import time
from pathlib import Path
from typing import Any

from inferometer.engines.inprocess.child.errors import Unusable

DTYPES = ("float32", "bfloat16", "float16")


def device_of(torch: Any, wanted: "str | None") -> Any:
    """The device that is asked for; by default a GPU if there is one."""
    device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Unusable(f"device {wanted}: this machine has no GPU that torch can use")
    return device


def dtype_of(torch: Any, wanted: "str | None") -> Any:
    """The data type that is asked for; None: the model's."""
    if wanted is None or wanted == "auto":
        return None
    if wanted not in DTYPES:
        raise Unusable(f"dtype {wanted} is not known: it takes {', '.join(DTYPES)}")
    return getattr(torch, wanted)


def synchronise(torch: Any, device: Any) -> None:
    """Wait until the device has done everything that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory(torch: Any) -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def versions(*packages: str) -> dict[str, str]:
    """Versions of those of the packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


class TorchProfiler:
    """torch.profiler for the time between start and stop."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._profiler: Any = None

    def start(self) -> None:
        profiler = self._torch.profiler
        kinds = [profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_available():
            kinds.append(profiler.ProfilerActivity.CUDA)
        self._profiler = profiler.profile(activities=kinds, **self._all_threads())
        self._profiler.start()

    def _all_threads(self) -> dict[str, Any]:
        """Continuous batching computes in a thread of its own, which older versions of torch do not record."""
        try:
            config = self._torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        except (AttributeError, TypeError):
            return {}
        return {"experimental_config": config}

    def stop(self, trace: str) -> str:
        if self._profiler is None:
            raise Unusable("the profiler was not started")
        self._profiler.stop()
        Path(trace).parent.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(trace)
        self._profiler = None
        return trace


def newest(folder: str, since: float) -> "str | None":
    """The newest file in a folder that was written after an instant of the wall clock."""
    files = [path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_mtime >= since - 1]
    return str(max(files, key=lambda path: path.stat().st_mtime)) if files else None


wall = time.time
