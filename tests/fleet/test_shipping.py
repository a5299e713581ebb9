"""Files of a run on another machine: the shard there sends the same requests, and counts tokens alike."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import jobs_of

from inferometer.config import from_mapping
from inferometer.engine.job import Job
from inferometer.fleet.runner import requests_of
from inferometer.fleet.shipping import files_of, moved
from inferometer.workload import tokenizer
from inferometer.workload.tokenizer import BUILTIN


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with the files of a model, and certificates."""
    folder = tmp_path / "own"
    folder.mkdir()
    shutil.copy(BUILTIN / "tokenizer.json", folder)
    for name in ("chat_template.jinja", "weights.safetensors", "ca.pem", "cert.pem"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return tmp_path / "other"


def jobs(folder: Path, data: dict[str, Any], **server: Any) -> Iterator[list[Job]]:
    load = {"type": "closed", "requests": 8}
    config = from_mapping({"server": {"url": "http://127.0.0.1:1", "model": "m"} | server, "data": data, "load": load})
    with jobs_of(config, folder, 1) as made:
        yield made


def shipped(made: list[Job], other: Path) -> list[str]:
    """Copy the files to another folder, as an actor does; return their names."""
    for file in files_of(made):
        path = other / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as copy:
            for offset, data in file.pieces(100):
                copy.seek(offset)
                copy.write(data)
        assert path.stat().st_size == file.size
    return [str(path.relative_to(other / "files")) for path in other.rglob("*") if path.is_file()]


@pytest.mark.parametrize("data", [{"type": "synthetic", "input": 9}, {"type": "conversation", "turns": 2, "input": 9}])
def test_the_same_requests_are_sent_from_the_copies(tmp_path: Path, other: Path, data: dict[str, Any]) -> None:
    for made in jobs(tmp_path, data):
        names = shipped(made, other)
        there = moved(made[0], str(other))
        before, after = made[0].requests.mapped(), there.requests.mapped()
        assert len(names) == 3 and list(before.tails) == list(after.tails)
        assert list(before.sessions) == list(after.sessions)
        assert requests_of(there).n_out == before.n_out
        assert all(isinstance(file, str) for file in there.requests.files), "no descriptors of this machine"


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_only_the_tokenizer_of_a_model_is_copied(tmp_path: Path, own: Path, other: Path, name: str) -> None:
    data = {"type": "synthetic", "input": 9, "tokenizer": str(own / name)}
    for made in jobs(tmp_path, data):
        names = shipped(made, other)
        there = moved(made[0], str(other)).tokenizer
    shutil.rmtree(own)
    assert {name for name in names if name.startswith("tokenizer")} <= {
        "tokenizer/tokenizer.json",
        "tokenizer/chat_template.jinja",
    }
    assert tokenizer.load(there).count("some words") > 0


def test_certificates_are_copied(tmp_path: Path, own: Path, other: Path) -> None:
    tls = {"ca": str(own / "ca.pem"), "cert": str(own / "cert.pem")}
    for made in jobs(tmp_path, {"type": "synthetic", "input": 9}, url="https://127.0.0.1:1", tls=tls):
        shipped(made, other)
        there = moved(made[0], str(other)).tls
    assert there is not None and there.key is None
    assert [Path(str(path)).read_text() for path in (there.ca, there.cert)] == ["ca.pem", "cert.pem"]
