"""Every example runs: each file under examples/ is a valid configuration that measures the server it names."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from command import cli

from inferometer.cli.serve import command as serve
from inferometer.config.data import Data
from inferometer.config.engines import campaign_from, variants
from inferometer.config.grid import grid_from_mapping
from inferometer.config.loads import Load
from inferometer.config.schema import Server
from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Settings
from inferometer.serve.sim.settings import Fixed, Sim

ROOT = Path(__file__).parents[1]
ENGINES = sorted((ROOT / "examples/engines").glob("*.yaml"))
EXAMPLES = [path for path in sorted((ROOT / "examples").rglob("*.yaml")) if path not in ENGINES]
SERVED = ("identity", "sim", "examples/data/brightness.py")


def short_name(path: Path) -> str:
    return path.relative_to(ROOT / "examples").with_suffix("").as_posix()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """The server that the examples need, with a simulator that takes less time."""
    quick = Sim(timing=Fixed(ttft=0.005, itl=0.001))
    models = tuple(str(ROOT / name) if "/" in name else name for name in SERVED if name != "sim")
    with serving(Settings(models=models, sim=quick, http=0, grpc=0)) as running:
        yield running


def _one_per_folder() -> Iterator[Any]:
    """All examples; those that are not the first of their folder are left to CI."""
    folders = set()
    for path in EXAMPLES:
        marks = [pytest.mark.slow] if path.parent in folders else []
        folders.add(path.parent)
        yield pytest.param(path, id=short_name(path), marks=marks)


@pytest.mark.parametrize("path", list(_one_per_folder()))
def test_example_runs(path: Path, server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem == "images":
        pytest.importorskip("PIL", reason="Pillow is not installed")
    monkeypatch.chdir(ROOT)  # paths of data files are relative to the working directory
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    url = server.grpc if tree["server"]["url"].startswith("grpc") else server.url
    overrides = {"server.url": url, "output": tmp_path, "client.processes": 0, "client.probe": "false"} | shorter(
        tree["load"]
    )
    arguments = [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
    result = cli("run", path, "-q", *arguments)
    assert result.status in (0, 1), result.err  # INVALID is a result too: the machine that runs the tests may be busy
    folder = tmp_path / "LATEST"
    folder = folder / "LATEST" if (folder / "runs.json").exists() else folder
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["counts"]["ok"] > 0
    assert summary["counts"]["failed"] == 0


def shorter(load: dict[str, Any], key: str = "load") -> dict[str, str]:
    """The overrides that make a load, or each of its stages, take a fraction of a second."""
    stages = load.get("stages")
    if stages is not None:
        return {k: v for at, stage in enumerate(stages) for k, v in shorter(stage, f"{key}.stages.{at}").items()}
    return {f"{key}.duration": "250ms"} if "duration" in load else {}


@pytest.mark.parametrize("path", EXAMPLES, ids=short_name)
def test_example_names_the_server_and_the_command(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"# Run:    inferometer run {path.relative_to(ROOT).as_posix()}\n" in text
    (line,) = re.findall(r"^# Server: inferometer serve (.*)$", text, re.MULTILINE)
    arguments = serve.make_context("serve", shlex.split(line)).params
    assert set(arguments["models"]) <= set(SERVED), "start it in the fixture `server`, or use one that is there"


@pytest.mark.parametrize("path", ENGINES, ids=short_name)
def test_comparison_of_engines_is_valid_and_names_the_command(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert f"#     inferometer engines {path.relative_to(ROOT).as_posix()}" in text
    assert variants(campaign_from(yaml.safe_load(text)))


def tags(union: Any) -> set[str]:
    return {str(variant.__struct_config__.tag) for variant in get_args(union)}


def stems(folder: str) -> set[str]:
    return {path.stem for path in (ROOT / "examples" / folder).glob("*.yaml")}


def test_every_kind_of_load_has_an_example() -> None:
    assert stems("load") == tags(Load)


def test_every_kind_of_data_has_an_example() -> None:
    assert stems("data") == (tags(Data) | {"jsonl-sessions"}) - {"hub"}  # which needs a network


def test_every_api_has_an_example() -> None:
    apis = set(get_args(get_args(Server.__annotations__["api"])[0])) - {"auto"}
    assert stems("api") == apis | {"kserve-grpc"}


@pytest.mark.parametrize("path", EXAMPLES, ids=short_name)
def test_example_shows_what_its_name_says(path: Path) -> None:
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    kind = path.parent.name
    if kind == "sweep":
        assert grid_from_mapping(tree).is_sweep
        return
    if kind in ("slo", "observe"):
        assert tree[kind]
        return
    shown = tree["server"]["api"] if kind == "api" else tree[kind]["type"]
    assert path.stem.removesuffix("-grpc").removesuffix("-sessions") == shown


def test_the_table_lists_every_example() -> None:
    table = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert {ROOT / "examples" / link for link in re.findall(r"\]\((\S+\.yaml)\)", table)} == {*EXAMPLES, *ENGINES}


def test_the_image_is_small_and_decodes() -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    path = ROOT / "examples" / "shapes.jpg"
    assert path.stat().st_size < 10_000
    assert image.open(path).convert("RGB").size == (224, 224)
