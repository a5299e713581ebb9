"""Requests, cancellations, failures, loads and unloads, with models that the test controls step by step."""

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models_fakes import (
    GATES,
    TENSORS,
    WAIT_S,
    Call,
    Gate,
    asynchronous,
    flat,
    fp32,
    run,
    served,
    serving,
    why_not,
    write_model,
)

from inferometer.errors import UserError
from inferometer.serve.models import model, repository
from inferometer.serve.models.registry import Models
from inferometer.serve.models.signature import ModelSignature
from inferometer.tensors import Tensor
from inferometer.timing.clock import now

Gates = Callable[[str], Gate]
BATCHING = f'backend: "gate" max_batch_size: 4 dynamic_batching {{ }} {TENSORS}'
SINGLE = f'backend: "gate" max_batch_size: 4 {TENSORS}'


# --- batches and instances -------------------------------------------------------------------------------------------


@served({"m": BATCHING})
async def test_queued_requests_are_batched_and_split_again(models: Models, fakes: Gates) -> None:
    model = models.find("m")
    calls = [Call("m", fp32([i, i])).on(models) for i in range(5)]
    other = Call("m", fp32([9])).on(models)  # of another shape
    await fakes("m").wait_begun()
    assert (model.pending, models.in_flight) == (5, 6)
    fakes("m").open(3)
    for i, call in enumerate(calls):
        assert (await call.outputs())["OUTPUT0"].tolist() == [[i, i]]
    await other.outputs()
    assert fakes("m").batches == [[0], [1, 2, 3, 4], [9]]
    stats = model.counted.message()
    assert (stats.inference_count, stats.execution_count, stats.inference_stats.success.count) == (6, 3, 6)
    assert [(batch.batch_size, batch.compute_infer.count) for batch in stats.batch_stats] == [(1, 2), (4, 1)]
    assert stats.last_inference > 0
    assert models.in_flight == 0
    times = calls[1].inference
    assert times.queue_ns > 0 and times.compute_ns > 0 and times.queued < times.started < times.finished


@served({"m": BATCHING})
async def test_requests_with_different_parameters_are_not_batched(models: Models, fakes: Gates) -> None:
    one, two, three = {"a": 1, "b": 2}, {"b": 2, "a": 1, "priority": 3}, {"a": True, "b": 2}
    words: list[dict[str, object]] = [{}, {**one}, {**two}, {**three}, {"a": 2}, {"timeout": 10**9}]
    calls = [Call("m", fp32([i]), parameters=each).on(models) for i, each in enumerate(words)]
    fakes("m").open(9)
    await asyncio.gather(*(call.outputs() for call in calls))
    assert fakes("m").batches == [[0], [1, 2], [3], [4], [5]]


@asynchronous
async def test_work_is_spread_over_instances_and_slots(tmp_path: Path, fakes: Gates) -> None:
    slots = 'parameters { key: "slots" value { string_value: "2" } }'
    async with serving(tmp_path, {"m": SINGLE + slots}, overrides=("instance_group.count=2",)) as models:
        calls = [Call("m", fp32([i])).on(models) for i in range(5)]
        for _ in range(4):
            await fakes("m").wait_begun()
        assert (fakes("m").loads, models.find("m").pending) == (2, 1)
        fakes("m").open(5)
        await asyncio.gather(*(call.outputs() for call in calls))


@asynchronous
async def test_a_decoupled_model_streams_and_is_closed_when_cancelled(tmp_path: Path, fakes: Gates) -> None:
    config = f'backend: "stream" model_transaction_policy {{ decoupled: true }} {TENSORS}'
    async with serving(tmp_path, {"m": config}) as models:
        one = Call("m", flat(3)).on(models)
        for n in range(1, 4):
            fakes("m").open()
            while len(one.responses) < n:
                one.responded.clear()
                await one.responded.wait()
            assert len(one.responses) == n
        await one.over.wait()
        assert one.ends == [None]
        fakes("m").closed.clear()
        two = Call("m", flat(3)).on(models)
        fakes("m").open()
        await two.responded.wait()
        models.cancel(two.inference)
        assert (await two.refused()).code == "CANCELLED"
        fakes("m").open()
        await asyncio.get_running_loop().run_in_executor(None, fakes("m").closed.wait)
        assert len(two.responses) == 1
        none = Call("m", flat(0)).on(models)
        await none.over.wait()
        assert (none.responses, none.ends) == ([], [None])


# --- what goes wrong -------------------------------------------------------------------------------------------------


@asynchronous
async def test_the_models_timeout_applies_if_the_request_has_none(tmp_path: Path, fakes: Gates) -> None:
    policy = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000 } }"
    async with serving(tmp_path, {"m": f'backend: "gate" max_batch_size: 1 {policy} {TENSORS}'}) as models:
        first, patient = (Call("m", fp32([i]), parameters={"timeout": 10**9}).on(models) for i in range(2))
        assert (await Call("m", fp32([2])).on(models).refused()).code == "DEADLINE_EXCEEDED"
        fakes("m").open(2)
        await first.outputs()
        await patient.outputs()


@asynchronous
async def test_requests_beyond_the_queue_limit_are_refused(tmp_path: Path, fakes: Gates) -> None:
    limit = 'parameters { key: "max_queue_size" value { string_value: "2" } }'
    async with serving(tmp_path, {"m": SINGLE + limit}) as models:
        calls = [Call("m", fp32([i])).on(models) for i in range(3)]
        why = why_not(models, Call("m", fp32([9])))
        assert (why.code, why.message) == (
            "RESOURCE_EXHAUSTED",
            "[request id: <id_unknown>] Exceeds maximum queue size",
        )
        assert models.in_flight == 3
        models.cancel(calls[1].inference)
        calls.append(Call("m", fp32([3])).on(models))
        fakes("m").open(3)
        for call in calls[:1] + calls[2:]:
            await call.outputs()
        assert models.find("m").counted.failures["REJECTED"] == 1


@served({"m": SINGLE})
async def test_a_request_that_expires_in_the_queue_ends(
    models: Models, fakes: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Call("m", fp32([0]), parameters={"timeout": 1}).on(models)  # begins at once
    why = why_not(models, Call("m", fp32([1]), deadline=now()))
    assert (why.code, why.message) == ("DEADLINE_EXCEEDED", "[request id: <id_unknown>] Request timeout expired")
    t = now()
    with monkeypatch.context() as patched:
        patched.setattr(model, "now", lambda: t)  # the deadline is ahead when it is queued, however long that takes
        late = [
            Call("m", fp32([2]), deadline=t + 2_000_000).on(models),
            Call("m", fp32([3]), parameters={"timeout": 1000}, id="x").on(models),
        ]
    whys = [await call.refused() for call in late]
    assert [why.code for why in whys] == ["DEADLINE_EXCEEDED"] * 2
    assert whys[1].message == "[request id: x] Request timeout expired"
    fakes("m").open()
    await first.outputs()
    assert fakes("m").batches == [[0]]


@served({"m": BATCHING})
async def test_a_failing_callback_does_not_affect_others(models: Models, fakes: Gates) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    calls = [Call("m", fp32([i])).on(models) for i in range(3)]

    def fails(_: object) -> None:
        raise ZeroDivisionError

    calls[1].inference.responded = calls[1].inference.ended = fails
    fakes("m").open(2)
    await calls[2].outputs()
    assert [type(error) for error in errors] == [ZeroDivisionError] * 2
    assert models.in_flight == 0


# --- cancelling ------------------------------------------------------------------------------------------------------


@served({"m": BATCHING})
async def test_a_cancelled_request_leaves_the_queue_and_its_batch_continues(models: Models, fakes: Gates) -> None:
    calls = [Call("m", fp32([i])).on(models) for i in range(4)]
    await fakes("m").wait_begun()
    models.cancel(calls[2].inference)
    models.cancel(calls[2].inference)
    assert [why and why.code for why in calls[2].ends] == ["CANCELLED"]
    fakes("m").open()
    await calls[0].outputs()
    await fakes("m").wait_begun()
    models.cancel(calls[1].inference)  # in a batch with the last one
    fakes("m").open()
    await calls[3].outputs()
    assert fakes("m").batches == [[0], [1, 3]]
    assert (calls[1].responses, calls[2].responses) == ([], [])
    models.cancel(calls[3].inference)
    assert calls[3].ends == [None]
    assert models.find("m").counted.failures["CANCELED"] == 2


@asynchronous
async def test_a_request_that_is_cancelled_again_while_others_start_ends_once(tmp_path: Path) -> None:
    waiting = "dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 60000000 }"
    async with serving(tmp_path, {"m": f'backend: "sim" max_batch_size: 4 {waiting} {TENSORS}'}) as models:
        first, second = Call("m", fp32([1])).on(models), Call("m", fp32([2], [3]))
        second.inference.ended = lambda why: models.cancel(first.inference)
        second.on(models)
        models.cancel(first.inference)  # the second now has a preferred size
        await models.find("m").drained()
        assert ([why and why.code for why in first.ends], models.in_flight) == (["CANCELLED"], 0)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_cancellations_end_each_request_once(data: st.DataObject, tmp_path: Path, fakes: Gates) -> None:
    batching = data.draw(st.booleans())
    cancels = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=6))
    """Which request, and before which step: first the submissions, then the batches that are let through."""

    async def test() -> None:
        GATES.clear()
        async with serving(tmp_path, {"m": BATCHING if batching else SINGLE}) as models:
            calls = [Call("m", fp32([i])) for i in range(6)]
            for step in range(8):
                if step < 6:
                    calls[step].on(models)
                else:
                    fakes("m").open()
                for which, when in cancels:
                    if when == step and which <= step:
                        models.cancel(calls[which].inference)
                        await asyncio.sleep(0)
            fakes("m").open(10)
            await asyncio.gather(*(call.over.wait() for call in calls))
            await models.find("m").drained()
            for i, call in enumerate(calls):
                (why,) = call.ends
                if why is None:
                    assert [float(np.frombuffer(call.responses[0][0].data, "<f4")[0])] == [i]
                else:
                    assert why.code == "CANCELLED" and any(which == i for which, _ in cancels)
            assert (models.in_flight, models.find("m").pending) == (0, 0)

    run(test())


# --- loading and unloading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (f'backend: "unloadable" {TENSORS}', "no such weights"),
        (f'backend: "broken" {TENSORS}'.replace('"0"', '"1"'), "failed its warm-up"),
        (
            'backend: "gate" input [{ name: "X", data_type: TYPE_FP32 }] output [{ name: "Y", data_type: TYPE_INT8 }]',
            "outputs do not match the inputs",
        ),
        ('backend: "sim" parameters { key: "delay" value { string_value: "soon" } }', "delay"),
    ],
)
@asynchronous
async def test_the_only_model_must_load(tmp_path: Path, fakes: Gates, config: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        async with serving(tmp_path, {"m": config}):
            pass


@asynchronous
async def test_a_warm_up_runs_each_instance_once_before_it_is_ready(tmp_path: Path, fakes: Gates) -> None:
    fakes("m").open(2)
    async with serving(tmp_path, {"m": SINGLE.replace('"0"', '"1"')}, overrides=("instance_group.count=2",)) as models:
        assert fakes("m").batches == [[0], [0]]
        assert models.find("m").counted.message().execution_count == 0


@served({"m": SINGLE})
async def test_a_reload_takes_over_and_the_old_model_finishes_its_requests(
    models: Models, tmp_path: Path, fakes: Gates
) -> None:
    old = [Call("m", fp32([i])).on(models) for i in range(3)]
    await fakes("m").wait_begun()
    write_model(tmp_path, "m", f'backend: "identity" max_batch_size: 4 {TENSORS}', version="2")
    await models.load("m")
    new = Call("m", fp32([7])).on(models)
    assert (new.inference.version, old[0].inference.version) == ("2", "1")
    assert (await new.outputs())["OUTPUT0"].tolist() == [[7]]
    assert not any(call.ends for call in old)
    assert not fakes("m").closed.is_set()
    fakes("m").open(3)
    for i, call in enumerate(old):
        assert (await call.outputs())["OUTPUT0"].tolist() == [[i]]
    await asyncio.get_running_loop().run_in_executor(None, fakes("m").closed.wait)
    assert [tuple(entry) for entry in models.index()] == [("m", "2", "READY", "")]
    assert why_not(models, Call("m", fp32([0]), version="1")).code == "NOT_FOUND"


@served({"m": f'backend: "identity" max_batch_size: 4 {TENSORS}'})
async def test_a_failed_load_keeps_the_running_model(models: Models, tmp_path: Path) -> None:
    (tmp_path / "m/config.pbtxt").write_text("max_batch_size: many")
    for config in ("", "{nope", '{"max_batch_size": "x"}', '{"backend": "tensorrt"}'):
        with pytest.raises(Exception, match="failed to load 'm', ") as raised:
            await models.load("m", config)
        assert raised.value.code == "INTERNAL"  # type: ignore[attr-defined]
    assert (await Call("m", fp32([1])).on(models).outputs())["OUTPUT0"].tolist() == [[1]]
    (tmp_path / "m/config.pbtxt").write_text(f'backend: "identity" max_batch_size: 2 {TENSORS}')
    await models.load("m")
    assert models.find("m").config.max_batch_size == 2


@served({"m": SINGLE, "n": SINGLE})
async def test_a_model_is_unloaded_after_its_requests_and_can_be_loaded_again(models: Models, fakes: Gates) -> None:
    calls = [Call("m", fp32([i])).on(models) for i in range(2)]
    unloading = asyncio.create_task(models.unload("m"))
    await fakes("m").wait_begun()
    assert [tuple(entry)[2] for entry in models.index()] == ["UNLOADING", "READY"]
    why = why_not(models, Call("m", fp32([9])))
    assert why.message == "Request for unknown model: 'm' has no available versions"
    fakes("m").open(2)
    for call in calls:
        await call.outputs()
    await unloading
    assert tuple(models.index()[0]) == ("m", "1", "UNAVAILABLE", "unloaded")
    await models.unload("m")
    await models.load("m")
    fakes("m").open()
    await Call("m", fp32([1])).on(models).outputs()


@asynchronous
async def test_models_added_later_are_listed_and_can_be_loaded(tmp_path: Path, fakes: Gates) -> None:
    async with serving(tmp_path / "repository", {"m": SINGLE}) as models:
        write_model(tmp_path / "repository", "late", f'backend: "identity" max_batch_size: 4 {TENSORS}')
        write_model(tmp_path, "outside", f'backend: "identity" max_batch_size: 4 {TENSORS}')
        assert tuple(models.index()[0]) == ("late", "", "UNAVAILABLE", "not loaded")
        await models.load("late")
        await Call("late", fp32([1])).on(models).outputs()
        for name in ("nomodel", "../outside", str(tmp_path / "outside"), "", ".", "m/1"):
            with pytest.raises(Exception, match="failed to poll from model repository"):
                await models.load(name)
        await models.unload("nomodel")


@pytest.mark.slow
@served({"m": BATCHING})
async def test_no_request_is_lost_during_reloads(models: Models, fakes: Gates) -> None:
    calls: list[Call] = []
    loads = [asyncio.create_task(models.load("m")) for _ in range(3)]
    for i in itertools.count():
        calls.append(Call("m", fp32([i])).on(models))
        fakes("m").open()  # there are no more batches than calls
        await asyncio.sleep(0)
        if all(load.done() for load in loads):
            break
    for i, call in enumerate(calls):
        assert (await call.outputs())["OUTPUT0"].tolist() == [[i]]
    assert fakes("m").loads == 4


@served({"m": SINGLE})
async def test_readiness_does_not_read_the_disk(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "listed", lambda root: pytest.fail("the disk was read"))
    assert [entry.name for entry in models.index(only_ready=True)] == ["m"]


# --- trouble of our own ----------------------------------------------------------------------------------------------


def test_a_request_fails_and_frees_its_slot_if_no_thread_can_be_created(
    tmp_path: Path, fakes: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def test() -> None:
        async with serving(tmp_path, {"m": SINGLE}) as models:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                why = await Call("m", fp32([1])).on(models).refused()
            assert (why.code, why.message) == ("INTERNAL", "RuntimeError: can't start new thread")
            assert models.in_flight == 0
            fakes("m").open()
            await Call("m", fp32([2])).on(models).outputs()

    run(test())


def test_a_check_that_raises_leaves_no_request_in_progress(
    tmp_path: Path, fakes: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    async def test() -> None:
        async with serving(tmp_path, {"m": SINGLE}) as models:
            monkeypatch.setattr(ModelSignature, "check", broken)
            assert why_not(models, Call("m", fp32([1]))).code == "INTERNAL"
            assert models.in_flight == 0

    run(test())


def watched() -> tuple[Tensor, "weakref.ref[Any]"]:
    """Return a tensor, and a way to see whether it still exists."""
    values = np.ones((1, 1), np.float32)
    return Tensor("INPUT0", "FP32", (1, 1), memoryview(values).cast("B")), weakref.ref(values)


@served({"m": SINGLE})
async def test_idle_threads_do_not_keep_tensors(models: Models, fakes: Gates) -> None:
    tensor, seen = watched()
    fakes("m").open()
    call = Call("m", tensor).on(models)
    await call.outputs()
    del call, tensor
    async with asyncio.timeout(WAIT_S):  # the thread ends a little later than the response
        while seen() is not None:
            gc.collect()  # a Call and its request know each other
            await asyncio.sleep(0.001)


@asynchronous
async def test_a_cancelled_delay_frees_its_tensors(tmp_path: Path) -> None:
    config = 'backend: "sim" max_batch_size: 4 parameters { key: "delay" value { string_value: "1h" } }' + TENSORS
    async with serving(tmp_path, {"m": config}) as models:
        tensor, seen = watched()
        call = Call("m", tensor).on(models)
        models.cancel(call.inference)
        await call.refused()
        del call, tensor
        await asyncio.sleep(0)
        gc.collect()
        assert seen() is None


# --- the end ---------------------------------------------------------------------------------------------------------
