"""`inferometer inference-perf` from a config file to report files, against the simulator."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import trustme
import yaml
from command import Result, cli, start
from shared_data import SHARED, needs_shared

from inferometer import conduct
from inferometer.cli.inference_perf import parse
from inferometer.compat.inference_perf import destinations
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

CONFIGS = Path(__file__).parent / "configs"
EXAMPLES = SHARED / "inference-perf-configs"
ADAPTERS = ("movie", "consumer", "news", "code")
SECRET = "sk-a-secret-that-nobody-may-see"


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.005, itl=0.0005), lora=ADAPTERS)) as url:
        yield url


@pytest.fixture(scope="module")
def slow_sim() -> Iterator[str]:
    """A server that takes so long that requests of a burst are in flight together."""
    with running(simulator(timing=Fixed(ttft=1.0, itl=0.0005))) as url:
        yield url


@pytest.fixture(scope="module")
def certificate() -> trustme.LeafCert:
    return trustme.CA().issue_cert("me@example.org")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, certificate: trustme.LeafCert) -> None:
    """Run in this process without a probe, in an empty folder with the files that configs name."""
    measure = conduct.measure

    def measured(config: Config, *more: Any, **named: Any) -> Any:
        client = msgspec.structs.replace(config.client, processes=0, probe=False)
        return measure(msgspec.structs.replace(config, client=client), *more, **named)

    monkeypatch.setattr(conduct, "measure", measured)
    monkeypatch.chdir(tmp_path)
    turns = [{"from": "human", "value": "How far is the moon?"}, {"from": "gpt", "value": "About 384,000 km."}]
    (tmp_path / "conversations.json").write_text(
        json.dumps([{"id": str(n), "conversations": turns} for n in range(20)])
    )
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "client.key")
    (tmp_path / "corpus.txt").write_text("It was the best of times, it was the worst of times. " * 200)
    rows = [f"2024-05-10 00:00:00.{n}00000,{10 + n},{4 + n}" for n in range(8)]
    (tmp_path / "trace.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")


def run(config: Path, url: str, *more: str) -> Result:
    return cli("inference-perf", "--config_file", config, "--server.base_url", url, *more)


def options(path: Path) -> list[str]:
    """What makes a config short and runnable offline."""
    tree = yaml.safe_load(path.read_text())
    given = ["--server.model_name", "sim"]
    if path.parent != CONFIGS:
        given += ["--metrics", "null"]
    if tree.get("storage", {}) is not None:
        given += ["--storage.local_storage.path", "out"]
    if tree["load"].get("type", "constant") in ("constant", "poisson"):
        if "sweep" in tree["load"]:
            sweep = {"num_requests": 20, "num_stages": 2, "stage_duration": 1, "timeout": 8}
            given += [part for key, value in sweep.items() for part in (f"--load.sweep.{key}", str(value))]
        else:
            given += ["--load.stages", '[{"rate": 10, "duration": 1}]']
    kind = tree["data"]["type"]
    if kind == "shareGPT":
        given += ["--data.path", "conversations.json"]
    if kind != "mock" or "tokenizer" in tree:
        given += ["--tokenizer.pretrained_model_name_or_path", "builtin"]
    for section in ("load", "data"):
        if "trace" in tree[section]:
            given += [f"--{section}.trace.file", "trace.csv"]
    return [*given, "--load.interval", "0"]


def completed(result: Result, folder: Path) -> dict[str, Any]:
    """Check that the run ended well, and return the summary."""
    assert result.status == 0, result
    for name in ("config.yaml", "validation.json", "summary_lifecycle_metrics.json", "stage_0_lifecycle_metrics.json"):
        assert (folder / name).exists(), (name, result)
    assert (folder / "inference-perf.partial.stage_0.yaml").exists()
    assert (folder / "inferometer" / "LATEST" / "manifest.json").exists()
    summary: dict[str, Any] = json.loads((folder / "summary_lifecycle_metrics.json").read_bytes())
    assert summary["successes"]["count"] == summary["load_summary"]["count"] > 0, summary["failures"]
    assert "=== START_SUMMARY ===" in result.out and "=== END_STAGE_0 ===" in result.out
    assert re.search(r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - \S+ - INFO - Stage 0 - run completed$", result.out)
    return summary


@needs_shared
@pytest.mark.slow
def test_example_configs_of_inference_perf_run_to_the_end(sim: str, tmp_path: Path) -> None:
    for path in sorted(EXAMPLES.glob("*.yml")):
        if path.stem != "config-sweep":  # which has a test below
            out = tmp_path / path.stem
            completed(run(path, sim, *options(path), "--storage.local_storage.path", str(out)), out)
            adapters = {file.name.split("_")[1] for file in out.glob("adapter_*_stage_0_*")}
            assert adapters == ({"movie", "consumer"} if "lora" in path.stem else set())


@pytest.mark.parametrize(
    "path",
    sorted([*CONFIGS.glob("multimodal-*"), *EXAMPLES.glob("multimodal-*")]),
    ids=lambda path: path.stem,
)
def test_config_with_media_is_refused_by_name(tmp_path: Path, path: Path) -> None:
    result = run(path, "http://127.0.0.1:9")
    assert result.status == 1
    assert re.search(r"data\.(shared_prefix\.)?(multimodal|type|visionarena)", result.err), result.err
    assert not list(tmp_path.glob("reports*")), "a refused config leaves no folder"


OWN = (
    "random-lengths", "structured-chat", "multi-turn", "conversations", "breakers", "trace", "prometheus", "anthropic", "minimal",
    "synthetic", "shared-prefix",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("multi-turn", "anthropic", "minimal") else pytest.param(name, marks=pytest.mark.slow)
        for name in OWN
    ],
)
def test_config_of_our_own_runs_to_the_end(sim: str, tmp_path: Path, name: str) -> None:
    path = CONFIGS / f"{name}.yml"
    completed(run(path, sim, *options(path)), tmp_path / "out")


@pytest.mark.slow
def test_users_of_a_multi_turn_config_take_turns(sim: str, tmp_path: Path) -> None:
    path = CONFIGS / "multi-turn.yml"
    stages = '[{"rate": 20, "duration": 1}, {"rate": 8, "duration": 1}]'
    more = ("--load.stages", stages, "--report.request_lifecycle.per_request", "true")
    completed(run(path, sim, *options(path), *more), tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "per_request_lifecycle_metrics.json").read_bytes())
    turns = [row["info"]["extra_info"] for row in sorted(rows, key=lambda row: row["start_time"])]
    assert turns == [
        {"user_session": f"user_session_{n % 6}", "chat_round": n // 6 + 1} for n in (*range(20), *range(8))
    ]


def test_each_adapter_has_its_files(sim: str, tmp_path: Path) -> None:
    path = CONFIGS / "adapters.yml"
    stages = ("--load.stages", '[{"rate": 64, "duration": 1}]')  # after 64 requests the split is exact
    whole = completed(run(path, sim, *options(path), *stages), tmp_path / "out")
    names = {"movie", "news", "code"}
    for suffix in ("", "_stage_0"):
        files = [tmp_path / "out" / f"adapter_{name}{suffix}_lifecycle_metrics.json" for name in names]
        counts = [json.loads(file.read_bytes())["successes"]["count"] for file in files]
        assert sum(counts) == whole["successes"]["count"] == 64 and min(counts) >= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [CONFIGS / "sweep.yml", *EXAMPLES.glob("config-sweep.yml")], ids=lambda path: path.stem
)
def test_sweep_finds_its_stages(slow_sim: str, tmp_path: Path, path: Path) -> None:
    result = run(path, slow_sim, *options(path))
    completed(result, tmp_path / "out")
    assert "Stage 1 - run completed" in result.out
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["load"]["stages"] == []
    stage = json.loads((tmp_path / "out" / "stage_0_lifecycle_metrics.json").read_bytes())
    assert stage["load_summary"]["requested_rate"] == 1.0


def test_adapter_that_is_not_served_is_refused_before_the_run(sim: str, tmp_path: Path) -> None:
    split = [{"name": "movie", "split": 0.5}, {"name": "weather", "split": 0.5}]
    load = {"lora_traffic_split": split, "stages": [{"rate": 10, "duration": 1}]}
    result = run(written(tmp_path, {"load": load, "data": {"type": "mock"}}), sim, "--server.model_name", "sim")
    assert result.status == 1 and "load.lora_traffic_split: the server does not list weather" in result.err
    assert not list((tmp_path / "out").glob("*.json"))


@pytest.mark.slow
def test_sweep_that_finds_nothing_leaves_the_config(sim: str, tmp_path: Path) -> None:
    sweep = {"type": "linear", "num_requests": 1, "timeout": 1, "num_stages": 2, "stage_duration": 1}
    result = run(written(tmp_path, {"load": {"sweep": sweep, "interval": 0}}), sim, "--server.model_name", "sim")
    assert result.status == 0 and "ERROR - " in result.out
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_file()} == {"config.yaml", "validation.json"}


def test_null_storage_writes_no_files_but_prints_them(sim: str, tmp_path: Path) -> None:
    path = CONFIGS / "shared-prefix-legacy.yml"
    result = run(path, sim, *options(path))
    assert result.status == 0 and "=== START_SUMMARY ===" in result.out
    assert (tmp_path / "runs" / "LATEST").exists() and not list(tmp_path.glob("reports*"))


SHORT = {"data": {"type": "mock"}, "load": {"stages": [{"rate": 10, "duration": 1}], "interval": 0}}


def written(tmp_path: Path, tree: dict[str, Any]) -> Path:
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump(SHORT | {"storage": {"local_storage": {"path": "out"}}} | tree))
    return path


@pytest.mark.slow
def test_stage_lines_enclose_the_requests_of_each_stage(sim: str, tmp_path: Path) -> None:
    load = {"interval": 0.6, "stages": [{"rate": 20, "duration": 1}, {"rate": 10, "duration": 1}]}
    result = run(written(tmp_path, {"load": load}), sim)
    completed(result, tmp_path / "out")
    lines = re.findall(r"(?m)^(\S+ \S+) - \S+ - INFO - Stage (\d) - run (started|completed)$", result.out)
    assert [(stage, what) for _, stage, what in lines] == [
        ("0", "started"), ("0", "completed"), ("1", "started"), ("1", "completed"),
    ]  # fmt: skip
    assert sorted(line[0] for line in lines) == [line[0] for line in lines]
    seconds = [float(line[0][-6:].replace(",", ".")) for line in lines]
    assert 0.2 < (seconds[2] - seconds[1]) % 60 < 1.5


def test_secrets_are_in_no_file_and_no_log(sim: str, tmp_path: Path) -> None:
    header = "another-secret-header-value"
    config = {"server": {"base_url": sim, "api_key": SECRET}, "api": {"headers": {"x-key": header}}}
    path = written(tmp_path, config | {"report": {"request_lifecycle": {"per_request": True}}})
    result = run(path, sim, "--tokenizer.token", "hf_typed_on_the_command_line")
    completed(result, tmp_path / "out")
    texts = [file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()] + [
        result.out.encode(),
        result.err.encode(),
    ]
    for secret in (SECRET, header, "hf_typed"):
        assert not any(secret.encode() in text for text in texts), secret
    assert "HF_TOKEN" not in os.environ
    again = cli("inference-perf", "-c", tmp_path / "out" / "config.yaml")
    assert again.status == 1 and "[REDACTED]" in again.err and "api.headers" in again.err


@pytest.mark.slow
def test_failing_run_exits_with_0_unless_asked(sim: str, tmp_path: Path) -> None:
    path = written(tmp_path, {})
    arguments = (path, sim, "--server.model_name", "there-is-no-such-model")
    assert run(*arguments).status == 0
    assert json.loads((tmp_path / "out" / "summary_lifecycle_metrics.json").read_bytes())["failures"]["count"] == 10
    assert run(*arguments, "--strict-exit").status == 1


def test_server_that_cannot_be_reached_is_a_run_of_failed_requests(tmp_path: Path) -> None:
    result = run(written(tmp_path, {}), "http://127.0.0.1:9", "--server.model_name", "sim")
    assert result.status == 0 and "connection refused: the requests are sent all the same" in result.out
    assert "Stage 0 - run completed" in result.out
    failures = json.loads((tmp_path / "out" / "summary_lifecycle_metrics.json").read_bytes())["failures"]
    assert failures["count"] == 10 and failures["by_label"]["Connection Error"]["messages"][0]["message"]
    result = run(written(tmp_path, {}), "http://127.0.0.1:9")
    assert result.status == 1 and "connection refused" in result.err, "the model's name is the server's to say"


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (("--config_file", "missing.yml"), 1, "missing.yml"),
        (("--nonsense", "1"), 2, "--nonsense"),
        (("--log-level", "LOUD"), 2, "LOUD"),
        (("--load.interval", "soon"), 2, "--load.interval"),
        (("config.yml",), 2, "--config_file"),
        (("--server.base_url",), 2, "no value"),
        ((), 1, "server"),
        (("--server.base_url", "http://127.0.0.1:9"), 1, "load.stages"),
    ],
)
def test_bad_input_is_two_lines_and_upstreams_status(arguments: tuple[str, ...], status: int, word: str) -> None:
    result = cli("inference-perf", *arguments)
    assert result.status == status, result
    assert result.err.startswith("inference-perf: ") and len(result.err.splitlines()) == 2
    assert word in result.err


def test_storage_that_cannot_be_written_is_refused_before_the_run(sim: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(written(tmp_path, {"storage": {"local_storage": {"path": "file/reports"}}}), sim)
    assert result.status == 1 and "storage.local_storage.path" in result.err
    assert "Stage 0" not in result.out


class _Bucket:
    """An object store in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {"gcs-config.yaml": b"an earlier run's"}
        self.is_checked = self.is_closed = False

    def check_writable(self) -> None:
        self.is_checked = True

    def put(self, name: str, content: bytes | Path) -> None:
        assert isinstance(content, bytes)
        self.objects[name] = content

    def names(self, prefix: str = "") -> list[str]:
        return list(self.objects)

    def close(self) -> None:
        self.is_closed = True


def test_files_go_to_buckets_with_their_prefixes(sim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buckets: dict[str, _Bucket] = {}
    urls = []

    def connect(section: str, settings: Any) -> _Bucket:
        urls.append(destinations.url_of(section, settings))
        return buckets.setdefault(section, _Bucket())

    monkeypatch.setattr(destinations, "connect", connect)
    result = run(CONFIGS / "buckets.yml", sim)
    assert result.status == 0, result
    gcs, s3 = buckets["google_cloud_storage"], buckets["simple_storage_service"]
    assert re.fullmatch(r"gs://results/runs/\d{8}-\d{6}", urls[0]) and urls[1] == "s3://results/runs"
    assert gcs.objects["gcs-config.yaml"] == b"an earlier run's"
    assert json.loads(s3.objects["s3-config.yaml"])["server"]["base_url"] == sim
    assert all(bucket.is_checked and bucket.is_closed and len(bucket.objects) > 4 for bucket in (gcs, s3))
    assert list(tmp_path.glob("reports/*/nightly-summary_lifecycle_metrics.json"))


def test_bucket_that_cannot_be_written_is_refused_before_the_run(sim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(section: str, settings: Any) -> _Bucket:
        raise UserError("the store cannot be reached", "check the network")

    monkeypatch.setattr(destinations, "connect", connect)
    result = run(CONFIGS / "buckets.yml", sim)
    assert result.status == 1 and "storage.google_cloud_storage" in result.err and "Stage 0" not in result.out


def test_flags_may_be_abbreviated_and_joined() -> None:
    flags = parse(
        [
            "--config",
            "a.yml",
            "--server.base_url=x",
            "--load.interval",
            "-1",
            "-a",
            "one",
            "two",
            "--lenient",
            "--compat",
            "exact",
        ]
    )
    assert (flags.config_file, flags.analyze, flags.lenient) == ("a.yml", ["one", "two"], True)
    assert flags.options == {"server.base_url": "x", "load.interval": "-1", "compat": "exact"}
    assert parse(["-ca.yml", "-u=d", "--unified", "e", "-a"]).unified == "e"
    assert parse(["-a"]).analyze == []
    with pytest.raises(UserError, match=r"--lenient takes no value"):
        parse(["--lenient=1"])


def test_analyze_logs_problems_and_exits_with_0(tmp_path: Path) -> None:
    result = cli("inference-perf", "--analyze", tmp_path / "missing")
    assert result.status == 0 and result.err == ""
    assert re.search(r"(?m)^\d{4}-.* - ERROR - .*missing", result.out)


def test_executable_called_inference_perf_is_the_command() -> None:
    from inferometer.cli.main import entry  # noqa: PLC0415

    with mock.patch.object(sys, "argv", ["/usr/bin/inference-perf", "--help"]), pytest.raises(SystemExit) as ended:
        entry()
    assert not ended.value.code
    with (
        mock.patch.object(sys, "argv", ["/usr/bin/inference-perf", "--nonsense", "1"]),
        pytest.raises(SystemExit) as ended,
    ):
        entry()
    assert ended.value.code == 2


@pytest.mark.slow
def test_ctrl_c_writes_the_reports_and_exits_with_0(sim: str, tmp_path: Path) -> None:
    path = written(tmp_path, {"load": {"stages": [{"rate": 20, "duration": 60}], "interval": 0}})
    process = start("inference-perf", "-c", path, "--server.base_url", sim, cwd=tmp_path, PYTHONUNBUFFERED="1")
    assert process.stdout is not None
    seen = ""
    while "run started" not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "Stage 0 - run failed" in out and "=== END_SUMMARY ===" in out
    assert json.loads((tmp_path / "out" / "summary_lifecycle_metrics.json").read_bytes())["successes"]["count"] > 0
