"""Do the numbers mean what they seem to? These checks only warn: the measurement is valid, but needs care in its interpretation."""

import math
from collections.abc import Iterable

import numpy as np

from inferometer.analysis import exact
from inferometer.analysis.checks.evidence import Check, Evidence, StageEvidence
from inferometer.analysis.percentiles import PERCENTILES, Unsupported, needed
from inferometer.analysis.settings import api, has_new_prompts, number, receives_text, sends_text, text
from inferometer.analysis.slo_result import SloResult, projected
from inferometer.records import COUNTED_BY, MISSING, Manifest
from inferometer.units import format_seconds

QUOTED = ("ttft", "itl", "e2e")
"""Latencies whose p99 should be supported."""

SHORT = 0.01
"""Share of responses that may be shorter or longer than requested before there is a warning."""


def token_source(evidence: Evidence) -> Check | None:
    if not receives_text(evidence.run.manifest):
        return None
    rows = evidence.run.records.rows
    sources = rows["counted_by"][evidence.steady & (rows["failure"] == 0)]
    if not len(sources):
        return None
    unknown = sources == COUNTED_BY.index("nobody")
    share = float(np.count_nonzero(unknown) / len(unknown))
    if share:
        bad = (
            f"The number of tokens is not known for {share:.0%} of the responses, so figures per token leave them out, token rates "
            f"are missing, and gaps are those between chunks. {_remedy(evidence.run.manifest)}"
        )
        return Check("token_source", "warn", share, 0.0, bad)
    by_chunks = float(np.count_nonzero(sources == COUNTED_BY.index("chunks")) / len(sources))
    if by_chunks:
        bad = (
            f"Neither side counted the tokens of {by_chunks:.0%} of the responses: their number of chunks stands in, which is too low if a "
            f"chunk has several tokens. Figures per token leave them out, and gaps are those between chunks. {_remedy(evidence.run.manifest)}"
        )
        return Check("token_source", "warn", by_chunks, 0.0, bad)
    by_client = float(np.count_nonzero(sources == COUNTED_BY.index("tokenizer")) / len(sources))
    good = (
        f"data.tokenizer counted the output tokens of {by_client:.0%} of the responses"
        if by_client
        else "the server counted the output tokens"
    )
    return Check("token_source", "pass", 0.0, 0.0, good)


def _remedy(manifest: Manifest) -> str:
    """Say how the output tokens can be counted."""
    tokenizer = "data.tokenizer to the folder of the model's tokenizer.json"
    if not api(manifest).reports_usage or text(manifest, "server", "usage") is not False:
        return f"The server did not report them: set {tokenizer}."
    return f"Request them from the server (server.usage), or set {tokenizer}."


def answers(evidence: Evidence) -> Check | None:
    rows = evidence.run.records.rows
    is_known = (rows["n_out"] >= 0) & (rows["counted_by"] != COUNTED_BY.index("chunks"))
    counted = rows[evidence.steady & (rows["failure"] == 0) & is_known & (rows["n_want"] > 0)]
    if not len(counted):
        return None
    share = float(np.count_nonzero(counted["n_out"] < counted["n_want"]) / len(counted))
    longer = float(np.count_nonzero(counted["n_out"] > counted["n_want"]) / len(counted))
    requested, received = exact.mean(counted["n_want"]), exact.mean(counted["n_out"])
    by_client = (counted["counted_by"] == COUNTED_BY.index("tokenizer")).any()
    unless = ", unless the client's tokenizer counts differently from the model's (data.tokenizer)" if by_client else ""
    average = f"{received:.5g} tokens on average instead of {requested:.5g}"
    if longer > SHORT:
        bad = f"{longer:.0%} of the responses are longer than requested: {average}. Check whether the server supports server.max_tokens_field{unless}."
        return Check("answers", "warn", longer, SHORT, bad)
    if share <= SHORT:
        good = f"{received:.5g} of {requested:.5g} requested tokens on average"
        return Check("answers", "pass", share, SHORT, good)
    bad = f"{share:.0%} of the responses are shorter than requested: {average}. Set server.ignore_eos if the server supports it{unless}."
    return Check("answers", "warn", share, SHORT, bad)


def prompts(evidence: Evidence) -> Check | None:
    if not sends_text(evidence.run.manifest):
        return None
    distinct = number(evidence.run.manifest.workload, "distinct")
    rows = evidence.run.records.rows
    sent = int(np.count_nonzero((rows["sent"] != MISSING) & (rows["turn"] <= 0)))  # later turns repeat the turns before
    if distinct is None or not sent:
        return None
    if distinct >= sent:
        return Check("prompts", "pass", distinct, sent, "no prompt was sent twice")
    plural = "s" if distinct > 1 else ""
    bad = f"{sent:,} requests used only {distinct:,} different prompt{plural}: a prefix cache may flatter the server. Use more prompts, or turn off the server's prefix cache."
    return Check("prompts", "warn", distinct, sent, bad)


def cached_tokens(evidence: Evidence) -> Check | None:
    """Look for prompts that the server had cached although each was new: a cache was warm from an earlier run."""
    if not has_new_prompts(evidence.run.manifest):
        return None
    rows = evidence.run.records.rows
    known = rows[
        evidence.steady & (rows["failure"] == 0) & (rows["turn"] <= 0) & (rows["cached"] >= 0) & (rows["n_in"] > 0)
    ]
    if not len(known):
        return None
    share = int(known["cached"].sum(dtype=np.int64)) / int(known["n_in"].sum(dtype=np.int64))
    limit = evidence.limits.cached
    cached = f"the server had cached {share:.0%} of the prompt tokens"
    if share <= limit:
        return Check("cached_tokens", "pass", share, limit, cached)
    bad = f"{cached.capitalize()}, although every prompt is new: its prefix cache knows them from an earlier run, and flatters the server. Use data.salt: run or another seed, or restart the server or turn off its prefix cache."
    return Check("cached_tokens", "warn", share, limit, bad)


def more_seconds(evidence: Evidence, objectives: Iterable[SloResult]) -> float | None:
    """How much longer to run until the p99s that reports quote are supported, and the objectives decided."""
    p99s = (unsupported.more_seconds for _, _, _, unsupported in _p99s(evidence) if unsupported is not None)
    known = [more for more in (*p99s, *(one.more_seconds for one in objectives)) if more is not None]
    return projected(max(known)) if known else None


def _p99s(evidence: Evidence) -> list[tuple[float, str, StageEvidence, Unsupported | None]]:
    """The effective sizes of the latencies that reports quote, the metric, the stage, and what its p99 needs.

    Stages without a steady latency, or without a response, are left out: a longer run would not help.
    """
    succeeded = evidence.run.records.rows["failure"] == 0
    stages = [
        stage
        for stage in evidence.stages
        if stage.overload.status not in ("overloaded", "too_short") and (stage.steady & succeeded).any()
    ]
    return [
        (found.effective, name, stage, found.unsupported.get("p99"))
        for stage in stages
        for name in QUOTED
        if (found := stage.metrics[name]).effective is not None
    ]


def size(evidence: Evidence) -> Check | None:
    """Check whether the effective size supports the p99 of the latencies that reports quote."""
    needs, sizes = needed(PERCENTILES["p99"]), _p99s(evidence)
    if not sizes:
        return None
    smallest, name, stage, unsupported = min(sizes, key=lambda each: each[0])
    if unsupported is None:
        good = f"at least {math.floor(smallest):,} independent values ({name}{stage.label})"
        return Check("sample_size", "pass", smallest, needs, good)
    more = evidence.more_seconds
    remedy = "Run longer." if more is None else f"Run about {format_seconds(more)} longer."
    bad = f"p99 of {name}{stage.label} is not supported: effective n of {math.floor(smallest):,} of {needs}. {remedy}"
    short = {each.stage for _, _, each, unsupported in sizes if unsupported is not None}
    return Check("sample_size", "warn", smallest, needs, bad, ("latency",), tuple(sorted(short)))
