"""Deadlines against a Triton that is paused in the middle of a run, and continues."""

import os
import signal
import threading
from pathlib import Path

import helpers
import pytest
from triton_server import running
from waiting import until

from inferometer.store.spool import Control

pytestmark = pytest.mark.triton

LOAD = {"type": "constant", "rate": 50, "requests": 200}


def counted(folder: Path, word: str) -> int:
    """Return what the client reports about itself while it runs."""
    return sum(Control(path, create=False)[word] for path in folder.rglob("0.control") if path.stat().st_size)


def test_calls_end_by_their_deadline_while_the_server_is_paused_and_succeed_afterwards(tmp_path: Path) -> None:
    with running(["identity"]) as triton:

        def stand_still() -> None:
            until(lambda: counted(tmp_path, "ok") > 0)
            os.kill(triton.pid, signal.SIGSTOP)
            try:
                until(lambda: counted(tmp_path, "failed") > 4)
            finally:
                os.kill(triton.pid, signal.SIGCONT)

        still = threading.Thread(target=stand_still)
        still.start()
        server = {"model": "identity", "api": "kserve", "deadline": "100ms"}
        run, summary = helpers.measure(tmp_path, triton.grpc, server=server, data={"type": "tensors"}, load=LOAD)
        still.join()
    rows = run.records.rows
    assert len(rows) == LOAD["requests"]
    assert summary.counts.ok > 0
    assert summary.counts.failed > 4
    assert set(summary.counts.by_failure) == {"grpc_DEADLINE_EXCEEDED"}
    assert (rows["attempts"] == 1).all()
