"""`inferometer convert` and `inferometer perf-analyzer`, with the reference server."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command import LENIENT, assert_one_line, cli, options

from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Settings
from inferometer.serve.sim.settings import Fixed, Sim


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with a tensor model and a simulated LLM."""
    quick = Sim(timing=Fixed(ttft=0.005, itl=0.001))
    with serving(Settings(models=("identity",), sim=quick, http=0, grpc=0)) as running:
        yield running


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def address(url: str) -> str:
    return url.partition("://")[2]


# --- convert ---------------------------------------------------------------------------------------------------------


def test_converted_command_line_is_measured(server: Running, folder: Path) -> None:
    line = f"vllm bench serve --base-url {server.url} --model sim --num-prompts 40 --max-concurrency 4"
    lengths = "--random-input-len 20 --random-output-len 5"
    done = cli("convert", "-o", "bench.yaml", "--", *line.split(), *lengths.split())
    assert (done.status, done.out) == (0, "")
    measured = cli(
        "run", "bench.yaml", *options(LENIENT | {"data.tokenizer": "builtin"}), "--quiet", "--csv", "out.csv"
    )
    assert measured.status == 0, measured
    rows = list(csv.DictReader((folder / "out.csv").read_text().splitlines()))
    assert len(rows) == 40
    assert {(row["n_in"], row["n_out"]) for row in rows} == {("20", "5")}


def test_script_is_converted_without_its_secrets(folder: Path) -> None:
    (folder / "command.sh").write_text(
        "#!/bin/sh\n# what's measured every night\nexport OPENAI_API_KEY=sk-secret\nMODEL=org/m\n"
        "vllm bench serve --model $MODEL \\\n  --dataset-name random \\\n  --header 'X-Api-Key=sk-other' --port 9000\n"
    )
    done = cli("convert", "command.sh")
    tree = yaml.safe_load(done.out)
    assert tree["server"]["model"] == "org/m"
    assert tree["server"]["url"] == "http://127.0.0.1:9000"
    assert tree["server"]["api_key_env"] == "OPENAI_API_KEY"
    assert "sk-" not in done.out + done.err
    assert "X-Api-Key" in done.err


def test_pasted_command_line_is_one_argument() -> None:
    done = cli("convert", "/opt/bin/perf_analyzer -m resnet \\\n --concurrency-range 1:8:2")
    assert yaml.safe_load(done.out)["load"]["concurrency"] == "1:8:2"
    assert done.out.startswith("# Converted from perf_analyzer.\n")


def test_command_line_of_the_simple_triton_client_is_converted() -> None:
    line = (
        "python3",
        "simple_perf_client.py",
        "-m",
        "identity",
        "-i",
        "grpc",
        "-b8",
        "-s",
        "100",
        "--iteration_count=9",
        "-w",
        "1",
    )
    done = cli("convert", "--", *line)
    assert yaml.safe_load(done.out) == {
        "server": {"url": "grpc://127.0.0.1:8001", "model": "identity", "version": None, "api": "kserve"},
        "data": {"type": "tensors", "fill": "zeros", "length": 100, "batch": 8},
        "load": {"type": "closed", "concurrency": 1, "requests": 10},
        "measure": {"warmup": 1},
    }
    assert "inferometer triton" in done.out


def test_config_of_inference_perf_is_converted_without_its_secrets(folder: Path) -> None:
    (folder / "config.yml").write_text(
        "api: {type: completion, headers: {X-Api-Key: sk-1, X-Team: ours}}\n"
        "server: {type: vllm, base_url: 'http://127.0.0.1:9000', model_name: org/m, api_key: sk-2}\n"
        "data: {type: synthetic, input_distribution: {mean: 20, std_dev: 0, min: 20, max: 20}, "
        "output_distribution: {mean: 5, std_dev: 0, min: 5, max: 5}}\n"
        "load: {type: poisson, interval: 0, stages: [{rate: 2, duration: 5}]}\n"
        "tokenizer: {pretrained_model_name_or_path: org/m}\n"
    )
    done = cli("convert", "config.yml")
    tree = yaml.safe_load(done.out)
    assert tree["server"]["url"] == "http://127.0.0.1:9000"
    assert tree["server"]["api_key_env"] == "OPENAI_API_KEY"
    assert tree["server"]["headers"] == {"X-Team": "ours"}
    assert "sk-" not in done.out + done.err
    assert "X-Api-Key" in done.err


def test_key_of_inference_perf_that_is_not_supported_is_an_error(folder: Path) -> None:
    (folder / "config.yml").write_text("server: {type: vllm, base_url: 'http://x', modell_name: m}\n")
    assert_one_line(cli("convert", "config.yml"), "config.yml", "modell_name")


def test_notes_are_comments() -> None:
    done = cli("convert", "--", "perf_analyzer", "-m", "m", "--percentile", "75", "--async")
    comments = [line for line in done.out.splitlines() if line.startswith("#")]
    assert any("--percentile" in line for line in comments)
    assert any("--async" in line or "-a has no effect" in line for line in comments)


def test_option_that_cannot_be_kept_is_an_error() -> None:
    assert_one_line(cli("convert", "--", "perf_analyzer", "-m", "m", "--binary-search"), "--binary-search", "capacity")


def test_invalid_value_is_an_error_that_names_the_option() -> None:
    assert_one_line(
        cli("convert", "--", "perf_analyzer", "-m", "m", "--concurrency-range", "8:1"), "--concurrency-range"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("hello", ["neither a known command line nor YAML"]),
        ("server: {url: 'http://x'}", ["already", "inferometer run"]),
        ("perf_analyzer -m a\nperf_analyzer -m b", ["2 command lines"]),
        ("perf_analyzer -m 'a", ["neither"]),
    ],
)
def test_file_that_is_not_understood_is_an_error(folder: Path, content: str, words: list[str]) -> None:
    (folder / "file").write_text(content)
    assert_one_line(cli("convert", "file"), *words)


@pytest.mark.parametrize(
    "arguments", [["nosuch.yml"], ["--", "ls", "-l"], ["ls -l"], ["-o", "no/folder", "--", "perf_analyzer"]]
)
def test_bad_arguments_are_one_error(arguments: list[str]) -> None:
    assert_one_line(cli("convert", *arguments))


# --- perf-analyzer ---------------------------------------------------------------------------------------------------

ALWAYS = ("--concurrency-range", "2", "-p", "100", "-r", "5", "-s", "1000", "-f", "out.csv")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_runs_its_command_line(server: Running, folder: Path, protocol: str) -> None:
    url = address(server.url if protocol == "http" else server.grpc)
    done = cli("perf-analyzer", "-m", "identity", "-u", url, "-i", protocol, "--shape", "INPUT0:16", *ALWAYS)
    assert done.status in (0, 1), done  # a busy machine may make the run INVALID
    assert "identity" in done.out
    (line,) = csv.DictReader((folder / "out.csv").read_text().splitlines())
    assert line["Concurrency"] == "2"
    assert float(line["Inferences/Second"]) > 0
    assert (folder / "runs/LATEST").exists()


def test_perf_analyzer_notes_what_does_nothing_here(server: Running) -> None:
    arguments = ["-m", "identity", "-u", address(server.url), "--request-count", "20", "--max-threads", "4"]
    done = cli("perf-analyzer", *arguments)
    assert done.status in (0, 1), done
    assert "--max-threads has no effect here" in done.err


def test_perf_analyzer_names_its_own_option_in_errors(server: Running) -> None:
    assert_one_line(cli("perf-analyzer", "-m", "nosuch", "-u", address(server.url), "--request-count", "5"), "nosuch")


def test_perf_analyzer_refuses_what_cannot_be_kept() -> None:
    assert_one_line(
        cli("perf-analyzer", "-m", "m", "--periodic-concurrency-range", "1:8"), "--periodic-concurrency-range"
    )
