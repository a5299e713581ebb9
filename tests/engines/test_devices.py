"""Peaks of devices by the names that NVML reports."""

import re

import pytest

from inferometer.config.engines import Device
from inferometer.engines.devices import PEAKS, device_facts, peaks_of


@pytest.mark.parametrize(
    ("name", "half", "bandwidth"),
    [
        ("NVIDIA H100 80GB HBM3", 989, 3350),
        ("NVIDIA H100 PCIe", 756, 2000),
        ("NVIDIA H100 NVL", 836, 3900),
        ("NVIDIA H200", 989, 4800),
        ("NVIDIA GH200 480GB", 989, 4000),
        ("NVIDIA A100-SXM4-40GB", 312, 1555),
        ("NVIDIA A100-SXM4-80GB", 312, 2039),
        ("NVIDIA A100-PCIE-40GB", 312, 1555),
        ("NVIDIA A100 80GB PCIe", 312, 1935),
        ("NVIDIA A10", 125, 600),
        ("NVIDIA A10G", 70, 600),
        ("NVIDIA L4", 121, 300),
        ("NVIDIA L40S", 362, 864),
        ("NVIDIA L40", 181, 864),
        ("Tesla T4", 65, 320),
        ("Tesla V100-SXM2-16GB", 125, 900),
        ("Tesla V100S-PCIE-32GB", 130, 1134),
        ("NVIDIA B200", 2250, 8000),
        ("NVIDIA GB200", 2500, 8000),
        ("NVIDIA GeForce RTX 4090", 165.2, 1008),
        ("AMD Instinct MI300X", 1307.4, 5300),
    ],
)
def test_names_as_they_are_reported(name: str, half: float, bandwidth: float) -> None:
    assert peaks_of(name, "float16") == (half, bandwidth)


def test_the_data_type_decides_about_the_peak() -> None:
    assert peaks_of("NVIDIA H200", "torch.bfloat16")[0] == 989 and peaks_of("NVIDIA H200", "float32")[0] == 494
    assert peaks_of("NVIDIA H200", "fp8")[0] == 1979 and peaks_of("NVIDIA H200", "Q4_K_M") == (None, 4800)
    assert peaks_of("Tesla T4", "bfloat16") == (None, 320)  # it has no units for that


@pytest.mark.parametrize(
    "name", ["", "Intel(R) Xeon(R) Platinum 8480", "NVIDIA A1000 Laptop GPU", "NVIDIA RTX 4090 D", "NVIDIA L400"]
)
def test_what_is_not_in_the_table_is_not_known(name: str) -> None:
    assert peaks_of(name, "bfloat16") == (None, None)


def test_the_file_comes_before_the_table() -> None:
    found = device_facts("NVIDIA H200", 2, "bfloat16", Device(tflops=500.0))
    assert (found.tflops, found.bandwidth, found.count) == (500.0, 4800, 2)
    assert found.source == "the file and data sheet"
    assert device_facts("some CPU", 1, "float32", Device(tflops=2.0, bandwidth=80.0)).source == "the file"
    assert device_facts("some CPU").source == "" and device_facts("some CPU").tflops is None


def test_every_row_can_be_reached_and_is_plausible() -> None:
    for number, (pattern, peaks) in enumerate(PEAKS):
        example = re.sub(r"\(\?!.*?\)", "", pattern.split("|")[0]).replace("\\b", "").replace(".*", " ")
        example = example.replace("(144", "144").replace(")", "")
        first = next(index for index, (each, _) in enumerate(PEAKS) if re.search(each, example, re.IGNORECASE))
        assert first == number, (pattern, example)
        assert peaks.half >= peaks.single > 0 and 100 <= peaks.bandwidth <= 10_000
