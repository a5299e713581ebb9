"""Slow work runs in threads: reading inputs, many strings, large outputs. The event loop continues meanwhile."""

import asyncio
import contextlib
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from models_fakes import TENSORS, Call, asynchronous, fp32, run, served, serving, wants, why_not

from inferometer.serve.models.registry import Models
from inferometer.serve.models.shared_memory import Regions
from inferometer.serve.models.types import Refused
from inferometer.serve.offload import COPIED, LARGE, STRING
from inferometer.tensors import Tensor, from_numpy, to_numpy

MANY, AT_ONCE = LARGE // STRING, LARGE * COPIED
"""Strings that are checked, and bytes that are copied, without a thread."""


TEXT = """
backend: "identity"
input [{ name: "B", data_type: TYPE_STRING, dims: [ -1 ] }]
output [{ name: "OUT", data_type: TYPE_STRING, dims: [ -1 ] }]
"""
MODELS = {"text": TEXT, "m": 'backend: "identity"' + TENSORS}
BIG = bytes(AT_ONCE) + bytes([1, 2, 3, 4])


class Slow:
    """Data in shared memory that can be read once the test allows it."""

    def __init__(self, data: bytes, error: BaseException | None = None) -> None:
        self.data, self.byte_size, self.error = data, len(data), error
        self.begun, self.may = threading.Event(), threading.Event()

    def read(self) -> bytes:
        self.begun.set()
        assert self.may.wait(30)
        if self.error is not None:
            raise self.error
        return self.data


def unread(slow: Slow) -> Call:
    """Return a request whose input is not read yet."""
    return Call("m", Tensor("INPUT0", "FP32", (slow.byte_size // 4,), b""), unread={"INPUT0": slow})


def strings(*values: bytes, count: int | None = None) -> Tensor:
    made = from_numpy("B", np.array([*values, None], object)[:-1])
    return Tensor("B", "BYTES", (len(values) if count is None else count,), made.data)


def failures(model: object) -> int:
    return int(model.counted.message().inference_stats.fail.count)  # type: ignore[attr-defined]


def test_a_request_whose_inputs_cannot_be_read_in_a_thread_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def test() -> None:
        async with serving(tmp_path, MODELS) as models:
            monkeypatch.setattr(threading.Thread, "start", refuse)
            assert why_not(models, unread(Slow(BIG))).message == "RuntimeError: can't start new thread"
            assert models.in_flight == 0

    run(test())


@served(MODELS)
async def test_inputs_of_the_wrong_size_are_not_read(models: Models) -> None:
    slow = Slow(bytes(10))
    why = why_not(models, unread(slow))
    assert (why.code, "Expected 8, got 10" in why.message) == ("INVALID_ARGUMENT", True)
    assert not slow.begun.is_set()


@pytest.mark.parametrize(
    ("slow", "code", "message"),
    [
        (Slow(BIG, Refused("NOT_FOUND", "it is gone")), "NOT_FOUND", "it is gone"),
        (Slow(BIG, MemoryError("no room")), "INTERNAL", "MemoryError: no room"),
    ],
)
@served(MODELS)
async def test_unreadable_inputs_are_refused_and_not_counted(
    models: Models, slow: Slow, code: str, message: str
) -> None:
    slow.may.set()
    why = await unread(slow).on(models).refused()
    assert (why.code, message in why.message) == (code, True)
    assert (models.in_flight, failures(models.find("m"))) == (0, 0)


@served(MODELS)
async def test_a_request_that_is_cancelled_by_its_own_response_ends_once(models: Models) -> None:
    slow = Slow(BIG)
    call = unread(slow)
    call.inference.responded = lambda outputs: models.cancel(call.inference)  # its connection is lost
    call.on(models)
    slow.may.set()
    await call.over.wait()
    assert (len(call.ends), models.in_flight) == (1, 0)


@served(MODELS)
async def test_unloading_waits_for_inputs_being_read_and_closing_does_not(models: Models) -> None:
    slow = Slow(BIG)
    call = unread(slow).on(models)
    unloading = asyncio.ensure_future(models.unload("m"))
    await Call("text", strings(b"x")).on(models).outputs()
    assert not unloading.done()
    slow.may.set()
    await unloading
    assert (await call.outputs())["OUTPUT0"].tobytes() == BIG
    await models.load("m")
    late = Slow(BIG)
    call = unread(late).on(models)
    await models.close()
    assert (await call.refused()).code == "UNAVAILABLE"
    late.may.set()


@served(MODELS)
async def test_the_check_stops_at_too_many_strings(models: Models) -> None:
    given = Tensor("B", "BYTES", (1,), bytes(4 * 100) + b"\xff\xff\xff\xff")  # its end is not even reached
    assert "elements 2 for" in why_not(models, Call("text", given)).message


# --- outputs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def key() -> Iterator[str]:
    path = Path("/dev/shm") / f"inferometer-test-{uuid.uuid4().hex}"
    with path.open("wb") as file:
        file.truncate(4 * AT_ONCE)
    yield f"/{path.name}"
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


@asynchronous
async def test_large_outputs_are_written_to_shared_memory(tmp_path: Path, key: str) -> None:
    values = np.arange(AT_ONCE // 2, dtype=np.float32)
    async with serving(tmp_path, MODELS) as models:
        models.regions.register("r", key, 0, 4 * AT_ONCE)
        placed = models.regions.find("r", values.nbytes, AT_ONCE)
        call = Call("m", from_numpy("INPUT0", values), wanted=wants("OUTPUT0", placed=placed)).on(models)
        await call.over.wait()
        ((output,),) = call.responses
        assert (call.ends, output.data, output.shape) == ([None], b"", values.shape)
        assert models.regions.find("r", values.nbytes, AT_ONCE).read() == values.tobytes()
        os.truncate(f"/dev/shm{key}", 0)
        call = Call("m", from_numpy("INPUT0", values), wanted=wants("OUTPUT0", placed=placed)).on(models)
        assert "'r' was truncated" in (await call.refused()).message
        assert models.in_flight == 0


@asynchronous
async def test_the_strings_of_a_batch_are_split(tmp_path: Path) -> None:
    config = TEXT.replace(
        '"identity"', '"sim" max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 30000000 }'
    )
    async with serving(tmp_path, {"text": config}) as models:
        words = [[f"{i}-{j}".encode() for j in range(MANY)] for i in range(2)]
        calls = [Call("text", Tensor("B", "BYTES", (1, MANY), strings(*some).data)).on(models) for some in words]
        assert [(await call.outputs())["OUT"].tolist() for call in calls] == [[some] for some in words]
        assert models.find("text").counted.message().execution_count == 1


# --- regions ---------------------------------------------------------------------------------------------------------


def open_files() -> set[str]:
    found = set()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(one.readlink()))
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")
def test_a_region_stays_open_while_it_is_in_use(key: str) -> None:
    regions, path = Regions(), Path(f"/dev/shm{key}")
    path.write_bytes(b"abcd")
    regions.register("r", key, 0, 4)
    path.unlink()
    path.write_bytes(b"other")
    region = regions.find("r", 4)
    assert region.read() == b"abcd"
    regions.unregister("r")
    assert region.read() == b"abcd"
    assert any(key in name for name in open_files())
    del region
    assert not any(key in name for name in open_files())


@asynchronous
async def test_classes_of_large_and_small_outputs_agree(tmp_path: Path) -> None:
    config = MODELS["m"].replace('"identity"', '"identity" max_batch_size: 4')
    async with serving(tmp_path, {"m": config}) as models:
        row = [0.0] * (AT_ONCE // 4) + [2.0, 3.0]
        call = Call("m", fp32(row), wanted=wants("OUTPUT0", classes=2)).on(models)
        found = await call.outputs()
        assert found["OUTPUT0"].tolist() == [[b"3.000000:%d" % (AT_ONCE // 4 + 1), b"2.000000:%d" % (AT_ONCE // 4)]]
        assert to_numpy(call.responses[0][0]).shape == (1, 2)


# --- a thread, or at once --------------------------------------------------------------------------------------------

PAIR = """
backend: "identity"
input [{ name: "A", data_type: TYPE_UINT8, dims: [ -1 ] }, { name: "B", data_type: TYPE_STRING, dims: [ -1 ] }]
output [{ name: "OA", data_type: TYPE_UINT8, dims: [ -1 ] }, { name: "OB", data_type: TYPE_STRING, dims: [ -1 ] }]
"""


class Noted:
    """Data that records the thread it was read in."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data, self.byte_size, self.thread = data, len(data), ""

    def read(self) -> bytes | memoryview:
        self.thread = threading.current_thread().name
        return self.data


@pytest.mark.parametrize(
    ("sizes", "is_large"),
    [((8, 1), False), ((AT_ONCE - 5, 1), False), ((AT_ONCE - 4, 1), True), ((8, MANY), False), ((8, MANY + 1), True)],
)
@served({"pair": PAIR})
async def test_a_thread_is_used_for_large_inputs_or_many_strings(
    models: Models, sizes: tuple[int, int], is_large: bool
) -> None:
    a, b = Noted(bytes(sizes[0])), Noted(strings(*[b"x"] * sizes[1]).data)
    call = Call(
        "pair", Tensor("A", "UINT8", (sizes[0],), b""), Tensor("B", "BYTES", (sizes[1],), b""), unread={"A": a, "B": b}
    ).on(models)
    assert (await call.outputs())["OB"].tolist() == [b"x"] * sizes[1]
    assert {a.thread.startswith("offload"), b.thread.startswith("offload")} == {is_large}
    assert (call.inference.inputs["A"].data, dict(call.inference.unread)) == (a.data, {})


@served(MODELS)
async def test_small_invalid_inputs_are_refused_at_once(models: Models) -> None:
    slow = Slow(bytes(8), Refused("NOT_FOUND", "it is gone"))
    slow.may.set()
    assert why_not(models, unread(slow)).message == "it is gone"
    assert (models.in_flight, failures(models.find("m"))) == (0, 0)
