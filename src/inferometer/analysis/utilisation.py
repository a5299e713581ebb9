"""How much of the device a level used: model FLOPs utilisation and memory-bandwidth utilisation.

Both count what the model needs, not what the hardware happened to do: padding, recomputed tokens and rejected drafts do not count.

FLOPs of a request with a prompt of n tokens, c of them from a cache, and m output tokens. The first output token comes from the
prefill, so n - c + m - 1 positions pass through the layers, at positions c + 1 to n + m - 1. Each weight of a layer that a position
passes through is one multiplication and one addition:

    body       2 x weights of the layers x (n - c + m - 1)
    output     2 x vocabulary x hidden x m            logits are needed for output tokens only
    attention  4 x layers x heads x head size x sum of the positions c + 1 ... n + m - 1

Attention at position t multiplies the query with t keys, and sums up t values: 2 x 2 x t operations for each head and dimension. The
input embeddings are looked up, not multiplied. MFU = FLOPs per request x requests per second / (peak x devices).

Bytes of decoding. A step reads the weights once for all sequences of its batch, and for each sequence the keys and values of its
positions so far:

    weights    bytes of the weights, without the input embeddings, x steps per second
    cache      2 x layers x KV heads x head size x bytes per value x sum of the positions n + 1 ... n + m - 1, per request

With D sequences in decode on average (Little's law: requests per second x time from first to last token) a step yields D tokens, so
there are decoded tokens per second / max(D, 1) steps; a static batch without token times yields as many tokens as it has rows. MBU =
bytes per second / (bandwidth x devices). It leaves out what the prefill reads, so it is a lower bound. In a mixture of experts, how many
experts a step reads depends on the batch: MBU is not known for those.
"""

import msgspec
import numpy as np

from inferometer.analysis import exact
from inferometer.analysis.metrics import tpot
from inferometer.campaign import DeviceFacts, ModelFacts
from inferometer.records import Run

_TERA, _GIGA = 1e12, 1e9
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "fp8": 1, "int8": 1}
"""Bytes per weight of each data type."""
_NAMES = {
    "fp32": "float32", "f32": "float32", "float": "float32", "fp16": "float16", "f16": "float16", "half": "float16", "bf16": "bfloat16",
    "auto": "",
}  # fmt: skip
"""What engines call them."""

DEFINITIONS = {
    "mfu": "model FLOPs utilisation: floating-point operations that the requests need (layers, attention and logits; without padding and cached tokens) per second / peak of the devices at the model's data type",
    "mbu": "memory-bandwidth utilisation of decoding: bytes that decode steps have to read (weights once per step, keys and values of each sequence) per second / peak bandwidth of the devices; a lower bound, because the prefill reads too",
}  # fmt: skip


class Work(msgspec.Struct, frozen=True):
    """Sums over the successful requests of a level, divided by their number; None if tokens were not counted."""

    positions: float | None = None
    """n - c + m - 1."""
    outputs: float | None = None
    """m."""
    attended: float | None = None
    """Sum of the positions c + 1 ... n + m - 1."""
    decoded: float | None = None
    """m - 1."""
    read: float | None = None
    """Sum of the positions n + 1 ... n + m - 1."""
    decoding: float | None = None
    """Seconds from the first to the last token; None if responses are not streamed."""


def work_of(runs: list[Run]) -> Work:
    """What the mean request of the runs took."""
    rows = [run.records.rows for run in runs]
    good = [each["failure"] == 0 for each in rows]
    columns = {
        name: np.concatenate([each[name][kept].astype(np.float64) for each, kept in zip(rows, good, strict=True)])
        for name in ("n_in", "n_out", "cached")
    }
    n, m, c = columns["n_in"], columns["n_out"], np.maximum(columns["cached"], 0)
    if not len(n) or (n < 0).any() or (m < 1).any():
        return Work()
    last = n + m - 1
    times = np.concatenate([tpot(each[kept]) for each, kept in zip(rows, good, strict=True)])
    spans = np.where(m > 1, times * (m - 1), 0.0)
    return Work(
        positions=exact.mean(last - c),
        outputs=exact.mean(m),
        attended=exact.mean(_sum_to(last) - _sum_to(c)),
        decoded=exact.mean(m - 1),
        read=exact.mean(_sum_to(last) - _sum_to(n)),
        decoding=None if np.isnan(spans).any() else exact.mean(spans),
    )


def _sum_to(last: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """1 + 2 + ... + last."""
    return last * (last + 1) / 2


def mfu(model: ModelFacts, device: DeviceFacts, work: Work, requests: float | None, dtype: str = "") -> float | None:
    """Model FLOPs utilisation at so many requests per second; None if anything that it needs is not known.

    The peak is that of the model's data type: it is not known for an engine that computes in another one (`dtype`).
    """
    flops = flops_per_request(model, work)
    if flops is None or requests is None or device.tflops is None or not _same_type(dtype, model.dtype):
        return None
    return flops * requests / (_TERA * device.tflops * device.count)


def flops_per_request(model: ModelFacts, work: Work) -> float | None:
    """Floating-point operations of the mean request."""
    weights = _weights(model)
    if weights is None or work.positions is None or work.outputs is None or work.attended is None:
        return None
    if model.layers is None or model.heads is None or model.head_size is None:
        return None
    body, output = weights
    attention = 4.0 * model.layers * model.heads * model.head_size * work.attended
    return 2.0 * body * work.positions + 2.0 * output * work.outputs + attention


def mbu(
    model: ModelFacts,
    device: DeviceFacts,
    work: Work,
    requests: float | None,
    dtype: str = "",
    batch: float | None = None,
) -> float | None:
    """Memory-bandwidth utilisation at so many requests per second; `batch` is the size of static batches."""
    rate = decode_bytes_per_second(model, work, requests, dtype, batch)
    if rate is None or device.bandwidth is None:
        return None
    return rate / (_GIGA * device.bandwidth * device.count)


def decode_bytes_per_second(
    model: ModelFacts, work: Work, requests: float | None, dtype: str = "", batch: float | None = None
) -> float | None:
    """Bytes that decoding has to read per second."""
    weights, size = _weights(model), _bytes_per_weight(model, dtype)
    if weights is None or size is None or requests is None or work.decoded is None or work.read is None:
        return None
    if model.active_parameters not in (None, model.parameters):
        return None
    if model.layers is None or model.kv_heads is None or model.head_size is None:
        return None
    if work.decoding is not None:
        sequences = max(requests * work.decoding, 1.0)
    elif batch is not None:
        sequences = batch
    else:
        return None
    steps = requests * work.decoded / sequences
    cache = 2.0 * model.layers * model.kv_heads * model.head_size * size * work.read
    return sum(weights) * size * steps + cache * requests


def _weights(model: ModelFacts) -> tuple[float, float] | None:
    """The weights that a position is multiplied with: those of the layers, and of the output layer."""
    active = model.parameters if model.active_parameters is None else model.active_parameters
    if active is None or model.vocabulary is None or model.hidden is None or model.is_tied is None:
        return None
    table = model.vocabulary * model.hidden
    body = active - table * (1 if model.is_tied else 2)
    return (float(body), float(table)) if body > 0 else None


def _bytes_per_weight(model: ModelFacts, dtype: str) -> float | None:
    """Bytes of a weight in the engine's data type; as stored if the engine's is not known."""
    known = _BYTES.get(plain_type(dtype))
    if known is not None:
        return known
    return model.bytes / model.parameters if model.bytes and model.parameters and not plain_type(dtype) else None


def _same_type(own: str, models: str) -> bool:
    """Whether an engine computes in the model's data type, or one with the same peak; one that is not known is taken for that."""
    own, models = plain_type(own), plain_type(models)
    return not own or own == models or (_BYTES.get(own) == _BYTES.get(models) == 2)


def plain_type(dtype: str) -> str:
    """A data type by one of its names: `bfloat16` for torch.bfloat16 and bf16; empty for `auto`, which is the model's own."""
    name = dtype.removeprefix("torch.").strip().lower()
    return _NAMES.get(name, name)
