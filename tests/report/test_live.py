"""The live view, fed with made-up snapshots: what it shows, and that it fits."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from inferometer import schedule
from inferometer.config import from_mapping
from inferometer.fleet.supervisor import Snapshot
from inferometer.probe.reach import Reached
from inferometer.records import ROW
from inferometer.report.live import LiveView, describe
from inferometer.wire.target import parse

MS = 1_000_000
CLOSED = {"type": "closed", "concurrency": 8, "requests": 200}
OPEN = {"type": "constant", "rate": 50, "duration": "10s"}


def snapshot(**values: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "started": True, "elapsed": 2.0, "sent": 100, "ok": 90, "failed": 0, "in_flight": 10, "queued": 0, "stage": 0,
        "stopping": False, "t0": 1, "rows": np.zeros(0, ROW), "peeks": np.zeros((0, 2), np.int64),
    }  # fmt: skip
    fields |= values
    rows, peeks = fields.pop("rows"), fields.pop("peeks")
    return Snapshot(rows=lambda: rows, peeks=lambda: peeks, **fields)


def answered(count: int, **values: int) -> np.ndarray[Any, Any]:
    """Rows of requests that were sent 1 ms late, had their first token after 20 ms and ended after 100 ms."""
    rows = np.zeros(count, ROW)
    times = {"intended": 1000, "sent": 1001, "first_token": 1020, "last_token": 1100, "done": 1100}
    for name, at in times.items():
        rows[name] = at * MS
    rows["open_loop"] = 1
    for name, value in values.items():
        rows[name] = value
    return rows


class Watched:
    """A view of a run of `load`, drawn on a terminal of 100 columns that is not there."""

    def __init__(
        self, folder: Path, load: dict[str, Any], terminal: bool = True, url: str = "http://127.0.0.1:8000"
    ) -> None:
        config = from_mapping({"server": {"url": url}, "load": load})
        plan = schedule.plan(config.load, 0)
        (folder / "spool").mkdir(exist_ok=True)
        self.spool = folder / "spool"
        self.written = io.StringIO()
        self.view = LiveView(Console(file=self.written, force_terminal=terminal, width=100))
        reached = Reached((parse(url),) * 2, (), "my-model", {})
        self.view.planned(config, plan, reached, 2, folder)

    def show(self, *snapshots: Snapshot) -> str:
        for each in snapshots:
            self.view.progress(each)
        paper = Console(record=True, force_terminal=True, width=100, file=io.StringIO())
        paper.print(self.view._render())
        text = paper.export_text()
        assert max(len(line) for line in text.splitlines()) <= 100 - len("^C^C"), "no room for what a terminal echoes"
        return text


@pytest.fixture
def watched(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    made: list[Watched] = []

    def make(load: dict[str, Any], **more: Any) -> Watched:
        made.append(Watched(tmp_path, load, **more))
        return made[-1]

    yield make
    for each in made:
        each.view.over()


def test_before_the_start(watched: Any) -> None:
    text = watched(CLOSED).show(snapshot(started=False, elapsed=0.0))
    assert "preparing" in text
    assert "http://127.0.0.1:8000 and 1 more  my-model  closed 8" in text


def test_nothing_has_ended_yet(watched: Any) -> None:
    text = watched(CLOSED).show(snapshot(sent=8, ok=0, in_flight=8))
    assert "asked 8 in flight" in text
    assert "in flight 8" in text
    assert "0%" in text


def test_under_way_with_latencies_from_the_intended_instant(watched: Any) -> None:
    view = watched(OPEN)
    text = view.show(snapshot(rows=answered(50)))
    assert "asked 50/s" in text
    assert "20%" in text
    assert "8 s left" in text
    lines = {line.strip("│ ").partition("  ")[0]: line for line in text.splitlines()}
    assert "p50 20 ms" in lines["TTFT"]
    assert "p99 100 ms" in lines["end to end"]
    assert "p50 1 ms" in lines["lag"]


def test_gaps_between_chunks_come_from_the_shards_files(watched: Any) -> None:
    view = watched(OPEN)
    (view.spool / "0.arrivals").write_bytes(np.arange(0, 50 * MS, 5 * MS, dtype=np.int64).tobytes())
    text = view.show(snapshot(rows=answered(1, chunk_count=10)))
    line = next(line for line in text.splitlines() if "ITL" in line)
    assert "p50 5 ms" in line


def test_streams_that_are_still_in_flight_show_before_any_has_ended(watched: Any) -> None:
    text = watched(OPEN).show(snapshot(ok=0, peeks=np.array([[30 * MS, 7 * MS]])))
    assert "30 ms" in next(line for line in text.splitlines() if "TTFT" in line)


def test_failures_are_counted_by_kind(watched: Any) -> None:
    view = watched(OPEN)
    lines = [{"code": "http_503", "message": "busy"}, {"code": "reset", "message": ""}]
    (view.spool / "0.failures").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = view.show(
        snapshot(failed=3, rows=answered(3, failure=1, first_token=0)), snapshot(failed=4, rows=answered(1, failure=2))
    )
    assert "failed 4" in text
    assert "http_503 3   reset 1" in text


def test_a_failure_whose_line_is_not_there_yet_is_no_trouble(watched: Any) -> None:
    assert "? 1" in watched(OPEN).show(snapshot(failed=1, rows=answered(1, failure=1)))


def test_stopping(watched: Any) -> None:
    assert "Ctrl-C again ends at once" in watched(OPEN).show(snapshot(stopping=True))


def test_after_the_last_send_it_waits_for_answers(watched: Any) -> None:
    text = watched(OPEN).show(snapshot(elapsed=11.0))
    assert "waiting for the last answers" in text
    assert "100%" in text


def reached(text: str) -> str:
    return next(line for line in text.splitlines() if "reached" in line).partition("reached ")[2].split()[0]


def test_the_time_before_the_start_is_not_in_the_rate(watched: Any) -> None:
    preparing = [snapshot(started=False, elapsed=0.0, sent=0)] * 3
    assert reached(watched(OPEN).show(*preparing, snapshot(elapsed=1.81, sent=48))) == "26.52/s"


def test_the_rate_is_that_of_the_last_seconds(watched: Any) -> None:
    sent = [(1.0, 10), (2.0, 20), (3.0, 30), (8.0, 530), (8.5, 580)]
    assert reached(watched(OPEN).show(*(snapshot(elapsed=at, sent=count) for at, count in sent))) == "100/s"


@pytest.mark.parametrize(
    ("load", "last"),
    [(OPEN, 500), (CLOSED, 200), (CLOSED | {"requests": None, "duration": "10s"}, 321)],
    ids=["open", "by requests", "by time"],
)
def test_the_rate_does_not_fall_while_the_last_answers_are_awaited(watched: Any, load: Any, last: int) -> None:
    view = watched({name: value for name, value in load.items() if value is not None})
    before = reached(view.show(snapshot(elapsed=6.0, sent=6 * last // 10), snapshot(elapsed=10.0, sent=last)))
    assert float(before.removesuffix("/s")) == pytest.approx(last / 10, rel=0.02)
    assert reached(view.show(*(snapshot(elapsed=10.0 + late, sent=last) for late in (0.25, 2.0, 9.0)))) == before


def test_the_rate_does_not_fall_after_ctrl_c(watched: Any) -> None:
    view = watched(OPEN)
    before = reached(view.show(snapshot(elapsed=2.0, sent=100)))
    assert reached(view.show(snapshot(elapsed=5.0, sent=100, stopping=True))) == before == "50/s"


def test_what_still_waits_for_the_cap_is_something_to_send(watched: Any) -> None:
    view = watched(OPEN)
    view.show(snapshot(elapsed=9.0, sent=90), snapshot(elapsed=10.0, sent=100, queued=400))
    assert reached(view.show(snapshot(elapsed=14.0, sent=140, queued=360))) == "10/s"


def test_large_rates_are_written_out(watched: Any) -> None:
    text = watched(OPEN | {"rate": 20_000}).show(snapshot(elapsed=1.0, sent=12_345))
    assert "constant 20,000/s" in text and "asked 20,000/s" in text
    assert reached(text) == "12,345/s"


def test_stages_ask_for_what_the_stage_asks_for(watched: Any) -> None:
    view = watched({"stages": [OPEN, CLOSED | {"duration": "5s"}, {"type": "ramp", "end": 100, "duration": "10s"}]})
    assert "3 stages" in view.show(snapshot(stage=0))
    assert "asked 50/s" in view.show(snapshot(stage=0))
    assert "asked 8 in flight" in view.show(snapshot(stage=1, elapsed=11.0))
    assert "asked 50/s" in view.show(snapshot(stage=2, elapsed=20.0))


def test_a_long_name_does_not_break_the_frame(watched: Any) -> None:
    view = watched(OPEN, url="http://" + "a-very-long-name." * 9 + "example")
    view.show(snapshot(started=False))
    view.show(snapshot(rows=answered(3)))


def test_without_a_terminal_there_are_plain_lines(watched: Any) -> None:
    view = watched(OPEN, terminal=False)
    view.show(snapshot(rows=answered(9)))
    first, line, *rest = view.written.getvalue().splitlines()
    assert first == "http://127.0.0.1:8000 and 1 more  my-model  constant 50/s  (2 client processes)"
    assert line.split()[:6] == ["2.0s", "20%", "asked", "50/s", "reached", "50/s"]
    assert "TTFT 20 ms / 20 ms" in line
    assert rest == []


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (CLOSED, "closed 8"),
        (OPEN, "constant 50/s"),
        ({"type": "ramp", "start": 5, "end": 100, "duration": "1s"}, "ramp 5 to 100/s"),
        ({"type": "steps", "rates": [10, 20], "duration": "1s"}, "steps 10, 20/s"),
        ({"type": "bursts", "rate": 9, "on": 1, "off": 1, "duration": "2s"}, "bursts 9/s"),
        ({"stages": [OPEN, OPEN]}, "2 stages"),
    ],
)
def test_the_load_in_a_few_words(load: dict[str, Any], text: str) -> None:
    assert describe(from_mapping({"server": {"url": "http://x"}, "load": load})) == text
