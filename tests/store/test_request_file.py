"""The file of encoded requests: what was appended is read back, and only a window of a large file is in memory."""

import contextlib
import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.store import request_file
from inferometer.store.request_file import MappedBytes, MappedRequests, RequestWriter, block, in_memory

MB = 1 << 20


def written(folder: Path, *blocks: list[bytes]) -> MappedBytes:
    """The tails in the files, after these blocks were appended."""
    return all_written(folder, *blocks).tails


def all_written(folder: Path, *blocks: list[bytes]) -> MappedRequests:
    with contextlib.closing(RequestWriter(folder)) as writer:
        for tails in blocks:
            sizes = list(map(len, tails))
            writer.append(
                block(tails, sizes, [-n for n in sizes], [n % 3 for n in sizes], [b"l" + tail for tail in tails])
            )
        return writer.finish().mapped()


def resident(folder: Path) -> int:
    """Bytes of mapped files without a name that this process holds in memory."""
    total = is_ours = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_ours = str(folder) in line and "(deleted)" in line
        elif is_ours and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


@given(st.lists(st.lists(st.binary(max_size=50), max_size=5), max_size=5))
def test_entries_are_read_back_in_order(tmp_path_factory: pytest.TempPathFactory, blocks: list[list[bytes]]) -> None:
    entries = [entry for block in blocks for entry in block]
    found = all_written(tmp_path_factory.getbasetemp(), *blocks)
    assert list(found.tails) == entries == list(in_memory(entries))
    assert found.tails[1:3] == entries[1:3]
    assert list(found.sessions) == [b"l" + entry for entry in entries]
    sizes = list(map(len, entries))
    assert (list(found.n_in), [-n for n in found.n_out], list(found.classes)) == (sizes, sizes, [n % 3 for n in sizes])


def test_an_index_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        written(tmp_path, [b"a"])[1]
    assert written(tmp_path, [b"a", b"b"])[-1] == b"b"


def test_the_file_has_no_name(tmp_path: Path) -> None:
    mapped = written(tmp_path, [b"secret"])
    assert list(tmp_path.iterdir()) == []
    assert mapped[0] == b"secret"


@pytest.mark.parametrize("has_populate", [True, False])
def test_only_a_window_of_a_large_file_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_populate: bool
) -> None:
    if not has_populate:
        monkeypatch.setattr(request_file, "_POPULATE_READ", 12345)  # as on a kernel that does not know it
    entries = [bytes([n % 256]) * (MB // 4) for n in range(4 * 128)]
    mapped = written(tmp_path, *([entry] for entry in entries))
    most = 0
    for n, entry in enumerate(entries):
        assert mapped[n] == entry
        mapped.prefault(n)
        if n % 32 == 0:  # the kernel takes long to count
            most = max(most, resident(tmp_path))
    assert 8 * MB < most < 64 * MB
    mapped.prefault(0)  # from the start again
    assert mapped[0] == entries[0]
    assert resident(tmp_path) < 64 * MB


def test_the_next_requests_are_in_memory_before_they_are_read(tmp_path: Path) -> None:
    mapped = written(tmp_path, *([bytes(MB)] for _ in range(128)))
    before = resident(tmp_path)
    assert before >= 16 * MB
    for n in range(8):
        mapped.prefault(n)
    assert resident(tmp_path) > before


def test_a_file_that_cannot_grow_is_an_error(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    with contextlib.closing(RequestWriter(tmp_path)) as writer, full.open("wb", buffering=0) as device:
        os.dup2(device.fileno(), writer.descriptors[0])
        with pytest.raises(OSError, match="No space left"):
            writer.append(block([b"x"], [1], [1]))


def test_windows_are_whole_pages() -> None:
    assert request_file._STEP % mmap.PAGESIZE == request_file._AHEAD % mmap.PAGESIZE == 0
