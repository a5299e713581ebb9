"""The docs say what the code does: generated pages are up to date, links lead somewhere, examples are good input."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

from inferometer.config import from_mapping

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


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
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        tree = yaml.safe_load(block)
        from_mapping({"server": {"url": "http://x"}} | tree)
