"""Real engines, started with our launches: they get ready, stream, agree on the greedy outputs of one tiny model, and end.

Each needs its environment of tools/real_servers; the model is the same for all, in the form that each wants.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
from needs import INSTALLED
from plain_client import stream_request
from real_servers import tiny_model

from inferometer import conduct
from inferometer.config import from_mapping
from inferometer.config.engines import EngineSpec
from inferometer.engines import milestones
from inferometer.engines.catalog import server_engine
from inferometer.engines.launching import Launch, Start

pytestmark = [pytest.mark.transformers, pytest.mark.slow]

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
START_S, STOP_S = 300, 30
PROMPTS = [
    *("dego mika", " la la la", "The captain repaired the rusty anchor.", "€uro, naïve, 猫", "1 + 1 ="),
    *(" bami tirel zos", "don't you'll WE'RE 12345 x_y", " dudas kekarel nolamika", " ga", "x" * 40),
]
TOKENS = 32


class Case(NamedTuple):
    need: str
    """The marker of its environment, which is also the name of the folder, unless `folder` says otherwise."""
    entry: dict[str, Any]
    """Its entry in the file."""
    folder: str = ""
    takes_ignore_eos: bool = True
    is_reset: bool = False
    """Whether its prefix cache can be emptied."""
    facts: Mapping[str, str] = MappingProxyType({})


CASES = {
    "inferometer": Case(
        "transformers",
        {"type": "inferometer", "dtype": "float32", "args": {"config": {"parameters.threads": 1}}},
        facts={"dtype": "float32", "prefix cache": "off"},
    ),
    "llamacpp": Case(
        "llama_cpp",
        {
            "type": "llamacpp",
            "args": {
                "threads": 1,
                "cache-type-k": "f32",
                "cache-type-v": "f32",
                "flash-attn": "off",
            },  # see llama_cpp/convert.py
        },
        facts={"dtype": "float32", "max length": "1024", "slots": "4", "prefix cache": "on"},
    ),
    "transformers": Case(
        "transformers_server",
        {"type": "transformers", "dtype": "float32", "device": "cpu", "env": ONE_THREAD},
        folder="transformers",
        takes_ignore_eos=False,
        facts={"dtype": "float32", "device": "cpu", "prefix cache": "off"},
    ),
    "transformers continuous": Case(
        "transformers_server",
        {
            "type": "transformers",
            "dtype": "float32",
            "device": "cpu",
            "env": ONE_THREAD,
            "args": {"continuous-batching": True, "cb-num-blocks": 256, "cb-max-batch-tokens": 512},
        },
        folder="transformers",
        takes_ignore_eos=False,
        facts={"prefix cache": "on"},
    ),
    "vllm": Case(
        "vllm",
        {
            "type": "vllm",
            "dtype": "float32",
            "args": {"max-model-len": 1024, "max-num-seqs": 8, "enforce-eager": True},
            "env": ONE_THREAD | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        },
        is_reset=True,
        facts={"dtype": "float32", "max length": "1024", "prefix cache": "on", "speculation": "off", "device": "cpu"},
    ),
    "openvino": Case(
        "openvino",
        {"type": "openvino", "dtype": "float32", "args": {"threads": 1, "kv-cache-precision": "f32"}},
        facts={"dtype": "float32"},
    ),
    "onnxruntime": Case("onnxruntime_genai", {"type": "onnxruntime", "device": "cpu", "args": {"threads": 1}}),
}


class Running(NamedTuple):
    case: Case
    launch: Launch
    lines: list[tuple[float, str]]
    """Of the log, with the seconds since the start at which each was seen."""
    ready: float
    model: str


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny_model.write(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    """The greedy outputs of transformers, one prompt at a time."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    tokenizer, net = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    outputs = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.no_grad():
            whole = net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        outputs.append(whole[0, ids.shape[1] :].tolist())
    return outputs


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=getattr(pytest.mark, case.need)) for name, case in CASES.items()]
)
def server(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    case = CASES[request.param]
    own = tiny_model.convert(model, case.need) if case.need in tiny_model.SUFFIXES else model
    python = (
        sys.executable if case.need == "transformers" else str(INSTALLED / (case.folder or case.need) / "bin/python")
    )
    spec = msgspec.convert(case.entry | {"python": python, "name": request.param}, EngineSpec)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    launch = server_engine(spec).launch(Start(spec, str(own), port, tmp_path_factory.mktemp("files")))
    with running(launch, spec.env) as (lines, ready):
        yield Running(case, launch, lines, ready, str(own))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1).close()


@contextlib.contextmanager
def running(launch: Launch, env: dict[str, str]) -> Iterator[tuple[list[tuple[float, str]], float]]:
    lines: list[tuple[float, str]] = []
    started = time.monotonic()
    process = subprocess.Popen(
        launch.command,
        env=os.environ | launch.env | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append((time.monotonic() - started, line.rstrip()))

    threading.Thread(target=read, daemon=True).start()
    try:
        while not is_healthy(launch):
            assert process.poll() is None, lines[-20:]
            assert time.monotonic() - started < START_S, lines[-20:]
            time.sleep(0.1)
        yield lines, time.monotonic() - started
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_healthy(launch: Launch) -> bool:
    try:
        with urllib.request.urlopen(launch.url + launch.ready, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def test_greedy_outputs_are_those_of_transformers(server: Running, model: Path, expected: list[list[int]]) -> None:
    """Nearly all of them, to the last token. Two of the largest logits may be closer than rounding differs, after which a text goes another way."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(model)
    name = server.launch.server["model"]
    exact, shared = 0, 0.0
    for prompt, ids in zip(PROMPTS, expected, strict=True):
        body = {"model": name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        response, text = stream_request(server.launch.url, "/v1/completions", body), tokenizer.decode(ids)
        assert response.usage["completion_tokens"] == TOKENS
        exact += response.text == text
        shared += sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(response.text, text, strict=False))
        ) / len(text)
    assert exact >= len(PROMPTS) - 1
    assert shared / len(PROMPTS) >= 0.95


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_run_gets_whole_streamed_responses(server: Running, api: str, tmp_path: Path) -> None:
    asked = {"ignore_eos": True} if server.case.takes_ignore_eos else {}
    tree = {
        "server": asked | server.launch.server | {"url": server.launch.url, "api": api, "body": {"temperature": 0}},
        "data": {"type": "synthetic", "input": 16, "output": 12},
        "load": {"type": "closed", "concurrency": 4, "requests": 12},
        "client": {"processes": 0, "probe": False},
        "output": str(tmp_path),
    }
    run, summary = conduct.measure(from_mapping(tree))
    assert summary.counts.ok == 12, summary.failures
    assert set(run.records.rows["n_out"]) == {12}
    assert run.records.rows["chunk_count"].mean() > 11  # a chunk per token, or a few that are a part of a character


def test_the_log_gives_phases_and_facts(server: Running) -> None:
    phases = milestones.phases(server.lines, server.launch.milestones)
    assert "listening" in phases
    assert all(0 < at <= server.ready + 1 for at in phases.values())
    if server.case.entry["type"] != "inferometer":
        assert phases["weights loaded"] <= phases["listening"]
    found = server.launch.facts | milestones.facts(server.lines, server.launch.fact_lines)
    assert server.case.facts.items() <= found.items()


def test_the_prefix_cache_can_be_reset(server: Running) -> None:
    if not server.case.is_reset:
        assert server.launch.reset_cache == ""
        return
    request = urllib.request.Request(server.launch.url + server.launch.reset_cache, method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200


def test_its_version_is_known(server: Running) -> None:
    done = subprocess.run(server.launch.version, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and any(letter.isdigit() for letter in done.stdout.splitlines()[-1])


@pytest.mark.triton
def test_triton_serves_a_repository(tmp_path: Path) -> None:
    repository = Path(__file__).parent / "triton_models"
    spec = EngineSpec(type="triton", python=str(INSTALLED / "triton/bin/python"))
    spec.args = {"disable-auto-complete-config": True}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    launch = server_engine(spec).launch(Start(spec, str(repository), port, tmp_path))
    tree = {
        "server": launch.server | {"url": launch.url, "model": "identity"},
        "load": {"type": "closed", "concurrency": 2, "requests": 10},
        "client": {"processes": 0, "probe": False},
        "output": str(tmp_path),
    }
    with running(launch, {}) as (lines, _):
        _, summary = conduct.measure(from_mapping(tree))
        assert summary.counts.ok == 10, summary.failures
        assert list(milestones.phases(lines, launch.milestones)) == ["weights loaded", "listening"]
        assert milestones.facts(lines, launch.fact_lines)["server version"]
