"""GPU results match the CPU's. Skipped if PyTorch sees no GPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_help import field, loading, run_model, words

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
backend = pytest.importorskip("inferometer.serve.backends.torch", reason="PyTorch is not installed")
classifier = pytest.importorskip("inferometer.serve.backends.classifier", reason="Pillow is not installed")
transformers = pytest.importorskip("inferometer.serve.backends.transformers", reason="transformers is not installed")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated"),
]

X = np.random.default_rng(0).random((3, 4), np.float32)
CONFIG: dict[str, Any] = {"max_batch_size": 8, "input": [field("x", "FP32", 4)], "output": [field("z", "FP32", 2)]}


class Halved(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) / 2


def both(load: Any, path: Path | None, arrays: dict[str, Any], **config: Any) -> list[dict[str, Any]]:
    """Return the responses of the CPU, of the GPU, and of the GPU that `auto` selects."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    found = [run_model(load(loading(path, device=device, **config)), **arrays) for device in ("cpu", "cuda:0", "auto")]
    assert torch.cuda.max_memory_allocated() > before
    return found


@pytest.mark.parametrize("kind", ["script", "exported"])
def test_pytorch_models(tmp_path: Path, kind: str) -> None:
    module, config = Halved().eval(), CONFIG
    if kind == "script":
        torch.jit.script(module).save(str(tmp_path / "model.pt"))
    else:
        shapes = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
        program = torch.export.export(module, (torch.from_numpy(X),), dynamic_shapes=shapes)
        torch.export.save(program, tmp_path / "model.pt2")
        config = {}
    on_cpu, *on_gpu = both(backend.load, tmp_path, {"x": X}, **config)
    for one in on_gpu:
        (name,) = on_cpu
        np.testing.assert_allclose(one[name], on_cpu[name], rtol=1e-3, atol=1e-4)


def test_the_classifier() -> None:
    pixels = np.random.default_rng(0).random((5, 3, 224, 224), np.float32)
    on_cpu, *on_gpu = both(classifier.load, None, {"pixels": pixels}, max_batch_size=32)
    for one in on_gpu:
        np.testing.assert_allclose(one["scores"], on_cpu["scores"], rtol=0.05, atol=1e-3)


@pytest.mark.transformers
def test_language_models(tmp_path: Path) -> None:
    from test_backend_transformers import bert, ids, llama, saved, seeded, written  # noqa: PLC0415
    from transformers import BertModel, LlamaForCausalLM  # noqa: PLC0415

    folder = saved(tmp_path / "b", seeded(BertModel, bert()))
    on_cpu, *on_gpu = both(transformers.load, folder, {"text": words("w1 w2", "w3").reshape(2, 1)})
    for one in on_gpu:
        np.testing.assert_allclose(one["embedding"], on_cpu["embedding"], rtol=1e-2, atol=1e-2)
    folder = saved(tmp_path / "l", seeded(LlamaForCausalLM, llama()))
    texts = []
    requests = [{"prompt": ids(size, size), "max_tokens": 10} for size in (3, 20, 1, 33, 40)]
    for device in ("cpu", "cuda"):
        loaded = transformers.load(loading(folder, device=device, parameters={"max_batch": "4"}))
        if device == "cuda":
            assert loaded.begin.__self__.engine._decoder._graphs
        texts.append([one.texts for one in written(loaded, *requests)])
        loaded.close()
    assert texts[0] == texts[1]
    assert all(texts[0])
