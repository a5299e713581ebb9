"""The docs say what the code does: generated pages are up to date, links lead somewhere, examples are good input."""

import asyncio
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import yaml

from inferometer.cli.serve import command as serve
from inferometer.config import from_mapping
from inferometer.serve import backends, metrics
from inferometer.serve.models import configs
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Output, Refused
from inferometer.tensors import Tensor, from_numpy, to_numpy

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_generated_pages_are_up_to_date() -> None:
    for name, text in runpy.run_path(str(ROOT / "tools" / "write_docs.py"))["PAGES"].items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text(), f"docs/{name}: run make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_yaml_examples_are_good_input(page: Path) -> None:
    for block in _blocks(page, "yaml"):
        if not block.startswith("# config.yaml"):
            tree = yaml.safe_load(block)
            from_mapping({"server": {"url": "http://x"}} | tree)


# --- the reference server --------------------------------------------------------------------------------------------

SERVE = ROOT / "docs" / "reference" / "server.md"
BACKENDS = ROOT / "docs" / "how-to" / "serve-your-model.md"


@pytest.mark.parametrize("page", [SERVE, BACKENDS], ids=lambda page: page.name)
def test_model_configurations_are_good_and_name_backends_that_there_are(page: Path) -> None:
    yamls = [block for block in _blocks(page, "yaml") if block.startswith("# config.yaml")]
    found = [configs.from_pbtxt(block) for block in _blocks(page, "pbtxt")] + [configs.from_yaml(one) for one in yamls]
    assert found
    for config in found:
        assert backends.backend_of(config)
        assert configs.facts(config)
        assert configs.policy(config)


def test_a_configuration_says_the_same_as_pbtxt_and_as_yaml() -> None:
    (text,) = _blocks(SERVE, "pbtxt")
    (same,) = (block for block in _blocks(SERVE, "yaml") if block.startswith("# config.yaml"))
    assert configs.from_pbtxt(text) == configs.from_yaml(same)


def test_metrics_of_the_page_are_those_that_are_documented() -> None:
    async def names() -> set[str]:
        models = Models(asyncio.get_running_loop())
        page = metrics.page(models).decode()
        await models.close()
        return set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))

    assert set(re.findall(r"`(nv_\w+)`", SERVE.read_text(encoding="utf-8"))) == asyncio.run(names())


def test_options_that_are_documented_are_there() -> None:
    table = SERVE.read_text(encoding="utf-8").partition("## Running it")[2].partition("An HTTP request")[0]
    documented = set(re.findall(r"^\| [^|]*", table, re.MULTILINE))
    options = {option for parameter in serve.params for option in parameter.opts}
    found = {name for cell in documented for name in re.findall(r"--[a-z-]+", cell)}
    assert found and found <= options


def test_every_backend_has_a_line_in_the_table() -> None:
    table = BACKENDS.read_text(encoding="utf-8").partition("| backend |")[2].partition("Install with")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(backends.LOADERS)
    for backend, extra in backends.EXTRAS.items():
        (line,) = (line for line in table.splitlines() if line.startswith(f"| `{backend}`"))
        assert f"`inferometer[{extra}]`" in line


def test_python_models_do_what_the_page_says(tmp_path: Path) -> None:
    scale, words = _blocks(BACKENDS, "python")
    x = from_numpy("X", np.array([[1, 2, 3]], np.float32), "FP32")
    (answer,) = _answers(tmp_path / "scale.py", scale, x, factor=10)
    np.testing.assert_array_equal(answer, [[11, 21, 31]])
    with pytest.raises(Refused, match=r"factor must be a number \(got .a.\)"):
        _answers(tmp_path / "scale.py", scale, x, factor="a")
    text = from_numpy("text_input", np.array([b"one two three"], object), "BYTES")
    assert [answer.item() for answer in _answers(tmp_path / "words.py", words, text)] == [b"one", b"two", b"three"]


def _answers(path: Path, source: str, given: Tensor, **parameters: int | str) -> list[np.ndarray]:
    """What the model gives for one request, as the server would answer it."""
    path.write_text(source, encoding="utf-8")
    made: list[Output] = []

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        models = Models(loop)
        try:
            models.add(str(path))
            await models.start()
            end: asyncio.Future[Refused | None] = loop.create_future()
            models.submit(
                Inference(
                    path.stem,
                    {given.name: given},
                    answer=made.extend,
                    ended=end.set_result,
                    arrived=0,
                    parameters=parameters,
                )
            )
            refused = await asyncio.wait_for(end, 30)
        finally:
            await models.close()
        if refused is not None:
            raise refused

    asyncio.run(ask())
    return [to_numpy(output.tensor) for output in made]


def _blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
