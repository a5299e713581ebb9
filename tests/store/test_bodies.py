"""The texts of requests and responses: from the shard's spool to bodies.parquet and back."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.records import Body
from inferometer.store import bodies, bodies_of, body_spool
from inferometer.store.body_spool import BodySpool, read_bodies


def sent(id: int, body: bytes, **more: int) -> Any:
    facts = {"session": -1, "turn": -1, "stage": 0, "class_": -1} | more
    return SimpleNamespace(id=id, data=b"POST / HTTP/1.1\r\nAuthorization: Bearer k\r\n\r\n" + body, **facts)


def body(id: int, request: str, response: str | None, finish: str | None = None) -> Body:
    return Body(id, -1, -1, 0, -1, request, response, finish)


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50) | st.none(),
            st.sampled_from([None, "stop", "length"]),
        ),
        max_size=20,
    )
)
def test_texts_survive_the_spool_and_the_file(tmp_path_factory: pytest.TempPathFactory, entries: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("bodies")
    spool = BodySpool(folder, 0)
    for id, (request, response, finish) in enumerate(entries):
        spool.add(sent(id, request.encode()), response or "", finish)
        if id % 3 == 0:
            spool.flush()
    spool.flush()
    spool.close()
    expected = [body(id, *entry) for id, entry in enumerate(entries)]
    assert list(read_bodies(folder, [0])) == expected
    bodies.write(folder / "bodies.parquet", read_bodies(folder, [0]), ())
    assert bodies_of(folder, range(len(entries))) == dict(enumerate(expected))


def test_text_of_large_runs_is_written_as_it_comes(tmp_path: Path) -> None:
    spool = BodySpool(tmp_path, 0)
    for id in range(100):
        spool.add(sent(id, b"x" * 10_000), "", None)
    written = (tmp_path / "0.bodies").stat().st_size
    assert 700_000 < written < 1_010_000  # at most 256 KiB wait


@pytest.mark.parametrize("cut", [1, 5, 30, 60])
def test_entry_that_a_crash_cut_off_is_left_out(tmp_path: Path, cut: int) -> None:
    spool = BodySpool(tmp_path, 0)
    for id in range(3):
        spool.add(sent(id, b"request"), "a response of some length", "stop")
    spool.flush()
    spool.close()
    path = tmp_path / "0.bodies"
    path.write_bytes(path.read_bytes()[:-cut])
    assert [each.id for each in read_bodies(tmp_path, [0])] == [0, 1]


def test_full_disk_leaves_whole_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = BodySpool(tmp_path, 0)
    spool.add(sent(0, b"request"), "response", "stop")
    spool.flush()
    real = spool._file

    class Full:
        def write(self, data: bytes) -> int:
            return real.write(data[:10])

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    monkeypatch.setattr(spool, "_file", Full())
    spool.add(sent(1, b"request"), "response", "stop")
    with pytest.raises(OSError) as raised:
        spool.flush()
    assert raised.value.errno == errno.ENOSPC
    assert [each.id for each in read_bodies(tmp_path, [0])] == [0]


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_GROUP_CHARACTERS", 1000)
    entries = [body(id, "r" * 100, "s" * 100) for id in range(23)]
    bodies.write(tmp_path / "bodies.parquet", iter(entries), ())
    assert bodies.pq.ParquetFile(tmp_path / "bodies.parquet").num_row_groups == 5
    assert bodies_of(tmp_path, [22]) == {22: entries[22]}
    assert bodies_of(tmp_path, [99]) == {}


def test_shards_without_texts_have_none(tmp_path: Path) -> None:
    assert not body_spool.has_bodies(tmp_path, range(2))
    assert bodies_of(tmp_path, [0]) == {}
