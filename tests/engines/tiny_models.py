"""Tiny models of random weights, written as folders. They need torch and transformers."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/real_servers/transformers"))


def text_model(folder: Path, context: int = 256) -> Path:
    importlib.import_module("model").write(folder, context)
    return folder


def encoder(folder: Path, labels: int = 0) -> Path:
    """A BERT with two layers: a classifier if it has labels, else without a head."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=labels or 2,
    )
    kind = transformers.BertForSequenceClassification if labels else transformers.BertModel
    kind(config).save_pretrained(folder)
    return folder
