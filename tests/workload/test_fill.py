"""Inputs are filled as `data.fill` says, and inputs of language models by their names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer import workload
from inferometer.config.data import InputFill, Tensors
from inferometer.config.lengths import Uniform
from inferometer.errors import UserError
from inferometer.tensors import DATATYPES, TensorSpec, to_numpy
from inferometer.workload import random_tensors, tensors

BERT = (
    TensorSpec("input_ids", "INT64", (-1, -1)),
    TensorSpec("attention_mask", "INT64", (-1, -1)),
    TensorSpec("token_type_ids", "INT64", (-1, -1)),
    TensorSpec("position_ids", "INT64", (-1, -1)),
)
FLOATS = TensorSpec("X", "FP32", (-1, 1000))
WORDS = TensorSpec("WORDS", "BYTES", (-1, 100))


def arrays(spec: Tensors, *metadata: TensorSpec, id: int = 0, seed: int = 7, max_batch: int = 8) -> dict[str, Any]:
    """The inputs of one request, by name."""
    request = workload.build(tensors.complete(spec, metadata, max_batch), seed, [id])[0]
    assert isinstance(request.payload, tuple)
    return {one.name: to_numpy(one) for one in request.payload}  # type: ignore[union-attr]


def refused(spec: Tensors, *metadata: TensorSpec, max_batch: int = 8) -> str:
    with pytest.raises(UserError) as error:
        tensors.complete(spec, metadata, max_batch)
    return str(error.value)


# --- well-known names ------------------------------------------------------------------------------------------------


def test_a_language_model_gets_inputs_that_it_takes_without_options() -> None:
    made = arrays(Tensors(length=64, batch=2), *BERT)
    assert {array.shape for array in made.values()} == {(2, 64)}
    assert made["input_ids"].min() >= 0 and made["input_ids"].max() < 1000 and np.unique(made["input_ids"]).size > 50
    assert (made["attention_mask"] == 1).all()
    assert (made["token_type_ids"] == 0).all()
    assert (made["position_ids"] == np.arange(64)).all()


@pytest.mark.parametrize(
    ("name", "datatype", "low", "high"),
    [
        ("input_ids__0", "INT32", 0, 999),
        ("serving_default_input_ids:0", "INT64", 0, 999),
        ("decoder_input_ids", "INT64", 0, 999),
        ("Attention_Mask", "FP32", 1, 1),
        ("attention_mask", "BOOL", 1, 1),
        ("segment_ids", "INT32", 0, 0),
        ("input_ids", "INT8", 0, 127),
        ("my_attention_mask_scores", "INT32", 0, 127),
    ],
)
def test_names_are_recognised_with_the_decorations_of_exporters(name: str, datatype: str, low: int, high: int) -> None:
    (made,) = arrays(Tensors(), TensorSpec(name, datatype, (-1, 5000))).values()
    assert (int(made.min()), int(made.max())) == (low, high)


def test_a_fill_that_is_given_wins_over_the_name() -> None:
    zeros = arrays(Tensors(fill="zeros", length=9), *BERT)
    assert not any(array.any() for array in zeros.values())
    spec = Tensors(fill={"attention_mask": "random", "input_ids": InputFill(random=[5, 6])}, length=500)
    made = arrays(spec, *BERT)
    assert np.unique(made["attention_mask"]).size > 50
    assert (made["input_ids"] == 5).all()
    assert not made["token_type_ids"].any()


# --- by input --------------------------------------------------------------------------------------------------------


def test_each_input_has_its_own_fill(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3, dtype=np.float64))
    (tmp_path / "raw").write_bytes(np.array([7, 8], "<i2").tobytes())
    (tmp_path / "text").write_bytes(b"hello\n")
    spec = Tensors(
        fill={
            "ONE": "ones", "FIVE": InputFill(value=5), "YES": InputFill(value=True), "WORD": InputFill(value="hi"),
            "FILE": f"@{tmp_path / 'x.npy'}", "RAW": f"@{tmp_path / 'raw'}", "TEXT": f"@{tmp_path / 'text'}",
        }
    )  # fmt: skip
    made = arrays(
        spec,
        TensorSpec("ONE", "FP16", (-1, 2)), TensorSpec("FIVE", "BF16", (-1, 2)), TensorSpec("YES", "BOOL", (-1, 1)),
        TensorSpec("WORD", "BYTES", (-1, 2)), TensorSpec("FILE", "FP64", (-1, -1)), TensorSpec("RAW", "INT16", (-1, -1)),
        TensorSpec("TEXT", "BYTES", (-1, 1)), TensorSpec("REST", "INT32", (-1, 100)),
    )  # fmt: skip
    rest = made.pop("REST")
    assert {name: array.tolist() for name, array in made.items()} == {
        "ONE": [[1, 1]], "FIVE": [[5, 5]], "YES": [[True]], "WORD": [[b"hi", b"hi"]], "FILE": [[0, 1, 2]], "RAW": [[7, 8]],
        "TEXT": [[b"hello\n"]],
    }  # fmt: skip
    assert np.unique(rest).size > 20


def test_a_json_file_of_one_input_is_used_in_turn_beside_random_ones(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"data": [{"A": [1]}, {"A": [2]}, {"A": [3]}]}')
    a, b = TensorSpec("A", "INT32", (-1, 1)), TensorSpec("B", "INT32", (-1, 50))
    spec = Tensors(fill={"A": f"@{tmp_path / 'a.json'}"})
    found = [arrays(spec, a, b, id=id) for id in range(4)]
    assert [one["A"].item() for one in found] == [1, 2, 3, 1]
    assert len({one["B"].tobytes() for one in found}) == 4
    assert workload.distinct(tensors.complete(spec, [a], 8)) == 3


def test_strings_come_from_a_list_or_have_a_length() -> None:
    chosen = arrays(Tensors(fill={"WORDS": InputFill(strings=["a", "über"])}), WORDS)["WORDS"]
    assert set(chosen.ravel()) == {b"a", "über".encode()}
    made = arrays(Tensors(fill={"WORDS": InputFill(length=20)}), WORDS)["WORDS"].ravel()
    assert {len(word) for word in made} == {20} and len(set(made)) == 100
    default = arrays(Tensors(), WORDS)["WORDS"].ravel()
    assert {len(word) for word in default} <= set(range(1, 17))


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_random_floats_are_spread_over_their_range(datatype: str) -> None:
    x = TensorSpec("X", datatype, (-1, 20_000))
    made = arrays(Tensors(fill={"X": InputFill(random=[-2, 6])}), x)["X"]
    assert -2 <= made.min() < -1.9 and 5.9 < made.max() <= 6
    assert abs(made.mean() - 2) < 0.1
    plain = arrays(Tensors(), x)["X"]
    assert 0 <= plain.min() < 0.01 and 0.98 < plain.max() < 1


@given(data=st.data(), datatype=st.sampled_from([name for name, kind in DATATYPES.items() if kind.dtype is not None]))
def test_random_integers_stay_in_their_range(data: st.DataObject, datatype: str) -> None:
    dtype = DATATYPES[datatype].dtype
    if dtype is None or dtype.kind not in "iu":
        return
    limits = np.iinfo(dtype)
    low = data.draw(st.integers(int(limits.min), int(limits.max)))
    high = data.draw(st.integers(low + 1, int(limits.max) + 1))
    random_tensors.check_range("X", datatype, (low, high))
    made = to_numpy(random_tensors.random("X", datatype, (50,), 3, "", (low, high)))
    assert all(low <= int(value) < high for value in made)


def test_random_numbers_do_not_depend_on_how_much_is_generated_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {name: random_tensors.random("X", name, (1001,), 1, "p") for name in DATATYPES}
    monkeypatch.setattr(random_tensors, "_BLOCK", 16)
    assert {name: random_tensors.random("X", name, (1001,), 1, "p") for name in DATATYPES} == whole


def test_random_numbers_are_the_same_with_every_release() -> None:
    """A pure function of the seed, the name, and the id: these values must never change."""
    assert arrays(Tensors(), FLOATS)["X"][0, :2].tolist() == GOLDEN["X"]
    assert arrays(Tensors(), TensorSpec("I", "INT32", (-1, 4)))["I"].tolist() == GOLDEN["I"]
    assert arrays(Tensors(), WORDS)["WORDS"][0, 0] == GOLDEN["WORDS"]


GOLDEN: dict[str, Any] = {
    "X": [0.4001201391220093, 0.3202112317085266],
    "I": [[45, 108, 17, 103]],
    "WORDS": b"SjeAjPTe79",
}


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_length_is_the_size_of_all_open_dimensions_but_the_batch() -> None:
    sent = {name: array.shape for name, array in arrays(Tensors(length=7, batch=3), *BERT, FLOATS).items()}
    assert sent == {one.name: (3, 7) for one in BERT} | {"X": (3, 1000)}
    assert arrays(Tensors(length=7), TensorSpec("A", "INT8", (-1,)), max_batch=0)["A"].shape == (7,)
    assert arrays(Tensors(length=7), TensorSpec("A", "INT8", (-1, 80)), max_batch=0)["A"].shape == (7, 80)
    unbatched = arrays(Tensors(length=7), *BERT, TensorSpec("C", "INT8", (-1, 2)), max_batch=0)
    assert {name: array.shape for name, array in unbatched.items()} == {one.name: (1, 7) for one in BERT} | {
        "C": (1, 2)
    }
    made = arrays(Tensors(length=7, shape={"input_ids": [1, 3]}), *BERT)
    assert made["input_ids"].shape == (1, 3) and made["attention_mask"].shape == (1, 7)


@pytest.mark.parametrize(
    "spec",
    [
        Tensors(length=Uniform(8, 128)),
        Tensors(shape={one.name: [1, Uniform(8, 128)] for one in BERT}),
    ],
)
def test_sizes_from_a_distribution_vary_by_request_and_agree_within_one(spec: Tensors) -> None:
    full = tensors.complete(spec, BERT, 8)
    sizes = []
    for request in workload.build(full, 3, range(100)):
        assert isinstance(request.payload, tuple)
        (shape,) = {one.shape for one in request.payload}  # type: ignore[union-attr]
        sizes.append(shape[1])
    assert min(sizes) >= 8 and max(sizes) <= 128 and len(set(sizes)) > 40
    assert workload.build(full, 3, [50])[0] == workload.build(full, 3, range(100))[50]
    assert tensors.batch(full, 8) == 1


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        ({"input_id": "ones"}, ("data.fill", "no input input_id", "did you mean input_ids?")),
        ({"input_ids": "one"}, ("data.fill.input_ids", "'one' is not known", "did you mean ones?")),
        ({"input_ids": InputFill(random=[0, 2**70])}, ("does not fit into INT64", "data.fill.input_ids")),
        ({"input_ids": InputFill(random=[0, 0.5])}, ("has fractions, but the input is INT64",)),
        ({"input_ids": InputFill(random=[5, 5])}, ("is empty",)),
        ({"input_ids": InputFill(random=[5])}, ("two numbers",)),
        ({"input_ids": InputFill(value="x")}, ("'x' is not a value of INT64",)),
        ({"input_ids": InputFill()}, ("the mapping is empty",)),
        ({"input_ids": InputFill(value=1, random=[0, 1])}, ("random and value exclude each other",)),
        ({"input_ids": InputFill(strings=["x"])}, ("strings is for inputs of BYTES",)),
        ({"input_ids": "@/nowhere"}, ("data.fill.input_ids", "/nowhere", "No such file")),
        ({"WORDS": "ones"}, ("ones does not go with BYTES", "strings")),
        ({"WORDS": InputFill(random=[0, 1])}, ("BYTES have no range",)),
        ({"X": InputFill(random=[0, 1e39])}, ("does not fit into FP32",)),
    ],
)
def test_a_fill_that_does_not_fit_the_model_is_an_error(fill: dict[str, Any], words: tuple[str, ...]) -> None:
    message = refused(Tensors(fill=fill), BERT[0], WORDS, FLOATS)
    for word in words:
        assert word in message


def test_sizes_that_do_not_fit_the_model_are_errors(tmp_path: Path) -> None:
    assert "no dynamic dimensions" in refused(Tensors(length=5), FLOATS)
    assert "a dimension of fixed size" in refused(Tensors(shape={"X": [1, Uniform(1, 5)]}), FLOATS)
    assert "the batch is a distribution" in refused(Tensors(shape={"X": [Uniform(1, 5), 1000]}), FLOATS)
    np.save(tmp_path / "a.npy", np.zeros((1, 5), np.int64))
    message = refused(Tensors(fill=f"@{tmp_path / 'a.npy'}", length=Uniform(1, 5)), BERT[0])
    assert "data.length" in message and "tensors of its own sizes" in message
    assert "expects the shape [-1, 1000]" in refused(Tensors(fill={"X": f"@{tmp_path / 'a.npy'}"}), FLOATS)


def test_the_digest_depends_on_the_fill_but_not_on_the_path_of_a_file(tmp_path: Path) -> None:
    digests = set()
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.ones((1, 1000), np.float32))
        spec = Tensors(fill={"X": f"@{tmp_path / name}"})
        digests.add(workload.digest(tensors.complete(spec, [FLOATS], 8), 0))
    assert len(digests) == 1
    for fill in ({"X": InputFill(random=[0, 2])}, {"X": InputFill(random=[0, 3])}, "random"):
        digests.add(workload.digest(tensors.complete(Tensors(fill=fill), [FLOATS], 8), 0))
    assert len(digests) == 4
