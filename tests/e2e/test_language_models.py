"""Language models as tensor models run without options: their inputs are filled by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import measure

from inferometer.serve.background import serving
from inferometer.serve.settings import Settings

CONFIG = """
name: "bert"
max_batch_size: 8
input [
  {name: "input_ids", data_type: TYPE_INT64, dims: [-1]},
  {name: "attention_mask", data_type: TYPE_INT64, dims: [-1]},
  {name: "token_type_ids", data_type: TYPE_INT64, dims: [-1]}
]
output [{name: "last_hidden_state", data_type: TYPE_FP32, dims: [-1, 32]}]
"""
VOCABULARY, SEGMENTS, WIDTH = 1000, 2, 32


def failures(tmp_path: Path, **data: Any) -> list[str]:
    """Serve the models in `tmp_path` and send 20 requests to `bert`; return what went wrong."""
    with serving(Settings(models=(str(tmp_path / "models"),), http=0, grpc=0)) as server:
        run, _ = measure(
            tmp_path / "runs",
            server.grpc,
            server={"model": "bert"},
            data={"type": "tensors"} | data,
            load={"concurrency": 2, "requests": 20},
        )
    assert len(run.records.rows) == 20
    return [failure.message for failure in run.records.failures]


def onnx_bert(folder: Path) -> None:
    """Save the first layer of a BERT: the sum of two embeddings, and a mask. An id outside of the vocabulary is an error."""
    import onnx  # noqa: PLC0415 - not installed everywhere

    helper, types = onnx.helper, onnx.TensorProto
    rng = np.random.default_rng(0)
    tables = [
        onnx.numpy_helper.from_array(rng.random((rows, WIDTH), np.float32), name)
        for name, rows in (("words", VOCABULARY), ("segments", SEGMENTS))
    ]
    axis = onnx.numpy_helper.from_array(np.array([2]), "axis")
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["a"]),
        helper.make_node("Gather", ["segments", "token_type_ids"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=types.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "axis"], ["wide"]),
        helper.make_node("Mul", ["sum", "wide"], ["last_hidden_state"]),
    ]
    names = ("input_ids", "attention_mask", "token_type_ids")
    graph = helper.make_graph(
        nodes,
        "bert",
        [helper.make_tensor_value_info(name, types.INT64, ["batch", "length"]) for name in names],
        [helper.make_tensor_value_info("last_hidden_state", types.FLOAT, ["batch", "length", WIDTH])],
        [*tables, axis],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    version = folder / "bert" / "1"
    version.mkdir(parents=True)
    onnx.save(model, version / "model.onnx")


@pytest.mark.onnx
@pytest.mark.parametrize("data", [{}, {"length": 16, "batch": 3}])
def test_a_bert_in_onnx_runs_without_options(tmp_path: Path, data: dict[str, Any]) -> None:
    onnx_bert(tmp_path / "models")
    assert not failures(tmp_path, **data)


@pytest.mark.onnx
def test_tokens_outside_of_the_vocabulary_fail(tmp_path: Path) -> None:
    """The test above would notice inputs that do not suit the model."""
    onnx_bert(tmp_path / "models")
    found = failures(tmp_path, fill={"input_ids": {"random": [5000, 6000]}})
    assert found and "out of data bounds" in found[0]


@pytest.mark.transformers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data", [{}, {"length": 16, "batch": 3}])
def test_a_bert_in_torchscript_runs_without_options(tmp_path: Path, data: dict[str, Any]) -> None:
    import torch  # noqa: PLC0415 - not installed everywhere
    from transformers import BertConfig, BertModel  # noqa: PLC0415

    settings = BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    bert = BertModel(settings, add_pooling_layer=False).eval()

    class FirstOutput(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
        ) -> torch.Tensor:
            made: torch.Tensor = self.bert(input_ids, attention_mask, token_type_ids)[0]
            return made

    version = tmp_path / "models" / "bert" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(CONFIG)
    example = torch.ones((2, 8), dtype=torch.int64)
    torch.jit.trace(FirstOutput(), (example, example, example * 0)).save(str(version / "model.pt"))
    assert not failures(tmp_path, **data)
