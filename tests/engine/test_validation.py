"""Responses are compared with the validation_data of a file (`data.validate`), over HTTP and gRPC."""

import base64
import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kserve_peers
import numpy as np
import pytest
from helpers import measure, scripted

from inferometer.errors import UserError
from inferometer.serve.background import serving
from inferometer.serve.settings import Settings
from inferometer.tensors import Tensor, from_json, from_numpy
from inferometer.wire.kserve import validation
from inferometer.wire.kserve.infer import InferResponse
from inferometer.wire.kserve.validation import OutputCheck

WAYS = {
    "http": ("http", {"api": "kserve"}),
    "json": ("http", {"api": "kserve-json"}),
    "grpc": ("grpc", {}),
}


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    with contextlib.ExitStack() as held:
        http = held.enter_context(scripted(kserve_peers.over_http()))
        yield {"http": http, "grpc": held.enter_context(kserve_peers.over_grpc())}


def file_of(folder: Path, outputs: Any, name: str = "data.json") -> str:
    path = folder / name
    inputs = [{"A": [1, 2, 3, 4], "B": [10, 20, 30, 40]}, {"A": [0, 0, 0, 0], "B": [5, 6, 7, 8]}]
    path.write_text(json.dumps({"data": inputs, "validation_data": outputs}))
    return f"@{path}"


def failures(folder: Path, urls: dict[str, str], way: str, fill: str, **data: Any) -> Counter[tuple[str, str]]:
    scheme, server = WAYS[way]
    run, _ = measure(
        folder / "runs",
        urls[scheme],
        server={"model": "pair"} | server,
        data={"type": "tensors", "fill": fill, "validate": True} | data,
        load={"concurrency": 2, "requests": 20},
    )
    assert len(run.records.rows) == 20
    found = run.records.failures
    return Counter((found[n - 1].code, found[n - 1].message) for n in run.records.rows["failure"] if n)


@pytest.mark.parametrize("way", WAYS)
def test_times_in_the_parameters_of_responses_that_are_compared(tmp_path: Path, urls: dict[str, str], way: str) -> None:
    scheme, server = WAYS[way]
    run, summary = measure(
        tmp_path / "runs",
        urls[scheme],
        server={"model": "pair", "timing": {"queue": "wait_us", "compute": "busy"}} | server,
        data={"type": "tensors", "fill": file_of(tmp_path, RIGHT), "validate": True},
        load={"concurrency": 2, "requests": 20},
    )
    assert not run.records.rows["failure"].any()
    assert set(run.records.rows["queue"]) == {400_000} and set(run.records.rows["compute"]) == {2_500_000}
    assert summary.breakdown is not None and summary.breakdown.queue == pytest.approx(0.0004)


RIGHT = [{"SUM": [11, 22, 33, 44]}, {"SUM": [5, 6, 7, 8]}]
WRONG = [{"SUM": [11, 22, 33, 44]}, {"SUM": [5, 6, 0, 0]}]


@pytest.mark.parametrize("way", WAYS)
def test_right_responses_pass_and_wrong_ones_fail(tmp_path: Path, urls: dict[str, str], way: str) -> None:
    assert not failures(tmp_path, urls, way, file_of(tmp_path, RIGHT))
    found = failures(tmp_path, urls, way, file_of(tmp_path, WRONG, name="wrong.json"))
    assert found == {("wrong_output", "output SUM: element 2 is 7, expected 0 (2 elements differ)"): 10}


def test_streamed_responses_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    tree = {"data": [{"INPUT0": [1]}, {"INPUT0": [2]}], "validation_data": [{"OUTPUT0": [1]}, {"OUTPUT0": [3]}]}
    path.write_text(json.dumps(tree))
    with serving(Settings(models=("identity",), http=0, grpc=0)) as server:
        run, _ = measure(
            tmp_path / "runs",
            server.grpc,
            server={"model": "identity", "stream": True},
            data={"type": "tensors", "fill": f"@{path}", "validate": True},
            load={"concurrency": 2, "requests": 20},
        )
    assert [one.code for one in run.records.failures] == ["wrong_output"]
    assert (run.records.rows["failure"] > 0).sum() == 10


@pytest.mark.parametrize("way", ["http", "grpc"])
def test_a_batch_is_compared_entry_by_entry(tmp_path: Path, urls: dict[str, str], way: str) -> None:
    assert not failures(tmp_path, urls, way, file_of(tmp_path, RIGHT), batch=2)


def test_nothing_is_compared_unless_asked_for(tmp_path: Path, urls: dict[str, str]) -> None:
    assert not failures(tmp_path, urls, "grpc", file_of(tmp_path, WRONG), validate=False)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([{"SUM": [1, 2, 3, 4]}], ("validation_data has 1 entries for the 2 of data", "data.validate")),
        ([[{"SUM": [1]}, {"SUM": [1]}], [{"SUM": [1]}]], ("other sequences",)),
        ([{"SUN": [1]}, {"SUN": [1]}], ("the output SUN, which the model does not have", "SUM")),
        ([{"SUM": ["x"]}, {"SUM": [1]}], ("validation_data 0", "'x' is not a value of INT32")),
        ([], ("no validation_data",)),
    ],
)
def test_validation_data_that_does_not_fit_is_an_error(
    tmp_path: Path, urls: dict[str, str], outputs: Any, words: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as caught:
        failures(tmp_path, urls, "grpc", file_of(tmp_path, outputs or [{}, {}]))
    for word in words:
        assert word in str(caught.value)


def test_validation_needs_a_file(tmp_path: Path, urls: dict[str, str]) -> None:
    with pytest.raises(UserError, match="validation_data of a file"):
        failures(tmp_path, urls, "grpc", "random")


# --- the comparison --------------------------------------------------------------------------------------------------


def failure_of(expected: Tensor, *found: Tensor) -> str:
    check = OutputCheck([(expected,)], lambda kept: InferResponse("m", "1", "", list(found)))
    fail = check.failure(0, ((), b""))
    return fail.message if fail is not None else ""


def floats(*values: float, datatype: str = "FP32") -> Tensor:
    return from_numpy("X", np.array(values, np.float64), datatype)


def test_floats_may_differ_a_little() -> None:
    assert not failure_of(floats(1, 1000, 0), floats(1.00005, 1000.05, 0.00005))
    assert not failure_of(floats(np.nan, np.inf, -np.inf), floats(np.nan, np.inf, -np.inf))
    assert "element 1 is 1001.0, expected 1000.0" in failure_of(floats(1, 1000), floats(1, 1001))
    assert "element 0 is nan" in failure_of(floats(1), floats(np.nan))
    assert not failure_of(floats(100, datatype="FP16"), floats(100.5, datatype="FP16"))
    assert "expected 100.0" in failure_of(floats(100, datatype="FP16"), floats(102, datatype="FP16"))


def test_everything_else_is_equal() -> None:
    words = from_json("X", "BYTES", (2,), ["a", "b"])
    assert not failure_of(words, words)
    assert "element 1 is 'c', expected 'b'" in failure_of(words, from_json("X", "BYTES", (2,), ["a", "c"]))
    numbers = from_json("X", "INT64", (2,), [1, 2])
    assert "has 3 elements; 2 were expected" in failure_of(numbers, from_json("X", "INT64", (3,), [1, 2, 3]))
    assert failure_of(numbers) == "there is no output X"
    assert not failure_of(numbers, from_json("Y", "INT8", (1,), [0]), from_json("X", "INT64", (1, 2), [1, 2]))


def test_a_response_that_was_right_is_not_decoded_again() -> None:
    decoded = []

    def read(kept: validation.Kept) -> InferResponse:
        decoded.append(kept)
        return InferResponse("m", "1", "", [floats(1)])

    check = OutputCheck([(floats(1),), (floats(2),)], read)
    for body in (b"a", b"a", b"b", b"b"):
        assert check.failure(0, ((), body)) is None
    assert [body for _, body in decoded] == [b"a", b"b"]
    assert check.failure(1, ((), b"b")) is not None  # the same bytes in response to another request


def test_expected_values_may_be_base64(tmp_path: Path, urls: dict[str, str]) -> None:
    raw = base64.b64encode(np.array([11, 22, 33, 44], "<i4").tobytes()).decode()
    outputs = [{"SUM": {"b64": raw}}, {"SUM": {"content": [5, 6, 7, 8], "shape": [4]}}]
    assert not failures(tmp_path, urls, "grpc", file_of(tmp_path, outputs))
