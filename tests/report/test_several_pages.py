"""The HTML pages of comparisons and of several runs: what they say, and the data of their charts."""

import html_runs
import msgspec
import pytest
import synthetic_run as made
from html_runs import HOSTILE, Page
from several_runs import FASTER, compared, measured, pairs, side

from inferometer.analysis.repeats import list_runs
from inferometer.analysis.summary import summarise
from inferometer.report import markdown, repeats
from inferometer.report.html import compare_page, runs_page
from inferometer.report.html.overlays import short_labels


def text(page: Page) -> str:
    return " ".join(page.text.split())


def test_a_comparison_begins_with_the_answer() -> None:
    page = Page(compare_page.encode([pairs()]))
    assert page.ids("section") == ["answer", "ratios", "latency", "runs", "figures", "compared", "verdicts"]
    assert " B IS BETTER " in text(page) and "E2E p50 is 10 % lower" in text(page) and "nan" not in text(page).lower()


def test_the_forest_has_ratios_intervals_and_verdicts() -> None:
    found = pairs("e2e.p50 worse by 5%", "throughput.requests worse by 20%")
    page = Page(compare_page.encode([found]))
    rows = {row["label"]: row for row in page.chart("relative to A")["rows"] if "label" in row}
    row = rows["E2E p50"]
    assert row["lo"] < row["at"] < row["hi"] < 1 and row["tone"] == "good" and len(row["dots"]) == 3
    assert row["limit"] == pytest.approx(1.05) and rows["requests/s"]["limit"] == pytest.approx(0.8)
    assert "e2e.p50 worse by 5%" in text(page) and " PASSES " in text(page)


def test_distributions_of_both_sides_are_in_one_chart() -> None:
    page = Page(compare_page.encode([pairs()]))
    for name in ("TTFT", "ITL", "E2E"):
        a, b = page.chart(f"distribution of {name}")["series"]
        assert [each["name"][0] for each in (a, b)] == ["A", "B"]
        middle = len(a["x"]) // 2
        assert 0.85 < b["x"][middle] / a["x"][middle] < 0.95


def test_each_pair_is_a_dot_per_side() -> None:
    chart = Page(compare_page.encode([pairs()])).chart("E2E p50 of each pair")
    assert [each["x"] for each in chart["series"]] == [[1, 2, 3]] * 2 and chart["x"]["ticks"] == [1, 2, 3]
    assert all(b < a for a, b in zip(*(each["y"] for each in chart["series"]), strict=True))


def test_one_run_per_side_has_no_dots_and_says_what_is_not_covered() -> None:
    page = Page(compare_page.encode([compared(side("a", 1.0), side("b", 1.0))]))
    assert "runs" not in page.ids("section") and " NO CLEAR DIFFERENCE " in text(page)
    assert "does not cover run-to-run variation" in text(page)


def test_several_sides_and_stages_have_switches() -> None:
    a = side("a", 1.0, 1.0, stages=True)
    found = [compared(a, side(name, *scales, stages=True)) for name, scales in (("b", FASTER[:2]), ("c", (1.2, 1.21)))]
    page = Page(compare_page.encode(found))
    words = text(page)
    assert "C IS WORSE" in words and "B IS BETTER" in words and "C against A" in words
    assert len([chart for chart in page.charts.values() if chart["kind"] == "forest"]) == 4
    assert [each["name"][0] for each in page.chart("distribution of TTFT")["series"]] == ["A", "B", "C"]


def test_failures_are_compared_in_percentage_points() -> None:
    found = compared(side("a", 1.0), side("b", 1.0, failed=60), "failure_rate worse by 1%")
    page = Page(compare_page.encode([found]))
    words = text(page)
    assert " FAILS " in words and "percentage points higher" in words and "+10 pp" in words
    assert found.found.metrics["failure_rate"].difference == pytest.approx(0.1)


def test_differences_in_both_directions_are_counted() -> None:
    found = compared(
        side("a", 1.0, 1.0, 1.0), side("b", *FASTER, failed=60)
    )  # failures are worse, and so are the rates
    assert "B IS BETTER IN 6, WORSE IN 3 Of 9 headline figures" in text(Page(compare_page.encode([found])))


def test_labels_are_escaped_and_the_page_is_always_the_same() -> None:
    found = pairs()
    found = msgspec.structs.replace(found, b=msgspec.structs.replace(found.b, label=HOSTILE))
    page = compare_page.encode([found])
    assert b"<script>document" not in page and page == compare_page.encode([found])


def test_what_differs_is_in_a_table() -> None:
    words = text(Page(compare_page.encode([pairs()])))
    assert "server.url http://a:8000 http://b:8000" in words


def test_repeats_show_their_variation() -> None:
    page = Page(runs_page.encode([measured(f"a/{seed}", scale, seed) for seed, scale in enumerate((1.0, 1.1, 0.9))]))
    assert page.ids("section")[:4] == ["runs", "variation", "latency", "curve"]
    words = text(page)
    assert "3 repeats of http://a:8000" in words and "varies by" in words and "between runs" in words
    assert len(page.chart("distribution of TTFT")["series"]) == 3
    runs, mean = page.chart("E2E p50 of each run")["series"]
    assert len(runs["y"]) == 3 and min(runs["y"]) < mean["y"][0] < max(runs["y"])


def test_other_runs_are_listed_with_what_differs_and_each_has_a_colour() -> None:
    runs = [measured("a/0"), measured("a/1", seed=1), measured("b/0"), measured("b/1", seed=1), measured("b/2", seed=2)]
    page = Page(runs_page.encode(runs))
    assert "variation" not in page.ids("section")
    assert [each["colour"] for each in page.chart("distribution of TTFT")["series"]] == [0, 1, 2, 3, 4]
    assert "server.url http://a:8000 a/0, a/1" in text(page) and "5 runs that differ" in text(page)


def test_objectives_of_several_runs_are_in_one_table() -> None:
    rows, chunks = made.closed_rows()
    run = made.run(rows, chunks, config=made.manifest().config | {"slo": ["ttft.p90 < 60ms", "itl.p99 < 1ms"]})
    words = text(Page(runs_page.encode([(run, summarise(run))] * 2)))
    assert "ttft.p90 < 60ms ✓ met ✓ met" in words and "itl.p99 < 1ms ✗ missed ✗ missed" in words


@pytest.mark.parametrize("name", ["empty", "tensors", "staged"])
def test_runs_of_any_kind_have_a_page(name: str) -> None:
    run = getattr(html_runs, name)()
    page = Page(runs_page.encode([(run, summarise(run)), measured("other/0")]))
    assert "nan" not in text(page).lower().split() and page.ids("section")[0] == "runs"


def test_tensor_servers_are_compared_without_token_charts() -> None:
    run = html_runs.tensors()
    side_of = msgspec.structs.replace(side("a", 1.0), runs=((run, summarise(run)),))
    page = Page(compare_page.encode([compared(side_of, side_of)]))
    assert "TTFT" not in text(page) and page.chart("distribution of queue")


@pytest.mark.parametrize(
    ("labels", "short"),
    [
        (["runs/a", "runs/b"], ["a", "b"]),
        (["/x/runs/1/a", "/x/runs/2/a"], ["1/a", "2/a"]),
        (["http://h:1", "http://h:2"], ["h:1", "h:2"]),
        (["same", "same"], ["same", "same"]),
        (["only/one"], ["only/one"]),
    ],
)
def test_labels_lose_what_they_share(labels: list[str], short: list[str]) -> None:
    assert short_labels(labels) == short


def test_a_list_of_runs_fits_a_narrow_terminal() -> None:
    runs = [measured("a" * 60), measured("b", stages=True)]
    text = repeats.render("runs", list_runs(runs), False, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "requests/s" in text and "E2E p99" in text and "…" not in text.partition("E2E p99")[0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a <b> | c", "a &lt;b> \\| c"),
        ("use `x <y>` or <z>", "use `x <y>` or &lt;z>"),
        ("` <img src=x>", "` &lt;img src=x>"),
        ("```<img src=x>`", "```&lt;img src=x>`"),
        ("\\`<img src=x>`", "\\`&lt;img src=x>`"),
        ("see http://evil.example or www.evil.example", "see http:&#47;/evil.example or www&#46;evil.example"),
    ],
)
def test_text_in_markdown_begins_neither_html_nor_a_link(text: str, shown: str) -> None:
    assert markdown.escape(text) == shown
