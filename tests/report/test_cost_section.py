"""The section about cost and efficiency in the terminal, in Markdown and in HTML."""

import html_runs
import msgspec
import pytest
import synthetic_run as made
from html_runs import Page
from test_pareto import level

from inferometer.analysis.efficiency import Estimate
from inferometer.analysis.pareto import Answer, CheapestAt, Pareto, ParetoPoint, pareto_of
from inferometer.analysis.summary import Summary, summarise
from inferometer.analysis.sweep import Sweep
from inferometer.records import Run, StagePlan
from inferometer.report import console, markdown
from inferometer.report.cost import money, sentences
from inferometer.report.html import run_page, sweep_charts
from inferometer.report.html.page import shown
from inferometer.report.sweep import render


def summarised(run: Run, **cost: object) -> tuple[Run, Summary]:
    config = run.manifest.config | {"cost": cost}
    run = msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, config=config))
    return run, summarise(run)


def staged() -> Run:
    """Two levels: 8 users, and the same with half the users."""
    rows, chunks = made.closed_rows()
    rows["stage"] = rows["id"] >= 300
    plan = tuple(
        StagePlan(type="closed", open=False, name=f"level {name}", concurrency=8, requests=300) for name in "ab"
    )
    return made.run(rows, chunks, plan=plan)


def test_a_run_has_a_line_per_figure_with_its_interval() -> None:
    run, summary = summarised(made.run(*made.closed_rows()), price_per_hour=12.5, gpus=8, currency="EUR")
    text = console.render(run, summary)
    section = text[text.index(" cost and efficiency") :]
    for words in (
        "output tokens/s/user",
        "output tokens/s/GPU",
        "EUR per million output tokens",
        "EUR per million tokens",
    ):
        assert words in section
    assert "8 GPUs, 12.50 EUR per hour" in section and "do not add up" in section
    assert "per million requests" not in section and "frontier" not in section


def test_a_run_without_price_and_gpus_has_no_such_section() -> None:
    run, summary = summarised(made.run(*made.closed_rows()))
    assert "cost and efficiency" not in console.render(run, summary)
    assert "cost and efficiency" not in markdown.run_summary(run, summary)
    assert b"Cost and efficiency" not in run_page.encode(run, summary)


def test_stages_have_a_row_each_and_whether_they_are_on_the_frontier() -> None:
    run, summary = summarised(staged(), price_per_hour=12.5, cheapest_at=[10, 900])
    text = console.render(run, summary)
    section = text[text.index(" cost and efficiency") :]
    assert "frontier" in section.splitlines()[0] and "USD/M out" in section.splitlines()[0]
    assert [line.split()[:2] for line in section.splitlines()[1:3]] == [["level", "a"], ["level", "b"]]
    joined = " ".join(section.split())
    assert "cheapest at 10 tokens/s/user: " in joined and "so a higher load may be cheaper" in joined
    assert "no measured level reaches 900 tokens/s/user; the fastest" in joined


@pytest.mark.parametrize("width", [70, 100])
def test_tables_fit_into_the_terminal(width: int) -> None:
    run, summary = summarised(staged(), price_per_hour=12.5, gpus=8, cheapest_at=[10])
    assert max(map(len, console.render(run, summary, width=width).splitlines()[:-1])) <= width


def test_markdown_has_the_figures_and_the_answers() -> None:
    run, summary = summarised(staged(), price_per_hour=12.5, gpus=8, cheapest_at=[10])
    text = markdown.run_summary(run, summary)
    assert "| cost and efficiency | tok/s/user | tok/s/GPU |" in text and "\n- 8 GPUs, 12.50 USD per hour\n" in text
    assert "\n- cheapest at 10 tokens/s/user: " in text
    run, summary = summarised(made.run(*made.closed_rows()), gpus=1)
    assert "| output tokens/s/GPU | " in markdown.run_summary(run, summary)


def test_html_has_a_section_and_over_several_levels_the_chart() -> None:
    run, summary = summarised(staged(), price_per_hour=12.5, gpus=8, cheapest_at=[10])
    page = Page(run_page.encode(run, summary))
    chart = next(each for each in page.charts.values() if "against output tokens/s/user" in each["title"])
    assert chart["series"][0]["points"] and len(chart["series"][0]["x"]) == 2
    assert chart["vlines"] == [{"at": 10, "label": "10/user"}]
    run, summary = summarised(html_runs.tensors(), price_per_hour=12.5, gpus=8)
    text = run_page.encode(run, summary).decode()
    assert "Cost and efficiency" in text and "USD per million inferences" in text and "inferences/s/GPU" in text


def test_price_per_gpu_without_gpus_says_what_is_missing() -> None:
    run, summary = summarised(made.run(*made.closed_rows()), price_per_hour=2.5, per="gpu")
    joined = " ".join(console.render(run, summary).split())
    assert "not known: the price is per GPU, but the number of GPUs is not known" in joined


def test_sentences_name_the_cheapest_settings_first_and_say_when_it_is_not_clear() -> None:
    def answer(curve: str, low: float, high: float) -> Answer:
        return Answer(
            curve=curve, hardware=Estimate((low + high) / 2, (low, high)), between=("concurrency 4", "concurrency 8")
        )

    pareto = Pareto(unit="server", points=(ParetoPoint(label="", user=Estimate(1), hardware=Estimate(1)),))
    found = CheapestAt(tokens_per_user=50, answers=(answer("x 1", 90, 110), answer("x 2", 80, 100)))
    assert list(sentences(found, pareto)) == [
        "cheapest at 50 tokens/s/user: x 1: 100.0 output tokens/s (90.00 to 110.0), between concurrency 4 and concurrency 8",
        "  otherwise: x 2: 90.00 output tokens/s (80.00 to 100.0), between concurrency 4 and concurrency 8",
        "  no clear difference between x 1 and x 2",
    ]


@pytest.mark.parametrize(
    ("amount", "text"),
    [(12.5, "12.50"), (1234.5, "1,234.50"), (0.5274, "0.527"), (0.00123456, "0.00123"), (0.0, "0.00"), (None, "-")],
)
def test_amounts_have_two_decimals_or_three_digits(amount: float | None, text: str) -> None:
    assert money(amount) == text


def test_a_sweep_has_the_frontier_and_the_cheapest_load() -> None:
    points = (level(1, 90, 80), level(8, 50, 400))
    sweep = Sweep(folder="runs/x", keys=("data.input",), points=points, pareto=pareto_of(points, [70]))
    text = " ".join(render(sweep, [], False, 100).split())
    assert "cost and efficiency tok/s/user tok/s/GPU EUR/M out 95 % CI frontier" in text
    assert "cheapest at 70 tokens/s/user with data.input 1024: " in text
    section = sweep_charts.pareto(sweep, sweep_charts.curves(sweep))
    assert [block["kind"] for block in shown(section.blocks)] == ["chart", "table", "note"]
    assert section.blocks[0]["data"]["series"][0]["name"] == "input 1024"
