"""The example notebook in a real Jupyter kernel: an event loop is running, and every result shows itself."""

import html
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from needs import INSTALLED

from inferometer.serve.background import serving
from inferometer.serve.settings import Settings
from inferometer.serve.sim.settings import Fixed, Sim

pytestmark = pytest.mark.notebook

ROOT = Path(__file__).parents[2]
PYTHON = INSTALLED / "notebook" / "bin" / "python"


def test_a_notebook_shows_runs_and_comparisons(tmp_path: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if f"version = {version}." not in (INSTALLED / "notebook" / "pyvenv.cfg").read_text(encoding="utf-8"):
        pytest.skip(f"the notebook's environment is not of Python {version}, for which the dependencies are installed")
    loop = {"cell_type": "code", "id": "loop", "metadata": {}, "execution_count": None, "outputs": []}
    tree = json.loads((ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))
    tree["cells"].append(loop | {"source": "import asyncio\nassert asyncio.get_running_loop().is_running()"})
    with serving(Settings(sim=Sim(timing=Fixed(ttft=0.005, itl=0.001)), http=0, grpc=0)) as server:
        text = json.dumps(tree).replace("http://127.0.0.1:8000", server.url)
        text = text.replace(r"\"10s\"", r"\"2s\"")
        (tmp_path / "in.ipynb").write_text(text, encoding="utf-8")
        paths = os.pathsep.join([str(ROOT / "src"), sysconfig.get_paths()["purelib"]])
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        subprocess.run(
            [PYTHON, ROOT / "tools/real_servers/notebook/execute.py", "in.ipynb", "out.ipynb"],
            cwd=tmp_path,
            env=environment | {"KERNEL_PYTHONPATH": paths},
            check=True,
        )
    cells = json.loads((tmp_path / "out.ipynb").read_text(encoding="utf-8"))["cells"]
    shown = [output for cell in cells if cell["cell_type"] == "code" for output in cell["outputs"]]
    pages = [_page(output) for output in shown if "text/html" in output.get("data", {})]
    assert len(pages) == 2
    assert all(page.startswith("<!doctype html>") and "<script" in page for page in pages)
    assert "time to first token" in pages[0].lower() or "ttft" in pages[0]
    plain = ["".join(output["data"]["text/plain"]) for output in shown if "text/plain" in output.get("data", {})]
    assert any(text.startswith("<inferometer.Run ") for text in plain)
    assert any(text.startswith("Text(text=") for text in plain)


def _page(output: dict[str, Any]) -> str:
    (content,) = re.findall(r'^<iframe srcdoc="([^"]*)"', "".join(output["data"]["text/html"]))
    return html.unescape(content)
