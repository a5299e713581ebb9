"""The row of the reports of comparisons: what `compare` and `ab` print and write."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from inferometer.analysis.comparison import Compared, Comparison
from inferometer.report import compare, junit, markdown
from inferometer.report.output import Report, at_once

if TYPE_CHECKING:
    from inferometer.report.html.page import Page


class ComparisonReport(NamedTuple):
    """Comparisons of each side with the first."""

    compared: Sequence[Compared]
    strict: bool = False

    @property
    def found(self) -> list[Comparison]:
        return [each.found for each in self.compared]


def _page(report: ComparisonReport) -> "Page":
    from inferometer.report.html import compare_page  # noqa: PLC0415 (the other formats do without it)

    return compare_page.compare_page(report.compared)


COMPARISON = Report[ComparisonReport](
    "pairs of runs",
    lambda report, color, width: compare.render(report.found, color, width),
    lambda report: all(each.is_passed(report.strict) for each in report.found),
    _page,
    {
        "json": at_once(lambda report: compare.encode(report.found)),
        "markdown": at_once(lambda report: markdown.comparison_summary(report.found)),
        "junit": at_once(lambda report: junit.comparison_suite(report.found)),
    },
)
