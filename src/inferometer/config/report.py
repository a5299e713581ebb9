"""The section `report`: the files to write after a run, and what the report shows. It does the same as the options of `run`."""

import math
from decimal import Decimal
from typing import Annotated

from msgspec import Meta, field

from inferometer.config.fields import Section
from inferometer.errors import UserError

_MOST_DECIMALS = 4

Path = Annotated[str, Meta(min_length=1)] | None


class Report(Section):
    json: Annotated[
        Path,
        Meta(
            description="File for the summary as JSON. Paths are relative to the working directory, as those of the options; `-` is standard output."
        ),
    ] = None
    html: Annotated[Path, Meta(description="File for the report with charts, as HTML.")] = None
    csv: Annotated[Path, Meta(description="File with one row per request, as CSV.")] = None
    perf_csv: Annotated[
        Path, Meta(description="File with one row per stage, as CSV with the columns of perf_analyzer.")
    ] = None
    markdown: Annotated[Path, Meta(description="File for a summary as Markdown.")] = None
    junit: Annotated[Path, Meta(description="File for checks and objectives, as JUnit XML.")] = None
    percentiles: Annotated[
        list[float],
        Meta(
            description="Percentiles that the report shows, such as `[50, 75, 99.9]`: more than 0 and less than 100. Default: 50, 90, 95, 99 and 99.9, which are computed in any case."
        ),
    ] = field(default_factory=list)
    histogram: Annotated[
        bool, Meta(description="Add histograms of the time to first token and the end-to-end time.")
    ] = False
    why: Annotated[bool, Meta(description="Add why the slow requests were slow.")] = False
    explain: Annotated[bool, Meta(description="Add the definition of every metric and check.")] = False

    @property
    def exports(self) -> dict[str, str]:
        """The files to write, by the name of the exporter, which is that of the option."""
        paths = {name: getattr(self, name.replace("-", "_")) for name in EXPORTS}
        return {name: path for name, path in paths.items() if path is not None}


EXPORTS = ("json", "html", "csv", "perf-csv", "markdown", "junit")
"""Names of the exporters (report/exporters.py)."""


def parse_percentiles(text: str) -> list[float]:
    """Read `50,95,99.9`, the value of the option --percentiles."""
    try:
        percentiles = [float(part.strip().removeprefix("p")) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"--percentiles {text}: not a list of numbers", "write, for example, 50,95,99.9") from None
    if not percentiles:
        raise UserError("--percentiles: the list is empty", "write, for example, 50,95,99.9")
    check_percentiles(percentiles, "--percentiles")
    return percentiles


def check_percentiles(percentiles: list[float], key: str) -> None:
    """Raise UserError if one of them is not a percentile."""
    for each in percentiles:
        if not math.isfinite(each) or not 0 < each < 100:
            raise UserError(
                f"{each:g} is not a percentile", "give numbers of more than 0 and less than 100, such as 99.9", key
            )
        exponent = Decimal(repr(each)).normalize().as_tuple().exponent
        if isinstance(exponent, int) and -exponent > _MOST_DECIMALS:
            raise UserError(f"{each!r} has more than {_MOST_DECIMALS} decimal places", "round it, such as 99.99", key)
