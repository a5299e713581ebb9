"""Columns can be indexed like an array of rows, and copy only if they must."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.records import NAMES, ROW, Columns


def numbered(count: int) -> np.ndarray:
    """Rows in which the numbers of a column are all different, as far as its width allows."""
    rows = np.zeros(count, ROW)
    for index, name in enumerate(NAMES):
        rows[name] = (np.arange(count) * 3 + index) % 127
    return rows


choices = st.one_of(
    st.builds(slice, *[st.none() | st.integers(-12, 12)] * 2, st.sampled_from([None, 1, 2, -1])),
    st.lists(st.booleans(), min_size=10, max_size=10).map(np.array),
    st.lists(st.integers(0, 9), max_size=15).map(lambda indices: np.array(indices, np.int64)),
)


@given(choices)
def test_selecting_rows_gives_the_same_as_with_an_array(choice: slice | np.ndarray) -> None:
    rows = numbered(10)
    chosen = Columns.of(rows)[choice]
    assert len(chosen) == len(rows[choice])
    assert all(chosen[name].tolist() == rows[choice][name].tolist() for name in NAMES)


@given(st.integers(0, 10), st.integers(0, 10), st.data())
def test_selecting_from_a_selection(first: int, last: int, data: st.DataObject) -> None:
    rows = numbered(10)
    size = len(rows[first:last])
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), np.bool_)
    chosen = Columns.of(rows)[first:last][mask]
    assert len(chosen) == mask.sum() and chosen["sent"].tolist() == rows[first:last][mask]["sent"].tolist()


def test_conversion_back_to_rows_and_iteration() -> None:
    rows = numbered(5)
    assert np.asarray(Columns.of(rows)).dtype == ROW and (np.asarray(Columns.of(rows)) == rows).all()
    assert (np.sort(Columns.of(rows[::-1]), order="id") == rows).all()
    assert [row["done"] for row in Columns.of(rows)] == rows["done"].tolist()


@pytest.mark.parametrize("count", [0, 1, 7])
def test_empty_columns_can_be_filled_one_by_one_and_through_a_slice(count: int) -> None:
    columns, rows = Columns.empty(count), numbered(count)
    for name in NAMES:
        columns[:][name][:] = rows[name]
    assert len(columns) == count and (np.asarray(columns) == rows).all()
    assert all(columns[name].dtype == ROW[name] for name in NAMES)


def test_only_a_selection_that_omits_rows_is_a_copy() -> None:
    columns = Columns.of(numbered(4))
    everything = np.ones(4, np.bool_)
    assert np.shares_memory(columns[everything]["sent"], columns["sent"])
    assert np.shares_memory(columns[1:3]["sent"], columns["sent"])
    assert not np.shares_memory(columns[columns["id"] > 0]["sent"], columns["sent"])
