"""An error affects only the request that caused it, not others in its batch; and outputs are checked against the
configuration."""

import asyncio
import threading
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models_fakes import TENSORS, Call, asynchronous, flat, fp32, serving, wants

from inferometer.serve import backends
from inferometer.serve.models.execution import reason
from inferometer.serve.models.types import Loaded, Loading, Parameters, Placed, Refused, Tensors
from inferometer.tensors import Tensor, from_numpy, to_numpy

RAISED: dict[str, BaseException] = {
    "an error": ValueError("negative"),
    "no memory": MemoryError("no room for all"),
    "a refusal": Refused("INVALID_ARGUMENT", "negative"),
    "its exit": SystemExit(3),
    "an interruption": KeyboardInterrupt("negative"),
}
ERRORS = {
    "an error": ("INTERNAL", "ValueError: negative"),
    "no memory": ("INTERNAL", "MemoryError: no room for all"),
    "a refusal": ("INVALID_ARGUMENT", "negative"),
    "its exit": ("INTERNAL", "SystemExit: 3"),
    "an interruption": ("INTERNAL", "KeyboardInterrupt: negative"),
}
CONFIG = """
max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 30000000 }
input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ 1 ] }]
output [{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ 1 ] }]
parameters { key: "warmup" value { string_value: "0" } }
"""


class Watched:
    """Records what the models below saw."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.begun, self.may = threading.Event(), threading.Event()
        self.held: weakref.ref[Any] | None = None
        self.was_freed: list[bool] = []


WATCHED = Watched()


class Big:
    """Memory that a model needs for a batch."""


def picky(loading: Loading) -> Loaded:
    """Load a model that raises what the request says if there is a value below 0."""

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors:
        values = to_numpy(inputs["INPUT0"])
        WATCHED.rows.append(len(values))
        if (values < 0).any():
            raise RAISED[str(parameters["kind"])]
        return {"OUTPUT0": from_numpy("OUTPUT0", values * 2)}

    return Loaded(run=compute)


def greedy(loading: Loading) -> Loaded:
    """Load a model without memory for batches, which waits before it fails."""

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors:
        values = to_numpy(inputs["INPUT0"])
        WATCHED.rows.append(len(values))
        if len(values) > 1:
            big = Big()
            WATCHED.held = weakref.ref(big)
            WATCHED.begun.set()
            assert WATCHED.may.wait(30)
            raise MemoryError("no room")
        assert WATCHED.held is not None
        WATCHED.was_freed.append(WATCHED.held() is None)
        return {"OUTPUT0": from_numpy("OUTPUT0", values)}

    return Loaded(run=compute)


@pytest.fixture(autouse=True)
def models_of_this_file(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("picky", "greedy", "loose", "odd", "filtering", "by_turns"):
        monkeypatch.setitem(backends.LOADERS, name, f"{__name__}:{name}")
    monkeypatch.setattr(f"{__name__}.WATCHED", Watched())
    yield
    WATCHED.may.set()


@pytest.mark.parametrize("kind", RAISED)
@asynchronous
async def test_only_the_request_that_caused_the_error_fails(tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, {"m": 'backend: "picky"' + CONFIG}) as models:
        calls = [Call("m", fp32([value]), parameters={"kind": kind}) for value in (1, -1, 2, 3)]
        for call in calls:
            call.on(models)
        why = await calls[1].refused()
        assert (why.code, why.message) == ERRORS[kind]
        good = [calls[i] for i in (0, 2, 3)]
        assert [(await call.outputs())["OUTPUT0"].tolist() for call in good] == [[[2]], [[4]], [[6]]]
        assert WATCHED.rows == [4, 1, 1, 1, 1]
        call = Call("m", fp32([-1], [1], [1], [1]), parameters={"kind": kind}).on(models)
        assert (await call.refused()).message == ERRORS[kind][1]
        assert WATCHED.rows[5:] == [4]  # of a request that is alone there is nothing to find out


@asynchronous
async def test_a_failed_batch_is_freed_before_its_requests_are_retried(tmp_path: Path) -> None:
    async with serving(tmp_path, {"m": 'backend: "greedy"' + CONFIG}) as models:
        WATCHED.may.set()
        calls = [Call("m", fp32([value])).on(models) for value in range(4)]
        assert [(await call.outputs())["OUTPUT0"].tolist() for call in calls] == [[[i]] for i in range(4)]
        assert WATCHED.was_freed == [True] * 4


@asynchronous
async def test_a_cancelled_request_is_not_retried(tmp_path: Path) -> None:
    async with serving(tmp_path, {"m": 'backend: "greedy"' + CONFIG}) as models:
        calls = [Call("m", fp32([value])).on(models) for value in range(4)]
        await asyncio.get_running_loop().run_in_executor(None, WATCHED.begun.wait, 30)
        models.cancel(calls[2].inference)
        WATCHED.may.set()
        assert (await calls[3].outputs())["OUTPUT0"].tolist() == [[3]]
        assert ((await calls[2].refused()).code, WATCHED.rows) == ("CANCELLED", [4, 1, 1, 1])


def test_a_long_error_keeps_its_beginning_and_end() -> None:
    message = reason(ValueError("it began so " + "and went on " * 1000 + "and ended so")).message
    assert message.startswith("ValueError: it began so and")
    assert message.endswith("went on and ended so")
    assert len(message) < 1010


# --- outputs ---------------------------------------------------------------------------------------------------------

TWO = """
backend: "loose"
input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] }, { name: "MORE", data_type: TYPE_FP32, dims: [ 1 ], optional: true }]
output [{ name: "A", data_type: TYPE_FP32, dims: [ -1, 2 ] }, { name: "B", data_type: TYPE_FP32, dims: [ 3 ] }]
parameters { key: "warmup" value { string_value: "0" } }
"""


def loose(loading: Loading) -> Loaded:
    """Load a model with outputs of the requested shapes: A=5,2 B=3."""
    decoupled = loading.config.model_transaction_policy.decoupled

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors | Iterator[Tensors]:
        made = {
            name: from_numpy(name, np.zeros([int(size) for size in shape.split(",") if size], np.float32))
            for name, _, shape in (one.partition("=") for one in str(parameters["gives"]).split())
        }
        return iter([made]) if decoupled else made

    return Loaded(run=compute)


def a_call(gives: str, *inputs: Tensor, **words: Any) -> Call:
    given = inputs or (from_numpy("INPUT0", np.zeros(1, np.float32)), from_numpy("MORE", np.zeros(1, np.float32)))
    return Call("m", *given, parameters={"gives": gives}, **words)


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        ("A=5,2", "the model did not return output 'B', which its configuration lists"),
        ("", "the model did not return output 'A', 'B', which its configuration lists"),
        ("A=5,3 B=3", "the model returned output 'A' with shape [5, 3]; its configuration says [-1, 2]"),
        ("A=5,2 B=3,1", "the model returned output 'B' with shape [3, 1]; its configuration says [3]"),
        ("A=5,2 B=", "the model returned output 'B' with shape []; its configuration says [3]"),
        ("A=5,2 B=3 C=1", "the model returned an output 'C' that its configuration does not list"),
    ],
)
@asynchronous
async def test_outputs_must_match_the_configuration(tmp_path: Path, gives: str, why: str) -> None:
    async with serving(tmp_path, {"m": TWO}) as models:
        refused = await a_call(gives).on(models).refused()
        assert (refused.code, refused.message) == ("INTERNAL", why)
        found = await a_call("A=0,2 B=3").on(models).outputs()
        assert {name: array.shape for name, array in found.items()} == {"A": (0, 2), "B": (3,)}


@asynchronous
async def test_outputs_may_be_missing_if_not_requested_or_without_inputs(tmp_path: Path) -> None:
    async with serving(tmp_path, {"m": TWO}) as models:
        assert list(await a_call("A=1,2", wanted=wants("A")).on(models).outputs()) == ["A"]
        refused = await a_call("A=1,2", wanted=wants("B")).on(models).refused()
        assert refused.message == "the model did not return output 'B', which was requested"
        without = from_numpy("INPUT0", np.zeros(1, np.float32))
        assert list(await a_call("B=3", without).on(models).outputs()) == ["B"]


@asynchronous
async def test_responses_of_a_decoupled_model_may_omit_outputs(tmp_path: Path) -> None:
    async with serving(tmp_path, {"m": TWO + "model_transaction_policy { decoupled: true }"}) as models:
        assert list(await a_call("B=3").on(models).outputs()) == ["B"]
        assert "with shape [4]" in (await a_call("B=4").on(models).refused()).message


@pytest.mark.parametrize("count", [1, 2])
@asynchronous
async def test_outputs_must_have_the_rows_of_the_batch(tmp_path: Path, count: int) -> None:
    config = TWO.replace('"loose"', '"loose" max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 1000 }')
    async with serving(tmp_path, {"m": config}) as models:
        inputs = fp32([0]), fp32([0], name="MORE")
        calls = [a_call("A=7,5,2 B=7,3", *inputs).on(models) for _ in range(count)]
        for call in calls:
            why = (await call.refused()).message
            assert why.startswith("output 'A' has the shape [7, 5, 2]: ")
            assert why.endswith("the first dimension must be the batch size, 1")


def filtering(loading: Loading) -> Loaded:
    """Load a model that omits the rows below 0 or, on request, the output."""

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors:
        values = to_numpy(inputs["INPUT0"])
        WATCHED.rows.append(len(values))
        if parameters["without"] == "output" and (values < 0).any():
            return {}
        return {"OUTPUT0": from_numpy("OUTPUT0", values[values[:, 0] >= 0])}

    return Loaded(run=compute)


@pytest.mark.parametrize(
    ("without", "why"),
    [
        ("rows", "output 'OUTPUT0' has the shape [0, 1]: the first dimension must be the batch size, 1"),
        ("output", "the model did not return output 'OUTPUT0', which its configuration lists"),
    ],
)
@asynchronous
async def test_only_the_request_with_invalid_outputs_fails(tmp_path: Path, without: str, why: str) -> None:
    async with serving(tmp_path, {"m": 'backend: "filtering"' + CONFIG}) as models:
        calls = [Call("m", fp32([value]), parameters={"without": without}).on(models) for value in (1, -1, 2, 3)]
        refused = await calls[1].refused()
        assert (refused.code, refused.message) == ("INTERNAL", why)
        good = [calls[i] for i in (0, 2, 3)]
        assert [(await call.outputs())["OUTPUT0"].tolist() for call in good] == [[[1]], [[2]], [[3]]]
        assert WATCHED.rows == [4, 1, 1, 1, 1]


@pytest.fixture
def key() -> Iterator[str]:
    """A shared memory object of 4 bytes."""
    path = Path("/dev/shm") / f"inferometer-test-{uuid.uuid4().hex}"
    path.write_bytes(bytes(4))
    yield f"/{path.name}"
    path.unlink()


@asynchronous
async def test_a_batch_is_not_retried_for_an_invalid_request(tmp_path: Path, key: str) -> None:
    async with serving(tmp_path, {"m": 'backend: "filtering"' + CONFIG}) as models:
        models.regions.register("r", key, 0, 4)
        wants_per_call = [(), wants("OUTPUT0", placed=Placed("r", 2)), (), ()]
        calls = [
            Call("m", fp32([1]), parameters={"without": ""}, wanted=wanted).on(models) for wanted in wants_per_call
        ]
        assert "should be at least 4 bytes" in (await calls[1].refused()).message
        assert [(await calls[i].outputs())["OUTPUT0"].tolist() for i in (0, 2, 3)] == [[[1]]] * 3
        assert WATCHED.rows == [4]


# --- alone, one after the other --------------------------------------------------------------------------------------


def by_turns(loading: Loading) -> Loaded:
    """Load a model that fails for batches, and waits at each request with the value 1."""

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors:
        values = to_numpy(inputs["INPUT0"])
        if len(values) > 1:
            raise ValueError("too many")
        if values[0, 0] == 1:
            WATCHED.begun.set()
            assert WATCHED.may.wait(30)
        if values[0, 0] < 0:
            raise ValueError("negative")
        return {"OUTPUT0": from_numpy("OUTPUT0", values)}

    return Loaded(run=compute)


@asynchronous
async def test_retried_requests_get_their_responses_one_by_one(tmp_path: Path) -> None:
    async with serving(tmp_path, {"m": 'backend: "by_turns"' + CONFIG}) as models:
        calls = [Call("m", fp32([value])).on(models) for value in (7, -1, 1, 8)]
        assert await asyncio.get_running_loop().run_in_executor(None, WATCHED.begun.wait, 30)
        assert (await calls[0].outputs())["OUTPUT0"].tolist() == [[7]]
        assert (await calls[1].refused()).message == "ValueError: negative"
        assert (models.in_flight, calls[2].ends, calls[3].ends) == (2, [], [])
        WATCHED.may.set()
        assert [(await calls[i].outputs())["OUTPUT0"].tolist() for i in (2, 3)] == [[[1]], [[8]]]
        assert calls[0].inference.compute_ns <= calls[2].inference.compute_ns <= calls[3].inference.compute_ns
        assert (await Call("m", fp32([0], [0], [0], [0])).on(models).refused()).message == "ValueError: too many"
        stats = models.find("m").statistics()
        assert (stats.inference_stats.success.count, stats.inference_stats.fail.count) == (3, 2)
        assert (stats.inference_count, stats.execution_count) == (4, 1)
        assert models.in_flight == 0


# --- exceptions that cannot be shown ---------------------------------------------------------------------------------


class Raises(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise KeyError("x")


class Exits(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise SystemExit(3)


class SaysNothing(Exception):  # noqa: N818
    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # noqa: PLE0307


class HasNoCode(Refused):
    def __init__(self) -> None:
        pass


class HasNoMessage(Refused):
    def __init__(self) -> None:
        self.code = "NOT_FOUND"


ODD = {kind.__name__: kind for kind in (Raises, Exits, SaysNothing, HasNoCode, HasNoMessage)}


def odd(loading: Loading) -> Loaded:
    """Load a model that raises one of the above if there is a value below 0."""

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors:
        values = to_numpy(inputs["INPUT0"])
        if (values < 0).any():
            raise ODD[str(parameters["kind"])]()
        return {"OUTPUT0": from_numpy("OUTPUT0", values)}

    return Loaded(run=compute)


@pytest.mark.parametrize("batch", ["", "max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 30000000 }"])
@pytest.mark.parametrize("kind", ODD)
@asynchronous
async def test_an_exception_without_a_printable_message_is_named_by_its_type(
    tmp_path: Path, kind: str, batch: str
) -> None:
    async with serving(tmp_path, {"m": f'backend: "odd" {batch} {TENSORS}'}) as models:
        given = [fp32([-1]), fp32([1])] if batch else [flat(-1), flat(1)]
        bad, good = [Call("m", tensor, parameters={"kind": kind}).on(models) for tensor in given]
        why = await bad.refused()
        assert (why.code, why.message) == ("INTERNAL", f"{kind} (its message cannot be displayed)")
        assert (await good.outputs())["OUTPUT0"].ravel().tolist() == [1]
        await models.unload("m")  # waits for what is in progress
        assert models.in_flight == 0
