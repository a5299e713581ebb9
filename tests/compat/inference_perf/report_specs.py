"""Effective configs of inference-perf for tests of its reports."""

from typing import Any

PERCENTILES = [0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9]


def spec(**sections: dict[str, Any] | str | None) -> dict[str, Any]:
    """An effective config of a streamed run with one stage; `sections` change keys of its sections."""
    made: dict[str, Any] = {
        "api": {
            "type": "completion",
            "streaming": True,
            "headers": None,
            "slo_unit": "ms",
            "slo_ttft_header": None,
            "slo_tpot_header": None,
        },
        "data": {"type": "mock"},
        "load": {
            "type": "constant",
            "stages": [{"rate": 100.0, "duration": 6}],
            "request_retries": 0,
            "lora_traffic_split": None,
        },
        "metrics": None,
        "report": {
            "request_lifecycle": {
                "summary": True,
                "per_stage": True,
                "per_request": False,
                "per_adapter": True,
                "per_adapter_stage": False,
                "percentiles": PERCENTILES,
                "use_server_output_tokens": False,
                "max_error_messages": 100,
                "per_request_fields": {
                    "request": True,
                    "response": True,
                    "info": True,
                    "response_chunks": True,
                    "computed_metrics": False,
                },
            },
            "prometheus": {"summary": True, "per_stage": False},
            "goodput": None,
        },
        "storage": {"local_storage": {"path": "reports", "report_file_prefix": None}},
        "server": {"type": "vllm", "model_name": None, "base_url": "http://127.0.0.1:8000", "api_key": None},
        "tokenizer": None,
        "circuit_breakers": None,
        "compat": "right",
    }
    for name, changes in sections.items():
        made[name] = _changed(made[name], changes)
    return made


def _changed(before: Any, changes: Any) -> Any:
    if not (isinstance(before, dict) and isinstance(changes, dict)):
        return changes
    return before | {key: _changed(before.get(key), value) for key, value in changes.items()}
