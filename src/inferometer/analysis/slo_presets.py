"""Presets: names for the objectives of common services, usable wherever an objective is. docs/reference/slo.md has their sources."""

import msgspec

PERCENTILE = "p99"
"""The percentile at which presets are judged, unless a command says otherwise (`capacity` has a short budget and judges p90)."""


class Preset(msgspec.Struct, frozen=True):
    limits: tuple[tuple[str, str], ...]
    """Metrics and the limits that this share of the requests must keep."""
    about: str
    source: str

    def expressions(self, percentile: str = PERCENTILE) -> list[str]:
        return [f"{metric}.{percentile} < {limit}" for metric, limit in self.limits]


PRESETS = {
    "chat": Preset(
        (("ttft", "2s"), ("tpot", "100ms")),
        "a person reads the response while it is generated",
        "MLPerf Inference (mlperf.conf), Llama 3.1 8B, Server scenario",
    ),
    "interactive": Preset(
        (("ttft", "450ms"), ("tpot", "40ms")),
        "a conversation without noticeable waiting",
        "MLPerf Inference (mlperf.conf), Llama 2 70B Interactive, Server scenario",
    ),
    "code": Preset(
        (("ttft", "125ms"), ("tpot", "200ms")),
        "completions that appear while a person types",
        "DistServe (Zhong et al., OSDI 2024), code completion",
    ),
    "summarize": Preset(
        (("ttft", "15s"), ("tpot", "150ms")),
        "long documents, for which people expect to wait",
        "DistServe (Zhong et al., OSDI 2024), summarization",
    ),
    "inference": Preset(
        (("e2e", "100ms"),),
        "a tensor model inside of an application that responds at once",
        "MLPerf Inference (mlperf.conf), RetinaNet, Server scenario; Nielsen (1993): 0.1 s feels instantaneous",
    ),
}
"""None of them limits the failure rate: a failed request violates every limit on its latency."""
