"""The memory limit of a process, the estimate for a request, and the error when memory runs out."""

import errno
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from helpers import jobs_of

from inferometer import memory, tensors, workload
from inferometer.config.data import Tensors
from inferometer.config.load import from_mapping
from inferometer.errors import UserError
from inferometer.infer import inputs
from inferometer.infer import tensors as infer_tensors
from inferometer.infer.flags import InferFlags
from inferometer.probe.kserve import ModelFacts
from inferometer.tensors import Tensor, TensorSpec
from inferometer.wire import calls
from inferometer.wire.kserve import grpc, http
from inferometer.wire.kserve.control import ModelMetadata, ServerMetadata
from inferometer.wire.kserve.infer import InferOptions
from inferometer.workload import random_tensors
from inferometer.workload import tensors as made

GIB = 2**30
UNLIMITED_1 = 9223372036854771712


# --- the limit -------------------------------------------------------------------------------------------------------


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Returns `memory.limit()` on a machine with 64 GiB, for a content of /proc/self/cgroup and of the groups' files."""

    def limit(own: str | None, **files: str | int) -> int:
        if own is not None:
            (tmp_path / "own").write_text(own)
        for name, text in files.items():
            file = tmp_path / "groups" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        monkeypatch.setattr(memory, "_machine", lambda: 64 * GIB)
        monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")
        monkeypatch.setattr(memory, "_GROUPS_ROOT", tmp_path / "groups")
        return memory.limit()

    return limit


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        pytest.param(None, {}, 64 * GIB, id="no groups"),
        pytest.param("0::/\n", {}, 64 * GIB, id="a group without a limit"),
        pytest.param("0::/\n", {"memory.max": 4 * GIB}, 4 * GIB, id="a container, with its files at the root"),
        pytest.param("0::/\n", {"memory.max": 128 * GIB}, 64 * GIB, id="more than the machine has"),
        pytest.param("0::/a/b\n", {"a/b/memory.max": "max"}, 64 * GIB, id="a limit of max"),
        pytest.param(
            "0::/a/b\n",
            {"a/b/memory.max": 8 * GIB, "a/memory.max": 9 * GIB},
            8 * GIB,
            id="own limit is lower than the parent's",
        ),
        pytest.param("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": 9 * GIB}, 9 * GIB, id="the parent's limit"),
        pytest.param(
            "5:cpu,memory:/a\n1:cpu:/b\n0::/\n",
            {"memory/a/memory.limit_in_bytes": 3 * GIB, "memory/memory.limit_in_bytes": UNLIMITED_1},
            3 * GIB,
            id="version 1",
        ),
        pytest.param(
            "4:memory:/docker/0123\n",
            {"memory/memory.limit_in_bytes": 2 * GIB},
            2 * GIB,
            id="version 1, a container with the path of the host",
        ),
        pytest.param("4:memory:/\n", {"memory/memory.limit_in_bytes": UNLIMITED_1}, 64 * GIB, id="version 1, no limit"),
    ],
)
def test_the_limit_is_the_smallest_of_the_machine_and_its_groups(
    groups: Callable[..., int], own: str | None, files: dict[str, str | int], expected: int
) -> None:
    assert groups(own, **files) == expected


def test_the_limit_of_this_process_is_plausible() -> None:
    assert 2**20 < memory.limit() < 2**60


# --- the estimate for a request --------------------------------------------------------------------------------------

ENCODERS: dict[str, Callable[[Tensor], object]] = {
    "grpc": lambda made: grpc.infer_request("m", "", [made], InferOptions()),
    "binary": lambda made: http.encode((made,), InferOptions(binary=True)),
    "json": lambda made: http.encode((made,), InferOptions(binary=False)),
}


@pytest.mark.parametrize("fill", ["random", "zeros"])
@pytest.mark.parametrize(
    ("datatype", "way"),
    [(one, way) for one in tensors.DATATYPES for way in ENCODERS if way != "json" or one not in ("FP16", "BF16")],
)
def test_a_tensor_takes_no_more_memory_than_estimated(datatype: str, way: str, fill: str) -> None:
    def make(count: int) -> object:
        if fill == "zeros":
            made = tensors.zeros("x", datatype, (count,))
        else:
            made = random_tensors.random("x", datatype, (count,), 0, "")
        return made, ENCODERS[way](made)

    make(1)  # one-time initialization does not count
    tracemalloc.start()
    try:
        kept = make(20_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept
    estimate = tensors._need(TensorSpec("x", datatype, (20_000,)), way == "json", fill == "zeros")
    assert peak <= 1.05 * estimate + 30_000  # other threads of this process


@pytest.mark.parametrize(
    ("datatype", "as_json", "zeros", "fitting"),
    [
        ("FP32", False, False, GIB // 16),
        ("FP32", True, False, GIB // 70),
        ("FP32", True, True, GIB // 70),
        ("BF16", False, False, GIB // 28),
        ("BF16", False, True, GIB // 8),
        ("UINT8", False, False, GIB // 6),
        ("UINT8", True, False, GIB // 18),
        ("INT64", False, False, GIB // 32),
        ("BYTES", False, False, GIB // 370),
        ("BYTES", False, True, GIB // 48),
    ],
)
def test_the_estimate_depends_on_the_datatype_and_the_encoding(
    monkeypatch: pytest.MonkeyPatch, datatype: str, as_json: bool, zeros: bool, fitting: int
) -> None:
    monkeypatch.setattr(memory, "limit", lambda: GIB)
    tensors.check_room([TensorSpec("A", datatype, (fitting,))], "data", False, as_json, zeros)
    with pytest.raises(
        UserError, match="building the request needs about 1 GiB of memory, but only 1 GiB is available"
    ):
        tensors.check_room([TensorSpec("A", datatype, (fitting + 1,))], "data", False, as_json, zeros)


def test_the_error_names_the_input_that_takes_the_most_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "limit", lambda: GIB)
    numbers, words = TensorSpec("A", "FP32", (20_000_000,)), TensorSpec("B", "BYTES", (3_000_000,))
    with pytest.raises(
        UserError, match=r"^data: B: BYTES \[3000000\] is 34\.3 MiB, 111 MiB with the other inputs; building"
    ):
        tensors.check_room([numbers, words], "data", in_grpc_message=True)


FLOATS = TensorSpec("A", "FP32", (-1,))


@pytest.mark.parametrize("api", ["kserve", "kserve-json"])
def test_infer_may_have_memory_for_binary_tensors_but_not_for_json(monkeypatch: pytest.MonkeyPatch, api: str) -> None:
    monkeypatch.setattr(memory, "limit", lambda: 2**20)
    facts = ModelFacts(ServerMetadata("s"), ModelMetadata("m", inputs=(FLOATS,)))
    options = InferFlags("http://x", api=api, shapes=("A=30000",))
    if api == "kserve":
        assert inputs.build(options, facts)
    else:
        with pytest.raises(UserError, match="--shape: A: FP32"):
            inputs.build(options, facts)


@pytest.mark.parametrize("fill", ["random", "zeros"])
def test_a_run_may_have_memory_for_empty_strings_but_not_for_random_ones(
    monkeypatch: pytest.MonkeyPatch, fill: str
) -> None:
    monkeypatch.setattr(memory, "limit", lambda: 2**20)
    spec, words = Tensors(fill=fill, shape={"A": [10_000]}), TensorSpec("A", "BYTES", (-1,))
    if fill == "zeros":
        assert made.complete(spec, [words], 0)
    else:
        with pytest.raises(UserError, match="shape: A: BYTES"):
            made.complete(spec, [words], 0)


# --- running out of memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "a map")])
def test_enough_for_turns_only_memory_errors_into_user_errors(error: Exception) -> None:
    with pytest.raises(UserError, match="data: there is not enough memory") as caught, memory.enough_for("data"):
        raise error
    assert caught.value.remedy == "use fewer or smaller requests, or free some memory"
    for other in (KeyError(), OSError(errno.EACCES, "a file")):
        with pytest.raises(type(other)), memory.enough_for("data"):
            raise other


def run_out_of_memory(*_: object) -> None:
    raise MemoryError


def run_out_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a function of tensors as a kind of data run out of memory."""
    kind: Any = msgspec.structs.replace(workload.KINDS[Tensors], **{name: run_out_of_memory})
    monkeypatch.setitem(workload.KINDS, Tensors, kind)


@pytest.mark.parametrize("is_built", [False, True])
def test_running_out_of_memory_while_building_requests_is_a_user_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_built: bool
) -> None:
    config = from_mapping(
        {
            "server": {"url": "grpc://x:1", "model": "m"},
            "data": {"type": "tensors", "inputs": [{"name": "A", "datatype": "INT32", "shape": [1]}]},
            "load": {"type": "closed", "concurrency": 1, "requests": 1},
        }
    )
    with jobs_of(config, tmp_path) as jobs:
        assert jobs
    if is_built:
        monkeypatch.setattr(calls, "encode", run_out_of_memory)
    else:
        run_out_in("build", monkeypatch)
    with pytest.raises(UserError, match="data: there is not enough memory"):
        jobs_of(config, tmp_path).__enter__()


@pytest.mark.parametrize("name", ["build", "content"])
def test_running_out_of_memory_while_computing_the_digest_is_a_user_error(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spec = made.complete(Tensors(), [FLOATS], 0)
    assert workload.digest(spec, 0)
    run_out_in(name, monkeypatch)
    with pytest.raises(UserError, match="data: there is not enough memory"):
        workload.digest(spec, 0)


def test_running_out_of_memory_in_infer_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ModelFacts(ServerMetadata("s"), ModelMetadata("m", inputs=(FLOATS,)))
    monkeypatch.setattr(random_tensors, "random", run_out_of_memory)
    endpoint: Any = SimpleNamespace(reached=SimpleNamespace(facts=facts))
    with pytest.raises(UserError, match="the request: there is not enough memory"):
        infer_tensors.request(endpoint, InferFlags("grpc://x"))
