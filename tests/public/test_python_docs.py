"""The Python code in the docs runs: against the simulator and the identity model, with shorter loads."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from test_pytest_plugin import PLUGIN

from inferometer.serve.background import Running

pytest_plugins = ["pytester"]

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, served: Running) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    text = text.replace("http://127.0.0.1:8000", served.url).replace("grpc://127.0.0.1:8001", served.grpc)
    text = re.sub(r'("load.duration": )"\ds"', r'\1"500ms"', text)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize(
    "page",
    ["how-to/notebook.md", pytest.param("reference/python.md", marks=pytest.mark.slow)],
    ids=["notebook", "reference"],
)
def test_blocks_of_a_page_run_one_after_the_other(
    page: str, served: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks(page, served):
            exec(compile(block, page, "exec"), names)
    assert names["run"].folder.parent == tmp_path / "runs"


@pytest.mark.slow
def test_tests_of_the_page_run(served: Running, pytester: pytest.Pytester) -> None:
    for number, block in enumerate(blocks("how-to/pytest.md", served)):
        (pytester.path / f"test_{number}.py").write_text(block, encoding="utf-8")
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider")
    ended = result.parseoutcomes()
    # A busy machine may make a run INVALID, which is a result too.
    assert ended.get("passed", 0) + str(result.stdout).count("INVALID: ") >= 3 and "errors" not in ended, ended
