"""GPUs through a module like pynvml."""

import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml, NVMLError

from inferometer.errors import UserError
from inferometer.observe import gpu
from inferometer.observe.gpu import GpuWatch, open_nvml
from inferometer.series import TimeSeries
from inferometer.units import NS


class Clock:
    """Nanoseconds that a test sets."""

    def __init__(self) -> None:
        self.at = 1_000 * NS

    def __call__(self) -> int:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(gpu, "now", made)
    return made


def install(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def values(series: Sequence[TimeSeries], name: str, index: int = 0) -> list[float]:
    chosen = [each for each in series if each.name == name and each.labels["gpu"] == str(index)]
    return [value for each in chosen for value in each.value.tolist()]


def test_all_values_of_each_gpu_are_recorded_with_its_index() -> None:
    nvml = FakeNvml({"instant": 512_500}, {"temperature": 55})
    watch = GpuWatch(nvml, 1.0)
    watch.start()
    series = watch.end()
    once = {each.name: each.value[-1] for each in series if each.labels["gpu"] == "0"}
    assert once == {
        "gpu_info": 1,
        "gpu_memory_total": 141 << 30,
        "gpu_power": 512.5,
        "gpu_energy": 5.0,
        "gpu_use": 0.87,
        "gpu_memory_use": 0.4,
        "gpu_memory": 70 << 30,
        "gpu_clock": 1980,
        "gpu_memory_clock": 1980,
        "gpu_temperature": 61,
        "gpu_throttle": 4,
    }
    assert values(series, "gpu_temperature", 1) == [55, 55]
    assert watch.problems() == {}


def test_a_gpu_says_what_it_is_and_how_it_measures_its_power() -> None:
    watch = GpuWatch(FakeNvml({"instant": 1}, {}), 1.0)
    watch.start()
    info = [each.labels for each in watch.end() if each.name == "gpu_info"]
    common = {"name": "NVIDIA H200", "driver": "570.1"}
    assert info[0] == {"gpu": "0", "uuid": "GPU-0", "power": "instant", **common}
    assert info[1] == {"gpu": "1", "uuid": "GPU-1", "power": "average", **common}


def test_an_older_driver_reports_the_memory_that_it_knows() -> None:
    watch = GpuWatch(FakeNvml({"memory": SimpleNamespace(used=7, total=9)}), 1.0)
    watch.start()
    assert values(watch.end(), "gpu_memory") == [7, 7]
    assert watch.problems() == {}


def test_power_is_sampled_ten_times_as_often_as_the_rest(clock: Clock) -> None:
    nvml = FakeNvml({"instant": 1_000})
    watch = GpuWatch(nvml, 1.0)
    assert watch.interval == 0.1
    watch.start()
    for _ in range(30):
        clock.at += NS // 10
        watch.sample()
    series = watch.end()
    assert len(values(series, "gpu_power")) == 32
    assert len(values(series, "gpu_use")) == 1 + 3 + 1


def test_a_value_that_is_not_supported_is_missing_with_one_reason() -> None:
    nvml = FakeNvml({"memory clock": NVMLError(3), "energy": NVMLError(3)}, {"memory clock": NVMLError(3)})
    watch = GpuWatch(nvml, 0.1)
    watch.start()
    for _ in range(3):
        watch.sample()
    series = watch.end()
    assert (
        not values(series, "gpu_memory_clock") and not values(series, "gpu_energy") and values(series, "gpu_energy", 1)
    )
    assert watch.problems() == {
        "GPU memory clock": "Not Supported (GPU 0, 1)",
        "GPU energy counter": "Not Supported (GPU 0)",
    }
    assert nvml.calls.count("memory clock") == 2, "it is not read again"


def test_a_reading_that_fails_leaves_a_gap_and_a_reason() -> None:
    nvml = FakeNvml({"power": 100_000})
    watch = GpuWatch(nvml, 0.1)
    watch.start()
    nvml.gpus[0]["power"] = NVMLError(15)
    watch.sample()
    nvml.gpus[0]["power"] = 300_000
    assert values(watch.end(), "gpu_power") == [100, 300]
    assert watch.problems() == {"GPU power": "GPU is lost (GPU 0)"}


def test_a_gpu_that_cannot_be_opened_does_not_hide_the_others() -> None:
    watch = GpuWatch(FakeNvml({"handle": NVMLError(15)}, {}), 1.0)
    watch.start()
    series = watch.end()
    assert {each.labels["gpu"] for each in series} == {"1"}
    assert watch.problems() == {"GPU": "GPU is lost (GPU 0)"}


def test_auto_uses_nvml_if_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml({})
    install(monkeypatch, nvml)
    assert open_nvml("auto") is nvml and nvml.is_open
    watch = GpuWatch(nvml, 1.0)
    watch.start()
    watch.end()
    assert not nvml.is_open
    assert open_nvml(False) is None and not nvml.is_open


@pytest.mark.parametrize(
    ("nvml", "what", "remedy"),
    [
        (None, "reading GPUs needs the package nvidia-ml-py", "pip install 'inferometer[gpu]'"),
        (FakeNvml(init=NVMLError(9)), "NVML cannot be used: Driver Not Loaded", "check that nvidia-smi works"),
        (FakeNvml(), "this machine has no NVIDIA GPU", "check nvidia-smi"),
    ],
)
def test_without_gpus_auto_does_nothing_and_true_is_an_error(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None, what: str, remedy: str
) -> None:
    install(monkeypatch, nvml)
    assert open_nvml("auto") is None
    with pytest.raises(UserError) as caught:
        open_nvml(True)
    assert caught.value.what == what and caught.value.key == "observe.gpu"
    assert caught.value.remedy.startswith(remedy)


@pytest.mark.nvml
def test_the_real_module_has_what_is_used_of_it() -> None:
    import pynvml  # noqa: PLC0415

    used = {name for name in dir(FakeNvml) if name.lower().startswith("nvml")}
    assert {name for name in used if not hasattr(pynvml, name)} == set()
