"""Tensors: shapes from a model's metadata, contents by rule or from a file, the same for the same seed and id."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer import workload
from inferometer.config.schema import TensorInput, Tensors
from inferometer.errors import UserError
from inferometer.tensors import TensorSpec, to_numpy
from inferometer.workload import tensors

IMAGE = TensorSpec("IMAGE", "FP32", (-1, 3, -1, -1))
WORDS = TensorSpec("WORDS", "BYTES", (-1, 1))


def made(spec: Tensors, *metadata: TensorSpec, max_batch: int = 8, ids: Any = range(3)) -> list[Any]:
    done = tensors.complete(spec, metadata, max_batch)
    return [request.payload for request in workload.build(done, 7, ids)]


# --- shapes ----------------------------------------------------------------------------------------------------------


def test_a_dynamic_size_is_1_and_the_batch_stands_in_front() -> None:
    full = tensors.complete(Tensors(batch=4), [IMAGE, WORDS], 8)
    assert [(one.name, one.shape) for one in full.inputs] == [("IMAGE", [4, 3, 1, 1]), ("WORDS", [4, 1])]
    assert tensors.batch(full, 8) == 4


def test_without_batching_the_first_size_is_one_like_others() -> None:
    full = tensors.complete(Tensors(), [TensorSpec("X", "INT8", (-1, 2))], 0)
    assert full.inputs[0].shape == [1, 2]
    assert tensors.batch(full, 0) == 1


def test_optional_inputs_are_sent_where_they_are_named_and_one_of_them_where_there_are_no_others() -> None:
    file = TensorSpec("FILE", "BYTES", (-1, 1), optional=True)
    pixels = TensorSpec("PIXELS", "FP32", (-1, 3), optional=True)

    def sent(spec: Tensors, *metadata: TensorSpec) -> list[str]:
        return [one.name for one in tensors.complete(spec, metadata, 8).inputs]

    assert sent(Tensors(), IMAGE, file, pixels) == ["IMAGE"]
    assert sent(Tensors(), file, pixels) == ["PIXELS"]
    assert sent(Tensors(), file) == ["FILE"]
    assert sent(Tensors(shape={"FILE": [2, 1]}), file, pixels) == ["FILE"]


def test_a_given_shape_has_the_last_word() -> None:
    full = tensors.complete(Tensors(shape={"IMAGE": [2, 3, 224, 224]}), [IMAGE], 8)
    assert full.inputs[0].shape == [2, 3, 224, 224]
    assert tensors.batch(full, 8) == 2
    assert tensors.size(full) == 2 * 3 * 224 * 224 * 4


def test_inputs_in_the_config_stand_for_the_servers() -> None:
    spec = Tensors(inputs=[TensorInput("X", "INT64", [1, 5])], fill="zeros")
    assert to_numpy(made(spec, max_batch=0)[0][0]).tolist() == [[0] * 5]


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
        (Tensors(shape={"IMAGE": [3, 4, 4]}), 8, "[3, 4, 4] was given", "batch included"),
        (Tensors(shape={"IMAGE": [-1, 3, 4, 4]}), 8, "below 0", "every size"),
        (Tensors(batch=9), 8, "the model takes at most 8", "lower"),
        (Tensors(batch=2), 0, "takes no batches", "data.shape"),
    ],
)
def test_what_does_not_fit_the_model_is_named(spec: Tensors, max_batch: int, what: str, remedy: str) -> None:
    with pytest.raises(UserError) as found:
        tensors.complete(spec, [IMAGE], max_batch)
    assert what in found.value.what
    assert remedy in found.value.remedy


# --- contents --------------------------------------------------------------------------------------------------------


def test_random_requests_differ_and_are_the_same_again_for_the_same_seed_and_id() -> None:
    spec = Tensors(shape={"IMAGE": [1, 3, 4, 4]})
    first, second, third = made(spec, IMAGE, WORDS)
    assert first != second != third
    assert made(spec, IMAGE, WORDS, ids=[2, 0]) == [third, first]


def test_zeros_are_one_request() -> None:
    spec = tensors.complete(Tensors(fill="zeros"), [IMAGE], 8)
    assert workload.distinct(spec) == 1
    assert not to_numpy(workload.build(spec, 0, [5])[0].payload[0]).any()  # type: ignore[arg-type]


def test_large_tensors_are_made_fewer_of() -> None:
    big = tensors.complete(Tensors(shape={"IMAGE": [8, 3, 1024, 1024]}), [IMAGE], 8)
    assert workload.distinct(big) == (256 << 20) // tensors.size(big)
    huge = tensors.complete(Tensors(shape={"IMAGE": [1, 3, 5120, 5120]}), [IMAGE], 8)
    assert workload.distinct(huge) == 1


def test_an_unknown_fill_says_what_there_is() -> None:
    with pytest.raises(UserError, match="'ones' is not known"):
        made(Tensors(fill="ones"), IMAGE)


def test_the_digest_tells_specs_apart_and_not_where_a_file_lies(tmp_path: Path) -> None:
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


def test_a_npy_file_is_the_only_input(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    np.save(tmp_path / "a.npy", array)
    assert (to_numpy(made(Tensors(fill=f"@{tmp_path / 'a.npy'}"), IMAGE)[0][0]) == array).all()


def test_an_npz_file_has_the_inputs_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", A=np.array([1, 2], np.int32), B=np.array([3.5], np.float64))
    spec = Tensors(fill=f"@{tmp_path / 'a.npz'}")
    payload = made(spec, TensorSpec("B", "FP64", (1,)), TensorSpec("A", "INT32", (-1,)), max_batch=0)[0]
    assert [to_numpy(one).tolist() for one in payload] == [[3.5], [1, 2]]


def test_perf_analyzers_json_lists_shapes_and_base64(tmp_path: Path) -> None:
    tree = {
        "data": [
            {"A": [1, 2, 3, 4], "B": ["one"]},
            {"A": {"content": [5, 6], "shape": [1, 2]}, "B": {"b64": base64.b64encode(b"\x03\0\0\0two").decode()}},
        ]
    }
    spec = Tensors(fill=fill(tmp_path / "a.json", tree), shape={"A": [1, 2, 2], "B": [1, 1]})
    a, b = TensorSpec("A", "INT32", (-1, -1, 2)), TensorSpec("B", "BYTES", (-1, 1))
    first, second, third = made(spec, a, b)
    assert [to_numpy(one).tolist() for one in first] == [[[[1, 2], [3, 4]]], [[b"one"]]]
    assert [to_numpy(one).tolist() for one in second] == [[[[5, 6]]], [[b"two"]]]
    assert third == first  # in turn


def test_perf_analyzers_streams_follow_one_another_and_batches_take_entries_in_a_row(tmp_path: Path) -> None:
    tree = {"data": [[{"A": [1]}, {"A": [2]}], [{"A": [3]}]]}
    path = fill(tmp_path / "a.json", tree)
    spec = TensorSpec("A", "INT16", (-1, 1))
    assert [to_numpy(one[0]).tolist() for one in made(Tensors(fill=path), spec)] == [[[1]], [[2]], [[3]]]
    assert [to_numpy(one[0]).tolist() for one in made(Tensors(fill=path, batch=2), spec, ids=range(2))] == [
        [[1], [2]],
        [[3], [1]],
    ]


@pytest.mark.parametrize(
    ("tree", "what"),
    [
        ([], "is not the JSON"),
        ({"data": []}, "is not the JSON"),
        ({"data": [5]}, "is not the JSON"),
        ({"data": [{"B": [1]}]}, "entry 0 has no A"),
        ({"data": [{"A": [1]}, {"A": [1, 2]}]}, "entry 1"),
        ({"data": [{"A": ["x"]}]}, "entry 0"),
        ({"data": [{"A": {"b64": "!"}}]}, "entry 0"),
    ],
)
def test_a_json_file_that_does_not_fit_says_where(tmp_path: Path, tree: object, what: str) -> None:
    with pytest.raises(UserError) as found:
        made(Tensors(fill=fill(tmp_path / "a.json", tree)), TensorSpec("A", "INT32", (-1, 1)))
    assert what in found.value.what and found.value.remedy


def test_files_that_are_not_there_or_no_arrays_say_so(tmp_path: Path) -> None:
    for name, content, what in (
        ("a.npy", b"no", "cannot be read"),
        ("b.npz", b"no", "cannot be read"),
        ("c.json", None, "No such file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=what):
            made(Tensors(fill=f"@{tmp_path / name}"), IMAGE)
    np.save(tmp_path / "d.npy", np.zeros(3))
    with pytest.raises(UserError, match="holds one array, but the model has 2 inputs"):
        made(Tensors(fill=f"@{tmp_path / 'd.npy'}"), IMAGE, WORDS)


# --- what perf_analyzer takes besides ---------------------------------------------------------------------------------


def test_base64_with_a_shape_and_validation_data_beside_it(tmp_path: Path) -> None:
    three = np.array([1, 2, 3], np.float32)
    tree = {
        "data": [{"A": {"b64": base64.b64encode(three.tobytes()).decode(), "shape": [3]}}],
        "validation_data": [{"OUT": [1]}],
    }
    path = fill(tmp_path / "a.json", tree)
    batching = made(Tensors(fill=path, shape={"A": [1, 3]}), TensorSpec("A", "FP32", (-1, -1)), ids=[0])[0][0]
    assert to_numpy(batching).tolist() == [[1, 2, 3]]
    plain = made(Tensors(fill=path, shape={"A": [3]}), TensorSpec("A", "FP32", (-1,)), max_batch=0, ids=[0])[0][0]
    assert to_numpy(plain).tolist() == [1, 2, 3]


def test_a_model_without_batches_takes_lists_and_base64_whose_shape_is_the_configs(tmp_path: Path) -> None:
    raw = base64.b64encode(np.array([3, 4], np.int32).tobytes()).decode()
    path = fill(tmp_path / "a.json", {"data": [{"A": [1, 2]}, {"A": {"b64": raw}}]})
    spec = Tensors(fill=path, shape={"A": [2]})
    found = made(spec, TensorSpec("A", "INT32", (-1,)), max_batch=0, ids=range(2))
    assert [to_numpy(one[0]).tolist() for one in found] == [[1, 2], [3, 4]]


def folder(path: Path) -> str:
    path.mkdir()
    (path / "A").write_bytes(np.array([[1, 2], [3, 4]], "<i2").tobytes())
    (path / "WORDS").write_bytes("eins\nzwei über\n".encode())
    return f"@{path}"


SHORT = TensorSpec("A", "INT16", (-1, 2, -1))
LINES = TensorSpec("WORDS", "BYTES", (-1, 2))


def test_a_folder_has_a_raw_file_or_lines_of_text_for_each_input_and_is_one_request(tmp_path: Path) -> None:
    spec = Tensors(fill=folder(tmp_path / "in"), shape={"A": [1, 2, 2]})
    first, second, _ = made(spec, SHORT, LINES)
    assert [to_numpy(one).tolist() for one in first] == [[[[1, 2], [3, 4]]], [[b"eins", "zwei über".encode()]]]
    assert second == first
    assert workload.distinct(tensors.complete(spec, [SHORT, LINES], 8)) == 1


def test_a_folders_tensors_are_repeated_in_a_batch(tmp_path: Path) -> None:
    spec = Tensors(fill=folder(tmp_path / "in"), shape={"A": [3, 2, 2]}, batch=3)
    found = to_numpy(made(spec, SHORT, LINES, ids=[0])[0][0])
    assert found.tolist() == [[[1, 2], [3, 4]]] * 3


def test_the_digest_of_a_folder_is_that_of_its_files(tmp_path: Path) -> None:
    def digest(name: str, change: bytes = b"") -> str:
        spec = Tensors(fill=folder(tmp_path / name), shape={"A": [1, 2, 2]})
        if change:
            (tmp_path / name / "WORDS").write_bytes(change)
        return workload.digest(tensors.complete(spec, [SHORT, LINES], 8), 0)

    assert digest("one") == digest("two") != digest("three", b"a\nb\n")


def test_a_folder_that_does_not_fit_says_what(tmp_path: Path) -> None:
    path = folder(tmp_path / "in")
    with pytest.raises(UserError, match="has no file OTHER"):
        made(Tensors(fill=path), TensorSpec("OTHER", "INT16", (-1, 2)))
    with pytest.raises(UserError, match="8 were given"):
        made(Tensors(fill=path), TensorSpec("A", "INT16", (-1, 5)))
