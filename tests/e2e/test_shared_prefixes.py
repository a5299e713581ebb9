"""Shared prefixes against the simulator's prefix cache: the cached tokens that it logs are those that the workload promises."""

from typing import Any

import numpy as np
import pytest
import shared_prefixes as prefixes
from helpers import measure
from numpy.typing import NDArray

from inferometer import workload
from inferometer.config import from_mapping
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim import truth
from inferometer.serve.sim.settings import Batch
from inferometer.wire.http1 import id_prefix
from inferometer.workload import tokenizer

BLOCK = 16
DATA = {"type": "shared_prefix", "groups": 6, "prompts": 10, "prefix": 200, "question": 24, "output": 2}
TIERS = [{"groups": 1, "length": 100}, {"groups": 2, "length": {"type": "uniform", "min": 40, "max": 90}}]
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "lengths": {"prefix": {"type": "lognormal", "mean": 200, "std": 100}, "question": {"type": "poisson", "mean": 24}},
    "zipf": {"popularity": "zipf", "prompts": 0},
    "tiers": {"tiers": TIERS, "popularity": "round_robin", "prompts": 0},
    "hit": {"prompts": 0, "hit": 0.6},
}
ONE_BY_ONE = {"type": "closed", "concurrency": 1, "requests": 40}
CONCURRENT = {"type": "closed", "concurrency": 4, "requests": 600, "ramp_up": 0}
pytestmark = pytest.mark.slow

FORMS = [*(("chat", kind) for kind in KINDS), ("completions", "uniform"), ("completions", "tiers")]
RUNS = {
    (api, kind, load["concurrency"]): {"server": {"model": "sim", "api": api}, "data": DATA | KINDS[kind], "load": load}
    for forms, load in ((FORMS, ONE_BY_ONE), ([("chat", "tiers"), ("completions", "zipf")], CONCURRENT))
    for api, kind in forms
}


class Served:
    """A run as the simulator logged it, in the order in which requests arrived."""

    def __init__(self, rows: list[truth.Row], prompts: list[list[int]]) -> None:
        rows = sorted(rows, key=lambda row: row.arrived)
        self.prompts = [prompts[int((row.id or "").rpartition("-")[2], 16)] for row in rows]
        """The tokens that the workload says that it sends."""
        self.n_in, self.cached = _column(rows, "n_in"), _column(rows, "cached")
        self.arrived, self.first = _column(rows, "arrived"), _column(rows, "first")


def _column(rows: list[truth.Row], name: str) -> NDArray[np.int64]:
    return np.array([getattr(row, name) for row in rows])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, int], Served]:
    """All runs, one after the other against the same simulator: salts keep them apart in its cache."""
    folder = tmp_path_factory.mktemp("shared_prefixes")
    timing = Batch(prefill_rate=200_000, prefill_overhead=0.001, decode_step=0.002, block=BLOCK, prefix_cache=True)
    prompts = {}
    with running(simulator(truth=str(folder / "truth.jsonl"), timing=timing)) as url:
        for key, sections in RUNS.items():
            run, summary = measure(folder / "runs", url, **sections)
            assert summary.counts.ok == sections["load"]["requests"], summary.failures
            tag = str(run.manifest.workload["salt"])
            prompts[tag] = (key, _prompts(sections, tag))
    log = truth.read(folder / "truth.jsonl")
    return {
        key: Served([row for row in log if (row.id or "").startswith(id_prefix(tag))], own)
        for tag, (key, own) in prompts.items()
    }


def _prompts(sections: dict[str, Any], salt: str) -> list[list[int]]:
    config = from_mapping({"server": {"url": "http://127.0.0.1:1"} | sections["server"], "data": sections["data"]})
    spec = workload.salted(config.data, salt)
    made = workload.build(spec, config.seed, range(sections["load"]["requests"]))
    return [prefixes.token_ids(tokenizer.load(), request) for request in made]


@pytest.mark.parametrize(("api", "kind"), FORMS)
def test_one_request_after_the_other_finds_exactly_the_promised_blocks(
    served: dict[tuple[str, str, int], Served], api: str, kind: str
) -> None:
    run = served[api, kind, 1]
    assert run.n_in.tolist() == [len(prompt) for prompt in run.prompts]
    promised = prefixes.promised_hits(run.prompts, BLOCK)
    assert run.cached.tolist() == promised.tolist()
    assert promised.sum() > 0.4 * run.n_in.sum()


@pytest.mark.parametrize(("api", "kind"), [("chat", "tiers"), ("completions", "zipf")])
def test_concurrent_requests_find_the_promised_blocks_except_those_that_are_being_computed(
    served: dict[tuple[str, str, int], Served], api: str, kind: str
) -> None:
    """A request surely finds what was computed when it arrived, and never what only later requests brought. In between are the
    prefixes that several requests bring at the same time."""
    run = served[api, kind, 4]
    promised = prefixes.promised_hits(run.prompts, BLOCK, sent=run.arrived, ready=run.first)
    at_most = prefixes.promised_hits(run.prompts, BLOCK)
    assert (promised <= run.cached).all() and (run.cached <= at_most).all()
    assert run.cached.sum() == pytest.approx(promised.sum(), rel=0.01)
