"""The files in workload/builtin can be rebuilt, and are what synthetic prompts and the simulator rely on."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from inferometer.workload.tokenizer import BUILTIN, counts, load, measure_builtin, prose, words

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    spec = importlib.util.spec_from_file_location("build_tokenizer", TOOLS / "build_tokenizer.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tool_rebuilds_the_shipped_files_byte_for_byte(tool: ModuleType, tmp_path: Path) -> None:
    tool.main(tmp_path)
    for name in ("prose.txt", "other.txt", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (BUILTIN / name).read_bytes(), name


def test_the_shipped_counts_are_those_of_the_tokenizer() -> None:
    assert counts() == measure_builtin()


def test_vocabulary_and_characters_per_token_are_like_those_of_natural_text() -> None:
    vocabulary = json.loads((BUILTIN / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    assert len(vocabulary) == 8192
    assert 4.0 < len(prose()) / load().count(prose()) < 5.0


def test_prose_is_printable_ascii_that_no_layer_changes() -> None:
    text = prose()
    assert text.isascii()
    assert not set(text) - set(map(chr, range(32, 127))) - {"\n"}
    assert "  " not in text
    assert "<" not in text  # a slot of a template that was not filled


def test_words_are_one_token_each_alone_and_in_sequence() -> None:
    found = words()
    assert len(found) > 1000
    assert len(set(found)) == len(found)
    assert set(load().count_batch(f" {word}" for word in found)) == {1}
    assert load().count("".join(f" {word}" for word in found)) == len(found)
    assert load().count("".join(f" {word}" for word in reversed(found))) == len(found)
