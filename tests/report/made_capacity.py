"""Made-up searches for the capacity: of a language model, of a tensor model, and one that shows nothing."""

import msgspec
import synthetic_run as made

from inferometer.analysis.slo import SloResult, Status
from inferometer.capacity_search.result import Capacity, Latency, Probe
from inferometer.capacity_search.search import Bracket

HOSTILE = "</script><script>document.title='owned'</script>"
_VERDICTS: dict[str, Status] = {"holds": "met", "fails": "missed", "undecided": "undecided"}
_PROBES = (
    (8.0, "ramp", "undecided", 0.0, 4.0),
    (27.0, "ramp", "fails", 0.724, 7.0),
    (12.0, "bisect", "holds", 0.0, 11.0),
    (18.0, "bisect", "holds", 0.02, 12.0),
    (22.0, "bisect", "fails", 0.3, 14.0),
    (20.0, "bisect", "undecided", 0.09, 15.0),
    (18.0, "confirm", "holds", 0.02, 30.0),
)


def probe(level: float, purpose: str, status: str, share: float, seconds: float, at: float, slo: str) -> Probe:
    metric = slo.rpartition(": ")[2].partition(".")[0]
    waits = Latency(count=100, mean=0.1, p50=0.08 + share, p90=0.2 + share, p99=0.3 + share, unsupported=("p99",))
    names = ("ttft", "tpot", "e2e") if metric == "ttft" else ("e2e", "queue", "compute")
    result = SloResult(
        slo=slo,
        status=_VERDICTS[status],
        reason=f"{100 * share:.3g}% of 100 requests violate it, 10% may",
        value=0.2 + share,
        limit=0.45,
        violations=share,
        class_=slo.rpartition(": ")[0],
        allowed=0.1,
    )
    return Probe(
        level=level, purpose=purpose, status=status, seconds=seconds, requests=100, throughput=min(level, 20.0),
        mean_e2e=0.4, slos=(result,), overloaded=level > 25, folder=f"probe-{at:.0f}", failed=3 if level > 25 else 0,
        excess=10 * share, output_tokens=32 * level if metric == "ttft" else None,
        inferences=8 * level if metric == "e2e" else None, at=at, violations={slo: share},
        latencies=dict.fromkeys(names, waits),
    )  # type: ignore[arg-type]  # fmt: skip


def text(slo: str = "ttft.p90 < 450ms", **changes: object) -> Capacity:
    """A language model that holds 18 requests per second and fails at 22."""
    probes, at = [], 2.0
    for level, purpose, status, share, seconds in _PROBES:
        probes.append(probe(level, purpose, status, share, seconds, at, slo))
        at += seconds
    found = Capacity(
        by="rate", bracket=Bracket(18.0, 22.0, 20.3, confirmed=True), limited_by=slo.partition(" <")[0], probes=tuple(probes),
        slos=(slo,), presets=("interactive",), percentile="p90", budget=120.0, seconds=at, think=20.0,
        url="http://127.0.0.1:8000", model="my-model", folder="runs/x",
    )  # fmt: skip
    return msgspec.structs.replace(found, **changes)


def tensors(**changes: object) -> Capacity:
    """The same for a tensor model with batches of 8."""
    values: dict[str, object] = {"has_text": False, "batch": 8, "presets": ("inference",), "model": "resnet"}
    return text("e2e.p90 < 100ms", **(values | changes))


def nothing() -> Capacity:
    """A search that was interrupted in its first probe but one, and shows nothing."""
    return text(bracket=Bracket(None, None, None), limited_by=None, probes=text().probes[:1], interrupted=True)


MANIFEST = made.manifest()
