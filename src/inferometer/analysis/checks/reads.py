"""Did chunks come together because the client read them late, or because the server or the network merged them?"""

import numpy as np

from inferometer.analysis.checks.effect import (
    Effect,
    checked,
    compare_doubtful,
    judge_effects,
    percentiles_replacing,
    successful,
    values_of,
)
from inferometer.analysis.checks.evidence import Check, Evidence, StageEvidence
from inferometer.analysis.client_samples import STALL
from inferometer.analysis.merges import ONE_PIECE, Merges
from inferometer.analysis.percentiles import Values
from inferometer.units import NS

BUFFER = 65_536
"""Bytes that a socket holds at least. The server cannot send more until the client reads."""
NAGLE = (38_000_000, 48_000_000)
"""Nanoseconds between which a delayed acknowledgement comes: after 40 ms and up to a timer tick of the kernel (1 to 4 ms)."""

_SEVERAL = "Check whether the server, or a proxy before it, sends several chunks at once."
_NOT_STREAMED = (
    "This endpoint does not stream: responses come in one piece, so ttft is the time of the whole response. Check whether the server "
    "writes them at once, or a proxy before it buffers them."
)
_READ_EARLIER = "Use more client.processes or another machine, or lower the load."


def read_delay(evidence: Evidence) -> Check | None:
    """Check what late reads may have changed although the kernel takes the timestamps.

    Chunks that wait in a socket together get one timestamp, that of the latest (merges.py). And a server that fills the socket
    has to wait until the client reads, so that the end of a large response comes late.
    """
    if evidence.stamps != "kernel" or not len(evidence.run.records.rows):
        return None
    suspects = sum(map(_zeros, evidence.merges.gaps.values()))
    total = len(evidence.gaps.values)
    effects: list[Effect] = []
    held_up = 0
    for stage in evidence.stages:
        effects += _merged_gaps(stage, evidence.merges)
        effects += _merged_first_chunks(evidence, stage)
        held, count = _held_up(evidence, stage)
        effects += held
        held_up += count
    if not total and not held_up:
        return None
    merged = f"{suspects:,} of {total:,} gaps may be between chunks that the client merged by reading late"
    cause = merged
    if not suspects and held_up:
        cause = f"{held_up:,} large responses waited until the client read them"
    changed = judge_effects("read_delay", effects, evidence.limits, cause, _READ_EARLIER, is_lateness=True)
    if changed is not None:
        return changed
    return Check(
        "read_delay", "pass", max((e.share for e in effects), default=0.0), evidence.limits.effect_pass, merged
    )


def _merged_gaps(stage: StageEvidence, merges: Merges) -> list[Effect]:
    suspects = merges.gaps.get(stage.stage)
    if suspects is None:
        return []
    values = checked(stage.metrics["itl"])
    without = percentiles_replacing(stage.gaps, suspects, merges.likely[stage.stage], values)
    return [Effect(values[name], corrected, name, "itl", stage) for name, corrected in without.items()]


def _merged_first_chunks(evidence: Evidence, stage: StageEvidence) -> list[Effect]:
    """A first chunk that has the timestamp of the second makes the time to first token too long, and tpot too short."""
    merges = evidence.merges
    if not stage.steady[merges.first].any():
        return []
    error = np.zeros(len(stage.steady))
    error[merges.first] = merges.first_by / NS
    rows = successful(evidence, stage)
    error = error[stage.steady & (evidence.run.records.rows["failure"] == 0)]
    effects: list[Effect] = []
    for metric in ("ttft", "ttft_service"):
        if (values := values_of(metric, rows)) is not None:
            effects += compare_doubtful(stage, metric, values, error, (-1,))
    if (values := values_of("tpot", rows)) is not None:
        effects += compare_doubtful(stage, "tpot", values, error / np.maximum(rows["n_out"] - 1, 1), (1,))
    return effects


def _held_up(evidence: Evidence, stage: StageEvidence) -> tuple[list[Effect], int]:
    """Effects of responses that are larger than the socket's buffer and waited to be read, and how many these are."""
    rows = successful(evidence, stage)
    waited = (rows["bytes_in"] > BUFFER) & (rows["read_delay"] >= STALL)
    count = int(np.count_nonzero(waited))
    if not count:
        return [], 0
    error = np.where(waited, rows["read_delay"], 0) / NS
    effects: list[Effect] = []
    for metric in ("e2e", "e2e_service"):
        if (values := values_of(metric, rows)) is not None:
            effects += compare_doubtful(stage, metric, values, error, (-1,))
    return effects, count


def merged_chunks(evidence: Evidence) -> Check | None:
    """Report chunks that came together although the client read in time: the server or the network merged them."""
    if evidence.stamps != "kernel":
        return None
    limit = evidence.limits.merged
    results = []
    for stage in evidence.stages:
        if len(stage.gaps):
            ours = _zeros(evidence.merges.gaps.get(stage.stage, stage.gaps[:0]))
            results.append(((evidence.gaps.zeros.get(stage.stage, 0) - ours) / len(stage.gaps), stage))
    if not results:
        return None
    nagle = {stage.stage: words for _, stage in results if (words := _nagle(evidence, stage))}
    share, stage = max(results, key=lambda result: (result[1].stage in nagle, result[0]))
    together = f"{share:.0%} of the chunks{stage.label} came together with the chunk before"
    stages = tuple(found.stage for other, found in results if other > limit or found.stage in nagle)
    if not stages:
        return Check("merged_chunks", "pass", share, limit, together)
    cause = f"{together}. The server or the network merged them, not the client, and itl is that of the chunks as they arrived."
    remedy = nagle.get(stage.stage) or (_NOT_STREAMED if share >= ONE_PIECE else _SEVERAL)
    return Check("merged_chunks", "warn", share, limit, f"{cause} {remedy}", ("latency",), stages)


def _zeros(gaps: Values) -> int:
    return len(gaps) - int(np.count_nonzero(gaps))


def _nagle(evidence: Evidence, stage: StageEvidence) -> str | None:
    """Recognise Nagle's algorithm: a small write waits until the client's delayed acknowledgement of the one before comes.

    The client delays its acknowledgements for some 40 ms, mostly that of the headers: then the first chunk comes 40 ms after
    them, together with others. If it is that of chunks, the gaps between those that come together are 40 ms.
    """
    rows = evidence.run.records.rows
    first = rows[evidence.gaps.first_zero[stage.steady[evidence.gaps.first_zero]]]
    held = _near_40_ms(first["first_token"] - first["first_byte"]) / max(stage.metrics["ttft"].count, 1)
    zeros = evidence.gaps.zeros.get(stage.stage, 0)
    waits = _near_40_ms(stage.gaps) / max(len(stage.gaps) - zeros, 1) if zeros else 0.0
    if max(held, waits) < 0.5:
        return None
    where = f"In {held:.0%} of the responses, the first chunk came some 40 ms after the headers, which is part of ttft"
    if waits > held:
        where = f"{waits:.0%} of the other gaps are some 40 ms"
    return f"{where}: this looks like Nagle's algorithm with delayed acknowledgements. Set TCP_NODELAY on the server's sockets."


def _near_40_ms(times: Values) -> int:
    return int(np.count_nonzero((times >= NAGLE[0]) & (times <= NAGLE[1])))
