"""The comparison of protocols: its bytes against golden files, and the chart. INFEROMETER_UPDATE_GOLDEN=1 writes them again."""

import importlib.util
import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from protocol_runs import measured

from inferometer.analysis.protocol_comparison import PROTOCOLS, Comparison, cell_of
from inferometer.analysis.summary import Measured
from inferometer.errors import UserError
from inferometer.report import protocol_comparison

GOLDEN = Path(__file__).parent / "golden"
ABOUT = Comparison(
    inferometer="0.1.0",
    started="2026-09-30T14:25:01+02:00",
    model="identity",
    server="triton 2.51.0",
    http="http://127.0.0.1:8000",
    grpc="grpc://127.0.0.1:8001",
    concurrency=1,
    duration=3.0,
    cells=(),
)


def with_cells(runs: dict[int, dict[str, Measured]], **about: Any) -> Comparison:
    cells = tuple(cell_of(way, size, [one], False) for size, by_way in runs.items() for way, one in by_way.items())
    return msgspec.structs.replace(ABOUT, cells=cells, **about)


def by_statistics() -> Comparison:
    """All four protocols at three sizes; JSON is slow, and at the last size too slow for a VALID cell."""
    runs = {
        size: {
            "grpc": measured(1 * scale, sums=(0.1, 0.4 * scale), sent=size + 216, received=size + 43),
            "grpc-stream": measured(1.2 * scale, sums=(0.1, 0.4 * scale), sent=size + 222, received=size + 75),
            "http": measured(1.1 * scale, sums=(0.1, 0.3 * scale), sent=size + 370, received=size + 268),
            "http-json": measured(
                3 * scale * scale,
                500 if scale < 40 else 5,
                sums=(0.1, 1.5 * scale * scale),
                failed=0 if scale < 40 else 1,
                sent=size * 5,
                received=size * 5,
                others=3,
            ),
        }
        for size, scale in ((1_000, 1), (100_000, 2), (10_000_000, 40))
    }
    return with_cells(runs)


def by_request() -> Comparison:
    runs = {way: measured(2.0 + index, reported=(0.25, 0.5 + index)) for index, way in enumerate(PROTOCOLS)}
    return with_cells({1_004: runs}, requests=500, duration=None, rounds=3, concurrency=16)


def unsplit() -> Comparison:
    """Only HTTP, to a server that reports nothing, interrupted; all JSON requests failed."""
    runs = {"http": measured(2.0), "http-json": measured(2.0, 20, failed=20)}
    return with_cells({1_500: runs}, grpc=None, server="", interrupted=True)


def beyond() -> Comparison:
    """Over gRPC the server reports more time than the client saw, most of all in the stream."""
    runs = {
        way: measured(1.0, sums=(0.1, compute)) for way, compute in zip(PROTOCOLS, (1.2, 2.0, 0.5, 0.5), strict=True)
    }
    return with_cells({1_000: runs})


FOUND: dict[str, Callable[[], Comparison]] = {
    "statistics": by_statistics, "request": by_request, "unsplit": unsplit, "beyond": beyond,
}  # fmt: skip


@pytest.mark.golden
@pytest.mark.parametrize("name", FOUND)
def test_the_bytes(name: str) -> None:
    text, path = protocol_comparison.render(FOUND[name](), width=100), GOLDEN / f"protocols_{name}.txt"
    if os.environ.get("INFEROMETER_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "width", [70, pytest.param(80, marks=pytest.mark.slow), pytest.param(90, marks=pytest.mark.slow), 100]
)
@pytest.mark.parametrize("name", FOUND)
def test_it_fits_and_has_no_control_characters(name: str, width: int) -> None:
    text = protocol_comparison.render(FOUND[name](), width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and "…" not in text
    assert all(line.isprintable() and line == line.rstrip() for line in lines)
    assert all(f" {note} " in " ".join(text.split()) for note in protocol_comparison._notes(FOUND[name]()))
    heads = next(line for line in lines if "times in ms" in line)
    assert all(head in heads for head in ("req/s", "e2e p50", "p99", "server", "overhead", "verdict"))
    assert ("bytes per request" in text) == ("bytes out" in heads) == (width >= 80)
    assert ("mean" in heads) == (width >= 100)


def test_bars_fill_the_available_width() -> None:
    longest = {
        width: max(
            line.count("█") + line.count("▒")
            for line in protocol_comparison.render(by_request(), width=width).splitlines()
        )
        for width in (70, 80, 100)
    }
    assert longest == {70: 26, 80: 36, 100: 56}


def test_large_numbers_fit() -> None:
    runs = {
        way: measured(80_000.0, 3, sums=(1.0, 70_000.0), sent=2**31 - 1, received=5_000_000_000) for way in PROTOCOLS
    }
    for width in (70, 80):
        text = protocol_comparison.render(with_cells({1_000_000_000: runs}), width=width)
        assert max(map(len, text.splitlines())) <= width and "…" not in text
    lines = protocol_comparison.render(with_cells({1_000_000_000: runs}), width=100).splitlines()
    assert max(map(len, lines)) <= 100
    assert "5,000,000,000" in "".join(lines) and "…" not in "".join(lines)


def test_colour_changes_nothing_but_colour() -> None:
    plain, colored = (protocol_comparison.render(by_statistics(), color=color, width=100) for color in (False, True))
    assert "\x1b[" in colored and "\x1b[" not in plain
    assert [line.rstrip() for line in click.unstyle(colored).splitlines()] == plain.splitlines()


def test_a_check_that_several_cells_fail_is_reported_once() -> None:
    runs = {way: measured(2.0, failed=100 + index) for index, way in enumerate(PROTOCOLS)}
    lines = [
        line for line in protocol_comparison.render(with_cells({1000: runs}), width=100).splitlines() if "✗" in line
    ]
    assert len(lines) == 1
    assert lines[0].startswith(" ✗ failures: gRPC unary, 1 kB and 3 other cells: 100 of 500 requests failed")


def test_the_length_of_a_bar_is_its_time() -> None:
    found = by_request()
    lines = protocol_comparison.render(found, width=100).splitlines()
    drawn = [(line.count("█"), line.count("▒")) for line in lines if line.endswith(" ms") and "█" in line]
    longest = max(cell.mean or 0 for cell in found.cells)
    for (server, overhead), cell in zip(drawn, found.cells, strict=True):
        assert server == pytest.approx(56 * (cell.server or 0) / longest, abs=1)
        assert server + overhead == pytest.approx(56 * (cell.mean or 0) / longest, abs=1)


@pytest.mark.parametrize(
    ("size", "text"),
    [(4, "4 B"), (1000, "1 kB"), (1004, "1,004 B"), (1500, "1.5 kB"), (100_000, "100 kB"), (10_000_000, "10 MB"),
     (1 << 20, "1,048,576 B"), (10**9, "1 GB")],
)  # fmt: skip
def test_sizes_are_exact(size: int, text: str) -> None:
    assert protocol_comparison.format_size(size) == text


# --- the chart -------------------------------------------------------------------------------------------------------


def test_a_bar_is_its_server_time_and_then_its_overhead_in_milliseconds() -> None:
    first, *_ = by_request().cells
    rows = protocol_comparison.chart_rows([first])
    assert [(row["protocol"], row["part"]) for row in rows] == [("gRPC unary", "server"), ("gRPC unary", "overhead")]
    assert [rows[0]["start"], rows[0]["end"], rows[1]["end"]] == pytest.approx([0, 0.75, 2.2495])
    assert rows[1]["start"] == rows[0]["end"]


def test_time_that_the_server_reports_beyond_the_mean_is_noted_and_not_drawn() -> None:
    unary, stream, *_ = beyond().cells
    assert stream.mean is not None and stream.overhead == 0 == unary.overhead
    assert protocol_comparison.parts(stream) == [("server", pytest.approx(stream.mean)), ("overhead", 0.0)]
    text = " ".join(protocol_comparison.render(beyond(), width=100).split())
    assert "reports 0.850 ms more than the client saw: gRPC stream, 1 kB (and less in 1 other cell)" in text
    assert "more than the client saw" not in protocol_comparison.render(by_statistics(), width=100)


def test_the_chart_has_one_panel_per_size_with_its_own_scale() -> None:
    spec = protocol_comparison.chart(by_statistics()).to_dict()
    assert [panel["title"]["text"] for panel in spec["vconcat"]] == ["1 kB tensor", "100 kB tensor", "10 MB tensor"]
    assert spec["resolve"]["scale"]["x"] == "independent"
    ends = [panel["layer"][0]["encoding"]["x"]["scale"]["domain"][1] for panel in spec["vconcat"]]
    assert ends == sorted(ends) and len(set(ends)) == 3


@pytest.mark.parametrize("name", FOUND)
def test_the_svg_is_well_formed_and_complete(name: str, tmp_path: Path) -> None:
    found = FOUND[name]()
    protocol_comparison.draw(found, str(tmp_path / "out.SVG"))
    text = " ".join(
        "".join(node.itertext()) for node in ET.parse(tmp_path / "out.SVG").iter("{http://www.w3.org/2000/svg}text")
    )
    for cell in found.cells:
        assert PROTOCOLS[cell.protocol].label in text
        assert f"{protocol_comparison.format_size(cell.size)} tensor" in text
    assert text.count("INVALID") == sum(cell.verdict == "INVALID" for cell in found.cells)
    assert text.count("no successful response") == sum(not cell.ok for cell in found.cells)
    assert ("overhead" in text) == any(cell.source for cell in found.cells)


@pytest.mark.slow
def test_png_and_html_are_self_contained(tmp_path: Path) -> None:
    protocol_comparison.draw(by_request(), str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    protocol_comparison.draw(by_request(), str(tmp_path / "out.html"))
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "gRPC stream" in page and '<script src="http' not in page


def test_unknown_file_types_are_errors() -> None:
    with pytest.raises(UserError, match="unknown file type"):
        protocol_comparison.check_chart("out.jpg")


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vl_convert" else found(name))
    with pytest.raises(UserError, match="needs vl_convert") as error:
        protocol_comparison.check_chart("out.svg")
    assert "inferometer[report]" in error.value.remedy


def test_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"out\.svg"):
        protocol_comparison.draw(by_request(), str(tmp_path / "no" / "out.svg"))


@pytest.mark.parametrize("longest", [0.00021, 0.7, 1.0, 10.3, 885.7, 12_345.0])
def test_ticks_are_few_and_round(longest: float) -> None:
    ticks = protocol_comparison._ticks(longest)
    assert ticks[0] == 0 and 3 <= len(ticks) <= 11
    assert ticks[-1] <= longest < ticks[-1] + 2 * ticks[1]
    assert f"{ticks[1]:e}"[0] in "125"
