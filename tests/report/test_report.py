"""The bytes of the report against golden files. INFEROMETER_UPDATE_GOLDEN=1 writes them again: read the diff."""

import csv
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO

import click
import msgspec
import numpy as np
import pytest
import synthetic_run as made
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from inferometer import store
from inferometer.analysis.summary import summarise
from inferometer.analysis.window import mark
from inferometer.cli.options import export_options
from inferometer.cli.report import command
from inferometer.cli.run import command as run_command
from inferometer.config.fields import Window
from inferometer.config.schema import Measure
from inferometer.errors import UserError
from inferometer.records import Chunks, Columns, Failure, Run, Spent, StagePlan, StageStatistics
from inferometer.report import blocks, console, json, markdown, output
from inferometer.report.exporters import EXPORTERS
from inferometer.units import format_seconds

GOLDEN = Path(__file__).parent / "golden"
STAGES = (
    StagePlan(type="poisson", open=True, name="1 poisson 100/s", rate=100.0, duration=4.0),
    StagePlan(type="constant", open=True, name="2 constant 100/s", rate=100.0, duration=2.0, concurrency=64),
)
BUSY = (Failure("http_503", "the server is [bold]busy[/bold] \x1b[31m\n" + "very " * 30), Failure("dropped", ""))


def valid() -> Run:
    rows, chunks = made.closed_rows()
    return made.run(rows, chunks, phase=mark(Columns.of(rows), Measure(Window("16"), Window("16"))))


def invalid() -> Run:
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] >= 400
    rows["n_want"] = 20
    made.fail(rows, slice(0, 30))
    made.never_sent(rows, [60], 2)
    rows["sent"][100:120] += 20 * made.MS
    about = {"plan": STAGES, "clock": {"stamps": "user"}, "workload": {"distinct": 5}}
    config = made.manifest().config | {"measure": {"failures_as_inf": True}}
    return made.run(rows, chunks, failures=BUSY, config=config, **about)


def empty() -> Run:
    return made.run(made.blank(0), sampled=(), started="")


def not_streamed() -> Run:
    """A few slow responses, not streamed, of unknown length."""
    rows = made.blank(20)
    rows["intended"] = rows["sent"] = np.arange(20) * made.SECOND
    rows["done"] = rows["sent"] + 123_456 * made.MS
    rows["n_in"] = rows["n_out"] = -1
    rows["counted_by"] = 0
    server = {"url": ["http://a", "http://b"], "model": "m" * 90, "stream": False}
    return made.run(rows, config={"server": server})


def tensors() -> Run:
    """A KServe model that reports sums of its time, in batches of 4, in open loop."""
    rows = made.blank(600)
    rows["intended"] = np.arange(600) * 10 * made.MS
    rows["sent"] = rows["intended"] + 50_000
    rows["done"] = rows["sent"] + (7 * made.MS + np.arange(600) * 1_000)
    rows["n_in"] = rows["n_out"] = -1
    rows["counted_by"], rows["open_loop"] = 0, 1
    spent = {"queue": 2, "compute_input": 1, "compute_infer": 3}
    return made.run(
        rows,
        plan=(StagePlan(type="constant", open=True, rate=100.0, duration=6.0),),
        config={
            "server": {"url": "grpc://127.0.0.1:8001", "model": "resnet", "api": "kserve", "stream": False},
            "data": {"type": "tensors"},
        },
        server={"batch": 4},
        statistics=(
            StageStatistics(
                2400, 300, Spent(600, 1), **{name: Spent(600, 600 * ms * made.MS) for name, ms in spent.items()}
            ),
        ),
    )


def beyond() -> Run:
    """The same, but the sums exceed what the client saw: other clients use the server, and its output continues."""
    run = tensors()
    (found,) = run.manifest.statistics
    assert found is not None
    sums = msgspec.structs.replace(found, success=Spent(650, 1), compute_output=Spent(650, 650 * 4 * made.MS))
    return msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, statistics=(sums,)))


def decoupled() -> Run:
    """The same for a model that counts requests before it responds: there is no breakdown, but a reason."""
    run = tensors()
    about = msgspec.structs.replace(run.manifest, server={"decoupled": True})
    return msgspec.structs.replace(run, manifest=about)


def stable_tensors() -> Run:
    """Two levels of a closed loop, each until it is stable: the first responses are slow."""
    rows = made.blank(600)
    rows["id"], rows["stage"] = np.arange(600), np.arange(600) // 300
    rows["intended"] = rows["sent"] = np.arange(600) * 10 * made.MS
    rows["done"] = rows["sent"] + np.where(np.arange(600) % 300 < 60, 9, 8) * made.MS + np.arange(600) * 1_000
    rows["n_in"] = rows["n_out"] = -1
    rows["counted_by"] = 0
    level = StagePlan(type="closed", open=False, concurrency=1, duration=3.0, stable=0.02, window=0.5)
    plan = tuple(msgspec.structs.replace(level, name=name) for name in ("concurrency 1", "the same again"))
    config = {"server": {"url": "grpc://127.0.0.1:8001", "model": "resnet", "api": "kserve", "stream": False}}
    phase = mark(Columns.of(rows), Measure(), plan)
    return made.run(rows, plan=plan, phase=phase, config=config | {"data": {"type": "tensors"}}, server={"batch": 4})


RUNS: dict[str, Callable[[], Run]] = {
    "valid": valid, "invalid": invalid, "empty": empty, "not_streamed": not_streamed, "tensors": tensors,
    "stable_tensors": stable_tensors, "beyond": beyond, "decoupled": decoupled,
}  # fmt: skip


def golden(name: str, found: str) -> None:
    path = GOLDEN / name
    if os.environ.get("INFEROMETER_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


@pytest.mark.golden
@pytest.mark.parametrize("name", RUNS)
def test_console(name: str) -> None:
    run = RUNS[name]()
    golden(f"{name}.txt", console.render(run, summarise(run), explain=name == "valid"))


@pytest.mark.golden
@pytest.mark.parametrize("name", RUNS)
def test_json(name: str) -> None:
    golden(f"{name}.json", json.encode(summarise(RUNS[name]())).decode())


@pytest.mark.parametrize("name", RUNS)
def test_console_fits_100_columns_and_has_no_control_characters(name: str) -> None:
    run = RUNS[name]()
    lines = console.render(run, summarise(run), explain=True).splitlines()
    assert max(len(line) for line in lines) <= 100
    assert all(line.isprintable() and line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [70, 80, 99])
@pytest.mark.parametrize("name", RUNS)
def test_console_fits_a_narrower_terminal(name: str, width: int) -> None:
    run = RUNS[name]()
    text = console.render(run, summarise(run), explain=True, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "…" not in text.replace("ve…", "").replace("m…", "")
    if "latency, ms" in text:
        heads = next(line for line in text.splitlines() if "latency, ms" in line).split()
        assert {"mean", "p50", "p95", "p99", "max"} <= set(heads) and ("CI" in heads) == (width == 99)


@pytest.mark.golden
def test_80_columns_leave_out_only_some_columns() -> None:
    golden("invalid_80.txt", console.render(invalid(), summarise(invalid()), width=80))


def test_a_note_is_about_columns_that_are_shown() -> None:
    run = not_streamed()
    assert "4,603 for p99.9" in " ".join(console.render(run, summarise(run), width=80).split())
    assert "for p99.9" not in console.render(run, summarise(run), width=70)


def test_there_is_one_answer_to_how_much_longer_to_run() -> None:
    run = made.run(*made.open_rows(count=300), plan=(made.OPEN,))
    summary = summarise(run, ["ttft.p99 < 72ms", "e2e.mean < 140.1ms"])
    text = " ".join(console.render(run, summary, width=200).split())
    times = re.findall(r"(\S+ \w+) longer", text)
    assert len(times) >= 3 and len(set(times)) == 1
    (more,) = {result.more_seconds for result in summary.slos if result.status == "undecided"}
    assert more is not None and times[0] == format_seconds(more)


def test_huge_numbers_fit() -> None:
    rows, chunks = made.open_rows()
    rows["sent"][300:] += 3_000 * made.SECOND
    for name in ("first_token", "last_token", "done"):
        rows[name][300:] += 30_000 * made.SECOND
    run = made.run(rows, Chunks(chunks.arrival * 10_000, chunks.tokens), plan=STAGES)
    for width in (70, 80, 100):
        text = console.render(run, summarise(run), width=width)
        assert max(map(len, text.splitlines())) <= width and "…" not in text


def lines_of(run: Run, width: int = 100) -> list[str]:
    return [line.strip() for line in console.render(run, summarise(run), width=width).splitlines()]


def all_failed(plan: tuple[StagePlan, ...]) -> Run:
    rows, chunks = made.open_rows()
    made.fail(rows, slice(0, 600))
    return made.run(rows, chunks, failures=BUSY, plan=plan)


@pytest.mark.parametrize(
    ("plan", "legend"),
    [
        ((made.OPEN,), "lag: from the intended send time to the send"),
        ((made.CLOSED,), "lag: how long a free user waited for the send"),
    ],
)
def test_if_all_requests_failed_only_the_lag_is_explained(plan: tuple[StagePlan, ...], legend: str) -> None:
    text = " ".join(lines_of(all_failed(plan)))
    assert f" {legend} " in text
    assert "e2e count" not in text and "ttft and" not in text


def test_stages_with_different_loads_are_not_pooled() -> None:
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] >= 300
    rows["open_loop"][300:] = 0
    run = made.run(rows, chunks, plan=(made.OPEN, made.CLOSED))
    lines = lines_of(run)
    assert summarise(run).metrics == {} and not any(line.startswith("latency") for line in lines)
    assert [line.split()[0] for line in lines if line.startswith(("poisson", "closed"))] == ["poisson", "closed"]


def test_cancelled_requests_are_shown_among_the_failed() -> None:
    rows, chunks = made.open_rows()
    made.fail(rows, slice(0, 30))
    made.never_sent(rows, slice(590, 600), 2)
    run = made.run(rows, chunks, failures=(Failure("http_503", "busy"), Failure("cancelled", "")), plan=(made.OPEN,))
    lines = lines_of(run)
    index = next(index for index, line in enumerate(lines) if line.startswith("requests"))
    assert lines[index] == "requests     560 ok   40 failed, of which 10 cancelled   0 dropped"
    assert any("30 of 590 requests failed" in line for line in lines)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(2e6, "2,000,000"), (500.0, "500"), (0.5, "0.5"), (1234.5, "1,234.5"), (999_999.7, "1,000,000"), (1e5, "100,000")],
)
def test_rates_are_written_out(rate: float, text: str) -> None:
    run = made.run(made.blank(0), plan=(msgspec.structs.replace(made.OPEN, rate=rate),))
    assert f"poisson, {text} requests/s, for 6 s" in console.render(run, summarise(run))


@pytest.mark.parametrize("width", [80, 100])
def test_colour_changes_nothing_but_colour(width: int) -> None:
    run = invalid()
    summary = summarise(run)
    plain, colored = (console.render(run, summary, color=color, width=width) for color in (False, True))
    assert "\x1b[" in colored and "\x1b[" not in plain
    assert [line.rstrip() for line in click.unstyle(colored).splitlines()] == plain.splitlines()


def test_the_environment_does_not_change_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    run = valid()
    before = console.render(run, summarise(run))
    for name, value in {"COLUMNS": "40", "TERM": "dumb", "FORCE_COLOR": "1", "NO_COLOR": "1", "LINES": "5"}.items():
        monkeypatch.setenv(name, value)
    assert console.render(run, summarise(run)) == before


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return stored(tmp_path / "run", valid())


def stored(folder: Path, run: Run) -> Path:
    folder.mkdir()
    store.write(folder, run.manifest, run.records, run.chunks())
    return folder


def call(*arguments: object) -> tuple[object, bytes]:
    """Return the exit status and the output."""
    result = CliRunner().invoke(command, [str(each) for each in arguments], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.return_value, result.stdout_bytes


def test_report_prints_the_report_and_changes_no_file(folder: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    run = store.read(folder)
    assert call(folder) == (0, console.render(run, summarise(run)).encode())
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before


def test_report_of_an_invalid_run_exits_with_1(tmp_path: Path) -> None:
    status, printed = call(stored(tmp_path / "run", invalid()))
    assert status == 1 and b"INVALID" in printed


def test_report_of_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError):
        call(tmp_path)


def test_json_to_standard_output_is_only_json(folder: Path) -> None:
    status, printed = call(folder, "--json", "-")
    assert status == 0 and msgspec.json.decode(printed)["verdict"] == "VALID"


def test_csv_has_one_row_per_request_in_seconds(tmp_path: Path) -> None:
    folder = stored(tmp_path / "run", invalid())
    path = tmp_path / "out.csv"
    call(folder, "--csv", path)
    lines = list(csv.DictReader(path.open(encoding="utf-8")))
    rows = store.read(folder).records.rows
    assert len(lines) == 600
    good, failed, dropped = lines[200], lines[0], lines[60]
    assert float(good["sent_s"]) == rows["sent"][200] / 1e9 and float(good["ttft_s"]) == pytest.approx(0.05, rel=0.2)
    assert good["phase"] == "steady" and good["loop"] == "open" and good["failure"] == "" and good["n_out"] == "10"
    assert failed["failure"] == "http_503" and failed["n_out"] == failed["first_token_s"] == ""
    assert dropped["sent_s"] == dropped["lag_s"] == ""


HOSTILE = "=2+3 ![x](http://evil) `[y](z)` @all #1 <b>"


def test_what_a_server_wrote_is_neither_a_formula_nor_a_link(tmp_path: Path) -> None:
    run = invalid()
    failures = (Failure("http_503", f"{HOSTILE}\x1b[2J"), Failure("http_500", "-1"))
    folder = stored(
        tmp_path / "run", msgspec.structs.replace(run, records=msgspec.structs.replace(run.records, failures=failures))
    )
    messages = {line["message"] for line in csv.DictReader(call(folder, "--csv", "-")[1].decode().splitlines())}
    assert messages == {"", f"'{HOSTILE}\ufffd[2J", "-1"}
    assert f"| `{HOSTILE.replace('`', chr(39))} [2J` |" in call(folder, "--markdown", "-")[1].decode()


def test_outside_code_a_text_makes_neither_links_nor_mentions() -> None:
    assert markdown.escape(HOSTILE) == "=2+3 ![x]&#40;http:&#47;/evil) `[y](z)` @&#8203;all #&#8203;1 &lt;b>"


def test_csv_of_many_requests_has_one_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferometer.report.csv._ROWS_AT_ONCE", 7)
    _, printed = call(stored(tmp_path / "run", valid()), "--csv", "-")
    assert printed.count(b'"id"') == 1 and printed.count(b"\n") == 601


def test_csv_of_an_empty_run_is_only_a_header(tmp_path: Path) -> None:
    status, printed = call(stored(tmp_path / "run", empty()), "--csv", "-")
    assert status == 1 and printed.count(b"\n") == 1


def test_exports_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        call(folder, "--json", tmp_path / "none" / "x.json")
    with pytest.raises(UserError):
        call(folder, "--json", tmp_path)
    with pytest.raises(UserError, match="both"):
        call(folder, "--json", "-", "--csv", "-")


def test_an_export_that_fails_leaves_the_older_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(found: object, file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "out").mkdir()
    (tmp_path / "out/kept.json").write_text("older")
    (tmp_path / "out/kept.json").chmod(0o600)
    (tmp_path / "out/link.json").symlink_to("kept.json")
    call(folder, "--json", tmp_path / "out/link.json")
    newer = (tmp_path / "out/kept.json").read_bytes()
    monkeypatch.setitem(output.RUN.writers, "json", fail)
    with pytest.raises(UserError, match="No space left"):
        call(folder, "--json", tmp_path / "out/link.json")
    assert (tmp_path / "out/kept.json").read_bytes() == newer != b"older"
    assert (tmp_path / "out/kept.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["kept.json", "link.json"]


def test_every_exporter_is_an_option_of_report_and_run(folder: Path, tmp_path: Path) -> None:
    for name in EXPORTERS:
        call(folder, f"--{name}", tmp_path / name)
        assert (tmp_path / name).read_bytes()
        assert f"--{name}" in {option for parameter in run_command.params for option in parameter.opts}


def test_a_new_exporter_is_one_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPORTERS, "verdict", "Write it.")
    monkeypatch.setitem(output.RUN.writers, "verdict", output.at_once(lambda found: b"fine"))

    def names(exports: dict[str, str]) -> list[str]:
        return sorted(exports)

    found = click.command()(export_options(names))
    assert "--verdict PATH" in CliRunner().invoke(found, ["--help"]).output
    result = CliRunner().invoke(found, ["--verdict", "x", "--csv", "y"], standalone_mode=False)
    assert result.return_value == ["csv", "verdict"]
    run = store.read(folder)
    output.deliver(output.RUN, output.RunReport(run, summarise(run)), {"verdict": str(folder / "out")})
    assert (folder / "out").read_bytes() == b"fine"


# --- histograms ------------------------------------------------------------------------------------------------------


def test_histograms_are_shown_on_request_and_count_every_request(folder: Path) -> None:
    _, plain = call(folder)
    _, printed = call(folder, "--histogram")
    assert b"per bin" not in plain
    text = printed.decode()
    golden("histogram.txt", text[text.index(" ttft, ms: requests") : text.index(" tokens  ")])


@pytest.mark.parametrize("width", [70, 80, 100])
@pytest.mark.parametrize("name", RUNS)
def test_histograms_fit(name: str, width: int) -> None:
    run = RUNS[name]()
    text = console.render(run, summarise(run), width=width, histogram=True)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("requests per bin") == {"empty": 0, "valid": 2, "invalid": 2}.get(name, 1)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200), st.integers(1, 20))
def test_every_value_is_in_one_bin(values: list[float], bins: int) -> None:
    found = blocks.histogram(np.array([*values, np.nan]), bins)
    assert sum(count for _, _, count in found) == len(values)
    assert found[0][0] == min(values) and found[-1][1] == max(values)


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, ""), (0.0001, "▏"), (0.5, "██"), (0.53, "██▏"), (0.999, "████"), (1.0, "████")]
)
def test_bars(share: float, text: str) -> None:
    assert blocks.bar(share, 4) == text


@pytest.mark.parametrize(
    ("values", "text"), [([], ""), ([0.0, 0.0], "▁▁"), ([0.0, 4.0, None, 8.0], "▁▅ █"), ([None], " "), ([3.0], "█")]
)
def test_sparklines(values: list[float | None], text: str) -> None:
    assert blocks.sparkline(values) == text


def with_sessions() -> Run:
    """Two stages with different loads, of sessions of two turns."""
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] >= 400
    rows["session"], rows["turn"], rows["turns"] = rows["id"] // 2 * 2, rows["id"] % 2, 2
    plan = (STAGES[0], msgspec.structs.replace(STAGES[1], rate=50.0))
    return made.run(rows, chunks, plan=plan)


def test_stages_have_a_row_each_in_the_table_of_sessions() -> None:
    run = with_sessions()
    summary = summarise(run)
    assert summary.sessions is None
    lines = console.render(run, summary).splitlines()
    start = next(index for index, line in enumerate(lines) if line.split()[:1] == ["sessions"])
    counts = [(stage.name, stage.sessions.ok) for stage in summary.stages if stage.sessions]
    assert [name for name, _ in counts] == [stage.name for stage in run.manifest.plan]
    for line, (name, ok) in zip(lines[start + 1 :], counts, strict=False):
        assert name in line and f" {ok:,} " in line


@pytest.mark.parametrize(
    ("by", "said"), [(0, ""), (1, ""), (2, "; input tokens counted by the client's tokenizer")], ids=str
)
def test_the_report_says_who_counted_input_tokens_if_it_was_not_who_counted_the_output(by: int, said: str) -> None:
    rows, chunks = made.closed_rows()
    rows["counted_by"], rows["in_counted_by"] = 1, by
    run = made.run(rows, chunks)
    assert f"output tokens counted by the server{said}\n" in console.render(run, summarise(run))
