"""Python models: what the function receives, what it may return, and the errors for invalid ones."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_help import field, given, listed, loading, run_model, words

from inferometer.errors import UserError
from inferometer.serve.backends import python
from inferometer.serve.models.types import Refused
from inferometer.tensors import DATATYPES, from_numpy, to_numpy

ADD = "def infer(inputs, parameters):\n    return {'C': inputs['A'] + inputs['B']}\n"
ADDED = {"input": [field("A", "FP32", 2), field("B", "FP32", 2)], "output": [field("C", "FP32", 2)]}


def written(folder: Path, text: str) -> Path:
    (folder / "model.py").write_text(text, encoding="utf-8")
    return folder


def identity(folder: Path, datatype: str, body: str = "inputs['A']", **more: Any) -> Any:
    kind = "STRING" if datatype == "BYTES" else datatype
    path = written(folder, f"import numpy as np\ndef infer(inputs, parameters):\n    return {{'B': {body}}}\n")
    return python.load(loading(path, input=[field("A", kind, -1)], output=[field("B", kind, -1)], **more))


@pytest.mark.parametrize("path", ["", "model.py"])
def test_a_function_of_arrays_in_a_folder_or_a_file(tmp_path: Path, path: str) -> None:
    loaded = python.load(loading(written(tmp_path, ADD) / path, **ADDED))
    assert run_model(loaded, A=np.array([1, 2], "f4"), B=np.array([10, 20], "f4"))["C"].tolist() == [11, 22]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_round_trips(tmp_path: Path, datatype: str) -> None:
    values = words(b"", b"\xff\x00", "猫".encode()) if datatype == "BYTES" else np.array([0, 1, 1])
    sent = from_numpy("A", values, datatype)
    loaded = identity(tmp_path, datatype)
    back = loaded.run({"A": sent}, {})["B"]
    assert (back.datatype, back.shape, bytes(back.data)) == (datatype, sent.shape, bytes(sent.data))


def test_bf16_is_passed_as_float32(tmp_path: Path) -> None:
    loaded = identity(tmp_path, "BF16", "np.asarray([inputs['A'].dtype == np.float32, inputs['A'][0]], np.float32)")
    sent = from_numpy("A", np.array([1.5], "f4"), "BF16")
    assert to_numpy(loaded.run({"A": sent}, {})["B"]).tolist() == [1, 1.5]


def test_parameters_reach_the_function(tmp_path: Path) -> None:
    loaded = identity(tmp_path, "FP32", "inputs['A'] * parameters['by']")
    assert run_model(loaded, {"by": 3}, A=np.array([1, 2], "f4"))["B"].tolist() == [3, 6]


def test_load_is_called_once_and_returns_the_function(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "calls = []\n"
        "def load(folder, device):\n"
        "    calls.append(device)\n"
        "    offset = float((folder / 'offset').read_text())\n"
        "    return lambda inputs, parameters: {'C': inputs['A'] + offset + len(calls)}\n",
    )
    (tmp_path / "offset").write_text("100")
    loaded = python.load(loading(path, **ADDED))
    for _ in range(2):
        assert run_model(loaded, A=np.array([1, 2], "f4"))["C"].tolist() == [102, 103]


def test_closing_the_responses_closes_the_generator(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "closed = []\n"
        "def infer(inputs, parameters):\n"
        "    try:\n"
        "        for i in range(int(inputs['A'][0])):\n"
        "            yield {'C': inputs['A'] * i}\n"
        "    finally:\n"
        "        closed.append(True)\n"
        "def load(folder, device):\n"
        "    infer.closed = closed\n"
        "    return infer\n",
    )
    options = loading(path, **ADDED, model_transaction_policy={"decoupled": True})
    loaded = python.load(options)
    responses: Any = loaded.run(given(A=np.array([3, 1], "f4")), {})
    assert [to_numpy(one["C"]).tolist() for one in responses] == [[0, 0], [3, 1], [6, 2]]
    responses = loaded.run(given(A=np.array([3, 1], "f4")), {})
    next(responses)
    module = next(
        one for key, one in sys.modules.items() if key.startswith("_inferometer_model_") and hasattr(one, "closed")
    )
    assert len(module.closed) == 1
    responses.close()
    assert len(module.closed) == 2
    loaded.close()
    assert module not in sys.modules.values()


def test_config_in_the_file_fills_in_what_is_missing(tmp_path: Path) -> None:
    config = (
        "CONFIG = {'max_batch_size': 4, 'dynamic_batching': {}, 'parameters': {'a': {'string_value': '1'}, "
        "'b': {'string_value': '2'}}, 'input': [{'name': 'A', 'data_type': 'TYPE_FP32', 'dims': [2]}, "
        "{'name': 'B', 'data_type': 'TYPE_FP32', 'dims': [2]}], 'output': [{'name': 'C', 'data_type': 'TYPE_FP32', 'dims': [2]}]}\n"
    )
    path = written(tmp_path, config + ADD)
    options = loading(path, max_batch_size=8, parameters={"a": "9"})
    python.load(options)
    assert options.config.max_batch_size == 8
    assert options.config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert (options.parameter("a"), options.parameter("b")) == ("9", "2")
    assert listed(options.config.input) == [("A", "FP32", (2,)), ("B", "FP32", (2,))]
    again = loading(path, sequence_batching={}, output=[field("C", "FP32", -1)])
    python.load(again)
    assert again.config.WhichOneof("scheduling_choice") == "sequence_batching"
    assert listed(again.config.output) == [("C", "FP32", (-1,))]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def infer(:\n", "model.py failed to load: SyntaxError"),
        ("x = 1\n\n1 / 0\n", "ZeroDivisionError: division by zero (line 3)"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 (line 2)"),
        ("import no_such_module_here\n", "No module named 'no_such_module_here'"),
        ("x = 1\n", "has no function infer"),
        ("class TritonPythonModel: pass\n", "has no function infer"),
        ("def load(folder, device): return 3\n", "has no function infer"),
        ("def load(folder, device): raise ValueError('no\\nluck')\n", "model.py failed to load: ValueError: no luck"),
        ("CONFIG = {'max_batch': 1}\n" + ADD, 'CONFIG in model.py: Message type "inference.ModelConfig" has no field named "max_batch"'),
    ],
)  # fmt: skip
def test_a_file_that_fails_to_load_is_explained_in_one_line(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(UserError) as caught:
        python.load(loading(written(tmp_path, text), **ADDED))
    assert what in caught.value.what
    assert "model m: " in caught.value.what
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no model\.py"):
        python.load(loading(tmp_path))


@pytest.mark.parametrize(
    ("datatype", "body", "what"),
    [
        ("INT32", "np.array([1.5])", "output 'B' is INT32, but infer returned float64"),
        (
            "UINT8",
            "np.array([256])",
            "output 'B' is UINT8, but infer returned int64: tensor B: 256 does not fit into UINT8",
        ),
        ("FP32", "np.array(['x'], object)", "output 'B' is FP32, but infer returned object"),
        ("BYTES", "np.array([1])", "output 'B' is BYTES, but infer returned int64"),
        ("FP32", "np.array([1j])", "complex128"),
    ],
)
def test_an_output_of_the_wrong_type_is_named(tmp_path: Path, datatype: str, body: str, what: str) -> None:
    loaded = identity(tmp_path, datatype, body)
    with pytest.raises(Refused) as caught:
        loaded.run({"A": from_numpy("A", words(b"x") if datatype == "BYTES" else np.zeros(1, int), datatype)}, {})
    assert caught.value.code == "INTERNAL"
    assert what in caught.value.message


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_an_invalid_return_value_is_named(tmp_path: Path, is_decoupled: bool) -> None:
    path = written(tmp_path, "def infer(inputs, parameters):\n    return [1]\n")
    loaded = python.load(loading(path, **ADDED, model_transaction_policy={"decoupled": is_decoupled}))
    assert loaded.run is not None
    with pytest.raises(Refused, match=r"infer must return a dict of arrays or, .* \(got (list|int)\)") as caught:
        next(iter(loaded.run({}, {})))
    assert caught.value.code == "INTERNAL"


def test_instances_do_not_share_a_module(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "seen = []\ndef infer(inputs, parameters):\n    seen.append(1)\n    return {'C': inputs['A'] * 0 + len(seen)}\n",
    )
    first, second = (python.load(loading(path, **ADDED)) for _ in range(2))
    array = np.zeros(2, "f4")
    assert [run_model(one, A=array)["C"][0] for one in (first, first, second)] == [1, 2, 1]


def test_parameters_in_config_may_be_plain_values(tmp_path: Path) -> None:
    """As in a config.yaml."""
    own = "CONFIG = {'parameters': {'warmup': 0, 'on': True, 'text': 'a', 'message': {'string_value': 'b'}}}\n"
    made = loading(written(tmp_path, own + ADD), **ADDED)
    python.load(made)
    names = ("warmup", "on", "text", "message")
    assert [made.parameter(name) for name in names] == ["0", "true", "a", "b"]
