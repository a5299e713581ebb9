"""Are the answers such that the numbers mean what they seem to? These warn: the measurement holds, its reading needs care."""

import numpy as np

from inferometer.analysis.checks.evidence import Check, Evidence
from inferometer.analysis.percentiles import PERCENTILES, needed
from inferometer.analysis.settings import api, asks_for_text, number, sends_text
from inferometer.records import COUNTED_BY, MISSING

SHORT = 0.01
"""Share of the answers that may be shorter than asked or longer, before it is worth a warning."""


def token_source(facts: Evidence) -> Check | None:
    if not asks_for_text(facts.run.manifest):
        return None
    rows = facts.run.records.rows
    sources = rows["counted_by"][facts.steady & (rows["failure"] == 0)]
    if not len(sources):
        return None
    other = sources != COUNTED_BY.index("server")
    share = float(other.mean())
    if not share:
        return Check("token_source", "pass", 0.0, 0.0, "output tokens counted by the server")
    remedy = (
        "Ask for usage (server.usage), or give data.tokenizer."
        if api(facts.run.manifest).reports_usage
        else "Give the model's data.tokenizer."
    )
    if (sources == COUNTED_BY.index("tokenizer")).any():
        bad = f"The tokens of {share:.0%} of the answers were counted by the client's tokenizer, which may not be the model's. {remedy}"
    else:
        bad = f"The tokens of {share:.0%} of the answers are not known. {remedy}"
    return Check("token_source", "warn", share, 0.0, bad)


def answers(facts: Evidence) -> Check | None:
    rows = facts.run.records.rows
    told = rows[facts.steady & (rows["failure"] == 0) & (rows["n_out"] >= 0) & (rows["n_want"] > 0)]
    if not len(told):
        return None
    share, longer = float((told["n_out"] < told["n_want"]).mean()), float((told["n_out"] > told["n_want"]).mean())
    asked, got = told["n_want"].mean(), told["n_out"].mean()
    ours = (told["counted_by"] == COUNTED_BY.index("tokenizer")).any()
    unless = ", unless the client's tokenizer counts otherwise than the model's (data.tokenizer)" if ours else ""
    if longer > SHORT:
        bad = f"{longer:.0%} of the answers are longer than asked for: {got:.5g} tokens on average, not {asked:.5g}. See whether the server knows server.max_tokens_field{unless}."
        return Check("answers", "warn", longer, SHORT, bad)
    if share <= SHORT:
        return Check("answers", "pass", share, SHORT, f"{asked:.5g} tokens asked for, {got:.5g} on average")
    bad = f"{share:.0%} of the answers are shorter than asked for: {got:.5g} tokens on average, not {asked:.5g}. Where the server knows it, set server.ignore_eos{unless}."
    return Check("answers", "warn", share, SHORT, bad)


def prompts(facts: Evidence) -> Check | None:
    if not sends_text(facts.run.manifest):
        return None
    distinct = number(facts.run.manifest.workload, "distinct")
    sent = int(np.count_nonzero(facts.run.records.rows["sent"] != MISSING))
    if distinct is None or not sent:
        return None
    if distinct >= sent:
        return Check("prompts", "pass", distinct, sent, "every prompt was sent once")
    bad = f"{distinct:,} different prompts served {sent:,} requests: a prefix cache may flatter the server. Give more prompts, or switch its cache off."
    return Check("prompts", "warn", distinct, sent, bad)


def size(facts: Evidence) -> Check | None:
    count, needs = facts.metrics["e2e"].count, needed(PERCENTILES["p99"])
    if not count:
        return None
    if count >= needs:
        return Check("sample_size", "pass", count, needs, f"{count:,} answers")
    bad = f"{count:,} answers do not support a p99, which needs {needs}. Run longer."
    return Check("sample_size", "warn", count, needs, bad)
