"""Made-up searches for the capacity: of a language model, of a tensor model, and searches that end in other ways."""

import msgspec
import synthetic_run as made

from inferometer.analysis.slo_result import SloResult, Status
from inferometer.capacity_search.result import Capacity, Latency, Probe
from inferometer.capacity_search.trials import Bracket

HOSTILE = "</script><script>document.title='owned'</script>"
_VERDICTS: dict[str, Status] = {"holds": "met", "fails": "missed", "undecided": "undecided"}
_INTERVALS = (
    (5.0, 40.0), (12.0, 40.0), (13.0, 23.0), (13.0, 24.0), (16.0, 24.0), (18.0, 24.0), (18.0, 22.0), (18.0, 22.0), (18.0, 22.0)
)  # fmt: skip
_PROBES = (
    (4.0, "explore", "holds", 0.0, 4.0),
    (16.0, "explore", "holds", 0.0, 4.0),
    (64.0, "explore", "fails", 0.9, 4.0),
    (24.0, "narrow", "fails", 0.724, 7.0),
    (16.0, "narrow", "holds", 0.0, 11.0),
    (18.0, "narrow", "holds", 0.02, 12.0),
    (22.0, "narrow", "fails", 0.3, 14.0),
    (20.0, "narrow", "undecided", 0.09, 15.0),
    (18.0, "confirm", "holds", 0.02, 30.0),
)
_SERVED = {4.0: 10.0, 16.0: 21.0, 64.0: 22.5}
"""Requests per second of each closed loop."""


def probe(level: float, purpose: str, status: str, share: float, seconds: float, at: float, slo: str) -> Probe:
    metric = slo.rpartition(": ")[2].partition(".")[0]
    waits = Latency(count=100, mean=0.1, p50=0.08 + share, p90=0.2 + share, p99=0.3 + share, unsupported=("p99",))
    names = ("ttft", "tpot", "e2e") if metric == "ttft" else ("e2e", "queue", "compute")
    is_loop, is_over = purpose == "explore", level == 24
    served = _SERVED[level] if is_loop else min(level, 21.0)
    result = SloResult(
        slo=slo,
        status="undecided" if is_loop else _VERDICTS[status],
        reason=f"{100 * share:.3g}% of 100 requests violate it, 10% may",
        value=None if is_over else 0.2 + share,
        limit=0.45,
        violations=None if is_over else share,
        class_=slo.rpartition(": ")[0],
        allowed=0.1,
    )
    return Probe(
        level=level, purpose=purpose, status=status, is_sure=not is_loop and status != "undecided", seconds=seconds, requests=100,
        throughput=served, mean_e2e=0.4, slos=(result,), overloaded=is_over, folder=f"probe-{at:.0f}", failed=3 if is_over else 0,
        excess=10 * share, output_tokens=32 * served if metric == "ttft" else None,
        inferences=8 * served if metric == "e2e" else None, at=at, violations={slo: share},
        latencies=dict.fromkeys(names, waits),
    )  # type: ignore[arg-type]  # fmt: skip


def text(slo: str = "ttft.p90 < 450ms", **changes: object) -> Capacity:
    """A language model that holds 18 requests per second and fails at 22."""
    probes, at = [], 2.0
    for (level, purpose, status, share, seconds), (low, high) in zip(_PROBES, _INTERVALS, strict=True):
        one = probe(level, purpose, status, share, seconds, at, slo)
        probes.append(msgspec.structs.replace(one, low=low, high=high))
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


def likely() -> Capacity:
    """A search whose lower end is only likely."""
    probes = tuple(
        msgspec.structs.replace(one, is_sure=False) if one.level == 18 and one.purpose == "narrow" else one
        for one in text().probes[:-1]
    )
    return text(bracket=Bracket(18.0, 22.0, 20.3, low_basis="likely"), probes=probes)


def estimated() -> Capacity:
    """A search that was interrupted after its closed loops."""
    ends = Bracket(13.0, 23.0, 19.0, low_basis="estimated", high_basis="estimated")
    return text(bracket=ends, probes=text().probes[:3], interrupted=True)


def unlimited() -> Capacity:
    """A server that nothing limits: no level failed."""
    held = tuple(one for one in text().probes if one.status == "holds")
    return text(bracket=Bracket(18.0, 90.0, 40.0, high_basis="estimated"), limited_by=None, probes=held)


def too_slow(slo: str = "ttft.p90 < 50ms") -> Capacity:
    """A server that violates the objective with one request at a time."""
    loop = text(slo).probes[2]
    result = msgspec.structs.replace(loop.slos[0], value=0.07)
    alone = msgspec.structs.replace(loop, level=1.0, slos=(result,))
    return text(slo, bracket=Bracket(None, 2.8, None), probes=(loop, alone))


def nothing() -> Capacity:
    """A search that was interrupted before anything was known."""
    probe = msgspec.structs.replace(text().probes[0], throughput=None, low=None, high=None)
    return text(bracket=Bracket(None, None, None), limited_by=None, probes=(probe,), interrupted=True)


MANIFEST = made.manifest()
