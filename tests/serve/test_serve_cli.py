"""`inferometer serve`: settings from options, one-line errors, a clean stop."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner
from raw_client import RawClient, request

from inferometer.cli.serve import _described, command
from inferometer.errors import UserError
from inferometer.serve import app
from inferometer.serve.settings import Limits, Settings, check
from inferometer.serve.sim import truth
from inferometer.serve.sim.settings import Batch, Fixed


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch):
    """Return the settings of a command line without serving."""

    def settings_of(*arguments: str) -> Settings:
        caught: list[Settings] = []

        async def serve(settings: Settings, ready: object) -> None:
            caught.append(settings)

        monkeypatch.setattr(app, "serve", serve)
        result = CliRunner().invoke(command, arguments, standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return caught[0]

    return settings_of


def test_fixed_timing_is_the_default(settings_of):
    assert settings_of().sim.timing == Fixed(ttft=0.05, itl=0.01)
    settings = settings_of("--ttft", "80ms", "--itl", "5ms", "--max-batch", "64", "--jitter", "5%")
    assert settings.sim.timing == Fixed(ttft=0.08, itl=0.005, max_batch=64, jitter=0.05)


def test_an_option_of_the_batch_engine_selects_it(settings_of):
    assert settings_of("--decode-step", "8ms").sim.timing == Batch(decode_step=0.008)
    settings = settings_of("--prefix-cache", "--no-chunked-prefill", "--block-size", "32", "--max-batch", "4")
    assert settings.sim.timing == Batch(prefix_cache=True, chunked_prefill=False, block=32, max_batch=4)


def test_the_token_comes_from_the_environment(settings_of, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SIM_KEY", "secret")
    assert settings_of("--api-key-env", "SIM_KEY").token == "secret"


@pytest.mark.parametrize(
    ("arguments", "warns"),
    [
        ("", False), ("--host ::1", False), ("--host localhost", False), ("--host 0.0.0.0 --token-env SIM_KEY", False),
        ("--host 0.0.0.0", True), ("--host gpu-1 --tls-cert a --tls-key b", True),
        ("--host :: --tls-cert a --tls-key b --tls-client-ca c", False),
    ],
)  # fmt: skip
def test_a_server_that_everyone_can_use_is_warned_about(
    settings_of, monkeypatch: pytest.MonkeyPatch, arguments: str, warns: bool
):
    monkeypatch.setenv("SIM_KEY", "secret")
    echoed: list[str] = []
    monkeypatch.setattr("click.echo", lambda text, err: echoed.append(text))
    assert settings_of(*arguments.split())
    assert ["can use this server" in line for line in echoed] == [True] * warns


@pytest.mark.parametrize(
    "arguments",
    [
        "--ttft 5x", "--ttft 50", "--ttft 50ms --decode-step 1ms", "--jitter 300%", "--jitter x", "--max-batch -1", "--prefill-rate 0",
        "--prefill-rate nan", "--token-budget 0", "--block-size 0", "--tokens-per-chunk 0", "--port 70000",
        "--max-queue -1", "--api-key-env NOT_SET_ANYWHERE", "--fault nonsense", "--decode-step 1ms --max-batch 0",
    ],
)  # fmt: skip
def test_invalid_values_are_explained_with_a_remedy(settings_of, arguments: str):
    with pytest.raises(UserError) as error:
        settings_of(*arguments.split())
    assert "\n" not in error.value.what
    assert error.value.remedy


def test_help_explains_the_modes_and_every_fault():
    text = CliRunner().invoke(command, ["--help"]).output
    assert "batch engine" in text
    assert "error_frame" in text
    assert "every=10" in text


def test_timing_is_described_in_one_line():
    assert _described(Fixed()) == "fixed: TTFT 50 ms, ITL 10 ms"
    assert _described(Batch()) == "batch engine: prefill 20000 tokens/s, decode step 10 ms"


@contextlib.contextmanager
def launched(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    """Run `inferometer serve ARGUMENTS`, which is to end with status 0; yield the process and its standard output."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "inferometer", "serve", *arguments, "--http", "0"]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
            process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_signal_stops_cleanly_with_a_complete_truth_log(tmp_path: Path):
    path = tmp_path / "truth.jsonl"
    with launched("--ttft", "1ms", "--itl", "1ms", "--drain", "300s", "--truth", str(path)) as (process, out):
        first, *others = (out.readline() for _ in range(4))
        assert others[0].startswith("  gRPC    grpc://127.0.0.1:")
        assert others[1].startswith("  metrics http://127.0.0.1:")
        assert others[2].startswith("fixed: TTFT 1 ms")
        with RawClient(first.split()[2]) as client:
            client.request("/v1/completions", {"prompt": "a", "max_tokens": 2})
            process.send_signal(signal.SIGINT)
            process.communicate(
                timeout=30
            )  # idle connections do not delay the stop for the 300 s that a drain may take
    assert len(truth.read(path)) == 1


def test_the_banner_lists_models_and_the_metrics_port_has_only_metrics(tmp_path: Path):
    for name, text in (("broken", "1 / 0"), ("good", _DOUBLE)):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text(text)
    with launched(str(tmp_path), "identity", "--grpc", "-1") as (process, out):
        first, metrics, failed = (out.readline() for _ in range(3))
        assert first.rstrip().endswith("(models good, identity)")
        assert failed.startswith("Failed to load broken: ")
        assert "ZeroDivisionError" in failed
        with RawClient(metrics.split()[1].removesuffix("/metrics")) as client:
            assert client.request("/metrics").status == 200
            refused = client.request("/v2/models/identity")
            assert refused.status == 404 and b"on this port only /health and /metrics" in refused.body
        process.terminate()


_DOUBLE = """
CONFIG = {"input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [1]}], "output": [{"name": "B", "data_type": "TYPE_FP32", "dims": [1]}]}
def infer(inputs, parameters):
    return {"B": inputs["A"] * 2}
"""


def test_simulator_options_without_the_simulator_are_refused(settings_of):
    for arguments in (("--ttft", "1ms"), ("--model", "llm"), ("--fault", "reset@#1")):
        with pytest.raises(UserError, match="which is not served"):
            settings_of("identity", *arguments)
    settings = settings_of("identity", "--config", "max_batch_size=4", "--max-message", "2GiB", "--drain", "5s")
    assert (settings.models, settings.sim, settings.drain) == (("identity",), None, 5)
    assert settings.limits.message == 2 << 30


def test_a_limit_of_zero_is_refused(settings_of):
    with pytest.raises(UserError, match="--max-message must be at least 1"):
        settings_of("--max-message", "0B")


STUCK = "print('loading', flush=True)\n"


@pytest.mark.parametrize(
    ("number", "stuck"),
    [(signal.SIGINT, "import threading\nthreading.Event().wait()"), (signal.SIGTERM, "while True: pass")],
)
def test_the_first_signal_stops_while_a_model_is_loading(tmp_path: Path, number: signal.Signals, stuck: str):
    (tmp_path / "model.py").write_text(STUCK + stuck)
    with launched("identity", str(tmp_path)) as (process, out):
        assert out.readline() == "loading\n"
        process.send_signal(number)
        assert process.communicate(timeout=20) == ("", "")


def test_a_load_by_a_client_does_not_delay_the_stop(tmp_path: Path):
    (tmp_path / "late" / "1").mkdir(parents=True)
    model = tmp_path / "late" / "1" / "model.py"
    model.write_text(_DOUBLE)
    options = ("--grpc", "-1", "--metrics", "-1", "--allow-control", "--drain", "0s")
    with launched(str(tmp_path), *options) as (process, out), RawClient(out.readline().split()[2]) as client:
        model.write_text(STUCK + "import threading\nthreading.Event().wait()")
        client.send(request("/v2/repository/models/late/load", b""))
        assert out.readline() == "loading\n"
        process.terminate()


def test_an_unknown_model_name_lists_the_built_in_models():
    arguments = ["serve", "nosuch", "--http", "0"]
    result = subprocess.run(
        [sys.executable, "-m", "inferometer", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode != 0
    assert "one of classifier, identity, sim" in result.stderr


@pytest.mark.parametrize("option", ["--max-header", "--max-streams", "--max-requests"])
def test_limits_beyond_grpcs_own_are_refused(settings_of, option: str):
    with pytest.raises(UserError, match=rf"{option} must be at most 2147483647 \(got 3000000000\)"):
        settings_of("identity", option, "3000000000")


def test_idle_and_stalled_are_parsed_and_checked(settings_of):
    limits = settings_of("identity").limits
    assert (limits.idle, limits.stalled) == (120, 60) == (Limits().idle, Limits().stalled)
    limits = settings_of("identity", "--idle", "90s", "--stalled", "0").limits
    assert (limits.idle, limits.stalled) == (90, 0)
    with pytest.raises(UserError, match="--idle"):
        settings_of("identity", "--idle", "soon")
    with pytest.raises(UserError, match="--stalled must be at least 0"):
        check(Settings(limits=Limits(stalled=-1)))
