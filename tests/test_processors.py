"""The processors that a process may use: its affinity, and the quota of its control group."""

import os
from pathlib import Path

import pytest

from inferometer import processors


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("text", "count"), [("max 100000\n", 8), ("200000 100000\n", 2), ("50000 100000\n", 0.5), ("1600000 100000\n", 8)]
)
def test_a_quota_below_the_affinity_counts(tmp_path: Path, text: str, count: float) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert processors.usable(tmp_path / "cpu.max") == count


def test_without_a_control_group_the_affinity_counts(tmp_path: Path) -> None:
    assert processors.usable(tmp_path / "cpu.max") == 8
