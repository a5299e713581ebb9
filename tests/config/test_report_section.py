"""The section `report`: files to write after a run, and percentiles to show."""

from pathlib import Path
from typing import Any

import pytest
from command import assert_one_line, cli

from inferometer.config import Config, from_mapping
from inferometer.config.report import EXPORTS, parse_percentiles
from inferometer.errors import UserError
from inferometer.report.exporters import EXPORTERS


def config(**report: Any) -> Config:
    return from_mapping({"server": {"url": "http://127.0.0.1:1"}, "report": report})


def test_there_is_a_key_for_every_exporter() -> None:
    assert set(EXPORTS) == set(EXPORTERS)
    paths = {name.replace("-", "_"): f"out.{name}" for name in EXPORTERS}
    assert config(**paths).report.exports == {name: f"out.{name}" for name in EXPORTERS}


@pytest.mark.parametrize("wrong", [0, 100, -1, 100.5, float("inf"), float("nan")])
def test_percentile_lies_between_0_and_100(wrong: float) -> None:
    with pytest.raises(UserError, match=r"report.percentiles: .* is not a percentile"):
        config(percentiles=[50, wrong])


def test_percentile_has_at_most_four_decimals() -> None:
    assert config(percentiles=[99.9999]).report.percentiles == [99.9999]
    with pytest.raises(UserError, match="more than 4 decimal places"):
        config(percentiles=[99.99999])


def test_percentiles_of_the_option_are_numbers() -> None:
    assert parse_percentiles("50, p95,99.9") == [50, 95, 99.9]
    for wrong in ("", "50;90", "many", "50,200"):
        with pytest.raises(UserError, match="--percentiles"):
            parse_percentiles(wrong)


def test_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match=r"report.htlm: unknown key"):
        config(htlm="x")


def run_file(folder: Path, text: str, *options: str) -> Any:
    path = folder / "bench.yaml"
    path.write_text("server: {url: 'http://127.0.0.1:1'}\n" + text)
    return cli("run", path, *options)


def test_path_that_cannot_be_written_is_found_before_the_run(tmp_path: Path) -> None:
    assert_one_line(run_file(tmp_path, "report: {html: /no/such/folder/x.html}"), "/no/such/folder/x.html")


def test_two_files_cannot_both_be_standard_output(tmp_path: Path) -> None:
    assert_one_line(run_file(tmp_path, "report: {perf_csv: '-'}", "--json", "-"), "report.perf_csv -", "--json -")


def test_wrong_percentile_of_the_file_is_named_with_its_key(tmp_path: Path) -> None:
    assert_one_line(run_file(tmp_path, "report: {percentiles: [101]}"), "bench.yaml", "report.percentiles", "101")


@pytest.mark.parametrize("command", [("run", "http://127.0.0.1:1"), ("report", "runs/LATEST")])
def test_wrong_percentile_of_the_option_is_named_with_it(command: tuple[str, str]) -> None:
    assert_one_line(cli(*command, "--percentiles", "50,x"), "--percentiles 50,x")
