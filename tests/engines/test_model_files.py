"""What a model's files say without loading them, against files that are written here, and against transformers' own count."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from inferometer.campaign import ModelFacts
from inferometer.engines.model_files import drop_from_page_cache, local_path, model_facts

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "tie_word_embeddings": False,
    "max_position_embeddings": 512,
}  # fmt: skip


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, tuple[str, list[int]]] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        header, at = {}, 0
        for name, (dtype, shape) in tensors.items():
            size = {"BF16": 2, "F32": 4}[dtype]
            for each in shape:
                size *= each
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return folder


def test_the_shape_comes_from_the_config_and_the_parameters_from_the_headers(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": ("BF16", [100, 64]),
        "lm_head.weight": ("BF16", [100, 64]),
        "norm": ("F32", [64]),
    }
    found = model_facts(str(write_folder(tmp_path / "m", LLAMA, tensors)))
    assert (found.parameters, found.active_parameters, found.bytes) == (12_864, 12_864, 2 * 12_800 + 256)
    assert (found.dtype, found.is_tied, found.architecture) == ("bfloat16", False, "LlamaForCausalLM")
    assert (found.layers, found.hidden, found.heads, found.kv_heads, found.head_size) == (2, 64, 4, 2, 16)
    assert (found.vocabulary, found.context) == (100, 512)


def test_without_an_output_layer_the_embeddings_are_tied(tmp_path: Path) -> None:
    found = model_facts(str(write_folder(tmp_path / "m", LLAMA, {"model.embed_tokens.weight": ("BF16", [100, 64])})))
    assert found.is_tied is True


def test_of_experts_only_the_chosen_ones_are_active(tmp_path: Path) -> None:
    config = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 1}
    tensors = {f"model.layers.0.block_sparse_moe.experts.{n}.w1.weight": ("BF16", [10, 10]) for n in range(4)}
    found = model_facts(str(write_folder(tmp_path / "m", config, tensors | {"rest": ("BF16", [7])})))
    assert (found.parameters, found.active_parameters) == (407, 107)
    del config["num_experts_per_tok"]
    found = model_facts(str(write_folder(tmp_path / "m", config, tensors)))
    assert (found.parameters, found.active_parameters) == (400, None)


def test_without_weights_a_known_architecture_has_a_formula_and_others_have_none(tmp_path: Path) -> None:
    found = model_facts(str(write_folder(tmp_path / "m", LLAMA)))
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert found.parameters == 2 * layer + 64 + 2 * 100 * 64 and found.bytes is None
    assert model_facts(str(write_folder(tmp_path / "m", LLAMA | {"model_type": "novel"}))).parameters is None


def test_a_model_that_sees_images_has_the_shape_of_its_text_part(tmp_path: Path) -> None:
    config = {"architectures": ["Both"], "model_type": "both", "text_config": LLAMA, "tie_word_embeddings": True}
    found = model_facts(str(write_folder(tmp_path / "m", config)))
    assert (found.architecture, found.layers, found.is_tied) == ("Both", 2, True)


@pytest.mark.parametrize("broken", [b"", b"\x00" * 7, struct.pack("<Q", 1 << 60), struct.pack("<Q", 9) + b'{"a": [1]'])
def test_broken_files_make_figures_missing(tmp_path: Path, broken: bytes) -> None:
    folder = write_folder(tmp_path / "m", LLAMA | {"model_type": "novel"})
    (folder / "model.safetensors").write_bytes(broken)
    (folder / "bad.gguf").write_bytes(b"GGUF" + broken)
    assert model_facts(str(folder)).parameters is None and model_facts(str(folder)).layers == 2
    assert model_facts(str(folder / "bad.gguf")) == ModelFacts(name=str(folder / "bad.gguf"))
    (folder / "config.json").write_text("{")
    assert model_facts(str(folder)).layers is None


def test_names_on_the_hub_are_found_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert model_facts("some/model") == ModelFacts(name="some/model")
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    write_folder(snapshot, LLAMA)
    assert local_path("some/model") == snapshot and model_facts("some/model").layers == 2


def gguf(pairs: dict[str, tuple[int, bytes]], tensors: dict[str, tuple[int, ...]]) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    made = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    made += b"".join(text(name) + struct.pack("<I", kind) + value for name, (kind, value) in pairs.items())
    for name, shape in tensors.items():
        made += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 0)
    return made


def test_gguf_metadata(tmp_path: Path) -> None:
    def number(value: int) -> tuple[int, bytes]:
        return 4, struct.pack("<I", value)

    pairs = {
        "general.architecture": (8, struct.pack("<Q", 5) + b"llama"),
        "tokenizer.ggml.tokens": (9, struct.pack("<IQ", 8, 2) + 2 * (struct.pack("<Q", 1) + b"x")),
        "tokenizer.ggml.scores": (9, struct.pack("<IQ", 6, 2) + struct.pack("<2f", 0.5, 0.5)),
        "general.file_type": number(15),
        "llama.block_count": number(2),
        "llama.embedding_length": number(64),
        "llama.attention.head_count": number(4),
        "llama.attention.head_count_kv": number(2),
        "llama.context_length": number(512),
        "llama.expert_count": number(8),
        "llama.expert_used_count": number(2),
    }
    tensors = {"token_embd.weight": (64, 100), "blk.0.ffn_up_exps.weight": (64, 10, 8), "output.weight": (64, 100)}
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(pairs, tensors))
    found = model_facts(str(path))
    assert (found.parameters, found.active_parameters) == (12_800 + 5_120, 12_800 + 1_280)
    assert (found.dtype, found.layers, found.kv_heads, found.head_size) == ("Q4_K_M", 2, 2, 16)
    assert (found.vocabulary, found.is_tied, found.context, found.bytes) == (100, False, 512, path.stat().st_size)


@pytest.mark.slow
@pytest.mark.transformers
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mixtral", "qwen3_moe"])
def test_transformers_counts_the_same(kind: str, tmp_path: Path) -> None:
    import transformers  # noqa: PLC0415

    shape = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 100, "head_dim": 16, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    }  # fmt: skip
    dense = {key: value for key, value in shape.items() if "expert" not in key and "moe" not in key}
    config = transformers.AutoConfig.for_model(kind, **(shape if kind in ("mixtral", "qwen3_moe") else dense))
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    found = model_facts(str(tmp_path))
    assert found.parameters == model.num_parameters() and found.layers == 2 and found.head_size == 16
    experts = {"mixtral": 2 * 4 * 3 * 64 * 96, "qwen3_moe": 2 * 4 * 3 * 64 * 32}.get(kind, 0)
    assert found.active_parameters == model.num_parameters() - experts // 2
    if kind == "llama":
        (tmp_path / "model.safetensors").unlink()
        assert model_facts(str(tmp_path)).parameters == model.num_parameters()


def test_files_are_dropped_from_the_page_cache(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", LLAMA)
    (folder / "weights.bin").write_bytes(os.urandom(1 << 20))
    assert drop_from_page_cache(folder) and drop_from_page_cache(folder / "weights.bin")
    assert not drop_from_page_cache("no/such/model") and not drop_from_page_cache(tmp_path / "m" / "gone")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert not drop_from_page_cache(empty)
