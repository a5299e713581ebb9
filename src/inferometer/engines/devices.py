"""What GPUs can do at most: dense floating-point operations and memory bandwidth, from the vendors' data sheets.

Names are as NVML (and rocm-smi) reports them. Peaks are those of dense matrices at the device's boost clock: data sheets often print
twice as much, with sparsity. float32 is that of TF32 tensor cores if the device has them: the most that it can do for float32
matrices, even if a library does not use them by default. Consumer GPUs: with float32 accumulation.
"""

import re

import msgspec

from inferometer.campaign import DeviceFacts
from inferometer.config.engines import Device

SOURCE = "data sheet"
_FILE = "the file"


class Peaks(msgspec.Struct, frozen=True):
    """10^12 operations per second by data type, and GB/s; None: it has no units for that type."""

    half: float
    """bfloat16 and float16."""
    single: float
    """float32."""
    bandwidth: float
    eight_bit: float | None = None
    """fp8 or int8."""
    has_bfloat16: bool = True


PEAKS: tuple[tuple[str, Peaks], ...] = (
    (r"GB200|GB300", Peaks(2500, 1250, 8000, 5000)),
    (r"B300", Peaks(2250, 1125, 8000, 4500)),
    (r"B200", Peaks(2250, 1125, 8000, 4500)),
    (r"GH200.*(144|141)", Peaks(989, 494, 4900, 1979)),
    (r"GH200", Peaks(989, 494, 4000, 1979)),
    (r"H200 NVL", Peaks(836, 418, 4800, 1671)),
    (r"H200", Peaks(989, 494, 4800, 1979)),
    (r"H100 NVL", Peaks(836, 418, 3900, 1671)),
    (r"H100 PCIe", Peaks(756, 378, 2000, 1513)),
    (r"H100", Peaks(989, 494, 3350, 1979)),
    (r"H800 PCIe", Peaks(756, 378, 2000, 1513)),
    (r"H800", Peaks(989, 494, 3350, 1979)),
    (r"H20\b", Peaks(148, 74, 4000, 296)),
    (r"A100.*PCIE.*80GB|A100 80GB PCIe", Peaks(312, 156, 1935, 624)),
    (r"A100.*80GB", Peaks(312, 156, 2039, 624)),
    (r"A100", Peaks(312, 156, 1555, 624)),
    (r"A800.*PCI", Peaks(312, 156, 1935, 624)),
    (r"A800", Peaks(312, 156, 2039, 624)),
    (r"A30\b", Peaks(165, 82, 933, 330)),
    (r"A40\b", Peaks(149.7, 74.8, 696, 299.3)),
    (r"A10G", Peaks(70, 35, 600, 140)),
    (r"A10\b", Peaks(125, 62.5, 600, 250)),
    (r"A16\b", Peaks(17.9, 9, 200, 35.9)),
    (r"A2\b", Peaks(18, 9, 200, 36)),
    (r"L40S", Peaks(362, 183, 864, 733)),
    (r"L40\b", Peaks(181, 90.5, 864, 362)),
    (r"L20\b", Peaks(119.5, 59.8, 864, 239)),
    (r"L4\b", Peaks(121, 60, 300, 242)),
    (r"T4\b", Peaks(65, 8.1, 320, 130, has_bfloat16=False)),
    (r"V100S", Peaks(130, 16.4, 1134, has_bfloat16=False)),
    (r"V100.*PCIE", Peaks(112, 14, 900, has_bfloat16=False)),
    (r"V100", Peaks(125, 15.7, 900, has_bfloat16=False)),
    (r"P100-SXM", Peaks(21.2, 10.6, 732, has_bfloat16=False)),
    (r"P100", Peaks(18.7, 9.3, 732, has_bfloat16=False)),
    (r"RTX 6000 Ada", Peaks(364.2, 182.1, 960, 728.5)),
    (r"RTX A6000", Peaks(154.8, 77.4, 768, 309.7)),
    (r"RTX A5000", Peaks(111.1, 55.6, 768, 222.2)),
    (r"RTX 5090(?! D)", Peaks(209.5, 104.8, 1792, 838)),
    (r"RTX 4090(?! D)", Peaks(165.2, 82.6, 1008, 660.6)),
    (r"RTX 4080 SUPER", Peaks(104.4, 52.2, 736, 418)),
    (r"RTX 4080", Peaks(97.5, 48.7, 717, 390)),
    (r"RTX 3090 Ti", Peaks(80, 40, 1008, 320)),
    (r"RTX 3090", Peaks(71, 35.6, 936, 284)),
    (r"MI355X", Peaks(2500, 157.3, 8000, 5000)),
    (r"MI325X", Peaks(1307.4, 653.7, 6000, 2614.9)),
    (r"MI300X", Peaks(1307.4, 653.7, 5300, 2614.9)),
    (r"MI250X", Peaks(383, 95.7, 3277, 383)),
    (r"MI210", Peaks(181, 45.3, 1638, 181)),
)
"""The first pattern that a device's name contains, as a word, counts."""

_HALF = ("bfloat16", "bf16", "float16", "fp16", "f16", "half")
_SINGLE = ("float32", "fp32", "f32", "float")
_EIGHT_BIT = ("fp8", "float8_e4m3fn", "float8_e5m2", "int8")


def peaks_of(name: str, dtype: str) -> tuple[float | None, float | None]:
    """The peak in 10^12 operations per second at the data type, and the bandwidth in GB/s; None for what is not known."""
    found = next((peaks for pattern, peaks in PEAKS if re.search(rf"\b(?:{pattern})(?!\d)", name, re.IGNORECASE)), None)
    if found is None:
        return None, None
    wanted = dtype.removeprefix("torch.").lower()
    if wanted in ("bfloat16", "bf16") and not found.has_bfloat16:
        return None, found.bandwidth
    if wanted in _HALF:
        return found.half, found.bandwidth
    if wanted in _SINGLE:
        return found.single, found.bandwidth
    return (found.eight_bit if wanted in _EIGHT_BIT else None), found.bandwidth


def device_facts(name: str, count: int = 1, dtype: str = "", given: Device | None = None) -> DeviceFacts:
    """The device with its peaks: those of the file, else those of the table. `dtype` is the model's."""
    tflops, bandwidth = peaks_of(name, dtype)
    given = given or Device()
    sources = {
        _FILE: given.tflops is not None or given.bandwidth is not None,
        SOURCE: (tflops is not None and given.tflops is None) or (bandwidth is not None and given.bandwidth is None),
    }
    return DeviceFacts(
        name=name,
        count=count,
        tflops=tflops if given.tflops is None else given.tflops,
        bandwidth=bandwidth if given.bandwidth is None else given.bandwidth,
        source=" and ".join(source for source, is_used in sources.items() if is_used),
    )
