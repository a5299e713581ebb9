"""The flags of `inferometer engines`."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inferometer.cli.engines import command
from inferometer.config.engines import Campaign
from inferometer.errors import UserError


def campaign_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Campaign:
    found: list[Campaign] = []

    def run_campaign(campaign: Campaign, *_: Any) -> Path:
        found.append(campaign)
        raise UserError("not started here")

    monkeypatch.setattr("inferometer.conduct.campaign.run_campaign", run_campaign)
    result = CliRunner().invoke(command, ["--model", "m", *arguments])
    assert found, result.exception
    return found[0]


def test_an_engine_takes_flags_environment_variables_and_keys_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "vllm,dtype=float32,max-model-len=64,compilation-config.mode=3,env.OMP_NUM_THREADS=1,server.body.top_k=5"
    (spec,) = campaign_of(monkeypatch, "--engine", text).engines
    assert spec.dtype == "float32" and spec.args == {"max-model-len": 64, "compilation-config.mode": 3}
    assert spec.env == {"OMP_NUM_THREADS": "1"} and spec.server == {"body": {"top_k": 5}}


def test_an_engine_that_does_not_exist_is_answered_with_the_nearest(tmp_path: Path) -> None:
    error = CliRunner().invoke(command, ["--model", "m", "--engine", "vlm", "--set", f"output={tmp_path}"]).exception
    assert isinstance(error, UserError) and error.what == "vlm: there is no engine 'vlm'"
    assert error.remedy.startswith("did you mean vllm? it takes command | ")


@pytest.mark.parametrize(
    ("setting", "correct"),
    [
        ("args.max-model-len=64", "--engine vllm,max-model-len=64"),
        ("arg.max-model-len=64", "--engine vllm,max-model-len=64"),
        ("envs.OMP_NUM_THREADS=1", "--engine vllm,env.OMP_NUM_THREADS=1"),
        ("startup.timeout=5s", "--set startup.timeout=5s"),
    ],
)
def test_a_dotted_key_that_no_engine_has_is_refused_with_the_right_spelling(setting: str, correct: str) -> None:
    error = CliRunner().invoke(command, ["--model", "m", "--engine", f"vllm,{setting}"]).exception
    assert isinstance(error, UserError) and error.remedy == f"write {correct}"


@pytest.mark.parametrize(("setting", "what"), [("tream=true", "tream: unknown key"), ("api=chatt", "chatt")])
def test_a_key_of_the_server_that_does_not_exist_is_refused_before_the_engine_starts(setting: str, what: str) -> None:
    """Without a start, there is nothing to wait for: the engine would never give a good response."""
    error = CliRunner().invoke(command, ["--model", "m", "--engine", f"vllm,server.{setting}"]).exception
    assert isinstance(error, UserError) and error.key.startswith("server.") and what in f"{error.key}: {error.what}"
