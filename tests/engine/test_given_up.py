"""A server that stops for good: a run by number of requests is given up, and the report says so."""

import contextlib
from pathlib import Path

from helpers import Client, http_response, measure, scripted

from inferometer import conduct
from inferometer.report import console

QUICKLY = {"timeouts": {"unreached": "50ms"}}


def test_run_whose_server_stopped_is_given_up_and_the_report_says_why(tmp_path: Path) -> None:
    with contextlib.ExitStack() as server:

        def script(client: Client) -> None:
            for _ in range(5):
                if client.request() is None:
                    return
                client.send(http_response())
            server.close()

        url = server.enter_context(scripted(script))
        load = {"type": "closed", "concurrency": 1, "requests": 100_000}
        run, summary = measure(tmp_path, url, server=QUICKLY, load=load, measure={"warmup": 0, "cooldown": 0})
    assert run.manifest.outcome.given_up == (0,) and not run.manifest.outcome.interrupted
    unsent = 100_000 - len(run.records.rows)
    assert unsent > 90_000 and summary.verdict == "INVALID"
    failed = {check.name: check.message for check in summary.checks if check.status == "fail"}
    result = f"The server could not be reached for 50 ms, so the run was given up, with {unsent:,} requests not sent."
    assert failed["interrupted"].startswith(result) and "failures" in failed
    assert result in " ".join(console.render(run, summary).split())
    stored, again = conduct.open_run(str(run.folder))
    assert (stored.manifest.outcome, again.checks) == (run.manifest.outcome, summary.checks)


def test_report_names_the_stage_that_was_given_up(tmp_path: Path) -> None:
    with contextlib.ExitStack() as server:

        def script(client: Client) -> None:
            for _ in range(5):
                if client.request() is None:
                    return
                client.send(http_response())
            server.close()

        url = server.enter_context(scripted(script))
        stage = {"type": "closed", "concurrency": 1}
        load = {"type": "stages", "stages": [stage | {"requests": 3}, stage | {"requests": 1000}]}
        _, summary = measure(tmp_path, url, server=QUICKLY, load=load, measure={"warmup": 0, "cooldown": 0})
    (result,) = (check.message for check in summary.checks if check.name == "interrupted")
    assert "so stage 2 was given up" in result
