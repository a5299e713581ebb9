"""The workload files in shared/data, except traces: the config that runs the first rows of each, or the error that it gives.

(The traces have a table of their own.)
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

DATA = Path(__file__).parents[2].parent / "shared/data"
"""Not part of the repository: tests that need it are skipped without it."""
FOLDERS = ("conversations", "text", "otel", "multimodal", "perf_analyzer")


class Runs(NamedTuple):
    """It runs."""

    type: str
    more: Mapping[str, Any] = MappingProxyType({})
    """Further keys of the data section."""
    api: str = "chat"
    skipped: int = 0
    """Rows that are broken."""
    refused: str = ""
    """Why the simulator refuses the requests."""


class Fails(NamedTuple):
    """It cannot be used as it is."""

    type: str
    error: str
    more: Mapping[str, Any] = MappingProxyType({})


class Other(NamedTuple):
    """It is no workload for text models."""

    what: str


TENSORS = Other("tensors for KServe v2 models")
NO_PROMPT = "it has no prompt, messages, conversations or turns"
NO_MEDIA = "which cannot be sent"

FILES: dict[str, Runs | Fails | Other] = {
    "conversations/agentic_coding_mlcommons.jsonl": Runs("jsonl", {"think": 0, "rows": 2}),
    "conversations/aibrix_workload_10.jsonl": Runs("jsonl"),
    "conversations/alpaca_en_100.csv": Runs("csv"),
    "conversations/alpaca_en_100.json": Runs("jsonl"),
    "conversations/alpaca_en_100.jsonl": Runs("jsonl"),
    "conversations/alpaca_en_100.parquet": Runs("parquet"),
    "conversations/c4_text_60.jsonl": Runs("jsonl", {}, "completions"),
    "conversations/cnn_dailymail_40.jsonl": Runs("jsonl"),
    "conversations/mrpc_dev.csv": Runs("csv", {"columns": {"prompt": "sentence1", "response": "sentence2"}}),
    "conversations/mrpc_dev.tsv": Runs("csv", {"template": "Are these the same?\n{#1 String}\n{#2 String}"}),
    "conversations/mt_bench_question.jsonl": Runs("jsonl"),
    "conversations/openai_batch_input_vllm.jsonl": Runs("openai-batch"),
    "conversations/openai_chat_tools_bfcl_60.jsonl": Runs("jsonl"),
    "conversations/openai_chat_tools_drone_20.jsonl": Runs("jsonl"),
    "conversations/openai_chat_toy.jsonl": Runs("jsonl", skipped=1),
    "conversations/openai_embeddings_requests_500.jsonl": Runs("jsonl", {}, "embeddings"),
    "conversations/sharegpt_fastchat_dummy.json": Runs("sharegpt", {"turns": "all"}),
    "conversations/sharegpt_tiny_inference_perf.json": Runs("sharegpt", {}, "completions"),
    "conversations/sharegpt_toolcall_glaive_100.json": Runs("sharegpt", {"turns": "all"}),
    "conversations/sharegpt_v3_50.json": Runs("sharegpt"),
    "conversations/sharegpt_v3_50.parquet": Runs("sharegpt"),
    "conversations/sharegpt_v3_head3.json": Runs("sharegpt", {"turns": "all", "history": "recorded"}),
    "conversations/squad_pruned_arrow": Runs("parquet"),
    "conversations/squad_sample.json": Runs("jsonl"),
    "conversations/vicuna_bench_question.jsonl": Runs("jsonl"),
    "conversations/vllm_multi_turn_synthetic.json": Fails("jsonl", f"{NO_PROMPT} .*filetype"),
    "conversations/vllm_structured_schema_1.json": Fails("jsonl", f"{NO_PROMPT} .*properties"),
    "conversations/xsum_10.jsonl": Runs("jsonl"),
    "text/pride_and_prejudice.txt.gz": Runs("jsonl"),
    "text/sonnet.txt": Runs("jsonl"),
    "text/tinyshakespeare_first400k.txt": Runs("jsonl"),
    "text/vllm_prompts_example.txt": Runs("jsonl"),
    "text/vllm_prompts_summary.txt": Runs("jsonl"),
    **{
        f"otel/{name}.json": Fails("jsonl", f"{NO_PROMPT} .*spans")
        for name in (
            "code_review_workflow", "customer_support_escalation", "exgentic_tau2_retail_claude_code", "fan_in_dependencies",
            "multi_agent_research", "parallel_requests", "prefix_sharing_example", "simple_chain", "simple_chain_alt",
            "software_architecture_review",
        )
    },
    "multimodal/aiperf_single_turn_images.jsonl": Fails("jsonl", f"a column 'images', {NO_MEDIA}"),
    "multimodal/audio": Other("audio"),
    "multimodal/images": Other("images: data.type images"),
    "multimodal/llava_bench_questions.jsonl": Runs("jsonl", {"columns": {"prompt": "text"}}),
    "multimodal/mllm_demo.json": Fails("jsonl", f"none of its 6 rows .*entry 1: it has a column 'images', {NO_MEDIA}"),
    "multimodal/mllm_openai_parts_demo.jsonl": Fails("jsonl", "is of type image_url, but has no image_url"),
    "multimodal/vqa_openai_messages.jsonl": Runs("jsonl", refused="content part type 'image_url' is not supported"),
    "perf_analyzer/config_pbtxt": Other("configurations of models"),
    "perf_analyzer/input_data/doc_openai_payload.json": Runs("openai-batch"),
    "perf_analyzer/input_data/doc_openai_payload_multi_NOT_JSON.txt": Fails("openai-batch", "line 1: not JSON"),
    **{
        f"perf_analyzer/input_data/{name}.json": TENSORS
        for name in (
            "doc_b64", "doc_content_and_shape", "doc_content_b64_shape", "doc_sequences", "doc_tensors_flat", "doc_validation_data",
            "float_data_with_shape", "int_data", "int_data_diff_shape", "int_data_optional", "non_aligned_output", "output",
            "repeat_int32_data", "seq_data", "seq_output", "shape_tensor_data", "string_data", "string_data_with_shape", "wrong_output",
        )
    },
}  # fmt: skip
