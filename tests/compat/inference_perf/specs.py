"""Effective configs of inference-perf for tests: a few keys, and the defaults of the others."""

from typing import Any

DEFAULTS: dict[str, Any] = {
    "compat": "right",
    "api": {"type": "completion", "streaming": False, "headers": None, "response_format": None, "session_id_header_key": None},
    "data": {"type": "mock", "path": None, "input_distribution": None, "output_distribution": None, "trace": None},
    "load": {
        "type": "constant", "interval": 1.0, "stages": [], "sweep": None, "num_workers": None, "worker_max_concurrency": 100,
        "worker_max_tcp_connections": 2500, "trace": None, "circuit_breakers": [], "request_timeout": None, "request_retries": 0,
        "lora_traffic_split": None, "base_seed": None,
    },
    "metrics": None,
    "report": {"request_lifecycle": {"per_request": False}},
    "server": {"type": "vllm", "model_name": "m", "base_url": "http://127.0.0.1:8000", "ignore_eos": True, "api_key": None},
    "tokenizer": {"pretrained_model_name_or_path": "builtin", "trust_remote_code": False, "token": None},
    "circuit_breakers": None,
}  # fmt: skip

STAGES = [{"rate": 1, "duration": 30}]


def spec(**sections: Any) -> dict[str, Any]:
    """An effective config: the defaults, with sections merged into them."""
    load = {"stages": STAGES} | sections.pop("load", {})
    return merged(DEFAULTS, sections | {"load": load})


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for name, value in above.items():
        under = below.get(name)
        both[name] = merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return both
