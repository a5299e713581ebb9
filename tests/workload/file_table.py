"""Workload files of our own in the formats of others: the config that runs the first rows of each, or the error that it gives.

Traces and tensors have tables of their own. `others` are the files in ../shared/data of the same format.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from shared_data import SHARED

OWN = Path(__file__).parent / "files"
OTHERS = SHARED / "data"


class Runs(NamedTuple):
    """It runs."""

    type: str
    more: Mapping[str, Any] = MappingProxyType({})
    """Further keys of the data section."""
    api: str = "chat"
    skipped: int = 0
    """Rows that are broken."""


class Fails(NamedTuple):
    """It cannot be used as it is."""

    type: str
    error: str
    more: Mapping[str, Any] = MappingProxyType({})


class Case(NamedTuple):
    file: str
    expected: Runs | Fails
    others: tuple[str, ...] = ()


NO_PROMPT = "it has no prompt, messages, conversations or turns"
NO_MEDIA = "which cannot be sent"


def conversations(*names: str) -> tuple[str, ...]:
    return tuple(f"conversations/{name}" for name in names)


FILES = (
    Case("agentic.jsonl", Runs("jsonl", {"think": 0, "rows": 2}), conversations("agentic_coding_mlcommons.jsonl")),
    Case("aibrix.jsonl", Runs("jsonl"), conversations("aibrix_workload_10.jsonl")),
    Case("alpaca.csv", Runs("csv"), conversations("alpaca_en_100.csv")),
    Case("alpaca.json", Runs("jsonl"), conversations("alpaca_en_100.json")),
    Case("alpaca.jsonl", Runs("jsonl"), conversations("alpaca_en_100.jsonl")),
    Case("alpaca.parquet", Runs("parquet"), conversations("alpaca_en_100.parquet")),
    Case("texts.jsonl", Runs("jsonl", {}, "completions"), conversations("c4_text_60.jsonl")),
    Case("articles.jsonl", Runs("jsonl"), conversations("cnn_dailymail_40.jsonl")),
    Case("documents.jsonl", Runs("jsonl"), conversations("xsum_10.jsonl")),
    Case("pairs.csv", Runs("csv", {"columns": {"prompt": "sentence1", "response": "sentence2"}}), conversations("mrpc_dev.csv")),
    Case("pairs.tsv", Runs("csv", {"template": "Are these the same?\n{#1 String}\n{#2 String}"}), conversations("mrpc_dev.tsv")),
    Case("turns.jsonl", Runs("jsonl"), conversations("mt_bench_question.jsonl", "vicuna_bench_question.jsonl")),
    Case("openai_batch.jsonl", Runs("openai-batch"), conversations("openai_batch_input_vllm.jsonl")),
    Case("tools.jsonl", Runs("jsonl"), conversations("openai_chat_tools_bfcl_60.jsonl", "openai_chat_tools_drone_20.jsonl")),
    Case("chat.jsonl", Runs("jsonl", skipped=1), conversations("openai_chat_toy.jsonl")),
    Case("embeddings.jsonl", Runs("jsonl", {}, "embeddings"), conversations("openai_embeddings_requests_500.jsonl")),
    Case("sharegpt.json", Runs("sharegpt"), conversations("sharegpt_v3_50.json")),
    Case("sharegpt.json", Runs("sharegpt", {}, "completions"), conversations("sharegpt_tiny_inference_perf.json")),
    Case("sharegpt.json", Runs("sharegpt", {"turns": "all"}), conversations("sharegpt_fastchat_dummy.json")),
    Case("sharegpt.json", Runs("sharegpt", {"turns": "all", "history": "recorded"}), conversations("sharegpt_v3_head3.json")),
    Case("sharegpt.parquet", Runs("sharegpt"), conversations("sharegpt_v3_50.parquet")),
    Case("sharegpt_tools.json", Runs("sharegpt", {"turns": "all"}), conversations("sharegpt_toolcall_glaive_100.json")),
    Case("squad.json", Runs("jsonl"), conversations("squad_sample.json")),
    Case("squad_arrow", Runs("parquet"), conversations("squad_pruned_arrow")),
    Case("generator_settings.json", Fails("jsonl", f"{NO_PROMPT} .*filetype"), conversations("vllm_multi_turn_synthetic.json")),
    Case("output_schema.json", Fails("jsonl", f"{NO_PROMPT} .*properties"), conversations("vllm_structured_schema_1.json")),
    Case("prose.txt.gz", Runs("jsonl"), ("text/pride_and_prejudice.txt.gz",)),
    Case("lines.txt", Runs("jsonl"), ("text/sonnet.txt", "text/tinyshakespeare_first400k.txt", "text/vllm_prompts_example.txt")),
    Case("one_line.txt", Runs("jsonl"), ("text/vllm_prompts_summary.txt",)),
    Case("spans.json", Fails("jsonl", f"{NO_PROMPT} .*spans"), ("otel/simple_chain.json", "otel/exgentic_tau2_retail_claude_code.json")),
    Case("aiperf_images.jsonl", Fails("jsonl", f"a column 'images', {NO_MEDIA}"), ("multimodal/aiperf_single_turn_images.jsonl",)),
    Case("image_questions.jsonl", Runs("jsonl", {"columns": {"prompt": "text"}}), ("multimodal/llava_bench_questions.jsonl",)),
    Case("image_marks.json", Fails("jsonl", f"none of its \\d+ rows .*entry 1: it has a column 'images', {NO_MEDIA}"), ("multimodal/mllm_demo.json",)),
    Case("image_parts_by_value.jsonl", Fails("jsonl", "is of type image_url, but has no image_url"), ("multimodal/mllm_openai_parts_demo.jsonl",)),
    Case("image_parts.jsonl", Runs("jsonl"), ("multimodal/vqa_openai_messages.jsonl",)),
    Case("payloads.json", Runs("openai-batch"), ("perf_analyzer/input_data/doc_openai_payload.json",)),
    Case("payloads_with_a_comma_too_many.txt", Fails("openai-batch", r"line \d+: not JSON"), ("perf_analyzer/input_data/doc_openai_payload_multi_NOT_JSON.txt",)),
)  # fmt: skip
