"""series.parquet: what is written is what is read, and other tools can read it."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import synthetic_run as made
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import store
from inferometer.errors import UserError
from inferometer.records import Records
from inferometer.series import Columns, TimeSeries
from inferometer.store.series import client_health

WORDS = st.text(max_size=5)
VALUES = st.lists(st.tuples(st.integers(-(1 << 62), 1 << 62), st.floats()), min_size=1, max_size=5)
KEYS = st.tuples(st.sampled_from(["client", "kserve"]), WORDS, st.dictionaries(WORDS, WORDS, max_size=2))


def identity(series: Any) -> str:
    (source, name, labels), _ = series
    return str((source, name, sorted(labels.items())))


SERIES = st.lists(st.tuples(KEYS, VALUES), max_size=10, unique_by=identity)


def plain(series: tuple[TimeSeries, ...]) -> list[tuple[str, str, dict[str, str], list[int], bytes]]:
    return [(each.source, each.name, each.labels, each.at.tolist(), each.value.tobytes()) for each in series]


def stored(folder: Path, *series: TimeSeries) -> Path:
    run = made.run(made.blank(0))
    store.write(folder, run.manifest, run.records, [], series)
    return folder


@given(SERIES)
@settings(deadline=None, max_examples=50)
def test_any_series_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, drawn: list[Any]) -> None:
    series = tuple(
        TimeSeries(*key, np.array([at for at, _ in values]), np.array([value for _, value in values]))
        for key, values in drawn
    )
    folder = stored(tmp_path_factory.mktemp("run"), *series)
    assert plain(store.read(folder).series()) == plain(series)


def test_columns_have_a_series_for_each_name_and_labels() -> None:
    columns = Columns("client")
    columns.append("cpu", {"shard": "0"}, 1, 0.75)
    columns.append("cpu", {"shard": "1"}, 1, 0.25)
    columns.append("cpu", {"shard": "0"}, 2, 0.5)
    first, second = columns.series()
    assert first.labels == {"shard": "0"} and first.at.tolist() == [1, 2] and first.value.tolist() == [0.75, 0.5]
    assert second.labels == {"shard": "1"} and second.value.tolist() == [0.25]


def test_the_clients_health_is_labelled_by_shard() -> None:
    samples = (*made.samples(1.0, shard=0), *made.samples(1.0, shard=1, cpu=0.5))
    found = {(each.name, each.labels["shard"]): each for each in client_health(samples)}
    health = {"cpu", "rss", "memory", "stall", "stalled", "clock_step", "in_flight", "reads", "unstamped", "spinning"}
    assert {name for name, _ in found} == health
    assert found["cpu", "1"].value.tolist() == [0.5] * 3
    assert found["cpu", "0"].at.tolist() == [sample.at for sample in samples if sample.shard == 0]


def test_a_run_from_before_series_has_the_clients_health(tmp_path: Path) -> None:
    run = made.run(made.blank(0))
    stored(tmp_path)
    (tmp_path / "series.parquet").unlink()
    found = store.read(tmp_path).series()
    assert plain(found) == plain(client_health(run.records.samples)) and found


def test_other_tools_find_columns_of_plain_types(tmp_path: Path) -> None:
    stored(tmp_path, TimeSeries("kserve", "queue_ns", {"url": "u", "model": "m"}, np.array([-5]), np.array([1.5])))
    (row,) = pq.read_table(tmp_path / "series.parquet").to_pylist()
    assert row == {"source": "kserve", "name": "queue_ns", "labels": '{"model":"m","url":"u"}', "at": -5, "value": 1.5}


def test_a_damaged_file_costs_the_series_and_not_the_report(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / "series.parquet").write_bytes(b"PAR1")
    run = store.read(tmp_path)
    assert isinstance(run.records, Records)
    with pytest.raises(UserError, match=r"series\.parquet: the file is damaged"):
        run.series()


def test_samples_are_still_stored_for_older_versions(tmp_path: Path) -> None:
    stored(tmp_path)
    names = [field.name for field in msgspec.structs.fields(made.samples()[0])]
    assert pq.read_table(tmp_path / "samples.parquet").column_names == names
