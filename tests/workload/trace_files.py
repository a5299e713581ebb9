"""Trace files of our own in the formats of others: the data section that runs the first rows of each, or the error that it gives.

`load` is the load section; without it, the trace's own arrivals. `others` are the files in ../shared/data/traces of the same format.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from shared_data import SHARED

TRACES = Path(__file__).parent / "traces"
OTHERS = SHARED / "data" / "traces"
ROWS = 200

CLOSED: dict[str, Any] = {"type": "closed", "concurrency": 4, "requests": 20, "ramp_up": 0}


class Case(NamedTuple):
    data: Mapping[str, Any] = MappingProxyType({})
    load: Mapping[str, Any] = MappingProxyType({"type": "trace"})
    error: str = ""
    others: tuple[str, ...] = ()


def graph(*others: str) -> Case:
    return Case(error="agentic graphs are not supported yet", others=others)


FILES: dict[str, Case] = {
    "azure.csv": Case({"speed": 200}, others=("AzureLLMInferenceTrace_code.csv", "AzureLLMInferenceTrace_conv.csv", "inference_perf_trace.csv")),
    "azure_with_zone.csv": Case(others=("azure_llm_2024_code_1week_head1.csv",)),
    "burstgpt.csv": Case({"speed": 40_000}, others=("burstgpt_1_first150.csv",)),
    "burstgpt_sessions.csv": Case({"speed": 40_000}, others=("burstgpt_3_first100.csv",)),
    "inference_perf.jsonl": Case(load=CLOSED, others=("inference_perf_trace.jsonl",)),
    "mooncake.jsonl": Case({"speed": 100}, others=("mooncake_arxiv_trace_first1000.jsonl", "mooncake_conversation_trace.jsonl", "mooncake_synthetic_trace.jsonl")),
    "vidur.csv": Case({"speed": 100}, others=("vidur_splitwise_conv_first3000.csv",)),
    "vidur_lengths.csv": Case(load=CLOSED, others=("vidur_arxiv_summarization_first3000.csv",)),
    "tracelab_sessions.csv": Case({"speed": 100}, others=("tracelab_multi_session_large.csv",)),
    "tracelab_workload.csv": Case({"speed": 1000}, CLOSED | {"requests": 1}, others=("tracelab_session_workload_example.csv",)),
    "dynamo_sessions.jsonl": Case({"speed": 1000}, CLOSED | {"requests": 16}, others=("dynamo_nat_agent_sessions.jsonl",)),
    "mooncake_sessions.jsonl": Case({"speed": 1000}, others=("aiperf/mooncake_multi_turn_2_sessions.jsonl",)),
    "bailian.jsonl": Case({"speed": 1000, "sort": True}, others=("aiperf/bailian_documented_rows.jsonl",)),
    "dynamo_requests.jsonl.gz": graph("dynamo_pi_request_trace.jsonl.gz"),
    "tracelab_rounds.jsonl": graph("tracelab_round_trace_sanitized.jsonl"),
    "weka_subagent.json": graph("aiperf/weka_one_subagent.json"),
    "weka.json": graph(*(f"weka_agentic/trace_{number}.json" for number in ("0504", "0242", "0057", "0297", "0332", "0291"))),
    "orchestrator.dag.jsonl": graph("aiperf/orchestrator.dag.jsonl"),
    "mixed.dag.jsonl": graph("aiperf/mixed_full.dag.jsonl"),
}  # fmt: skip
