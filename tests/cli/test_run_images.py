"""`inferometer run --image`, over HTTP and gRPC."""

import json
from collections.abc import Iterator
from pathlib import Path

import kserve_peers
import numpy as np
import pyarrow.parquet as pq
import pytest
from command import Result, assert_one_line, cli
from helpers import scripted
from PIL import Image


@pytest.fixture(scope="module", params=["http", "grpc"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    serving = scripted(kserve_peers.over_http()) if request.param == "http" else kserve_peers.over_grpc()
    with serving as url:
        yield url


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(folder / name)
    return folder


def run(url: str, folder: Path, *more: str | Path) -> Result:
    quick = ("--requests", "20", "--concurrency", "2", "--set", "client.processes=0", "--set", f"output={folder}")
    return cli("run", url, "--model", "scores", *quick, "-q", *more)


def test_a_folder_of_images_is_measured(tmp_path: Path, url: str, photos: Path) -> None:
    result = run(url, tmp_path, "--image", photos, "--scaling", "imagenet", "--crop", "30:2")
    assert result.status in (0, 1) and not result.err, result
    folder = tmp_path / "LATEST"
    manifest = json.loads((folder / "manifest.json").read_text())
    data = manifest["config"]["data"]
    assert (data["type"], data["scaling"], data["crop"]) == ("images", "imagenet", "30:2")
    assert manifest["workload"]["distinct"] == 2
    assert pq.read_table(folder / "requests.parquet").column("failure").to_pylist() == [None] * 20


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--image", "/nowhere"), ("--image", "/nowhere", "No such file")),
        (("--image", __file__), ("--image", "is not an image")),
        (("--image", Path(__file__).parent), ("--image", "there are no images in the folder")),
        (("--image", __file__, "--crop", "5"), ("--crop", "RESIZE:SIZE")),
    ],
)
def test_bad_images_are_one_line(
    tmp_path: Path, url: str, flags: tuple[str | Path, ...], words: tuple[str, ...]
) -> None:
    assert_one_line(run(url, tmp_path, *flags), *words)
