"""Joining and splitting batches round-trips, for all datatypes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensor_maker import random

from inferometer.serve.models.signature import join, split
from inferometer.serve.models.types import Inference, Refused
from inferometer.tensors import DATATYPES, Tensor


def request(rows: int, tensors: list[Tensor]) -> Inference:
    one = Inference(
        "m", {tensor.name: tensor for tensor in tensors}, responded=lambda _: None, ended=lambda _: None, arrived=0
    )
    one.rows = rows
    return one


@st.composite
def batches(draw: Any) -> list[Inference]:
    generator = np.random.default_rng(draw(st.integers(0, 1000)))
    kinds = draw(
        st.dictionaries(
            st.sampled_from("abc"),
            st.tuples(st.sampled_from(sorted(DATATYPES)), st.lists(st.integers(0, 3), max_size=2)),
            min_size=1,
        )
    )
    return [
        request(rows, [random(name, datatype, [rows, *shape], generator) for name, (datatype, shape) in kinds.items()])
        for rows in draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    ]


@given(batches())
def test_splitting_a_batch_restores_what_was_joined(batch: list[Inference]) -> None:
    joined = join(batch)
    assert all(tensor.shape[0] == sum(one.rows for one in batch) for tensor in joined.values())
    for one, share in zip(batch, split(joined, [one.rows for one in batch]), strict=True):
        assert share.keys() == one.inputs.keys()
        for name, tensor in share.items():
            given_ = one.inputs[name]
            assert (tensor.shape, tensor.datatype, bytes(tensor.data)) == (
                given_.shape,
                given_.datatype,
                bytes(given_.data),
            )


def test_a_single_request_is_not_copied() -> None:
    one = request(1, [Tensor("a", "FP32", (1, 1), b"\0" * 4)])
    assert join([one]) is one.inputs


def test_truncated_strings_are_an_error_of_the_model() -> None:
    with pytest.raises(Refused, match="fewer strings"):
        split({"a": Tensor("a", "BYTES", (2,), b"\1\0\0\0a\5\0\0\0b")}, [1, 1])
