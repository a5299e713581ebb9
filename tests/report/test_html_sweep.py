"""The HTML report of a sweep: its answer, its charts' data, and that it says no more than it knows."""

import html_sweeps
import msgspec
import pytest
from html_runs import HOSTILE, Page
from html_sweeps import encoded

from inferometer.analysis.efficiency import Estimate
from inferometer.analysis.pareto import Pareto, ParetoPoint
from inferometer.report.html import sweep_charts, sweep_page
from inferometer.report.html.cost import pareto_chart
from inferometer.report.html.page import named_charts


def text_of(page: Page) -> str:
    return " ".join(page.text.split())


def test_the_answer_comes_first_and_the_definitions_last() -> None:
    found = Page(encoded(html_sweeps.grid()))
    sections = ["answer", "run", "curve", "throughput", "pareto", "grid", "points", "latency", "checks"]
    assert found.ids("section") == [*sections, "environment", "definitions"]


def test_the_answer_names_the_knee_and_what_holds() -> None:
    text = text_of(Page(encoded(html_sweeps.grid())))
    assert "input 64, note a The knee is at 60/s: latency grows." in text
    assert "input 512, note a No knee up to 100/s." in text
    assert "Every level misses an objective." in text  # itl.p99 < 11ms
    assert "data.input 64, 512" in text and "offered requests/s 20, 60, 100" in text


def test_the_best_point_meets_the_objectives() -> None:
    sweep, _ = html_sweeps.grid()
    met = msgspec.structs.replace(sweep.points[0].slos[0], status="met")
    points = [msgspec.structs.replace(point, slos=(met,)) for point in sweep.points]
    undecided = msgspec.structs.replace(met, status="undecided")
    points[1] = msgspec.structs.replace(points[1], slos=(met, undecided))
    points[2] = msgspec.structs.replace(points[2], is_quotable=False)
    usable = [points[0], points[3], points[4]]
    best = max(usable, key=lambda point: point.throughput.requests or 0.0)
    assert sweep_page.best(points, "requests") == (best, "met")
    assert sweep_page.best(points[1:2], "requests") == (points[1], "undecided")
    assert sweep_page.best(points[2:3], "requests") == (None, "none")
    assert sweep_page.best(sweep.points, "requests") == (None, "missed")


def test_the_curve_has_a_line_per_combination_with_its_knee() -> None:
    chart = Page(encoded(html_sweeps.grid())).chart("TTFT p99 against completed requests/s")
    assert [line["name"] for line in chart["series"]] == ["input 64, note a", "input 512, note a"]
    assert [line["at"] for line in chart["hlines"]] == [60]
    (mark,) = chart["marks"]
    own = chart["series"][0]
    assert (mark["x"], mark["y"]) == (own["x"][1], own["y"][1]) and mark["label"] == "knee 60/s"
    assert chart["series"][1]["hollow"][-1] and chart["series"][1]["labels"][-1].endswith("100/s (overloaded)")


def test_a_sweep_of_the_load_alone_has_a_line_per_percentile() -> None:
    found = Page(encoded(html_sweeps.single()))
    assert [line["name"] for line in found.chart("TTFT against")["series"]] == ["p50", "p90", "p99"]
    assert "grid" not in found.ids("section")


def test_a_sweep_opens_on_the_objectives_percentile_and_colours_by_value() -> None:
    sweep, measured = html_sweeps.grid()
    first = next(iter(Page(encoded((sweep, measured))).charts.values()))
    assert first["title"].startswith("TTFT p90 against")
    curves, rates = sweep_charts.curves(sweep), sweep_charts.rates_of(sweep)
    (tabs, _) = sweep_charts.heat_table(sweep, curves, rates).blocks
    shades = {float(cell["text"].rstrip("*")): cell["shade"] for row in tabs["panes"][0]["blocks"][0]["rows"] for cell in row if isinstance(cell, dict)}  # fmt: skip
    low, high = min(shades), max(shades)
    assert all(abs(shade - 70 * (value - low) / (high - low)) <= 1 for value, shade in shades.items())


def test_overloaded_levels_have_no_latencies_in_tables_and_are_not_on_the_frontier() -> None:
    found = Page(encoded(html_sweeps.grid()))
    assert "100/s 99.53 999.5 – – – – – – 200 0 ✗ overloaded" in text_of(found)
    assert [len(line["x"]) for line in found.chart("against output tokens/s/user")["series"]] == [3, 2]


def test_tensor_sweeps_have_queue_and_compute_and_no_tokens() -> None:
    found = Page(encoded(html_sweeps.tensors()))
    titles = [chart["title"] for chart in found.charts.values()]
    assert any(title.startswith("queue p99") for title in titles) and any("inferences/s" in title for title in titles)
    assert "pareto" not in found.ids("section") and "breakdown" in found.ids("section")
    assert "TTFT" not in found.text and "tokens/s" not in found.text


def test_a_sweep_without_points_says_so() -> None:
    found = Page(encoded(html_sweeps.empty()))
    assert not found.charts and "No level is valid" in found.text and "nan" not in found.text.lower().split()


def test_values_of_settings_are_escaped() -> None:
    found = Page(encoded(html_sweeps.grid(HOSTILE)))
    assert [tag for tag, _ in found.tags if tag == "script"] == ["script", "script"]
    assert not [tag for tag, _ in found.tags if tag == "img"]


def test_more_combinations_than_colours_differ_in_their_lines() -> None:
    sweep, measured = html_sweeps.grid()
    points = [
        msgspec.structs.replace(point, settings={"data.input": number})
        for number in range(10)
        for point in sweep.points[:3]
    ]
    many = msgspec.structs.replace(sweep, keys=("data.input",), points=tuple(points), knees=(), answers=())
    lines = Page(encoded((many, measured))).chart("TTFT p99 against")["series"]
    assert len({(line["colour"], line["dash"]) for line in lines}) == 10


def test_a_frontier_of_many_curves_uses_the_colours_again() -> None:
    pareto = Pareto(
        unit="gpu",
        points=tuple(
            ParetoPoint(label="4/s", curve=f"input {number}", user=Estimate(number), hardware=Estimate(number))
            for number in range(1, 11)
        ),
    )
    colours = [line["colour"] for line in pareto_chart(pareto)["data"]["series"][:10]]
    assert colours == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


@pytest.mark.parametrize("name", ["grid", "single", "tensors"])
def test_charts_of_a_sweep_have_names_for_plot(name: str) -> None:
    made = getattr(html_sweeps, name)()
    names = named_charts(sweep_page.sweep_page(*made))
    assert len(names) == len(Page(encoded(made)).charts)
    if name == "grid":
        assert {"curve-ttft-p99-requests", "throughput-goodput", "pareto", "latency-e2e-s1"} <= set(names)


def test_a_sweep_with_nothing_but_overload_asks_for_lower_loads() -> None:
    sweep, measured = html_sweeps.single()
    points = tuple(msgspec.structs.replace(point, is_overloaded=True) for point in sweep.points)
    text = text_of(Page(sweep_page.encode(msgspec.structs.replace(sweep, points=points), measured)))
    assert "Every level is overloaded: measure lower loads." in text
    assert "nan" not in text and "None" not in text


def test_checks_name_the_levels_of_stages_in_any_order() -> None:
    sweep, ((_, run, summary),) = html_sweeps.single()
    failed = msgspec.structs.replace(summary.checks[0], status="fail", stages=(0,))
    summary = msgspec.structs.replace(summary, checks=(failed,))
    points = sweep.points[1], sweep.points[2], sweep.points[0]  # as if the first stage had the highest level
    found = sweep_page.sweep_page(msgspec.structs.replace(sweep, points=points), [({}, run, summary)])
    (table,) = (block for section in found.sections if section.id == "checks" for block in section.blocks[:1])
    assert table["rows"][0][3] == "20/s"
