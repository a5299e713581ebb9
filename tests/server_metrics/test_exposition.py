"""Pages of metrics: recorded and made ones, against prometheus_client's parser."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from shared_data import SHARED

from inferometer.server_metrics.exposition import NotAnExposition, Sample, parse, parse_page

OWN = Path(__file__).parent
PAGES = [*OWN.glob("recorded/*"), *OWN.glob("made/*"), *(SHARED / "data" / "metrics").glob("*.[tp]*")]

Comparable = tuple[str, tuple[tuple[str, str], ...], float]


def by_library(text: str) -> list[Comparable]:
    """prometheus_client's samples. It appends `_total` to counters, so names are compared without it."""
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return [comparable(sample.name, sample.labels, sample.value) for sample in samples if sample.value == sample.value]


def comparable(name: str, labels: dict[str, str], value: float) -> Comparable:
    return name.removesuffix("_total"), tuple(sorted(labels.items())), float(value)


def ours(text: str) -> list[Comparable]:
    return [comparable(sample.name, dict(sample.labels), sample.value) for sample in parse(text)]


@pytest.mark.parametrize(
    "path", sorted(path for path in PAGES if "families" not in path.name), ids=lambda path: path.name
)
def test_every_page_parses_like_prometheus_client(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ours(text) == by_library(text) != []


NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True)
LABEL_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name[:2] != "__")
VALUES = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**15), 10**15).map(str),
    st.sampled_from(["NaN", "+Inf", "-Inf", "5.0632753152e+010", "1E-07", "8.128902e+06"]),
)
LABEL_VALUES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\x85\x1c\x1d\x1e\x0b\x0c"))


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def lines(draw: st.DrawFn) -> str:
    labels = draw(st.dictionaries(LABEL_NAMES, LABEL_VALUES, max_size=3))
    written = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    written += draw(st.sampled_from(["", ","])) if written else ""
    braces = f"{{{written}}}" if written or draw(st.booleans()) else ""
    timestamp = draw(st.sampled_from(["", " 1700000000000", "\t-5"]))
    return f"{draw(NAMES)}{braces}{draw(st.sampled_from([' ', '  ']))}{draw(VALUES)}{timestamp}"


@given(st.lists(st.one_of(lines(), st.sampled_from(["", "# HELP a b", "# TYPE a gauge", "# a comment"]))))
def test_any_page_parses_like_prometheus_client(page: list[str]) -> None:
    text = "\n".join(page)
    assert ours(text) == by_library(text)


def test_names_are_those_of_the_server() -> None:
    page = parse_page("# TYPE hits counter\nhits 3\n# TYPE waits_total counter\n")
    assert page.samples == [Sample("hits", {}, 3)]
    assert page.types == {"hits": "counter", "waits_total": "counter"}


def test_a_value_that_is_not_a_number_is_missing() -> None:
    assert parse('a NaN\nb{c="d"} nan\ne +Inf\n') == [Sample("e", {}, float("inf"))]


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ('a_bucket{le="1"} 3 # {trace_id="x # y"} 0.67 1520879607.789', Sample("a_bucket", {"le": "1"}, 3)),
        ("a_total 3 # {} 0.67", Sample("a_total", {}, 3)),
        ("a 3 1520879607.789", Sample("a", {}, 3)),
        ('a{b="}{"} 3\r', Sample("a", {"b": "}{"}, 3)),
        ('{"a.b", c="d"} 3', Sample("a.b", {"c": "d"}, 3)),
        ('{"a.b","c.d"="e\\"f"} 3', Sample("a.b", {"c.d": 'e"f'}, 3)),
        ('a { b = "c" , } 3', Sample("a", {"b": "c"}, 3)),
    ],
)
def test_openmetrics_and_newer_syntax(line: str, sample: Sample) -> None:
    assert parse(f"{line}\n# EOF\n") == [sample]


@pytest.mark.parametrize(
    "text",
    [
        "<!DOCTYPE html>\n<html><body>Not here</body></html>",
        '{"detail": "Not Found"}',
        '{"a": 1} 5',
        'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n',
        "Not Found",
        "OK",
        'a{b="c} 1',
        'a{b="c" d="e"} 1',
        'a{"b"} 1',
        "a 1_000",
        "{} 1",
    ],
)
def test_other_texts_are_errors_that_quote_their_start(text: str) -> None:
    with pytest.raises(NotAnExposition, match="does not have metrics: it starts with") as error:
        parse(text)
    assert text.split("\n", maxsplit=1)[0][:10] in str(error.value)


def test_a_line_that_is_no_sample_is_quoted() -> None:
    with pytest.raises(NotAnExposition, match=r"line 3 of the page is not a sample: 'b{ 2'"):
        parse("a 1\n\nb{ 2\nc 3\n")


def test_the_quoted_start_is_short() -> None:
    with pytest.raises(NotAnExposition) as error:
        parse("<html>" * 10_000)
    assert len(str(error.value)) < 150


def test_an_empty_page_has_no_samples() -> None:
    assert parse("") == parse("\n# EOF\n") == []
