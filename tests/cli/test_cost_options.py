"""`run` and `report` with a price and GPUs, from the outside: the JSON, stored runs, and bad input."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import assert_one_line, cli
from helpers import measure

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

QUICK = ("--requests", "60", "--prompt", "hello", "--output-tokens", "20", "--quiet", "--set", "client.probe=false")


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.005, itl=0.002))) as url:
        yield url


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, sim: str) -> Path:
    """A run of two levels without a price."""
    folder = tmp_path_factory.mktemp("cost")
    cli("run", sim, *QUICK, "--concurrency", "2:4:2", "--set", f"output={folder}")
    return folder / "LATEST"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_run_has_its_cost_in_the_json(tmp_path: Path, sim: str) -> None:
    out = tmp_path / "out.json"
    options = ("--price-per-hour", "2.5/gpu", "--gpus", "4", "--json", out)
    cli("run", sim, *QUICK, "--concurrency", "4", "--set", f"output={tmp_path}", *options)
    summary = read(out)
    found, rates = summary["efficiency"], summary["throughput"]
    assert (found["gpus"], found["price_per_hour"], found["currency"]) == (4, 10.0, "USD")
    assert found["output_tokens_per_gpu"]["value"] == pytest.approx(rates["output_tokens"] / 4)
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        cost = found["cost_per_million"][name]
        assert cost["value"] == pytest.approx(1e6 * 10 / 3600 / rates[name])
        assert len(cost["ci"]) == 2
    assert summary["pareto"] is None


def test_report_adds_a_price_to_a_stored_run_without_changing_it(tmp_path: Path, stored: Path) -> None:
    before = {path.name: path.read_bytes() for path in stored.iterdir() if path.is_file()}
    out = tmp_path / "out.json"
    result = cli("report", stored, "--price-per-hour", "12.5", "--cheapest-at", "100", "--cheapest-at", "9999")
    assert "cost and efficiency" in result.out and "cheapest at 100 tokens/s/user" in result.out
    cli("report", stored, "--price-per-hour", "12.5", "--gpus", "2", "--cheapest-at", "100", "--json", out)
    summary = read(out)
    assert all(stage["efficiency"]["price_per_hour"] == 12.5 for stage in summary["stages"])
    pareto = summary["pareto"]
    assert len(pareto["points"]) + len(pareto["left_out"]) == 2  # a level that is INVALID on a busy machine is left out
    assert pareto["unit"] == "gpu" or not pareto["points"]
    assert pareto["cheapest_at"][0]["tokens_per_user"] == 100
    assert {path.name: path.read_bytes() for path in stored.iterdir() if path.is_file()} == before
    assert "cost and efficiency" not in cli("report", stored).out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "cost.price_per_hour=-1"), ("cost.price_per_hour: must be more than 0, got -1",)),
        (("--set", "cost.price_per_hour=.inf"), ("cost.price_per_hour: must be a finite number",)),
        (("--set", "cost.gpus=0"), ("cost.gpus: must be at least 1",)),
        (("--set", "cost.per=rack"), ("cost.per: there is no 'rack'", "server | gpu")),
        (("--set", "cost.price=3"), ("did you mean cost.price_per_hour?",)),
        (
            ("--set", "server.api=embeddings", "--cheapest-at", "50"),
            ("--cheapest-at: responses without output tokens",),
        ),
        (("--set", "server.stream=false", "--cheapest-at", "50"), ("--cheapest-at: responses that are not streamed",)),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(options: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_one_line(cli("run", "http://127.0.0.1:9", *options), *words)


def test_a_stored_run_without_tokens_has_no_rate_per_user(tmp_path: Path, sim: str) -> None:
    run, _ = measure(tmp_path, sim, server={"model": "sim", "api": "embeddings"})
    assert_one_line(
        cli("report", run.folder, "--cheapest-at", "50"),
        "--cheapest-at: responses without output tokens have no tokens per second and user",
    )
