"""`inferometer triton`, ranges, stable stages and perf_analyzer's CSV, against Triton itself."""

import csv
from pathlib import Path

import pytest
from command import Result, assert_one_line, cli
from triton_server import Triton

from inferometer import conduct

pytestmark = pytest.mark.triton
pytest_plugins = ["triton_server"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def verb(model: str, url: str, *more: str | Path) -> Result:
    return cli("triton", "-m", model, "-u", url, "-c", "60", "-w", "20", *more)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(("model", "more"), [("identity", ("-b", "4", "-s", "100")), ("no_batch", ("-s", "100"))])
def test_models_with_one_input_and_one_output(
    triton: Triton, tmp_path: Path, protocol: str, model: str, more: tuple[str, ...]
) -> None:
    """Responses may be so short that the client lowers the concurrency, so the verdict is not checked."""
    address = getattr(triton, protocol).partition("://")[2]
    result = verb(model, address, "-i", protocol, "--csv", tmp_path / "out.csv", "--output", "runs", *more)
    assert result.status in (0, 1), result.err
    assert result.out.startswith("Throughput: ") and len(result.out.splitlines()) == 7
    (line,) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert float(line["Inferences/Second"]) > 0 and float(line["p50 latency"]) > 0
    run, summary = conduct.open_run("runs/LATEST")
    assert (summary.counts.ok, summary.counts.failed) == (60, 0)
    assert run.manifest.config["data"]["shape"] == {"INPUT0": [4, 100] if model == "identity" else [100]}  # type: ignore[index]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("add_sub", ("expecting 1 input", "has 2: INPUT0, INPUT1")),
        ("classifier", ("input with 2 dimensions", "IMAGE", "has 4: [-1, 3, 8, 8]")),
        ("identiti", ("identiti", "did you mean identity?")),
    ],
)
def test_unsuitable_models(triton: Triton, protocol: str, model: str, words: tuple[str, ...]) -> None:
    assert_one_line(verb(model, getattr(triton, protocol)), *words)


def test_unsupported_batch_sizes(triton: Triton) -> None:
    assert_one_line(verb("identity", triton.http, "-b", "65"), "batches of at most 64")
    assert_one_line(verb("no_batch", triton.grpc, "-b", "2"), "takes no batches")


def test_a_range_of_stable_levels_and_the_csv_of_perf_analyzer(triton: Triton, tmp_path: Path) -> None:
    result = cli(
        "run", triton.grpc, "--model", "identity", "--concurrency", "1:3:2", "-q", "--perf-csv", tmp_path / "out.csv",
        "--set", "data.batch=2", "--set", "load.stable=1.0", "--set", "load.window=300ms",
    )  # fmt: skip
    assert result.status in (0, 1), result.err
    assert cli("report", "runs/LATEST").out == result.out
    _, summary = conduct.open_run("runs/LATEST")
    assert next(check.status for check in summary.checks if check.name == "stability") == "pass"
    lines = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [line["Concurrency"] for line in lines] == ["1", "3"]
    for line, stage in zip(lines, summary.stages, strict=True):
        assert stage.breakdown is not None
        assert float(line["Inferences/Second"]) == pytest.approx(2 * (stage.throughput.requests or 0), rel=1e-3)
        assert float(line["Server Compute Infer"]) > 0 and float(line["Server Queue"]) > 0
