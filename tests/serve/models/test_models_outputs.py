"""Classification and shared memory."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models_fakes import Call, asynchronous, fp32, serving, wants

from inferometer.serve.models import shared_memory
from inferometer.serve.models.shared_memory import Regions
from inferometer.serve.models.signature import classify
from inferometer.serve.models.types import Refused
from inferometer.tensors import Tensor, from_numpy, to_numpy

IDENTITY = """
backend: "identity" max_batch_size: 64
input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
output [{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ], label_filename: "labels.txt" }]
"""


@pytest.mark.parametrize(
    ("values", "datatype", "count", "classes"),
    [
        ([1.5, -2, 1e20], "FP32", 2, [b"100000002004087734272.000000:2", b"1.500000:0:a"]),
        ([0.0, 0, 0], "FP32", 2, [b"0.000000:0:a", b"0.000000:1:b"]),  # equal values by their index
        ([0, 7, 0, 7], "UINT8", 9, [b"7:1:b", b"7:3", b"0:0:a", b"0:2"]),
        ([[1, 2], [4, 3]], "INT32", 1, [[b"2:1:b"], [b"4:0:a"]]),  # each row of a batch has its own
        (np.empty(0), "FP32", 3, []),
        (np.empty((2, 0)), "FP32", 3, [[], []]),
        ([1.0, 2.0], "BF16", 1, [b"2.000000:1:b"]),
        ([1.0, 2.0], "FP16", 1, [b"2.000000:1:b"]),
        ([-(2**63), 2**63 - 2, 2**63 - 1], "INT64", 1, [b"9223372036854775807:2"]),
        (np.array([0, 2**64 - 1], np.uint64), "UINT64", 1, [b"18446744073709551615:1:b"]),
        ([False, True], "BOOL", 1, [b"1:1:b"]),
    ],
)
def test_classes_have_value_index_and_label_best_first(values: Any, datatype: str, count: int, classes: Any) -> None:
    array = np.array(values)
    found = classify(from_numpy("x", array, datatype), count, ("a", "b"), array.ndim > 1)
    assert to_numpy(found).tolist() == classes


@asynchronous
async def test_labels_come_from_the_model(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/labels.txt").write_text("cat\ndog\n")
    async with serving(tmp_path, {"m": IDENTITY}) as models:
        call = Call("m", fp32([1, 3, 2], [9, 0, 0]), wanted=wants("OUTPUT0", classes=2)).on(models)
        assert (await call.outputs())["OUTPUT0"].tolist() == [
            [b"3.000000:1:dog", b"2.000000:2"],
            [b"9.000000:0:cat", b"0.000000:1:dog"],
        ]


# --- shared memory ---------------------------------------------------------------------------------------------------


@pytest.fixture
def key() -> Iterator[str]:
    """A shared memory object of 64 bytes."""
    path = Path("/dev/shm") / f"inferometer-test-{uuid.uuid4().hex}"
    path.write_bytes(bytes(range(64)))
    yield f"/{path.name}"
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def output(data: bytes) -> Tensor:
    return Tensor("OUTPUT0", "UINT8", (len(data),), data)


def refused(call: Any, *words: Any, **named: int) -> tuple[str, str]:
    with pytest.raises(Refused) as raised:
        call(*words, **named)
    return raised.value.code, raised.value.message


def test_a_region_is_shared_with_the_client(key: str) -> None:
    regions = Regions()
    regions.register("r", key, 8, 16)
    assert regions.find("r", 4, 2).read() == bytes([10, 11, 12, 13])
    regions.find("r", 4, 12).write(output(b"abcd"))
    assert Path("/dev/shm", key[1:]).read_bytes()[20:24] == b"abcd"
    (status,) = regions.status()
    assert (status.name, status.key, status.offset, status.byte_size) == ("r", key, 8, 16)
    region = regions.find("r", 4, 12)
    regions.unregister()
    assert (regions.status(), region.read()) == ([], b"abcd")


def test_regions_are_refused_in_tritons_words(key: str) -> None:
    regions = Regions()
    regions.register("r", key, 0, 64)
    assert refused(regions.register, "r", key, 0, 64) == (
        "ALREADY_EXISTS",
        "shared memory region 'r' already in manager",
    )
    assert refused(regions.register, "s", key, 60, 8)[1] == f"Invalid shared memory region: '{key}'"
    assert refused(regions.register, "s", key, -1, 8)[1] == f"Invalid shared memory region: '{key}'"
    assert refused(regions.register, "s", key, 0, 0)[0] == "INVALID_ARGUMENT"
    assert refused(regions.find, "x", 1, 0) == ("NOT_FOUND", "Unable to find shared memory region: 'x'")
    assert refused(regions.status, "x") == ("NOT_FOUND", "Unable to find system shared memory region: 'x'")
    for size, offset in ((65, 0), (8, 60), (-1, 0), (1, -1)):
        assert refused(regions.find, "r", size, offset) == (
            "INVALID_ARGUMENT",
            "Invalid offset + byte size for shared memory region: 'r'",
        )


def test_truncated_memory_is_not_touched(key: str) -> None:
    regions = Regions()
    regions.register("r", key, 0, 64)
    os.truncate(f"/dev/shm{key}", 0)
    smaller = refused(regions.find("r", 4, 0).read)
    assert smaller[0] == "INVALID_ARGUMENT" and "region 'r' was truncated after it was registered" in smaller[1]
    assert refused(regions.find("r", 4, 0).write, output(b"abcd")) == smaller
    assert Path(f"/dev/shm{key}").stat().st_size == 0
    os.truncate(f"/dev/shm{key}", 32)
    assert refused(regions.find("r", 64, 0).read) == smaller
    assert refused(regions.find("r", 16, 20).write, output(bytes(16))) == smaller
    assert regions.find("r", 32, 0).read() == bytes(32)


@pytest.mark.parametrize(
    "wrong", ["", "/", "/..", "..", ".", "/a/b", "/../etc/passwd", "a\0b", "/not-there", "x" * 999]
)
def test_a_key_cannot_reach_other_files(wrong: str) -> None:
    assert refused(Regions().register, "r", wrong, 0, 1)[1] == f"Unable to open shared memory region: '{wrong}'"


def test_links_fifos_folders_and_empty_files_are_refused(tmp_path: Path) -> None:
    regions = Regions(tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    for name in ("link", "pipe", "folder", "empty"):
        assert "shared memory region" in refused(regions.register, "r", name, 0, 1)[1]
    regions.register("r", "file", 0, 1)


def test_registrations_are_limited_per_key_and_in_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them keeps a file open."""
    monkeypatch.setattr(shared_memory, "_MOST", 5)
    monkeypatch.setattr(shared_memory, "_MOST_OF_KEY", 3)
    regions = Regions(tmp_path)
    for key in ("a", "b"):
        (tmp_path / key).write_bytes(b"x")
        for number in range(3 if key == "a" else 2):
            regions.register(f"{key}{number}", key, 0, 1)
        assert refused(regions.register, "r", "/a", 0, 1)[0] == "RESOURCE_EXHAUSTED"
    assert "at most 5 shared memory regions" in refused(regions.register, "r", "b", 0, 1)[1]
    regions.unregister("a0")
    regions.register("r", "b", 0, 1)
