"""`inferometer compare-protocols` against Triton itself: all four protocols, small tensors."""

import json
from pathlib import Path

import pytest
from command import assert_one_line, cli
from triton_server import Triton

from inferometer import conduct
from inferometer.analysis.protocol_comparison import PROTOCOLS

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("patient")]
pytest_plugins = ["triton_server"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("model", ["identity", "no_batch"])
def test_all_four_protocols(triton: Triton, tmp_path: Path, model: str) -> None:
    """The machine may be busy, so the verdicts are not checked."""
    result = cli(
        "compare-protocols", triton.http, "--grpc", triton.grpc, "--model", model, "--sizes", "1kB,20kB",
        "--requests", "30", "--json", "out.json", "--chart", "out.svg", "--out", "kept",
    )  # fmt: skip
    assert result.status in (0, 1), result.err
    found = json.loads(Path("out.json").read_text())
    assert found["server"].startswith("triton ")
    assert [(cell["protocol"], cell["size"]) for cell in found["cells"]] == [
        (way, size) for size in (1000, 20_000) for way in PROTOCOLS
    ]
    bytes_out = {}
    for cell in found["cells"]:
        assert (cell["ok"], cell["failed"], cell["source"]) == (30, 0, "server statistics")
        assert cell["mean"] + cell["excess"] == pytest.approx(cell["server"] + cell["overhead"])
        assert cell["strangers"] == 0
        assert cell["server"] > 0 and cell["queue"] > 0 and cell["compute"] > 0
        assert cell["bytes_in"] > cell["size"]
        _, summary = conduct.open_run(cell["runs"][0])
        assert summary.breakdown is not None and summary.breakdown.counted == 31
        bytes_out[cell["protocol"], cell["size"]] = cell["bytes_out"]
    for size in (1000, 20_000):
        for way in ("grpc", "grpc-stream", "http"):
            assert size < bytes_out[way, size] < size + 600
        assert bytes_out["http-json", size] > 2 * size
    for way in PROTOCOLS.values():
        assert way.label in result.out and way.label in Path("out.svg").read_text()
    assert "averages of the server's own statistics" in result.out


def test_gRPC_alone(triton: Triton) -> None:  # noqa: N802
    result = cli("compare-protocols", "--grpc", triton.grpc.removeprefix("grpc://"), "--sizes", "4", "--requests", "5")
    assert result.status in (0, 1), result.err
    assert "http was not measured" in result.out and "HTTP JSON" not in result.out


def test_a_model_with_two_inputs(triton: Triton) -> None:
    urls = (triton.http, "--grpc", triton.grpc)
    result = cli("compare-protocols", *urls, "--model", "add_sub", "--requests", "20", "-q")
    assert result.status in (0, 1) and all(name in result.out for name in ("gRPC unary", "gRPC stream", "HTTP JSON"))


def test_an_unknown_model(triton: Triton) -> None:
    urls = (triton.http, "--grpc", triton.grpc)
    assert_one_line(cli("compare-protocols", *urls, "--model", "identiti"), "did you mean identity?")
