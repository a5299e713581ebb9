"""Persistent streams and checked responses against Triton."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
from triton_server import Triton

from inferometer.records import Run

pytestmark = pytest.mark.triton
pytest_plugins = ["triton_server"]


def run(folder: Path, triton: Triton, model: str, fill: Any = None, **sections: Any) -> Run:
    server = {"model": model, "api": "kserve", "stream": "persistent"} | sections.pop("server", {})
    data = {"type": "tensors"} | ({"fill": fill} if fill is not None else {}) | sections.pop("data", {})
    load = sections.pop("load", {"concurrency": 3, "requests": 90})
    return helpers.measure(folder, triton.grpc, server=server, data=data, load=load)[0]


def kinds(run: Run) -> Counter[str]:
    return Counter(run.records.failures[n - 1].code for n in run.records.rows["failure"] if n)


def saved(folder: Path, entries: Any, outputs: Any = None) -> str:
    path = folder / "data.json"
    path.write_text(json.dumps({"data": entries} | ({"validation_data": outputs} if outputs else {})))
    return f"@{path}"


def pairs(wrong: int = 0) -> tuple[list[Any], list[Any]]:
    """Four requests to add_sub and their outputs, the last of which has an element that is off by `wrong`."""
    entries, outputs = [], []
    for n in range(4):
        a, b = np.arange(16) + n, np.arange(16)[::-1]
        entries.append({"INPUT0": a.tolist(), "INPUT1": b.tolist()})
        outputs.append({"OUTPUT0": (a + b).tolist(), "OUTPUT1": (a - b).tolist()})
    outputs[3]["OUTPUT1"][5] += wrong
    return entries, outputs


@pytest.mark.parametrize("load", [{"concurrency": 3, "requests": 90}, {"rate": 200, "requests": 100}])
def test_responses_on_persistent_streams_are_right(tmp_path: Path, triton: Triton, load: dict[str, Any]) -> None:
    found = run(tmp_path, triton, "add_sub", saved(tmp_path, *pairs()), data={"validate": True}, load=load)
    assert not kinds(found)
    assert len(found.records.rows) == load["requests"]
    assert (found.records.rows["chunk_count"] == 1).all()


@pytest.mark.parametrize("stream", [False, True, "persistent"])
def test_wrong_responses_are_found(tmp_path: Path, triton: Triton, stream: Any) -> None:
    fill = saved(tmp_path, *pairs(wrong=1))
    load = {"concurrency": 2, "requests": 80}
    found = run(tmp_path, triton, "add_sub", fill, data={"validate": True}, load=load, server={"stream": stream})
    assert kinds(found) == {"wrong_output": 20}
    assert [one.message for one in found.records.failures] == ["output OUTPUT1: element 5 is -2, expected -1"]


def test_responses_over_http_are_compared(tmp_path: Path, triton: Triton) -> None:
    for api in ("kserve", "kserve-json"):
        found, _ = helpers.measure(
            tmp_path / api,
            triton.http,
            server={"model": "add_sub", "api": api},
            data={"type": "tensors", "fill": saved(tmp_path, *pairs()), "validate": True},
            load={"concurrency": 2, "requests": 40},
        )
        assert not kinds(found)


def test_a_decoupled_model_ends_with_the_flag_of_its_last_response(tmp_path: Path, triton: Triton) -> None:
    counts = [0, 1, 3, 7]
    found = run(tmp_path, triton, "square", saved(tmp_path, [{"N": [count]} for count in counts]))
    assert not kinds(found)
    rows = found.records.rows
    assert {int(id) % 4: int(chunks) for id, chunks in zip(rows["id"], rows["chunk_count"], strict=True)} == dict(
        enumerate(counts)
    )


def test_an_error_does_not_end_the_stream(tmp_path: Path, triton: Triton) -> None:
    words = [{"INPUT0": ["fine"]}, {"INPUT0": ["INTERNAL"]}]
    found = run(tmp_path, triton, "failing", saved(tmp_path, words), load={"concurrency": 1, "requests": 40})
    assert kinds(found) == {"error_frame": 20}
    assert "told to fail with INTERNAL" in found.records.failures[0].message
