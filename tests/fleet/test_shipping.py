"""Files of a workload on another machine: the config for that machine builds the same requests from the copies."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer import workload
from inferometer.config import Config, from_mapping
from inferometer.fleet.shipping import files_of, moved
from inferometer.workload.tokenizer import BUILTIN


def config_of(data: dict[str, Any], **server: Any) -> Config:
    load = {"type": "closed", "requests": 8}
    return from_mapping({"server": {"url": "http://127.0.0.1:1", "model": "m"} | server, "data": data, "load": load})


def shipped(config: Config, own: Path, other: Path) -> Config:
    """Copy the files to another folder, remove the original ones, and return the config for the copies."""
    for file in files_of(config):
        (other / file.name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.source, other / file.name)
    there = moved(config, str(other))
    shutil.rmtree(own)
    return there


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    return tmp_path / "own", tmp_path / "other"


def make_data(own: Path) -> dict[str, dict[str, Any]]:
    (own / "a.jsonl").write_text("".join(json.dumps({"prompt": f"say {n}", "output": n + 1}) + "\n" for n in range(9)))
    (own / "words.txt").write_text("some words for a corpus that nobody else has " * 40)
    (own / "lengths.txt").write_text("5\n6\n7\n")
    model = own / "model"
    model.mkdir()
    shutil.copy(BUILTIN / "tokenizer.json", model)
    (model / "chat_template.jinja").write_text("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}")
    (model / "weights.safetensors").write_bytes(bytes(1000))
    length = {"type": "empirical", "path": str(own / "lengths.txt")}
    synthetic = {"type": "synthetic", "corpus": str(own / "words.txt"), "input": length, "output": 3, "salt": "none"}
    counted = {"type": "synthetic", "tokenizer": str(model), "chat_template": "count", "input": 9, "salt": "none"}
    classes = [
        {"name": "one", "data": {"type": "jsonl", "path": str(own / "a.jsonl")}},
        {"name": "two", "data": synthetic},
    ]
    return {
        "file": {"type": "jsonl", "path": str(own / "a.jsonl")},
        "corpus": synthetic,
        "tokenizer folder": counted,
        "tokenizer file": counted | {"tokenizer": str(model / "tokenizer.json")},
        "mix": {"type": "mix", "classes": classes},
        "prompts that are called like a file": {"prompts": [str(own / "a.jsonl"), "files/0"]},
    }


@pytest.mark.parametrize(
    "name", ["file", "corpus", "tokenizer folder", "tokenizer file", "mix", "prompts that are called like a file"]
)
def test_the_same_requests_are_built_from_the_copies(folders: tuple[Path, Path], name: str) -> None:
    own, other = folders
    config = config_of(make_data(own)[name])
    before = workload.build(config.data, 3, range(8))
    there = shipped(config, own, other)
    assert workload.build(there.data, 3, range(8)) == before


def test_only_the_tokenizer_of_a_model_is_copied(folders: tuple[Path, Path]) -> None:
    own, _ = folders
    names = [file.source.name for file in files_of(config_of(make_data(own)["tokenizer folder"]))]
    assert sorted(names) == ["chat_template.jinja", "tokenizer.json"]


def test_folders_of_tensors_and_certificates_are_copied(folders: tuple[Path, Path]) -> None:
    own, other = folders
    (own / "inputs").mkdir()
    np.save(own / "inputs" / "A.npy", np.arange(4))
    for name in ("ca.pem", "cert.pem"):
        (own / name).write_text(name)
    fill = {"A": f"@{own / 'inputs' / 'A.npy'}", "B": "zeros"}
    tls = {"ca": str(own / "ca.pem"), "cert": str(own / "cert.pem")}
    config = config_of({"type": "tensors", "fill": fill}, url="https://127.0.0.1:1", api="kserve", tls=tls)
    there = shipped(config, own, other)
    assert isinstance(there.data.fill, dict)  # type: ignore[union-attr]
    assert np.load(str(there.data.fill["A"])[1:]).tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert there.data.fill["B"] == "zeros"  # type: ignore[union-attr]
    assert [Path(str(path)).read_text() for path in (there.server.tls.ca, there.server.tls.cert)] == [
        "ca.pem",
        "cert.pem",
    ]
    assert there.server.tls.key is None
