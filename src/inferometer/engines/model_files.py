"""What the model's files say, without loading it: parameters, layers, data type; and dropping the files from the page cache.

A model is a folder as the Hugging Face hub has it (config.json and safetensors), a GGUF file, or a name on the hub, of which a copy may
be in the local cache. Parameters are counted in the headers of the weights; without weights, they follow from the config for
architectures like Llama's. What is not known is None.
"""

import contextlib
import json
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from inferometer.campaign import ModelFacts
from inferometer.engines.gguf_header import read_gguf

_SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I8": "int8", "U8": "uint8",
}  # fmt: skip
"""Data types of safetensors, as config.json calls them."""
_MOST_HEADER = 100 << 20
"""Size of a header that can still be one, as the safetensors library has it."""
_GATED = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "olmo",
    "olmo2",
    "granite",
)
"""Values of model_type whose layers have a gated MLP of three matrices, for the formula of the parameters."""
_EXPERTS = re.compile(r"\.experts\.(\d+)\.|\.experts\.(gate_up_proj|down_proj)")
"""Tensors of experts: one per expert, or all of a layer in one."""


def model_facts(model: str, file: str | None = None) -> ModelFacts:
    """What is known about a model: a folder, a GGUF file, or a name on the hub. `file` is an engine's own, if the model is only a name."""
    path = local_path(model)
    if path is None and file is not None:
        path = local_path(file)
    if path is None:
        return ModelFacts(name=model)
    if path.is_file():
        return _gguf(model, path) if path.suffix == ".gguf" else ModelFacts(name=model, bytes=path.stat().st_size)
    config = _read_json(path / "config.json")
    if not config and (single := sorted(path.glob("*.gguf"))):
        return _gguf(model, single[0])
    return _from_folder(model, path, config)


def local_path(model: str) -> Path | None:
    """The model's folder or file on this machine: the path itself, or the newest copy of that name in the hub's cache."""
    path = Path(model).expanduser()
    if path.exists():
        return path
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{model.replace('/', '--')}"
    with contextlib.suppress(OSError):
        snapshots = cache / "snapshots"
        named = cache / "refs" / "main"
        if named.is_file() and (snapshots / named.read_text().strip()).is_dir():
            return snapshots / named.read_text().strip()
        return max((each for each in snapshots.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    return None


# --- config.json and safetensors -------------------------------------------------------------------------------------


def _from_folder(name: str, folder: Path, config: Mapping[str, Any]) -> ModelFacts:
    text = config.get("text_config")
    inner = (
        {**config, **text} if isinstance(text, dict) else config
    )  # models that see images have one for their text part
    facts = _shape(name, inner, config)
    tensors = dict(_tensors(folder))
    if tensors:
        counts = {key: math.prod(shape) for key, (_, shape, _) in tensors.items()}
        total = sum(counts.values())
        is_tied = not any("lm_head" in key for key in tensors) if _has_embeddings(tensors) else facts.is_tied
        return msgspec.structs.replace(
            facts,
            parameters=total,
            active_parameters=_active(counts, inner),
            bytes=sum(size for _, _, size in tensors.values()),
            dtype=_most_common(tensors.values()) or facts.dtype,
            is_tied=is_tied,
        )
    every, active = _by_formula(inner, facts)
    return msgspec.structs.replace(facts, parameters=every, active_parameters=active)


def _shape(name: str, config: Mapping[str, Any], outer: Mapping[str, Any]) -> ModelFacts:
    hidden = _number(config, "hidden_size", "n_embd", "d_model", "dim")
    heads = _number(config, "num_attention_heads", "n_head", "num_heads", "n_heads")
    size = _number(config, "head_dim") or (hidden // heads if hidden and heads else None)
    architectures = outer.get("architectures") or [""]
    tied = outer.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return ModelFacts(
        name=name,
        architecture=str(architectures[0]),
        dtype=str(outer.get("torch_dtype") or outer.get("dtype") or config.get("dtype") or "").removeprefix("torch."),
        layers=_number(config, "num_hidden_layers", "n_layer", "num_layers", "n_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_number(config, "num_key_value_heads", "num_kv_heads") or heads,
        head_size=size,
        vocabulary=_number(config, "vocab_size"),
        is_tied=tied if isinstance(tied, bool) else None,
        context=_number(config, "max_position_embeddings", "n_positions", "max_sequence_length"),
    )


def _tensors(folder: Path) -> Iterator[tuple[str, tuple[str, list[int], int]]]:
    """Data type, shape and bytes of each tensor, from the headers of the safetensors files. A file that cannot be read has none."""
    for path in sorted(folder.glob("*.safetensors")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, struct.error), path.open("rb") as file:
            for key, about in _header(file).items():
                if key != "__metadata__":
                    start, end = about["data_offsets"]
                    yield key, (str(about["dtype"]), [int(each) for each in about["shape"]], int(end) - int(start))


def _header(file: BinaryIO) -> dict[str, Any]:
    (size,) = struct.unpack("<Q", file.read(8))
    if size > _MOST_HEADER:
        raise ValueError("not a safetensors file")
    found: dict[str, Any] = json.loads(file.read(size))
    return found


def _has_embeddings(tensors: Iterable[str]) -> bool:
    return any("embed_tokens" in key or key.endswith(("wte.weight", "tok_embeddings.weight")) for key in tensors)


def _most_common(tensors: Iterable[tuple[str, list[int], int]]) -> str:
    """The data type of most of the bytes."""
    totals: dict[str, int] = {}
    for dtype, _, size in tensors:
        totals[dtype] = totals.get(dtype, 0) + size
    best = max(totals, key=lambda each: totals[each], default="")
    return _SAFETENSORS.get(best, best.lower())


def _active(counts: Mapping[str, int], config: Mapping[str, Any]) -> int | None:
    """The parameters that a token passes through: of the experts of each layer, only those that are chosen for it."""
    experts = sum(count for key, count in counts.items() if _EXPERTS.search(key))
    total = sum(counts.values())
    if not experts:
        return total
    number, chosen = _experts(config)
    return None if not number or not chosen else total - experts + experts * chosen // number


def _experts(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    return (
        _number(config, "num_local_experts", "num_experts", "n_routed_experts"),
        _number(config, "num_experts_per_tok", "num_experts_per_token", "moe_topk"),
    )


def _by_formula(config: Mapping[str, Any], facts: ModelFacts) -> tuple[int | None, int | None]:
    """All and active parameters from the config, for layers of attention and a gated MLP: the matrices and the norms, without biases."""
    inner = _number(config, "intermediate_size")
    known = (facts.hidden, facts.layers, facts.heads, facts.kv_heads, facts.head_size, facts.vocabulary, inner)
    if config.get("model_type") not in _GATED or None in known or facts.is_tied is None:
        return None, None
    hidden, layers, heads, kv_heads, size, vocabulary, wide = (int(each or 0) for each in known)
    attention = 2 * hidden * heads * size + 2 * hidden * kv_heads * size
    number, chosen = _experts(config)
    rest = layers * (attention + 2 * hidden) + hidden + vocabulary * hidden * (1 if facts.is_tied else 2)
    if not number or not chosen:
        total = rest + layers * 3 * hidden * wide
        return total, total
    wide = _number(config, "moe_intermediate_size") or wide
    if _number(config, "shared_expert_intermediate_size", "n_shared_experts") or config.get("mlp_only_layers"):
        return None, None
    expert, router = 3 * hidden * wide, hidden * number
    return rest + layers * (number * expert + router), rest + layers * (chosen * expert + router)


def _number(config: Mapping[str, Any], *names: str) -> int | None:
    return next((value for name in names if isinstance(value := config.get(name), int) and value > 0), None)


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


# --- GGUF ------------------------------------------------------------------------------------------------------------


def _gguf(name: str, path: Path) -> ModelFacts:
    try:
        metadata, tensors = read_gguf(path)
    except (OSError, ValueError, struct.error):
        return ModelFacts(name=name)
    kind = str(metadata.get("general.architecture", ""))

    def number(key: str) -> int | None:
        value = metadata.get(f"{kind}.{key}")
        return value if isinstance(value, int) and value > 0 else None

    total = sum(math.prod(each.shape) for each in tensors)
    experts = sum(math.prod(each.shape) for each in tensors if "_exps." in each.name)
    count, chosen = number("expert_count"), number("expert_used_count")
    active = total if not experts else total - experts + experts * chosen // count if count and chosen else None
    embeddings = next((each.shape for each in tensors if each.name == "token_embd.weight"), None)
    heads, hidden = number("attention.head_count"), number("embedding_length")
    return ModelFacts(
        name=name,
        architecture=kind,
        parameters=total or None,
        active_parameters=active or None,
        bytes=path.stat().st_size,
        dtype=_gguf_type(metadata),
        layers=number("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("attention.head_count_kv") or heads,
        head_size=number("attention.key_length") or (hidden // heads if hidden and heads else None),
        vocabulary=max(embeddings) if embeddings and len(embeddings) == 2 else None,
        is_tied=None if embeddings is None else not any(each.name == "output.weight" for each in tensors),
        context=number("context_length"),
    )


def _gguf_type(metadata: Mapping[str, Any]) -> str:
    """The data type of the file's weights, as llama.cpp calls it; the plain ones as config.json does."""
    names = {0: "float32", 1: "float16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
             13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 32: "bfloat16"}  # fmt: skip
    value = metadata.get("general.file_type")
    return names.get(value, "") if isinstance(value, int) else ""


# --- the page cache --------------------------------------------------------------------------------------------------


def drop_from_page_cache(model: str | Path) -> bool:
    """Ask the kernel to forget the model's files, so that the next start reads them from disk. False if that cannot be done."""
    path = local_path(str(model))
    if path is None or not hasattr(os, "posix_fadvise"):
        return False
    files = [path] if path.is_file() else [each for each in sorted(path.rglob("*")) if each.is_file()]
    try:
        for each in files:
            with each.open("rb") as file:
                os.fsync(file.fileno())  # pages that are not on disk yet cannot be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return False
    return bool(files)
