"""PyTorch models, compared with a direct call of the module."""

import io
import json
import os
import pickle
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_help import field, given, listed, loading, run_model

from inferometer.errors import UserError
from inferometer.serve.models.types import Refused
from inferometer.tensors import DATATYPES, Tensor, from_numpy, to_numpy

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
backend = pytest.importorskip("inferometer.serve.backends.torch", reason="PyTorch is not installed")
CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated"),
    pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"),
]


class TwoWays(torch.nn.Module):  # type: ignore[misc]
    """A module whose result shows which argument is which."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x) - y, (x * 10).to(torch.int64)


MODULE = TwoWays().eval()
X, Y = np.arange(6, dtype="f4").reshape(2, 3), np.array([[1, 2], [3, 4]], "f4")
with torch.inference_mode():
    EXPECTED = [one.numpy() for one in MODULE(torch.from_numpy(X), torch.from_numpy(Y))]

OUT = [field("P", "FP32", 2), field("Q", "INT64", 3)]
BATCHED: dict[str, Any] = {"max_batch_size": 8, "input": [field("x", "FP32", 3), field("y", "FP32", 2)], "output": OUT}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "model.pt"
    torch.jit.script(MODULE).save(str(path))
    return path


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "model.pt2"
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(
        MODULE, (torch.from_numpy(X),), {"y": torch.from_numpy(Y)}, dynamic_shapes={"x": {0: batch}, "y": {0: batch}}
    )
    torch.export.save(program, path)
    return path


def check(made: dict[str, Any], names: tuple[str, str] = ("P", "Q")) -> None:
    assert tuple(made) == names
    np.testing.assert_allclose(made[names[0]], EXPECTED[0], rtol=1e-6)
    assert made[names[1]].tolist() == EXPECTED[1].tolist()
    assert made[names[1]].dtype == np.int64


# --- the two kinds of files ------------------------------------------------------------------------------------------


def test_an_exported_program_matches_the_module_and_declares_its_tensors(exported: Path) -> None:
    options = loading(exported)
    loaded = backend.load(options)
    assert listed(options.config.input) == [("x", "FP32", (3,)), ("y", "FP32", (2,))]
    assert listed(options.config.output) == [("OUTPUT__0", "FP32", (2,)), ("OUTPUT__1", "INT64", (3,))]
    assert options.config.max_batch_size == 4
    assert options.config.WhichOneof("scheduling_choice") == "dynamic_batching"
    check(run_model(loaded, x=X, y=Y), ("OUTPUT__0", "OUTPUT__1"))
    check(run_model(loaded, y=Y, x=X), ("OUTPUT__0", "OUTPUT__1"))


def test_an_exported_program_without_batching_if_so_configured(exported: Path) -> None:
    options = loading(exported, parameters={"default_max_batch_size": "0"})
    loaded = backend.load(options)
    assert options.config.max_batch_size == 0
    assert not options.config.WhichOneof("scheduling_choice")
    assert listed(options.config.input) == [("x", "FP32", (-1, 3)), ("y", "FP32", (-1, 2))]
    check(run_model(loaded, x=X, y=Y), ("OUTPUT__0", "OUTPUT__1"))


def test_a_batch_gives_the_same_results_as_single_requests(script: Path) -> None:
    loaded = backend.load(loading(script, **BATCHED))
    rows = [run_model(loaded, x=X[i : i + 1], y=Y[i : i + 1]) for i in range(2)]
    check({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})


# --- arguments and outputs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", [("x", "y"), ("INPUT__0", "INPUT__1"), ("first", "second")], ids=["by name", "numbered", "in order"]
)
def test_inputs_are_passed_as_arguments(script: Path, names: tuple[str, str]) -> None:
    config = {**BATCHED, "input": [field(names[0], "FP32", 3), field(names[1], "FP32", 2)]}
    check(run_model(backend.load(loading(script, **config)), **{names[1]: Y, names[0]: X}))


@pytest.mark.parametrize("names", [("y", "x"), ("INPUT__1", "INPUT__0")])
def test_numbered_names_do_not_depend_on_the_configured_order(script: Path, names: tuple[str, str]) -> None:
    config = {**BATCHED, "input": [field(names[0], "FP32", 2), field(names[1], "FP32", 3)]}
    check(run_model(backend.load(loading(script, **config)), **{names[0]: Y, names[1]: X}))


Call = Callable[[Any], Any]


@pytest.fixture
def model_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Call, list[Any]], Any]:
    """Load a model that is a function of x."""

    def load(call: Call, outputs: list[Any]) -> Any:
        monkeypatch.setattr(backend, "_read", lambda *_: (call, ("x",), ()))
        return backend.load(loading(Path(__file__), input=[field("x", "FP32", 2)], output=outputs))

    return load


def test_dict_outputs_match_by_name_and_list_outputs_by_order(model_of: Any) -> None:
    two, array = [field("a", "FP32", -1), field("b", "FP32", -1)], np.array([1, 2], "f4")
    made = run_model(model_of(lambda x: {"b": x + 1, "other": x, "a": x}, two), x=array)
    assert {name: one.tolist() for name, one in made.items()} == {"a": [1, 2], "b": [2, 3]}
    made = run_model(model_of(lambda x: [x, x * 2, x * 3], two), x=array)
    assert {name: one.tolist() for name, one in made.items()} == {"a": [1, 2], "b": [2, 4]}


def test_an_invalid_output_is_named(model_of: Any) -> None:
    cases: dict[str, Call] = {
        "output 'z' is INT32 [2], the configuration says FP32": lambda x: x.to(torch.int32),
        "output 'z' is torch.complex64 [2]": lambda x: x.to(torch.complex64),
    }
    for what, call in cases.items():
        with pytest.raises(Refused) as caught:
            run_model(model_of(call, [field("z", "FP32", 2)]), x=np.zeros(2, "f4"))
        assert (caught.value.code, what in caught.value.message) == ("INTERNAL", True)


def test_optional_inputs_may_be_omitted(tmp_path: Path) -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor, by: torch.Tensor | None = None) -> torch.Tensor:
            return x if by is None else x * by

    torch.jit.script(Scaled()).save(str(tmp_path / "model.pt"))
    inputs, one = [field("x", "FP32", 1), field("by", "FP32", 1, optional=True)], np.array([3], "f4")
    loaded = backend.load(loading(tmp_path, input=inputs, output=[field("z", "FP32", 1)]))
    assert (run_model(loaded, x=one)["z"].item(), run_model(loaded, x=one, by=one)["z"].item()) == (3, 9)


# --- bytes -----------------------------------------------------------------------------------------------------------

NUMERIC = [name for name in DATATYPES if name != "BYTES"]


@pytest.mark.parametrize("datatype", NUMERIC)
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("copy", [False, True])
def test_every_datatype_round_trips_at_any_memory_alignment(datatype: str, start: int, copy: bool) -> None:
    sent = from_numpy("A", np.array([[0, 1, 3], [1, 0, 1]]).clip(0, 1 if datatype == "BOOL" else 3), datatype)
    raw = memoryview(bytes(start) + sent.data)[start:]
    made = backend.to_torch(Tensor("A", datatype, (2, 3), raw), CPU, copy)
    assert made.dtype == getattr(torch, backend.DTYPES[datatype])
    assert made.to(torch.float64).tolist() == to_numpy(sent).astype(float).tolist()
    back = backend.from_torch("A", made)
    assert (back.datatype, back.shape, bytes(back.data)) == (datatype, (2, 3), bytes(sent.data))


@pytest.mark.parametrize("datatype", NUMERIC)
def test_empty_tensors_round_trip(datatype: str) -> None:
    shape = 2, 0, 3
    made = backend.to_torch(Tensor("A", datatype, shape, b""), CPU)
    back = backend.from_torch("A", made)
    assert (back.datatype, back.shape, bytes(back.data)) == (datatype, shape, b"")


def test_a_scalar_and_a_transposed_tensor_come_back_row_major() -> None:
    assert to_numpy(backend.from_torch("A", torch.tensor(7.0))).tolist() == 7
    made = torch.arange(6, dtype=torch.int16).reshape(2, 3).T
    assert to_numpy(backend.from_torch("A", made)).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_aligned_inputs_are_not_copied_for_read_only_models() -> None:
    data = bytearray(np.array([1, 2], "f4").tobytes())
    seen = backend.to_torch(Tensor("A", "FP32", (2,), memoryview(data)), CPU)
    own = backend.to_torch(Tensor("A", "FP32", (2,), memoryview(data)), CPU, copy=True)
    data[:] = np.array([8, 9], "f4").tobytes()
    assert (seen.tolist(), own.tolist()) == ([8, 9], [1, 2])


def test_a_script_that_writes_to_its_inputs_gets_a_copy(tmp_path: Path) -> None:
    class InPlace(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool(x.sum() > -1e9):
                x.add_(1)
            return x

    torch.jit.script(InPlace()).save(str(tmp_path / "model.pt"))
    loaded = backend.load(loading(tmp_path, input=[field("x", "FP32", 2)], output=[field("z", "FP32", 2)]))
    sent = from_numpy("x", np.zeros(2, "f4"))
    assert to_numpy(loaded.run({"x": sent}, {})["z"]).tolist() == [1, 1]  # type: ignore[misc,index]
    assert bytes(sent.data) == bytes(8)


# --- what does not load ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.pt", "model.pt2"])
@pytest.mark.parametrize("content", ["", "junk", "zip", "pickle"])
def test_a_damaged_file_is_reported_in_one_line(
    tmp_path: Path, name: str, content: str, caplog: Any, capfd: Any
) -> None:
    path = tmp_path / name
    if content == "pickle":
        torch.save(MODULE.state_dict(), path)
    elif content == "zip":
        with zipfile.ZipFile(path, "w") as made:
            made.writestr("a", "b")
    else:
        path.write_text(content)
    with pytest.raises(UserError) as caught:
        backend.load(loading(path, **BATCHED))
    assert f"model m: {name}" in caught.value.what
    assert "\n" not in str(caught.value)
    assert ("torch.jit.save" if name == "model.pt" else "torch.export.save") in caught.value.remedy
    assert not caplog.records
    assert "Traceback" not in capfd.readouterr().err


class Evil:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("where", ["samples", "weights", "constants", "legacy", "compiled", "twice"])
def test_pickles_and_code_in_an_exported_program_are_refused(exported: Path, tmp_path: Path, where: str) -> None:
    marker, path = tmp_path / "run", tmp_path / "model.pt2"
    file = io.BytesIO()
    torch.save(Evil(marker), file)
    with zipfile.ZipFile(exported) as whole:
        root = whole.namelist()[0].partition("/")[0]
        content = {name.partition("/")[2]: whole.read(name) for name in whole.namelist()}
    if where == "samples":
        content["data/sample_inputs/model.pt"] = file.getvalue()
    elif where == "weights":
        config = json.loads(content["data/weights/model_weights_config.json"])
        next(iter(config["config"].values()))["use_pickle"] = True
        content["data/weights/model_weights_config.json"] = json.dumps(config).encode()
        content["data/weights/weight_0"] = file.getvalue()
    elif where == "constants":
        payload = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
        content["data/constants/model_constants_config.json"] = json.dumps({"config": {"c": payload}}).encode()
        content["data/constants/opaque_obj_0"] = pickle.dumps(Evil(marker))
    elif where == "legacy":
        content["data/weights/model.pt"] = file.getvalue()
    elif where == "compiled":
        content["data/aotinductor/model/a.so"] = b"code"
    with zipfile.ZipFile(path, "w") as made:
        for name, data in content.items():
            made.writestr(f"{root}/{name}", data)
        if where == "twice":
            with pytest.warns(UserWarning, match="Duplicate name"):
                made.writestr(f"{root}/models/model.json", content["models/model.json"])
    with pytest.raises(UserError, match=r"could run anything|Weights only load failed"):
        backend.load(loading(path))
    assert not marker.exists()


def test_torchscript_needs_configured_tensors_or_shapes(script: Path) -> None:
    with pytest.raises(UserError, match=r"does not contain the shapes and types of x, y .*--shape"):
        backend.load(loading(script))
    made = loading(script, parameters={"shape": "-1,3;y=-1,2"})
    backend.load(made)
    assert made.config.max_batch_size == 4
    assert listed(made.config.input) == [("x", "FP32", (3,)), ("y", "FP32", (2,))]
    assert listed(made.config.output) == [("OUTPUT__0", "FP32", (2,)), ("OUTPUT__1", "INT64", (3,))]
    for shape in ("-1,8;-1,2", "-1,3", "x=3;z=4", "3,a;4", "3;2;1"):
        with pytest.raises(UserError, match=rf"shape {shape} does not fit the model: .*--shape x=-1"):
            backend.load(loading(script, parameters={"shape": shape}))


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth"])
def test_weights_and_pickled_modules_say_what_to_do(tmp_path: Path, name: str) -> None:
    torch.save(MODULE.state_dict(), tmp_path / name)
    with pytest.raises(UserError, match=rf"{name} has weights or a pickled module .*torch.jit.trace.*model.py"):
        backend.load(loading(tmp_path / name))
    torch.save(Evil(tmp_path / "run"), tmp_path / name)
    with pytest.raises(UserError, match="a pickled module"):
        backend.load(loading(tmp_path / name))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"input": [field("z", "FP32", 3)]}, "the configuration has z, the model only x, y"),
        ({"input": [field("x", "FP16", 3), field("y", "FP32", 2)]}, "x is FP16 [3], the model FP32 [3]"),
        ({"input": [field("x", "FP32", 4), field("y", "FP32", 2)]}, "x is FP32 [4], the model FP32 [3]"),
        ({"input": [field("x", "FP32", 3, 1), field("y", "FP32", 2)]}, "x is FP32 [3, 1], the model FP32 [3]"),
    ],
)
def test_a_configuration_that_contradicts_the_file_is_refused(exported: Path, config: Any, what: str) -> None:
    with pytest.raises(UserError) as caught:
        backend.load(loading(exported, max_batch_size=2, **config))
    assert what in caught.value.what


def test_more_inputs_than_arguments_are_refused(script: Path) -> None:
    with pytest.raises(UserError, match="lists 3 inputs, but forward takes only x, y"):
        backend.load(loading(script, **{**BATCHED, "input": [*BATCHED["input"], field("z", "FP32", 1)]}))


def test_a_missing_gpu_is_named(script: Path) -> None:
    with pytest.raises(UserError, match="device cuda:99 was requested, but PyTorch sees"):
        backend.load(loading(script, device="cuda:99", **BATCHED))


def threads_seen(loaded: Any) -> int:
    """Return the number of threads that an operation sees after a request in another thread."""
    seen: list[int] = []

    def run() -> None:
        loaded.run(given(x=X, y=Y), {})
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return seen[0]


def test_thread_counts_apply_per_model(script: Path) -> None:
    own = backend.OWN_THREADS
    plain = backend.load(loading(script, **BATCHED))
    three = backend.load(loading(script, **BATCHED, parameters={"threads": "3"}))
    assert [threads_seen(one) for one in (plain, three, plain)] == [own, 3, own]
    with pytest.raises(UserError, match="parameter threads must be a whole number"):
        backend.load(loading(script, **BATCHED, parameters={"threads": "many"}))
