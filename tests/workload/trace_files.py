"""The trace files in shared/data/traces: the data section that runs the first rows of each, or the error that it gives.

`load` is the load section; without it, the trace's own arrivals.
"""

from pathlib import Path
from typing import Any

TRACES = Path(__file__).parents[2].parent / "shared/data/traces"
"""Not part of the repository: tests that need it are skipped without it."""
ROWS = 200

CLOSED: dict[str, Any] = {"type": "closed", "concurrency": 4, "requests": 20, "ramp_up": 0}
GRAPH = "agentic graphs are not supported yet"

FILES: dict[str, dict[str, Any] | str] = {
    "AzureLLMInferenceTrace_code.csv": {"data": {"speed": 200}},
    "AzureLLMInferenceTrace_conv.csv": {"data": {"speed": 100}},
    "azure_llm_2024_code_1week_head1.csv": {"data": {}},
    "burstgpt_1_first150.csv": {"data": {"speed": 40_000}},
    "burstgpt_3_first100.csv": {"data": {"speed": 40_000}},
    "inference_perf_trace.csv": {"data": {"speed": 20}},
    "inference_perf_trace.jsonl": {"data": {}, "load": CLOSED},
    "mooncake_arxiv_trace_first1000.jsonl": {"data": {"speed": 100}},
    "mooncake_conversation_trace.jsonl": {"data": {"speed": 100}},
    "mooncake_synthetic_trace.jsonl": {"data": {"speed": 100}},
    "vidur_splitwise_conv_first3000.csv": {"data": {"speed": 100}},
    "vidur_arxiv_summarization_first3000.csv": {"data": {}, "load": CLOSED},
    "tracelab_multi_session_large.csv": {"data": {"speed": 100}},
    "tracelab_session_workload_example.csv": {"data": {"speed": 1000}, "load": CLOSED | {"requests": 1}},
    "dynamo_nat_agent_sessions.jsonl": {"data": {"speed": 1000}, "load": CLOSED | {"requests": 16}},
    "aiperf/mooncake_multi_turn_2_sessions.jsonl": {"data": {"speed": 1000}},
    "aiperf/bailian_documented_rows.jsonl": {"data": {"speed": 1000, "sort": True}},
    "dynamo_pi_request_trace.jsonl.gz": GRAPH,
    "tracelab_round_trace_sanitized.jsonl": GRAPH,
    "aiperf/weka_one_subagent.json": GRAPH,
    "aiperf/orchestrator.dag.jsonl": GRAPH,
    "aiperf/mixed_full.dag.jsonl": GRAPH,
    **{f"weka_agentic/trace_{number}.json": GRAPH for number in ("0504", "0242", "0057", "0297", "0332", "0291")},
}
