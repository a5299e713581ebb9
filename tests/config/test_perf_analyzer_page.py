"""The options in docs/how-to/from-perf-analyzer.md: `run` accepts each of them, and it means what the page says."""

import re
import shlex
from pathlib import Path
from unittest import mock

import pytest
from command import cli

from inferometer import conduct
from inferometer.config.data import Tensors
from inferometer.config.loads import Closed, Constant, Poisson, Stages
from inferometer.config.schema import Config
from inferometer.errors import UserError

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "from-perf-analyzer.md").read_text(encoding="utf-8")
CELLS = re.findall(r"^\| [^|]+ \| (.+) \|$", PAGE, re.MULTILINE)
OPTIONS = [
    code for cell in CELLS for code in re.findall(r"`(--[^`]+)`", cell) if not code.endswith("=") and " " in code
]


def config_of(*arguments: str) -> Config:
    """What `inferometer run ARGUMENTS` would measure."""
    found: list[Config] = []

    def measure(config: Config, show: object, **others: object) -> None:
        found.append(config)
        raise UserError("enough", "nothing to do")

    with mock.patch.object(conduct, "measure", measure):
        result = cli("run", *arguments, "-q")
    assert found, result.err
    return found[0]


def with_options(text: str) -> Config:
    url = "http://127.0.0.1:8000" if "kserve-json" in text else "grpc://127.0.0.1:8001"
    return config_of(url, "--model", "m", *shlex.split(text))


@pytest.mark.parametrize("options", OPTIONS)
def test_run_takes_what_the_page_says(options: str) -> None:
    level = "" if "--rate" in options or "--concurrency" in options else " --concurrency 2"
    assert with_options(options + level).server.model == "m"


def test_the_page_has_them() -> None:
    assert len(OPTIONS) >= 14


def test_they_mean_what_it_says() -> None:
    assert with_options("--set server.version='\"2\"'").server.version == "2"
    data = with_options("--set data.fill='\"@data.json\"' --set data.shape='{INPUT: [1, 3, 224, 224]}'").data
    assert isinstance(data, Tensors)
    assert (data.fill, data.shape) == ("@data.json", {"INPUT": [1, 3, 224, 224]})
    even, poisson = (with_options(f"--rate 100:300:100 {more}").load for more in ("--set load.type=constant", ""))
    assert isinstance(even, Stages) and isinstance(poisson, Stages)
    assert [type(stage) for stage in [*even.stages, *poisson.stages]] == [Constant] * 3 + [Poisson] * 3
    overridden = with_options("--concurrency 4 --set data.sequence=20")
    assert isinstance(overridden.load, Closed) and isinstance(overridden.data, Tensors)


def test_a_level_that_ends_when_stable_takes_ten_windows_at_most() -> None:
    usual = with_options("--concurrency 4").load
    stable = with_options("--concurrency 4 --set load.stable=0.1 --set load.window=2s").load
    longer = with_options("--concurrency 4 --set load.stable=0.1 --duration 50s").load
    assert [load.duration for load in (usual, stable, longer) if isinstance(load, Closed)] == [30, 20, 50]


def test_flags_on_top_of_a_file_keep_its_rule_of_stability(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text("server: {url: http://x}\nload: {type: closed, concurrency: 1, stable: 0.2, window: 3s}\n")
    load = config_of(str(path), "--concurrency", "8").load
    assert isinstance(load, Closed)
    assert (load.concurrency, load.stable, load.window, load.duration) == (8, 0.2, 3, 30)


def test_the_command_at_the_end_is_the_file_below_it(tmp_path: Path) -> None:
    (line,) = re.findall(r"^    inferometer run (.*)$", PAGE, re.MULTILINE)
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "bench.yaml"
    path.write_text(block)
    arguments = shlex.split(line.replace("out.csv", str(tmp_path / "out.csv")))
    assert config_of(*arguments) == config_of(str(path))
