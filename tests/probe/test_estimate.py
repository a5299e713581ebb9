"""The probe before a run: a few requests of the workload, recorded in the manifest. It fails the run if every request would fail."""

import io
import json
import signal
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from command import start
from helpers import Client, http_response, measure, scripted
from rich.console import Console

from inferometer.conduct.measuring import probed
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.probe import estimate, reach
from inferometer.records import Probe
from inferometer.report.live import LiveView

PROBE = {"probe": True}


def probe_of(url: str, **sections: Any) -> Probe:
    """Probe without a run."""
    tree = {"server": {"url": url, "model": "m"} | sections.pop("server", {}), "data": sections.pop("data", DATA)}
    config = from_mapping(tree | sections)
    return probed(config, reach.reach(config.server), "3f9a01bc")


DATA = {"type": "prompts", "prompts": ["hello"], "output": 2}


class Noting:
    """A server that notes the ids and bodies of requests."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.bodies: list[Any] = []

    def __call__(self, client: Client) -> None:
        while request := client.request():
            self.ids.append(request[1].get("x-request-id", ""))
            self.bodies.append(json.loads(request[2]))
            client.send(http_response())


def test_three_requests_before_the_run_are_in_the_manifest_and_not_in_the_records(tmp_path: Path) -> None:
    server = Noting()
    with scripted(server) as url:
        run, summary = measure(tmp_path, url, client=PROBE)
    probe = run.manifest.probe
    assert (probe.requests, probe.chunks, probe.failure, probe.skipped, probe.is_cut) == (3, 2, "", "", False)
    assert probe.e2e and probe.ttft and probe.ttft <= probe.e2e
    assert probe.cpu
    assert probe.request_bytes and probe.response_bytes
    assert probe.response_bytes == len(http_response())
    assert probe.e2e_ns == round(probe.e2e * 1e9)
    assert summary.counts.ok == len(run.records.rows) == 6
    assert len({UUID(id) for id in server.ids}) == 9
    assert len({id[:-12] for id in server.ids[:3]} | {id[:-12] for id in server.ids[3:]}) == 2


def answer(status: int, body: str, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n{body}".encode()


@pytest.mark.parametrize(
    ("response", "settings", "what", "remedy"),
    [
        (answer(404, '{"detail": "no such model"}'), {}, "no such model", "the server lists sim, other: name one"),
        (answer(404, "no"), {"model": "sim"}, "status 404: no", "check {server.url} and its path"),
        (
            answer(307, "", "Location: https://x/\r\n"),
            {},
            "Location: https://x/",
            "give the URL that this one leads to",
        ),
        (answer(200, "<title>nginx</title>"), {}, "a web page: nginx", "check {server.url} and its path"),
        (answer(501, "<title>No POST</title>"), {}, "a web page: No POST", "this is a web page, not a model server"),
        (answer(401, "no"), {}, "status 401: no", "give the API key"),
        (answer(401, "no"), {"headers": {"Authorization": "Bearer x"}}, "status 401: no", "check the API key"),
    ],
)
def test_a_run_of_nothing_but_failures_is_refused(
    response: bytes, settings: dict[str, Any], what: str, remedy: str
) -> None:
    def script(client: Client) -> None:
        while request := client.request():
            client.send(response if request[2] else http_response(b'{"data": [{"id": "sim"}, {"id": "other"}]}'))

    with scripted(script) as url, pytest.raises(UserError) as caught:
        probe_of(url, server=settings)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_probe_requests_are_those_of_the_workload(tmp_path: Path) -> None:
    server = Noting()
    with scripted(server) as url:
        probe_of(url, data={"type": "synthetic", "input": 20, "output": 7, "salt": "none"})
    assert len(server.bodies) == 3
    assert {body["max_tokens"] for body in server.bodies} == {7}


def test_sessions_are_probed_with_their_first_turns(tmp_path: Path) -> None:
    lines = tmp_path / "turns.jsonl"
    lines.write_text('{"turns": ["one", "two", "three"]}\n')
    server = Noting()
    with scripted(server) as url:
        probe = probe_of(url, data={"type": "jsonl", "path": str(lines)})
    assert probe.requests == 3
    assert [body["messages"] for body in server.bodies] == [[{"role": "user", "content": "one"}]] * 3


def test_the_probe_can_be_switched_off(tmp_path: Path) -> None:
    server = Noting()
    with scripted(server) as url:
        run, _ = measure(tmp_path, url, client={"probe": False})
    assert run.manifest.probe.requests == 0
    assert run.manifest.probe.skipped == "client.probe is false"
    assert len(server.ids) == len(run.records.rows)


def test_a_failure_of_the_probe_is_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    refused = threading.Event()

    def script(client: Client) -> None:
        while client.request():
            if refused.is_set():
                client.send(http_response())
            else:
                refused.set()
                client.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 8\r\n\r\nkey-5678")

    with scripted(script) as url:
        run, summary = measure(tmp_path, url, server={"headers": {"X-Token": "key-5678"}}, client=PROBE)
    assert run.manifest.probe == Probe(
        requests=1, failure="http_503: (removed)", processes_because="set by client.processes"
    )
    assert summary.counts.ok == 6


def test_a_server_that_closes_is_a_failure_of_the_probe() -> None:
    def script(client: Client) -> None:
        client.request()

    with scripted(script) as url:
        probe = probe_of(url)
    assert probe.requests == 1
    assert probe.failure.startswith("closed: ")
    assert probe.e2e_ns == 0


def test_what_was_measured_before_a_failure_is_used() -> None:
    def script(client: Client) -> None:
        while client.request():
            client.send(http_response() if client.number < 2 else b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")

    with scripted(script) as url:  # the first connection only checks that the server accepts
        probe = probe_of(url)
    assert probe.requests == 2
    assert probe.failure.startswith("http_500")
    assert probe.e2e and probe.chunks == 2


def test_a_response_that_takes_longer_than_the_probe_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 0.2)
    closed = threading.Event()

    def script(client: Client) -> None:
        if client.request():
            client.request()  # nothing more comes
            closed.set()

    with scripted(script) as url:
        probe = probe_of(url)
        assert closed.wait(10)
    assert (probe.requests, probe.is_cut, probe.failure, probe.cpu) == (1, True, "", None)
    assert probe.e2e and probe.e2e >= 0.2  # a lower bound


def test_a_stream_that_was_cut_off_is_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 0.8)
    chunk = b'data: {"choices":[{"delta":{"content":"one"}}]}\n\n'

    def script(client: Client) -> None:
        if client.request():
            client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + chunk)
            pause.wait(0.1)
            client.send(chunk)
            client.request()

    pause = threading.Event()
    with scripted(script) as url:
        probe = probe_of(url, data=DATA | {"output": 102})
    assert probe.is_cut
    assert probe.e2e and probe.e2e > 100 * 0.1


def test_no_request_is_started_that_would_be_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 1.0)
    pause = threading.Event()

    def script(client: Client) -> None:
        while client.request():
            pause.wait(0.6)
            client.send(http_response())

    with scripted(script) as url:
        probe = probe_of(url)
    assert (probe.requests, probe.is_cut) == (1, False)


def test_sequences_are_not_probed(tmp_path: Path) -> None:
    inputs = [{"name": "X", "datatype": "FP32", "shape": [1]}]
    tree = {
        "server": {"url": "http://127.0.0.1:1", "api": "kserve"},
        "data": {"type": "tensors", "inputs": inputs, "sequence": 4},
    }
    config = from_mapping(tree)
    probe = probed(config, reach.Reached((), (), "m", {}), "3f9a01bc")
    assert probe == Probe(skipped="a sequence would change the state of the model")


def test_ctrl_c_during_the_probe_ends_without_a_run(tmp_path: Path) -> None:
    requested = threading.Event()

    def script(client: Client) -> None:
        if client.request():
            requested.set()
            client.request()

    with scripted(script) as url:
        process = start("run", url, "--model", "m", "--requests", "2", cwd=tmp_path)
        assert requested.wait(20)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err.strip()) == (130, "", "inferometer: interrupted")
    assert not (tmp_path / "runs").exists()


def test_the_line_about_the_probe_goes_away() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, force_terminal=True, width=80))
    view.probing()
    assert "probing" in out.getvalue()
    view.over()
    assert out.getvalue().endswith("\x1b[2K")
