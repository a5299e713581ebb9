"""Users of a closed loop who send together, and users who are spread."""

import numpy as np
import pytest
import synthetic_run as made

from inferometer.analysis.checks import Check
from inferometer.analysis.summary import summarise
from inferometer.records import StagePlan

USERS = 16
ROUNDS = 40
E2E = 150 * made.MS


def checked(spread: float, seed: int = 0, **plan: float) -> Check | None:
    """Users whose requests take 150 ms, with phases that are spread over this share of it."""
    rng = np.random.default_rng(seed)
    rows = made.blank(USERS * ROUNDS)
    phase = np.sort(rng.uniform(0, spread * E2E, USERS)).astype(np.int64)
    sent = (np.arange(ROUNDS)[:, None] * E2E + phase[None, :]).reshape(-1)
    rows["intended"] = rows["sent"] = sent
    rows["done"] = sent + E2E
    stage = StagePlan(type="closed", open=False, concurrency=USERS, duration=6.0, **plan)
    found = summarise(made.run(rows, plan=(stage,)))
    return next((check for check in found.checks if check.name == "lockstep"), None)


@pytest.mark.parametrize(("spread", "status"), [(0.0, "warn"), (0.1, "warn"), (1.0, "pass")])
def test_users_who_send_together_are_a_warning(spread: float, status: str) -> None:
    for seed in range(10):
        found = checked(spread, seed)
        assert found is not None and found.status == status


def test_users_who_think_are_not_judged() -> None:
    assert checked(0.0, think=1.0) is None
