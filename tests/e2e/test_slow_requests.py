"""Why requests are slow, on simulators with one injected cause each: that cause gets the blame. Also `report --why` and `--as`."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from command import assert_one_line, cli
from helpers import measure

from inferometer.analysis.summary import Summary, summarise
from inferometer.analysis.tail import SlowRequest, explain
from inferometer.records import Run
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Batch, Fixed

EVERY = {"warmup": "0", "cooldown": "0"}
FIXED = Fixed(ttft=0.05, itl=0.01)
STREAMS = {"type": "prompts", "prompts": ["hello"], "output": 20}


def shares(summary: Summary, metric: str) -> dict[str, float]:
    assert summary.tail is not None
    return {each.cause: each.share for each in summary.tail.metrics[metric].causes}


def largest(summary: Summary, metric: str) -> str:
    """The cause with the largest share. A busy machine adds stalls of its own, so shares are not exact here."""
    return next(iter(shares(summary, metric)))


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Summary]:
    """All streams stall for 300 ms, once."""
    with running(simulator(timing=FIXED, faults=("freeze=300ms@t=1s",))) as url:
        return measure(
            tmp_path_factory.mktemp("stalled"),
            url,
            server={"model": "sim"},
            data=STREAMS,
            load={"type": "poisson", "rate": 40, "duration": "2500ms"},
            measure=EVERY,
        )


def test_stall_of_all_streams_is_the_servers(stalled: tuple[Run, Summary]) -> None:
    run, summary = stalled
    for metric in ("ttft", "e2e"):
        assert largest(summary, metric) == "server_stall", shares(summary, metric)
    assert summary.tail is not None
    streaming = summary.tail.slowest[-1]
    assert any(stall.seconds > 0.25 and stall.shared > 0.8 for stall in streaming.stalls)
    assert explain(run, streaming.id) == streaming


@pytest.mark.slow
def test_stall_of_one_stream_is_that_requests(tmp_path: Path) -> None:
    with running(simulator(timing=FIXED, faults=("stall=300ms@every=30",))) as url:
        _, summary = measure(
            tmp_path,
            url,
            server={"model": "sim"},
            data=STREAMS,
            load={"type": "poisson", "rate": 40, "duration": "2500ms"},
            measure=EVERY,
        )
    assert largest(summary, "e2e") == "own_stall", shares(summary, "e2e")


@pytest.mark.slow
def test_preempted_requests_are_named_if_the_server_counts_preemptions(tmp_path: Path) -> None:
    """The KV cache holds one and a half responses: of two at the same time, the later one is preempted until the other has ended."""
    timing = Batch(kv_tokens=320, decode_step=0.002, prefill_rate=50_000.0)
    with running(simulator(timing=timing)) as url:
        run, summary = measure(
            tmp_path,
            url,
            server={"model": "sim"},
            data={"type": "synthetic", "input": 16, "output": 200},
            load={"type": "poisson", "rate": 4, "duration": "6s", "requests": 24},
            measure=EVERY,
            observe={"interval": "50ms"},
        )
    assert summary.server is not None and summary.server.figures.counters["preemptions"].delta > 0
    assert largest(summary, "e2e") == "preemption", shares(summary, "e2e")
    assert any(stall.cause == "preemption" for each in _slowest(summary) for stall in each.stalls)
    blind = summarise(msgspec.structs.replace(run, series=tuple))
    assert "preemption" not in shares(blind, "e2e")
    assert shares(blind, "e2e").keys() & {"own_stall", "server_stall"}
    assert not any(stall.cause == "preemption" for each in _slowest(blind) for stall in each.stalls)


def _slowest(summary: Summary) -> tuple[SlowRequest, ...]:
    assert summary.tail is not None
    return summary.tail.slowest


@pytest.mark.slow
def test_long_prompts_get_the_blame_for_their_own_wait(tmp_path: Path) -> None:
    short = {"type": "synthetic", "input": {"type": "uniform", "min": 50, "max": 150}, "output": 5}
    classes = [
        {"name": "short", "weight": 90, "data": short},
        {"name": "long", "weight": 10, "data": {"type": "synthetic", "input": 4000, "output": 5}},
    ]
    with running(simulator(timing=Batch(prefill_rate=20_000.0, decode_step=0.005, token_budget=8192))) as url:
        run, summary = measure(
            tmp_path,
            url,
            server={"model": "sim"},
            data={"type": "mix", "classes": classes},
            load={"type": "constant", "rate": 8, "duration": "5s"},
            measure=EVERY,
        )
    rows = run.records.rows
    long = np.flatnonzero((rows["n_in"] > 3000) & (rows["failure"] == 0))
    assert len(long)
    assert largest(summary, "ttft") == "long_prompt", shares(summary, "ttft")
    found = explain(run, int(rows["id"][long[-1]]))
    assert found.main_cause == "long_prompt"
    (step,) = [step for step in found.steps if step.cause == "long_prompt"]
    assert 0.1 < step.seconds < 0.6


@pytest.mark.slow
def test_slow_connection_gets_the_blame(tmp_path: Path) -> None:
    """A proxy holds back every 20th request for 400 ms, so that its response begins late."""
    with running(simulator(timing=FIXED)) as url, proxy(url, every=20, seconds=0.4) as slow:
        _, summary = measure(
            tmp_path,
            slow,
            server={"model": "sim", "api": "completions"},
            data=STREAMS | {"output": 5},
            load={"type": "poisson", "rate": 20, "duration": "4s"},
            measure=EVERY,
        )
    for metric in ("ttft", "e2e"):
        assert largest(summary, metric) == "connection", shares(summary, metric)


@contextmanager
def proxy(url: str, every: int, seconds: float) -> Iterator[str]:
    """A TCP proxy that holds back every n-th piece from the client."""
    host, _, port = url.removeprefix("http://").partition(":")
    pieces = iter(range(1, 1 << 30))

    def pump(source: socket.socket, sink: socket.socket, is_slow: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_slow and next(pieces) % every == 0:
                    time.sleep(seconds)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((host, int(port)))
                for sock in (client, server):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=pump, args=(client, server, True), daemon=True).start()
                threading.Thread(target=pump, args=(server, client, False), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


# --- the command line ------------------------------------------------------------------------------------------------


def test_report_why(stalled: tuple[Run, Summary]) -> None:
    folder = stalled[0].folder
    for arguments in ((folder, "--why"), ("--why", folder)):
        result = cli("report", *arguments)
        assert "why the tail is slow" in result.out and "stalls of the whole server" in result.out
    plain = cli("report", folder)
    assert "why the tail is slow" not in plain.out
    assert "stalls of the whole server" in " ".join(plain.out.split())


def test_report_why_of_one_request(stalled: tuple[Run, Summary], tmp_path: Path) -> None:
    run, summary = stalled
    slowest = _slowest(summary)[-1]
    result = cli("report", run.folder, "--why", str(slowest.id), "--json", tmp_path / "out.json")
    assert result.status == 0
    assert f"request {slowest.id}," in result.out and "server stall" in result.out
    assert json.loads((tmp_path / "out.json").read_text())["main_cause"] == "server_stall"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--why", "99999999"), "no request with this id"),
        (("--why=abc",), "expected the id of a request"),
        (("--as", "vllm-bench", "--csv", "x.csv"), "has no --csv"),
    ],
)
def test_bad_input_is_one_line(stalled: tuple[Run, Summary], arguments: tuple[str, ...], message: str) -> None:
    result = cli("report", stalled[0].folder, *arguments)
    assert_one_line(result, message)


@pytest.mark.parametrize("tool", ["vllm-bench", "inference-perf"])
def test_report_as_another_tool(stalled: tuple[Run, Summary], tmp_path: Path, tool: str) -> None:
    result = cli("report", stalled[0].folder, "--as", tool, "--json", tmp_path / "out.json")
    assert result.status == 0 and f"what {tool} would report" in result.out and "nan" not in result.out
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["tool"] == tool and found["stages"][0]["figures"] and found["definitions"]
