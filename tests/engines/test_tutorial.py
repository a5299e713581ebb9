"""The tutorial "Choose an engine", followed literally: each of its commands, in order."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/choose-an-engine.md"
SETUP = ("make setup backends", ". .venv/bin/activate")
"""What the environment of the tests has done already."""


@pytest.mark.slow
@pytest.mark.transformers
def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    for name in ("tools", "examples", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    lines = re.findall(r"^    (\S.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines[: len(SETUP)] == list(SETUP)
    for line in lines[len(SETUP) :]:
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert "<html" in (tmp_path / "engines.html").read_text(encoding="utf-8")
    found = json.loads((tmp_path / "engines.json").read_text(encoding="utf-8"))
    assert [engine["status"] for engine in found["engines"]] == ["ok"] * 3
    assert [engine["agreement"]["verdict"] for engine in found["engines"]] == ["reference", "agrees", "agrees"]
    rounds = {level["repeats"] + level["left_out"] for engine in found["engines"] for level in engine["levels"]}
    assert rounds == {2}
