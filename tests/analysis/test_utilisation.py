"""Utilisation against counting every multiplication and every byte one by one."""

import msgspec
import numpy as np
import pytest
import synthetic_run as made

from inferometer.analysis.utilisation import Work, decode_bytes_per_second, flops_per_request, mbu, mfu, work_of
from inferometer.campaign import DeviceFacts, ModelFacts

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, SIZE, INNER = 50, 12, 3, 4, 2, 3, 20
PER_LAYER = HIDDEN * HEADS * SIZE * 2 + HIDDEN * KV_HEADS * SIZE * 2 + 3 * HIDDEN * INNER
MODEL = ModelFacts(
    name="small", parameters=2 * VOCABULARY * HIDDEN + LAYERS * PER_LAYER, bytes=2 * (2 * VOCABULARY * HIDDEN + LAYERS * PER_LAYER),
    dtype="bfloat16", layers=LAYERS, hidden=HIDDEN, heads=HEADS, kv_heads=KV_HEADS, head_size=SIZE, vocabulary=VOCABULARY, is_tied=False,
)  # fmt: skip
DEVICE = DeviceFacts(tflops=1e-6, bandwidth=1e-3, count=2)  # 10^6 operations and 10^6 bytes per second each


def counted(n: int, m: int, cached: int = 0) -> float:
    """Operations of one request, position by position."""
    total = 0
    for position in range(cached + 1, n + m):  # the last token is not put in again
        total += LAYERS * 2 * PER_LAYER
        total += LAYERS * HEADS * 2 * SIZE * position * 2  # scores, and the weighted sum of the values
        if position >= n:  # its logits become an output token
            total += 2 * VOCABULARY * HIDDEN
    return total


def requests(lengths: list[tuple[int, int, int]]) -> Work:
    rows, chunks = made.closed_rows(len(lengths))
    for number, (n, m, cached) in enumerate(lengths):
        rows["n_in"][number], rows["n_out"][number], rows["cached"][number] = n, m, cached
        rows["first_tokens"][number], rows["streamed_tokens"][number] = 1, m
    return work_of([made.run(rows, chunks)])


@pytest.mark.parametrize("lengths", [[(7, 5, 0)], [(7, 5, 4), (20, 1, 0), (3, 9, 2)]])
def test_flops_are_those_of_every_position(lengths: list[tuple[int, int, int]]) -> None:
    expected = sum(counted(*each) for each in lengths) / len(lengths)
    assert flops_per_request(MODEL, requests(lengths)) == pytest.approx(expected)
    assert mfu(MODEL, DEVICE, requests(lengths), 10.0) == pytest.approx(expected * 10 / 2e6)


def test_a_tied_output_layer_is_multiplied_and_not_only_looked_up() -> None:
    tied = msgspec.structs.replace(MODEL, parameters=VOCABULARY * HIDDEN + LAYERS * PER_LAYER, is_tied=True)
    assert flops_per_request(tied, requests([(7, 5, 0)])) == flops_per_request(MODEL, requests([(7, 5, 0)]))


def test_one_sequence_reads_the_weights_for_every_token() -> None:
    n, m, rate = 10, 6, 2.0
    work = msgspec.structs.replace(requests([(n, m, 0)]), decoding=0.1)  # 0.2 sequences in decode on average
    cache = sum(2 * LAYERS * KV_HEADS * SIZE * 2 * position for position in range(n + 1, n + m))
    weights = 2 * (VOCABULARY * HIDDEN + LAYERS * PER_LAYER) * (m - 1)
    assert decode_bytes_per_second(MODEL, work, rate) == pytest.approx(rate * (weights + cache))
    assert mbu(MODEL, DEVICE, work, rate) == pytest.approx(rate * (weights + cache) / 2e6)


def test_sequences_that_are_decoded_together_share_the_weights() -> None:
    work = msgspec.structs.replace(requests([(10, 6, 0)]), decoding=0.1)
    cache = decode_bytes_per_second(msgspec.structs.replace(MODEL, kv_heads=0), work, 20.0)
    alone = decode_bytes_per_second(msgspec.structs.replace(MODEL, kv_heads=0), work, 10.0)
    assert cache == pytest.approx(alone)  # twice the requests in twice the batch: as many steps
    static = msgspec.structs.replace(work, decoding=None)
    assert decode_bytes_per_second(MODEL, static, 10.0) is None
    assert decode_bytes_per_second(MODEL, static, 10.0, batch=1) == pytest.approx(
        decode_bytes_per_second(MODEL, work, 10.0)
    )


def test_the_engines_data_type_decides_about_bytes_and_may_not_fit_the_peak() -> None:
    work = msgspec.structs.replace(requests([(10, 6, 0)]), decoding=0.1)
    half, full = (decode_bytes_per_second(MODEL, work, 1.0, dtype) for dtype in ("bfloat16", "torch.float32"))
    assert half is not None and full == pytest.approx(2 * half)
    assert mfu(MODEL, DEVICE, work, 1.0, "float16") is not None  # the same peak as bfloat16
    assert mfu(MODEL, DEVICE, work, 1.0, "float32") is None
    assert mbu(MODEL, DEVICE, work, 1.0, "Q4_K_M") is None


@pytest.mark.parametrize("name", ["parameters", "layers", "vocabulary", "is_tied", "head_size"])
def test_what_is_not_known_makes_it_missing(name: str) -> None:
    work = msgspec.structs.replace(requests([(10, 6, 0)]), decoding=0.1)
    unknown = msgspec.structs.replace(MODEL, **{name: None})
    assert mfu(unknown, DEVICE, work, 1.0) is None and mbu(unknown, DEVICE, work, 1.0) is None
    assert mfu(MODEL, DeviceFacts(), work, 1.0) is None and mbu(MODEL, DeviceFacts(), work, 1.0) is None
    assert mfu(MODEL, DEVICE, Work(), 1.0) is None and mfu(MODEL, DEVICE, work, None) is None


def test_experts_count_as_far_as_they_are_active_and_their_bytes_are_not_known() -> None:
    experts = msgspec.structs.replace(MODEL, active_parameters=MODEL.parameters - LAYERS * HIDDEN * INNER)  # type: ignore[operator]
    work = msgspec.structs.replace(requests([(7, 5, 0)]), decoding=0.1)
    less = 2 * LAYERS * HIDDEN * INNER * (7 + 5 - 1)
    assert flops_per_request(experts, work) == pytest.approx(counted(7, 5) - less)
    assert mbu(experts, DEVICE, work, 1.0) is None


def test_requests_whose_tokens_nobody_counted_have_no_work() -> None:
    rows, chunks = made.closed_rows(10)
    rows["n_in"][3] = -1
    assert work_of([made.run(rows, chunks)]) == Work()
    assert np.isfinite(work_of([made.run(*made.closed_rows(10))]).decoding or np.nan)
