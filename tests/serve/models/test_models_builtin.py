"""The built-in models, the delay backend, and the metrics page."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models_fakes import TENSORS, Call, asynchronous, flat, fp32, run, served, serving
from prometheus_client.parser import text_string_to_metric_families
from tensor_maker import random

from inferometer.errors import UserError
from inferometer.serve.backends import identity
from inferometer.serve.models import statistics
from inferometer.serve.models.registry import Models
from inferometer.serve.models.repository import ModelSource
from inferometer.tensors import DATATYPES, Tensor

MS = 1_000_000


@asynchronous
async def test_identity_needs_no_files() -> None:
    models = Models(asyncio.get_running_loop())
    models.add("identity")
    await models.start()
    model = models.find("identity")
    assert (model.version, model.config.max_batch_size, model.platform) == ("1", 64, "identity")
    specs = *model.signature.inputs.values(), *model.signature.outputs.values()
    assert [(spec.name, spec.datatype, spec.shape) for spec in specs] == [
        ("INPUT0", "FP32", (-1, -1)),
        ("OUTPUT0", "FP32", (-1, -1)),
    ]
    view = memoryview(b"\0" * 12)
    call = Call("identity", Tensor("INPUT0", "FP32", (1, 3), view)).on(models)
    assert call.ends == [None]
    assert call.responses[0][0].data is view  # not a copy
    await models.unload("identity")
    await models.load("identity")
    assert models.is_ready("identity", "1") and not models.is_ready("identity", "2")
    await models.close()


@asynchronous
async def test_duplicate_model_names_are_refused() -> None:
    models = Models(asyncio.get_running_loop())
    models.add("identity")
    with pytest.raises(UserError, match="two models have the name identity"):
        models.add("identity")
    await models.close()


@asynchronous
async def test_the_server_can_add_its_own_model() -> None:
    models = Models(asyncio.get_running_loop(), overrides=("max_batch_size=2",))
    models.add_source(ModelSource("own", config=f'backend: "mine" {TENSORS}', loader=identity.load))
    await models.start()
    assert (models.find("own").platform, models.find("own").config.max_batch_size) == ("mine", 0)
    assert (await Call("own", flat(7)).on(models).outputs())["OUTPUT0"].tolist() == [7]
    await models.close()


@settings(max_examples=20, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(sorted(DATATYPES)), min_size=1, max_size=4),
    shape=st.lists(st.integers(0, 3), max_size=2),
)
def test_identity_returns_every_datatype(
    kinds: list[str], shape: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    names = {"BYTES": "STRING"}
    tensors = [
        f'{{ name: "{{}}{i}", data_type: TYPE_{names.get(kind, kind)}, dims: {[-1] * len(shape)} }}'
        for i, kind in enumerate(kinds)
    ]
    config = 'backend: "identity"' + "".join(
        f" {side} [{', '.join(tensor.replace('{}', prefix) for tensor in tensors)}]"
        for side, prefix in (("input", "IN"), ("output", "OUT"))
    )

    async def test() -> None:
        generator = np.random.default_rng(1)
        async with serving(tmp_path_factory.mktemp("repository"), {"m": config}) as models:
            inputs = [random(f"IN{i}", kind, shape, generator) for i, kind in enumerate(kinds)]
            call = Call("m", *inputs).on(models)
            assert [(output.name, output.datatype, output.shape, output.data) for output in call.responses[0]] == [
                (f"OUT{i}", kind, tuple(shape), inputs[i].data) for i, kind in enumerate(kinds)
            ]

    run(test())


def delayed(**parameters: str) -> str:
    words = "".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }} ' for k, v in parameters.items())
    return f'backend: "sim" max_batch_size: 8 {words}'


@served({"m": delayed(delay="4ms", per_row="1ms") + TENSORS})
async def test_delays_add_up_per_row_and_run_one_at_a_time(models: Models) -> None:
    calls = [Call("m", fp32([1], [2])).on(models), Call("m", fp32([3])).on(models)]
    assert (await calls[1].outputs())["OUTPUT0"].tolist() == [[3]]
    first, second = (call.inference for call in calls)
    assert first.compute_ns >= 6 * MS and second.compute_ns >= 5 * MS
    assert first.finished >= first.started + 6 * MS and second.started >= first.finished
    assert second.queue_ns == second.started - second.queued > 0


@asynchronous
async def test_delays_support_slots_and_several_responses(tmp_path: Path) -> None:
    words = delayed(delay="3ms", slots="0", answers="3") + TENSORS + "model_transaction_policy { decoupled: true }"
    async with serving(tmp_path, {"m": words}) as models:
        calls = [Call("m", fp32([i])).on(models) for i in range(4)]
        assert models.find("m").pending == 0
        for call in calls:
            await call.over.wait()
            assert len(call.responses) == 3
            assert call.inference.compute_ns >= 3 * MS
            assert call.inference.finished - call.inference.started >= 9 * MS


@asynchronous
async def test_metrics_have_tritons_names_and_the_counts(tmp_path: Path) -> None:
    async with serving(tmp_path, {'odd"name': f'backend: "identity" max_batch_size: 4 {TENSORS}'}) as models:
        for rows in (1, 1, 3):
            await Call('odd"name', fp32(*[[0.0]] * rows)).on(models).outputs()
        text = statistics.page(models, 1.5e9).decode()
    assert (
        '# TYPE nv_inference_request_success counter\nnv_inference_request_success{model="odd\\"name",version="1"} 3\n'
        in text
    )
    samples = {
        (sample.name.removesuffix("_total"), sample.labels.get("reason", sample.labels.get("le", ""))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["nv_inference_count", ""] == 5
    assert samples["nv_inference_exec_count", ""] == 3
    assert samples["nv_inference_pending_request_count", ""] == 0
    assert {reason for name, reason in samples if name == "nv_inference_request_failure"} == {
        "REJECTED", "CANCELED", "BACKEND", "OTHER",
    }  # fmt: skip
    for kind in ("request", "queue", "compute"):
        assert samples[f"nv_inference_{kind}_latency_seconds_count", ""] == 3
        assert samples[f"nv_inference_{kind}_latency_seconds_bucket", "+Inf"] == 3
    for part in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
        assert samples[f"nv_inference_{part}_duration_us", ""] >= 0
    assert samples["process_start_time_seconds", ""] == 1.5e9
    assert samples["inferometer_serve_info", ""] == 1
    assert 0 <= samples["nv_cpu_utilization", ""] <= 1
    assert 0 < samples["nv_cpu_memory_used_bytes", ""] < samples["nv_cpu_memory_total_bytes", ""]


@asynchronous
async def test_large_counts_are_exact(tmp_path: Path) -> None:
    async with serving(tmp_path, {"m": f'backend: "identity" max_batch_size: 4 {TENSORS}'}) as models:
        models.find("m").counted.request.observe_all(np.ones(1_234_567, np.int64))
        text = statistics.page(models, 1.5e9).decode()
    assert 'nv_inference_request_latency_seconds_count{model="m",version="1"} 1234567\n' in text
    assert 'nv_inference_request_latency_seconds_bucket{model="m",version="1",le="+Inf"} 1234567\n' in text
