"""`inferometer.dummy_inputs` makes inputs that a model takes, from whatever describes the model."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import kserve_peers
import numpy as np
import pytest

import inferometer
from inferometer.errors import UserError

BERT = {
    "inputs": [
        {"name": name, "datatype": "INT64", "shape": [-1, -1]}
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
}
IMAGE = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 8, 8]}]}


def test_importing_the_package_stays_cheap() -> None:
    code = "import sys, inferometer; print('numpy' in sys.modules, 'msgspec' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False False\n"
    )
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        inferometer.nothing  # noqa: B018


# --- metadata --------------------------------------------------------------------------------------------------------


def test_one_input_is_a_dict_and_many_are_a_list() -> None:
    one = inferometer.dummy_inputs(BERT, batch=4, length=16)
    assert isinstance(one, dict)
    assert {name: (array.shape, array.dtype) for name, array in one.items()} == {
        name: ((4, 16), np.dtype(np.int64)) for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    assert one["input_ids"].max() < 1000 and one["attention_mask"].all() and not one["token_type_ids"].any()
    one["input_ids"][0, 0] = 5  # it may be written to
    many = inferometer.dummy_inputs(BERT, count=3)
    assert isinstance(many, list) and len(many) == 3
    assert inferometer.dummy_inputs(BERT, count=0) == []


def test_random_inputs_differ_from_one_another_and_from_those_of_other_calls() -> None:
    def made(**options: Any) -> list[bytes]:
        found = inferometer.dummy_inputs(IMAGE, count=50, **options)
        assert isinstance(found, list)
        return [one["x"].tobytes() for one in found]

    assert len({*made(), *made()}) == 100
    assert made(seed=5) == made(seed=5) != made(seed=6)


def test_names_shapes_datatypes_and_fill_are_chosen() -> None:
    made = inferometer.dummy_inputs(
        BERT, names=["input_ids"], shapes={"input_ids": [2, 5]}, datatypes={"input_ids": "INT32"},
        fill={"input_ids": {"random": [7, 8]}},
    )  # fmt: skip
    assert isinstance(made, dict)
    assert list(made) == ["input_ids"]
    assert made["input_ids"].tolist() == [[7] * 5] * 2 and made["input_ids"].dtype == np.int32


def test_a_server_says_what_its_model_takes() -> None:
    with kserve_peers.over_grpc() as url:
        made = inferometer.dummy_inputs(url, model="pair", batch=2)
    assert isinstance(made, dict)
    assert {name: (array.shape, array.dtype) for name, array in made.items()} == {
        "A": ((2, 4), np.dtype(np.int32)), "B": ((2, 4), np.dtype(np.int32)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (5, {}, ("int does not describe a model", "give a URL")),
        ({"a": 1}, {}, ("not that of KServe v2", "inputs")),
        ("/nowhere.onnx", {}, ("/nowhere.onnx", "No such file")),
        (BERT, {"names": ["ids"]}, ("no input ids", "input_ids")),
        (BERT, {"fill": {"mask": "ones"}}, ("no input mask", "did you mean")),
        (BERT, {"fill": 5}, ("dummy_inputs", "inferometer docs config")),
        (BERT, {"datatypes": {"ids": "FP32"}}, ("no input ids",)),
        (BERT, {"datatypes": "INT32"}, ("datatypes is 'INT32'", 'datatypes={"x": "FP16"}')),
        (BERT, {"names": "input_ids"}, ("names is 'input_ids'", 'names=["input_ids"]')),
        (BERT, {"shapes": {"input_ids": 3}}, ("shapes is {'input_ids': 3}", "shapes={")),
        (BERT, {"batch": "2"}, ("batch is '2'", "batch=2")),
        (BERT, {"count": 1.5}, ("count is 1.5", "count=10")),
        (BERT, {"device": "cuda"}, ("numpy arrays cannot be on a device", "torch")),
        (BERT, {"as_": "jax"}, ("as_ is 'jax'", "numpy or torch")),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3]}]}, {"batch": 2}, ("batch is 2", "fixed")),
    ],
)
def test_what_does_not_fit_is_an_error(source: Any, options: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        inferometer.dummy_inputs(source, **options)
    for word in words:
        assert word in str(caught.value)


# --- ONNX ------------------------------------------------------------------------------------------------------------


@pytest.mark.onnx
@pytest.mark.parametrize("kind", ["path", "session", "proto"])
def test_an_onnx_model_runs_with_its_dummy_inputs(tmp_path: Path, kind: str) -> None:
    import onnx  # noqa: PLC0415 - not installed everywhere
    import onnxruntime  # noqa: PLC0415

    helper, types = onnx.helper, onnx.TensorProto
    table = onnx.numpy_helper.from_array(np.ones((1000, 4), np.float32), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["a"]), helper.make_node("Mul", ["a", "scale"], ["out"])],
        "g",
        [
            helper.make_tensor_value_info("input_ids", types.INT64, ["batch", "length"]),
            helper.make_tensor_value_info("scale", types.FLOAT, [4]),
            helper.make_tensor_value_info("table", types.FLOAT, [1000, 4]),
        ],
        [helper.make_tensor_value_info("out", types.FLOAT, ["batch", "length", 4])],
        [table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    source = {"path": tmp_path / "m.onnx", "session": session, "proto": model}[kind]
    made = inferometer.dummy_inputs(source, batch=2, length=7)
    assert session.run(None, made)[0].shape == (2, 7, 4)


# --- PyTorch ---------------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")
@pytest.mark.parametrize("kind", ["module", "script", "path"])
def test_a_torch_module_runs_with_its_dummy_inputs(tmp_path: Path, kind: str) -> None:
    import torch  # noqa: PLC0415 - not installed everywhere

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(1000, 4)

        def forward(self, input_ids: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.table(input_ids) * scale
            return result

    source: Any = Model()
    if kind != "module":
        source = torch.jit.script(source)
    if kind == "path":
        source.save(str(tmp_path / "m.pt"))
        source = str(tmp_path / "m.pt")
    made = inferometer.dummy_inputs(
        source, batch=2, length=7, shapes={"scale": [4]}, datatypes={"scale": "FP16"}, as_="torch"
    )
    assert isinstance(made, dict)
    assert (made["input_ids"].dtype, made["scale"].dtype) == (torch.int64, torch.float16)
    assert Model()(**made).shape == (2, 7, 4)
    with pytest.raises(UserError, match="the shape of scale is not known"):
        inferometer.dummy_inputs(source)


@pytest.mark.torch
def test_every_datatype_becomes_a_torch_tensor() -> None:
    import torch  # noqa: PLC0415 - not installed everywhere

    kinds = {"BOOL": torch.bool, "INT8": torch.int8, "UINT8": torch.uint8, "FP16": torch.float16, "BF16": torch.bfloat16,
             "FP64": torch.float64}  # fmt: skip
    metadata = {"inputs": [{"name": name, "datatype": name, "shape": [3]} for name in kinds]}
    made = inferometer.dummy_inputs(metadata, as_="torch", fill="ones")
    assert isinstance(made, dict)
    assert {name: one.dtype for name, one in made.items()} == kinds
    assert all(one.float().tolist() == [1, 1, 1] for one in made.values())
    with pytest.raises(UserError, match="the device"):
        inferometer.dummy_inputs(metadata, as_="torch", device="nowhere")


@pytest.mark.transformers
def test_a_model_of_the_transformers_library_gets_its_usual_inputs() -> None:
    from transformers import BertConfig, BertModel  # noqa: PLC0415 - not installed everywhere

    settings = BertConfig(
        vocab_size=1000, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    bert = BertModel(settings).eval()
    made = inferometer.dummy_inputs(bert, batch=2, length=9, as_="torch")
    assert bert(**made).last_hidden_state.shape == (2, 9, 16)


@pytest.mark.transformers
@pytest.mark.parametrize("is_folder", [False, True])
def test_token_ids_stay_within_the_vocabulary_of_a_model(tmp_path: Path, is_folder: bool) -> None:
    from transformers import BertConfig, BertForSequenceClassification  # noqa: PLC0415 - not installed everywhere

    settings = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=3
    )
    bert = BertForSequenceClassification(settings).eval()
    bert.save_pretrained(tmp_path)
    made = inferometer.dummy_inputs(tmp_path if is_folder else bert, batch=4, length=50, as_="torch", seed=1)
    assert isinstance(made, dict)
    assert made["input_ids"].max() < 20
    assert made["input_ids"].unique().numel() > 10
    assert bert(**made).logits.shape == (4, 3)
    fixed = inferometer.dummy_inputs(bert, length=3, fill={"input_ids": {"value": 7}})
    assert isinstance(fixed, dict)
    assert fixed["input_ids"].tolist() == [[7, 7, 7]]


@pytest.mark.transformers
def test_models_of_images_and_with_decoders_get_what_they_need() -> None:
    import transformers  # noqa: PLC0415 - not installed everywhere

    small: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    images = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=16, **small)).eval()
    made = inferometer.dummy_inputs(images, batch=2, as_="torch")
    assert isinstance(made, dict)
    assert made["pixel_values"].shape == (2, 3, 32, 32)
    assert images(**made).last_hidden_state.shape == (2, 5, 16)
    config = transformers.T5Config(vocab_size=30, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    decoder = transformers.T5Model(config).eval()
    made = inferometer.dummy_inputs(decoder, batch=2, length=6, as_="torch")
    assert decoder(**made).last_hidden_state.shape == (2, 6, 16)


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json"):
        inferometer.dummy_inputs(tmp_path)
