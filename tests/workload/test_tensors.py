"""Tensors have shapes from the model's metadata and contents that are generated or read from a file."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer import workload
from inferometer.config.data import Tensors
from inferometer.config.data.tensors import InputFill
from inferometer.errors import UserError
from inferometer.tensors import TensorSpec, to_numpy
from inferometer.workload import tensors

IMAGE = TensorSpec("IMAGE", "FP32", (-1, 3, -1, -1))
WORDS = TensorSpec("WORDS", "BYTES", (-1, 1))


def build(spec: Tensors, *metadata: TensorSpec, max_batch: int = 8, ids: Any = range(3)) -> list[Any]:
    done = tensors.complete(spec, metadata, max_batch)
    return [request.payload for request in workload.build(done, 7, ids)]


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_a_dynamic_size_is_1_and_the_batch_is_the_first_dimension() -> None:
    full = tensors.complete(Tensors(batch=4), [IMAGE, WORDS], 8)
    assert [(one.name, one.shape) for one in full.inputs] == [("IMAGE", [4, 3, 1, 1]), ("WORDS", [4, 1])]
    assert tensors.batch(full, 8) == 4
    full = tensors.complete(Tensors(), [TensorSpec("X", "INT8", (-1, 2))], 0)
    assert full.inputs[0].shape == [1, 2]
    assert tensors.batch(full, 0) == 1


def test_optional_inputs_are_sent_if_named_and_one_of_them_if_there_are_no_others() -> None:
    file = TensorSpec("FILE", "BYTES", (-1, 1), optional=True)
    pixels = TensorSpec("PIXELS", "FP32", (-1, 3), optional=True)

    def sent(spec: Tensors, *metadata: TensorSpec) -> list[str]:
        return [one.name for one in tensors.complete(spec, metadata, 8).inputs]

    assert sent(Tensors(), IMAGE, file, pixels) == ["IMAGE"]
    assert sent(Tensors(), file, pixels) == ["PIXELS"]
    assert sent(Tensors(), file) == ["FILE"]
    assert sent(Tensors(shape={"FILE": [2, 1]}), file, pixels) == ["FILE"]


def test_strings_are_filled_as_the_config_says_unless_the_input_is_named() -> None:
    text, other = TensorSpec("A", "BYTES", (-1, 1)), TensorSpec("B", "BYTES", (-1, 1))
    optional = TensorSpec("C", "BYTES", (-1, 1), optional=True)
    spec = Tensors(strings=InputFill(length=9), fill={"B": InputFill(value="b")})
    for request in build(spec, IMAGE, text, other, optional):
        image, first, second = request
        assert image.datatype == "FP32"
        assert len(to_numpy(first).item()) == 9
        assert to_numpy(second).item() == b"b"
    (first,) = build(Tensors(strings=InputFill(length=9), fill="zeros"), text, ids=[0])[0]
    assert to_numpy(first).item() == b""


def test_a_shape_in_the_config_wins() -> None:
    full = tensors.complete(Tensors(shape={"IMAGE": [2, 3, 224, 224]}), [IMAGE], 8)
    assert full.inputs[0].shape == [2, 3, 224, 224]
    assert tensors.batch(full, 8) == 2
    assert tensors.size(full) == 2 * 3 * 224 * 224 * 4
    spec = Tensors(shape={"IMAGE": [3, 224, 224]}, batch=4)
    assert tensors.complete(spec, [IMAGE], 8).inputs[0].shape == [4, 3, 224, 224]
    with pytest.raises(UserError, match=r"IMAGE"):
        tensors.complete(Tensors(shape={"IMAGE": [3, 224, 224]}), [IMAGE], 0)


@pytest.mark.parametrize(
    ("spec", "max_batch", "what", "remedy"),
    [
        (Tensors(shape={"IMAGES": [1, 3, 4, 4]}), 8, "no input IMAGES", "did you mean IMAGE?"),
        (
            Tensors(shape={"IMAGE": [1, 4, 4, 4]}),
            8,
            "expects the shape [-1, 3, -1, -1]; [1, 4, 4, 4] was given",
            "every",
        ),
        (Tensors(shape={"IMAGE": [4, 4]}), 8, "[4, 4] was given", "including the batch"),
        (Tensors(shape={"IMAGE": [-1, 3, 4, 4]}), 8, "below 0", "every dimension"),
        (Tensors(batch=9), 8, "the model takes at most 8", "lower"),
        (Tensors(batch=2), 0, "takes no batches", "data.shape"),
    ],
)
def test_a_spec_that_does_not_fit_the_model_is_an_error(spec: Tensors, max_batch: int, what: str, remedy: str) -> None:
    with pytest.raises(UserError) as error:
        tensors.complete(spec, [IMAGE], max_batch)
    assert what in error.value.what
    assert remedy in error.value.remedy


# --- contents --------------------------------------------------------------------------------------------------------


def test_random_requests_differ_by_id_and_are_reproducible() -> None:
    spec = Tensors(shape={"IMAGE": [1, 3, 4, 4]})
    first, second, third = build(spec, IMAGE, WORDS)
    assert first != second != third
    assert build(spec, IMAGE, WORDS, ids=[2, 0]) == [third, first]


def test_there_are_fewer_distinct_requests_of_large_tensors() -> None:
    big = tensors.complete(Tensors(shape={"IMAGE": [8, 3, 1024, 1024]}), [IMAGE], 8)
    assert workload.distinct(big) == (256 << 20) // tensors.size(big)
    spec = tensors.complete(Tensors(fill="zeros"), [IMAGE], 8)
    assert workload.distinct(spec) == 1
    assert not to_numpy(workload.build(spec, 0, [5])[0].payload[0]).any()  # type: ignore[arg-type]
    huge = tensors.complete(Tensors(shape={"IMAGE": [1, 3, 5120, 5120]}), [IMAGE], 8)
    assert workload.distinct(huge) == 1


def test_the_digest_depends_on_the_spec_and_not_on_the_path_of_a_file(tmp_path: Path) -> None:
    shapes = [tensors.complete(Tensors(batch=batch), [IMAGE], 8) for batch in (1, 2)]
    assert len({workload.digest(spec, seed) for spec in shapes for seed in (0, 1)}) == 4
    digests = set()
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.ones((1, 3, 2, 2), np.float32))
        digests.add(workload.digest(tensors.complete(Tensors(fill=f"@{tmp_path / name}"), [IMAGE], 8), 0))
    assert len(digests) == 1


# --- files -----------------------------------------------------------------------------------------------------------


def fill(path: Path, tree: object) -> str:
    path.write_text(json.dumps(tree))
    return f"@{path}"


def test_an_npy_file_is_the_only_input(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    np.save(tmp_path / "a.npy", array)
    assert (to_numpy(build(Tensors(fill=f"@{tmp_path / 'a.npy'}"), IMAGE)[0][0]) == array).all()
    np.savez(tmp_path / "a.npz", A=np.array([1, 2], np.int32), B=np.array([3.5], np.float64))
    spec = Tensors(fill=f"@{tmp_path / 'a.npz'}")
    payload = build(spec, TensorSpec("B", "FP64", (1,)), TensorSpec("A", "INT32", (-1,)), max_batch=0)[0]
    assert [to_numpy(one).tolist() for one in payload] == [[3.5], [1, 2]]


def test_perf_analyzer_json_has_lists_shapes_and_base64(tmp_path: Path) -> None:
    tree = {
        "data": [
            {"A": [1, 2, 3, 4], "B": ["one"]},
            {"A": {"content": [5, 6], "shape": [1, 2]}, "B": {"b64": base64.b64encode(b"\x03\0\0\0two").decode()}},
        ]
    }
    spec = Tensors(fill=fill(tmp_path / "a.json", tree), shape={"A": [1, 2, 2], "B": [1, 1]})
    a, b = TensorSpec("A", "INT32", (-1, -1, 2)), TensorSpec("B", "BYTES", (-1, 1))
    first, second, third = build(spec, a, b)
    assert [to_numpy(one).tolist() for one in first] == [[[[1, 2], [3, 4]]], [[b"one"]]]
    assert [to_numpy(one).tolist() for one in second] == [[[[5, 6]]], [[b"two"]]]
    assert third == first  # after the last entry the first is used again


def test_perf_analyzer_streams_are_concatenated_and_batches_take_consecutive_entries(tmp_path: Path) -> None:
    tree = {"data": [[{"A": [1]}, {"A": [2]}], [{"A": [3]}]]}
    path = fill(tmp_path / "a.json", tree)
    spec = TensorSpec("A", "INT16", (-1, 1))
    assert [to_numpy(one[0]).tolist() for one in build(Tensors(fill=path), spec)] == [[[1]], [[2]], [[3]]]
    assert [to_numpy(one[0]).tolist() for one in build(Tensors(fill=path, batch=2), spec, ids=range(2))] == [
        [[1], [2]],
        [[3], [1]],
    ]


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        ([], "is not JSON in the format"),
        ({"data": []}, "is not JSON in the format"),
        ({"data": [5]}, "is not JSON in the format"),
        ({"data": [{"B": [1]}]}, "entry 0 has no A"),
        ({"data": [{"A": [1]}, {"A": [1, 2]}]}, "entry 1"),
        ({"data": [{"A": ["x"]}]}, "entry 0"),
        ({"data": [{"A": {"b64": "!"}}]}, "entry 0"),
    ],
)
def test_a_bad_json_file_is_an_error_that_names_the_entry(tmp_path: Path, tree: object, what: str) -> None:
    with pytest.raises(UserError) as error:
        build(Tensors(fill=fill(tmp_path / "a.json", tree)), TensorSpec("A", "INT32", (-1, 1)))
    assert what in error.value.what and error.value.remedy


def test_missing_files_and_files_without_arrays_are_errors(tmp_path: Path) -> None:
    for name, content, what in (
        ("a.npy", b"no", "cannot be read"),
        ("b.npz", b"no", "cannot be read"),
        ("c.json", None, "No such file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=what):
            build(Tensors(fill=f"@{tmp_path / name}"), IMAGE)
    np.save(tmp_path / "d.npy", np.zeros(3))
    with pytest.raises(UserError, match="holds one array, but the model has 2 inputs"):
        build(Tensors(fill=f"@{tmp_path / 'd.npy'}"), IMAGE, WORDS)


# --- other formats of perf_analyzer -----------------------------------------------------------------------------------


def test_base64_may_have_a_shape_and_validation_data_is_ignored(tmp_path: Path) -> None:
    three = np.array([1, 2, 3], np.float32)
    tree = {
        "data": [{"A": {"b64": base64.b64encode(three.tobytes()).decode(), "shape": [3]}}],
        "validation_data": [{"OUT": [1]}],
    }
    path = fill(tmp_path / "a.json", tree)
    batching = build(Tensors(fill=path, shape={"A": [1, 3]}), TensorSpec("A", "FP32", (-1, -1)), ids=[0])[0][0]
    assert to_numpy(batching).tolist() == [[1, 2, 3]]
    plain = build(Tensors(fill=path, shape={"A": [3]}), TensorSpec("A", "FP32", (-1,)), max_batch=0, ids=[0])[0][0]
    assert to_numpy(plain).tolist() == [1, 2, 3]


def test_without_batching_lists_and_base64_have_the_shape_of_the_config(tmp_path: Path) -> None:
    raw = base64.b64encode(np.array([3, 4], np.int32).tobytes()).decode()
    path = fill(tmp_path / "a.json", {"data": [{"A": [1, 2]}, {"A": {"b64": raw}}]})
    spec = Tensors(fill=path, shape={"A": [2]})
    found = build(spec, TensorSpec("A", "INT32", (-1,)), max_batch=0, ids=range(2))
    assert [to_numpy(one[0]).tolist() for one in found] == [[1, 2], [3, 4]]


def folder(path: Path) -> str:
    path.mkdir()
    (path / "A").write_bytes(np.array([[1, 2], [3, 4]], "<i2").tobytes())
    (path / "WORDS").write_bytes("eins\nzwei über\n".encode())
    return f"@{path}"


SHORT = TensorSpec("A", "INT16", (-1, 2, -1))
LINES = TensorSpec("WORDS", "BYTES", (-1, 2))


def test_a_folder_is_one_request_with_a_raw_or_text_file_per_input(tmp_path: Path) -> None:
    spec = Tensors(fill=folder(tmp_path / "in"), shape={"A": [1, 2, 2]})
    first, second, _ = build(spec, SHORT, LINES)
    assert [to_numpy(one).tolist() for one in first] == [[[[1, 2], [3, 4]]], [[b"eins", "zwei über".encode()]]]
    assert second == first
    assert workload.distinct(tensors.complete(spec, [SHORT, LINES], 8)) == 1


def test_the_tensors_of_a_folder_are_repeated_to_fill_a_batch(tmp_path: Path) -> None:
    spec = Tensors(fill=folder(tmp_path / "in"), shape={"A": [3, 2, 2]}, batch=3)
    found = to_numpy(build(spec, SHORT, LINES, ids=[0])[0][0])
    assert found.tolist() == [[[1, 2], [3, 4]]] * 3


def test_the_digest_depends_on_the_files_in_a_folder(tmp_path: Path) -> None:
    def digest(name: str, change: bytes = b"") -> str:
        spec = Tensors(fill=folder(tmp_path / name), shape={"A": [1, 2, 2]})
        if change:
            (tmp_path / name / "WORDS").write_bytes(change)
        return workload.digest(tensors.complete(spec, [SHORT, LINES], 8), 0)

    assert digest("one") == digest("two") != digest("three", b"a\nb\n")


def test_a_folder_that_does_not_fit_the_model_is_an_error(tmp_path: Path) -> None:
    path = folder(tmp_path / "in")
    with pytest.raises(UserError, match="has no file OTHER"):
        build(Tensors(fill=path), TensorSpec("OTHER", "INT16", (-1, 2)))
    with pytest.raises(UserError, match="8 were given"):
        build(Tensors(fill=path), TensorSpec("A", "INT16", (-1, 5)))
