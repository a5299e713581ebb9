"""The phases of a start-up and the facts of a log, with what real servers printed."""

from pathlib import Path

import pytest

from inferometer.config.engines import EngineSpec
from inferometer.engines import milestones
from inferometer.engines.catalog import server_engine
from inferometer.engines.launching import Launch, Start

STARTS = Path(__file__).parent / "starts"


def recorded(name: str) -> list[tuple[float, str]]:
    """What a server printed while it started: on each line the seconds since the start, and the line."""
    pairs = (line.split("\t", 1) for line in (STARTS / f"{name}.txt").read_text().splitlines())
    return [(float(at), line) for at, line in pairs]


@pytest.fixture
def launches(tmp_path: Path) -> dict[str, Launch]:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    model = tmp_path / "model.gguf"
    model.touch()
    specs = [
        EngineSpec(type=type, executable=str(program)) for type in ("vllm", "transformers", "llamacpp", "inferometer")
    ]
    return {spec.type: server_engine(spec).launch(Start(spec, str(model), 1, tmp_path)) for spec in specs}


def test_vllm_that_compiles(launches: dict[str, Launch]) -> None:
    lines, launch = recorded("vllm"), launches["vllm"]
    assert milestones.phases(lines, launch.milestones) == {
        "imported": 42.42,
        "weights loaded": 127.08,
        "compiled": 177.11,
        "initialised": 177.65,
        "listening": 180.22,
    }
    assert milestones.facts(lines, launch.fact_lines) == {
        "dtype": "float32",
        "max length": "1024",
        "prefix cache": "on",
        "speculation": "off",
        "device": "cpu",
        "parallelism": "1",
        "quantization": "off",
    }


def test_llamacpp(launches: dict[str, Launch]) -> None:
    lines, launch = recorded("llamacpp"), launches["llamacpp"]
    assert list(milestones.phases(lines, launch.milestones)) == ["weights loaded", "initialised", "listening"]
    assert milestones.facts(lines, launch.fact_lines) == {"dtype": "float32", "max length": "1024", "slots": "4"}


def test_transformers(launches: dict[str, Launch]) -> None:
    found = milestones.phases(recorded("transformers"), launches["transformers"].milestones)
    assert list(found) == ["imported", "weights loaded", "listening"]


def test_a_phase_ends_with_the_last_worker_and_may_not_come_at_all() -> None:
    lines = [(1.0, "rank 0: loaded"), (4.0, "rank 1: loaded"), (2.0, "ready"), (9.0, "other")]
    names = [("weights loaded", r"rank \d: loaded"), ("listening", "^ready$"), ("graphs captured", "captured")]
    assert milestones.phases(lines, names) == {"listening": 2.0, "weights loaded": 4.0}
