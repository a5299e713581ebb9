"""Comparisons of engines, end to end: simulators that are started by commands, and engines that fail in every way."""

import contextlib
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from command import assert_one_line, cli, start
from waiting import until

DYING = """
import http.server, json, os, sys, time
left = int(sys.argv[2])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("application/json", json.dumps({"object": "list", "data": [{"id": "m"}]}).encode())
    def do_POST(self):
        global left
        self.rfile.read(int(self.headers["content-length"]))
        if not left:
            print("RuntimeError: the engine is broken", flush=True)
            os._exit(7)
        left -= 1
        chunk = {"choices": [{"index": 0, "delta": {"content": " one"}, "finish_reason": "length"}]}
        self.answer("text/event-stream", b"data: " + json.dumps(chunk).encode() + b"\\n\\ndata: [DONE]\\n\\n")
    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""A server that gives a number of good responses, and then dies."""

LENIENT = {"lag": "1h", "cpu": 1, "stalls": 1, "effect_least": "1h", "concurrency": 0, "rate": 0, "failures": 1}
SMALL: dict[str, Any] = {
    "model": "sim",
    "data": {"input": 8, "output": 4},
    "load": {"type": "closed", "concurrency": [1, 2], "requests": 6},
    "client": {"processes": 0, "probe": False},
    "observe": {"prometheus": []},
    "limits": LENIENT,
    "agreement": {"samples": 2, "tokens": 4},
    "warmup": 1,
}


def simulator(name: str, itl: str) -> dict[str, Any]:
    python = shlex.quote(sys.executable)
    command = f"exec {python} -m inferometer serve sim --http {{port}} --grpc -1 --metrics -1 --ttft 2ms --itl {itl}"
    return {"type": "command", "name": name, "command": command}


def command(name: str, line: str, **more: Any) -> dict[str, Any]:
    return {"type": "command", "name": name, "command": line} | more


def write(folder: Path, tree: dict[str, Any]) -> Path:
    path = folder / "engines.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"output": str(folder / "runs")} | tree))
    return path


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def words(process: psutil.Process) -> list[str]:
    """The command line of a process; none of one that is ending."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The JSON of a campaign with two good engines, and one for each way to fail."""
    folder = tmp_path_factory.mktemp("engines")
    script = folder / "dying.py"
    script.write_text(DYING)
    python = shlex.quote(sys.executable)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        engines = [
            simulator("fast", "1ms"),
            command("never ready", "sleep 600"),
            command("does not start", "echo no such option; exit 3"),
            command(
                "out of memory", "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB'; exit 1"
            ),
            command("port taken", "sleep 600", url=f"http://127.0.0.1:{taken.getsockname()[1]}"),
            command("dies", f"exec {python} {shlex.quote(str(script))} {{port}} 8"),
            {"type": "vllm", "name": "missing", "executable": "no-such-vllm"},
            simulator("slow", "8ms"),
        ]
        before = set(below(os.getpid()))
        file = write(folder, {"engines": engines, "startup": {"timeout": "4s"}})
        result = cli("engines", file, "--json", folder / "out.json", "--html", folder / "out.html")
    assert result.status == 0, result
    tree: dict[str, Any] = json.loads((folder / "out.json").read_text())
    yield tree | {"left": set(below(os.getpid())) - before, "console": result.out, "at": folder}


def engine(campaign: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in campaign["engines"] if each["name"] == name)
    return found


@pytest.mark.parametrize(
    ("name", "reason", "word"),
    [
        ("never ready", "not ready", "4 s"),
        ("does not start", "died", "status 3"),
        ("out of memory", "out of memory", "out of memory"),
        ("port taken", "port taken", "taken"),
        ("dies", "died", "died during the measurement"),
        ("missing", "not installed", "no-such-vllm"),
    ],
)
def test_an_engine_that_fails_has_a_row_with_the_reason(
    campaign: dict[str, Any], name: str, reason: str, word: str
) -> None:
    found = engine(campaign, name)
    assert (found["status"], found["reason"]) == ("failed", reason)
    assert word in found["message"]
    assert name in campaign["console"]


def test_the_last_output_of_an_engine_that_died_is_shown(campaign: dict[str, Any]) -> None:
    assert "RuntimeError: the engine is broken" in engine(campaign, "dies")["log_tail"]


def test_the_other_engines_are_measured_at_every_level(campaign: dict[str, Any]) -> None:
    for name in ("fast", "slow"):
        found = engine(campaign, name)
        assert found["status"] == "ok"
        assert [level["level"] for level in found["levels"]] == [1, 2]
        assert found["startup"][0]["first_token"] > 0


def test_nothing_is_left_running(campaign: dict[str, Any]) -> None:
    assert not campaign["left"]


def test_the_faster_engine_is_recommended(campaign: dict[str, Any]) -> None:
    assert {each["engine"] for each in campaign["recommendation"] if each.get("engine")} == {"fast"}


def test_the_stored_campaign_gives_the_same_report(campaign: dict[str, Any], tmp_path: Path) -> None:
    latest = campaign["at"] / "runs/LATEST"
    assert cli("report", latest, "--json", tmp_path / "again.json").status == 0
    again = json.loads((tmp_path / "again.json").read_text())
    assert {name: campaign[name] for name in again} == again


@pytest.mark.slow
def test_ctrl_c_ends_everything_and_a_resumed_campaign_measures_only_the_rest(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        {
            "engines": [simulator("one", "1ms"), simulator("two", "20ms")],
            "load": {"concurrency": [1, 2], "requests": 30},
        },
    )
    process = start("engines", file, "--json", "out.json", cwd=tmp_path)
    record = lambda: next(iter(tmp_path.glob("runs/2*/campaign.json")), None)  # noqa: E731
    until(
        lambda: (path := record()) is not None and json.loads(path.read_text())["engines"][1]["outputs"],
        "the second engine",
        120,
    )
    family = below(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert not any(each.is_running() for each in family)
    path = record()
    assert path is not None
    before = json.loads(path.read_text())
    assert before["interrupted"] and before["engines"][0]["status"] == "ok"
    result = cli("engines", file, "--resume", path.parent, "--json", tmp_path / "out.json", "-q")
    assert result.status == 0, result
    after = json.loads(path.read_text())
    assert after["engines"][0] == before["engines"][0]
    assert after["engines"][1]["status"] == "ok" and not after["interrupted"]


@pytest.mark.slow
def test_starts_are_cold_and_warm_and_a_profiled_level_is_not_compared(tmp_path: Path) -> None:
    """Two starts in the first round and one in the second; the hooks run once, around a level of their own."""
    hooks = {"start": f"echo start >> {tmp_path}/hooks", "stop": f"echo stop >> {tmp_path}/hooks"}
    tree = {
        "engines": [simulator("one", "1ms")],
        "startup": {"repeat": 2},
        "repeat": 2,
        "profile": {"engine": "one", "level": 2} | hooks,
    }
    result = cli("engines", write(tmp_path, tree), "--json", tmp_path / "out.json", "-q")
    assert result.status == 0, result
    found = json.loads((tmp_path / "out.json").read_text())["engines"][0]
    assert [start["is_cold"] for start in found["startup"]] == [True, False, False]
    assert [(level["level"], level["repeats"]) for level in found["levels"]] == [(1, 2), (2, 2)]
    assert (tmp_path / "hooks").read_text().split() == ["start", "stop"]


@pytest.mark.slow
def test_a_campaign_that_is_killed_leaves_no_engine_behind(tmp_path: Path) -> None:
    file = write(tmp_path, {"engines": [simulator("one", "20ms")], "load": {"concurrency": [1], "requests": 200}})
    process = start("engines", file, cwd=tmp_path)
    until(lambda: any("serve" in words(each) for each in below(process.pid)), "the engine", 60)
    family = below(process.pid)
    process.kill()
    process.communicate()
    until(lambda: not any(each.is_running() and each.status() != "zombie" for each in family), "their end")


def test_bad_input_takes_two_lines(tmp_path: Path) -> None:
    assert_one_line(cli("engines"), "--engine")
    assert_one_line(cli("engines", "--model", "m", "--engine", "vlm"), "vlm", "did you mean vllm?")
    assert_one_line(cli("engines", "--model", "m", "--engine", "vllm:continuous"), "continuous")
    assert_one_line(cli("engines", write(tmp_path, {"engines": [{"type": "vllm", "arg": {}}]})), "arg")
    assert_one_line(cli("engines", write(tmp_path, {"engines": [{"type": "vllm"}], "load": {"rat": 5}})), "load.rat")
