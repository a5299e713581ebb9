"""ONNX models, compared with what they are defined to compute."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_help import field, listed, loading, run_model, words

from inferometer.errors import UserError
from inferometer.serve.models.types import Refused
from inferometer.tensors import DATATYPES, Tensor, from_numpy, to_numpy

backend = pytest.importorskip("inferometer.serve.backends.onnx", reason="ONNX Runtime is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
onnx = pytest.importorskip("onnx", reason="onnx, which writes the models of these tests, is not installed")
pytestmark = pytest.mark.onnx
helper, TYPES = onnx.helper, onnx.TensorProto

NUMBERS = {
    "BOOL": TYPES.BOOL, "UINT8": TYPES.UINT8, "UINT16": TYPES.UINT16, "UINT32": TYPES.UINT32, "UINT64": TYPES.UINT64,
    "INT8": TYPES.INT8, "INT16": TYPES.INT16, "INT32": TYPES.INT32, "INT64": TYPES.INT64, "FP16": TYPES.FLOAT16,
    "BF16": TYPES.BFLOAT16, "FP32": TYPES.FLOAT, "FP64": TYPES.DOUBLE, "BYTES": TYPES.STRING,
}  # fmt: skip


def saved(folder: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Path:
    """Save a model of nodes (op, inputs, outputs) and tensors (name, datatype, shape)."""
    graph = helper.make_graph(
        [helper.make_node(op, into, out) for op, into, out in nodes],
        "g",
        [helper.make_tensor_value_info(name, NUMBERS[kind], shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, NUMBERS[kind], shape) for name, kind, shape in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    return folder


def add_sub(folder: Path, batch: Any = "batch") -> Path:
    shape = [batch, 2]
    return saved(
        folder,
        [("Add", ["A", "B"], ["SUM"]), ("Sub", ["A", "B"], ["DIFFERENCE"])],
        [("A", "FP32", shape), ("B", "FP32", shape)],
        [("SUM", "FP32", shape), ("DIFFERENCE", "FP32", shape)],
    )


HAS_GPU = "CUDAExecutionProvider" in onnxruntime.get_available_providers() and Path("/dev/nvidia0").exists()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="ONNX Runtime sees no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
A, B = np.array([[1, 2], [3, 4]], "f4"), np.array([[10, 20], [30, 40]], "f4")


def test_a_dynamic_first_dimension_is_the_batch_dimension(tmp_path: Path) -> None:
    options = loading(add_sub(tmp_path))
    loaded = backend.load(options)
    assert options.config.max_batch_size == 4
    assert options.config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert listed(options.config.input) == [("A", "FP32", (2,)), ("B", "FP32", (2,))]
    assert listed(options.config.output) == [("SUM", "FP32", (2,)), ("DIFFERENCE", "FP32", (2,))]
    made = run_model(loaded, A=A, B=B)
    assert made["SUM"].tolist() == (A + B).tolist()
    assert made["DIFFERENCE"].tolist() == (A - B).tolist()
    singles = [run_model(loaded, A=A[i : i + 1], B=B[i : i + 1])["SUM"] for i in range(2)]
    assert np.concatenate(singles).tolist() == made["SUM"].tolist()


@pytest.mark.parametrize(
    ("batch", "config", "size", "dims"),
    [
        ("n", {"max_batch_size": 16}, 16, (2,)),
        ("n", {"parameters": {"default_max_batch_size": "7"}}, 7, (2,)),
        ("n", {"parameters": {"default_max_batch_size": "0"}}, 0, (-1, 2)),
        (None, {}, 4, (2,)),
        (3, {}, 0, (3, 2)),
    ],
)
def test_maximum_batch_size_from_configuration_parameter_or_default(
    tmp_path: Path, batch: Any, config: Any, size: int, dims: Any
) -> None:
    options = loading(add_sub(tmp_path, batch) / "model.onnx", **config)
    backend.load(options)
    assert options.config.max_batch_size == size
    assert listed(options.config.input)[0] == ("A", "FP32", dims)


def test_a_fixed_first_dimension_cannot_be_batched(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"max_batch_size is 8, but the first dimension of A \[3, 2\] is fixed"):
        backend.load(loading(add_sub(tmp_path, 3), max_batch_size=8))


def test_only_configured_outputs_are_returned(tmp_path: Path) -> None:
    config = {"max_batch_size": 2, "output": [field("DIFFERENCE", "FP32", 2)]}
    assert list(run_model(backend.load(loading(add_sub(tmp_path), **config)), A=A, B=B)) == ["DIFFERENCE"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("datatype", sorted(set(DATATYPES) - {"BF16"}))
@pytest.mark.parametrize("start", [0, 1])
def test_every_datatype_round_trips_at_any_memory_alignment(
    tmp_path: Path, datatype: str, start: int, device: str
) -> None:
    path = saved(tmp_path, [("Identity", ["A"], ["B"])], [("A", datatype, ["n", 3])], [("B", datatype, ["n", 3])])
    values = words("", "猫", "x" * 100) if datatype == "BYTES" else np.array([0, 1, 1])
    sent = from_numpy("A", values.reshape(1, 3), datatype)
    moved = Tensor("A", datatype, (1, 3), memoryview(bytes(start) + sent.data)[start:])
    loaded = backend.load(loading(path, device=device))
    assert loaded.run is not None
    back: Any = loaded.run({"A": moved}, {})["B"]  # type: ignore[index]
    assert (back.name, back.datatype, back.shape, bytes(back.data)) == ("B", datatype, (1, 3), bytes(sent.data))


def test_empty_tensors_round_trip(tmp_path: Path) -> None:
    loaded = backend.load(loading(add_sub(tmp_path)))
    assert run_model(loaded, A=A[:0], B=B[:0])["SUM"].shape == (0, 2)


def test_invalid_text_and_shapes_are_invalid_arguments(tmp_path: Path) -> None:
    loaded = backend.load(loading(add_sub(tmp_path)))
    with pytest.raises(Refused) as caught:
        run_model(loaded, A=A, B=np.zeros((2, 3), "f4"))
    assert caught.value.code == "INVALID_ARGUMENT"
    assert "\n" not in caught.value.message
    path = saved(tmp_path, [("Identity", ["A"], ["B"])], [("A", "BYTES", [1])], [("B", "BYTES", [1])])
    with pytest.raises(Refused, match="input 'A': an element is not valid UTF-8"):
        run_model(backend.load(loading(path)), A=words(b"\xff"))


@pytest.mark.parametrize("content", [b"", b"junk", b"\x08\x09"])
def test_a_damaged_file_is_reported_in_one_line(tmp_path: Path, content: bytes, capfd: Any) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(UserError, match=r"model m: model\.onnx failed to load") as caught:
        backend.load(loading(tmp_path))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("where", ["inside", "../secret", "/secret"])
def test_weights_outside_the_model_folder_are_not_read(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "1"
    folder.mkdir()
    for path in (folder / "inside", tmp_path / "secret"):
        path.write_bytes(np.array([5, 6], "f4").tobytes())
    add_sub(folder)
    model = onnx.load(folder / "model.onnx")
    weights = model.graph.initializer.add(name="B", data_type=TYPES.FLOAT, dims=[2], data_location=TYPES.EXTERNAL)
    weights.external_data.add(
        key="location", value=where.replace("/secret", f"{tmp_path}/secret") if where[0] == "/" else where
    )
    del model.graph.input[1]
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    if where == "inside":
        assert run_model(backend.load(loading(folder)), A=A)["SUM"].tolist() == [[6, 8], [8, 10]]
        return
    with pytest.raises(UserError, match=r"model\.onnx failed to load"):
        backend.load(loading(folder))


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"input": [field("X", "FP32", 2)]}, "the configuration has X, the model only A, B"),
        ({"input": [field("A", "INT32", 2)]}, "A is INT32 [2], the model FP32 [2]"),
        ({"output": [field("SUM", "FP32", 3)]}, "SUM is FP32 [3], the model FP32 [2]"),
    ],
)
def test_a_configuration_that_contradicts_the_file_is_refused(tmp_path: Path, config: Any, what: str) -> None:
    with pytest.raises(UserError) as caught:
        backend.load(loading(add_sub(tmp_path), max_batch_size=2, **config))
    assert what in caught.value.what


@pytest.mark.parametrize("device", ["tpu", "cuda"])
def test_an_unknown_device_is_named(tmp_path: Path, device: str) -> None:
    if device == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(UserError, match=device):
        backend.load(loading(add_sub(tmp_path), device=device))


class Elsewhere:
    """An ONNX Runtime built with CUDA on a machine without a GPU: it fails silently or with a reason."""

    def __init__(self, error: str) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(onnxruntime, name)

    def get_available_providers(self) -> list[str]:
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def InferenceSession(self, path: str, options: Any, providers: list[Any], **more: Any) -> Any:  # noqa: N802
        if self._error and len(providers) > 1:
            raise RuntimeError(self._error)
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"], **more)


@pytest.mark.parametrize(
    ("error", "says"), [("", "the CUDA libraries failed to load"), ("no\nGPU", "RuntimeError: no GPU")]
)
def test_an_unusable_gpu_is_an_error_if_requested_and_otherwise_the_cpu_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, says: str
) -> None:
    monkeypatch.setattr(backend, "runtime", Elsewhere(error))
    with pytest.raises(UserError, match=f"cannot use the device cuda:1: {says}"):
        backend.load(loading(add_sub(tmp_path), device="cuda:1"))
    assert run_model(backend.load(loading(tmp_path, device="auto")), A=A, B=B)["SUM"].tolist() == (A + B).tolist()


@needs_gpu
def test_gpu_results_match_the_cpu(tmp_path: Path, capfd: Any) -> None:
    path = saved(
        tmp_path,
        [("MatMul", ["X", "Y"], ["P"]), ("Softmax", ["P"], ["Z"])],
        [("X", "FP32", ["n", 64]), ("Y", "FP32", [64, 32])],
        [("Z", "FP32", ["n", 32])],
    )
    numbers = np.random.default_rng(0)
    arrays = {"X": numbers.random((5, 64), np.float32), "Y": numbers.random((64, 32), np.float32)}
    unbatched = {"parameters": {"default_max_batch_size": "0"}}
    on_cpu, *on_gpu = (
        run_model(backend.load(loading(path, device=device, **unbatched)), **arrays)["Z"]
        for device in ("cpu", "cuda", "cuda:0", "auto")
    )
    for one in on_gpu:
        np.testing.assert_allclose(one, on_cpu, rtol=1e-2, atol=1e-4)
    assert capfd.readouterr() == ("", "")


@needs_gpu
def test_a_missing_gpu_is_named(tmp_path: Path, capfd: Any) -> None:
    with pytest.raises(UserError, match=r"cannot use the device cuda:99: .*99"):
        backend.load(loading(add_sub(tmp_path), device="cuda:99"))
    assert capfd.readouterr() == ("", "")


def test_auto_uses_the_cpu_without_a_gpu(tmp_path: Path) -> None:
    loaded = backend.load(loading(add_sub(tmp_path), device="auto", parameters={"threads": "1"}))
    assert (
        to_numpy(loaded.run({"A": from_numpy("A", A), "B": from_numpy("B", B)}, {})["SUM"]).tolist() == (A + B).tolist()
    )  # type: ignore[misc,index]
