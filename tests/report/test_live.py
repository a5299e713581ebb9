"""The live view, fed with made-up snapshots: what it shows, and that it fits into the terminal."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from inferometer import schedule
from inferometer.config import from_mapping
from inferometer.records import ROW, Snapshot
from inferometer.report.live import LiveView, Outline, describe
from inferometer.report.safe_console import SafeConsole

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


def ended(count: int, **values: int) -> np.ndarray[Any, Any]:
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
    """A view of a run of `load`, drawn into a file as on a terminal of 100 columns."""

    def __init__(
        self, folder: Path, load: dict[str, Any], terminal: bool = True, url: str = "http://127.0.0.1:8000"
    ) -> None:
        config = from_mapping({"server": {"url": url}, "load": load})
        plan = schedule.plan(config.load, 0)
        (folder / "spool").mkdir(exist_ok=True)
        self.spool = folder / "spool"
        self.written = io.StringIO()
        self.view = LiveView(Console(file=self.written, force_terminal=terminal, width=100))
        self.view.planned(
            Outline(
                urls=(url,) * 2,
                model="my-model",
                load=config.load,
                total=schedule.total_requests(plan),
                duration=schedule.planned_duration(plan),
                stage_durations=tuple(stage.duration for stage in plan.stages),
                rate_at=schedule.rate_at,
                processes=2,
                spool=self.spool,
            )
        )

    def show(self, *snapshots: Snapshot) -> str:
        for each in snapshots:
            self.view.progress(each)
        paper = Console(record=True, force_terminal=True, width=100, file=io.StringIO())
        paper.print(self.view._render())
        text = paper.export_text()
        assert max(len(line) for line in text.splitlines()) <= 100 - len("^C^C"), "there must be room for ^C"
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
    assert "http://127.0.0.1:8000 and 1 more · my-model · closed loop, 8 in flight" in text


def test_nothing_has_ended_yet(watched: Any) -> None:
    text = watched(CLOSED).show(snapshot(sent=8, ok=0, in_flight=8))
    assert "target 8 in flight" in text
    assert "in flight 8" in text
    assert "0%" in text


def test_latencies_count_from_the_intended_send_time(watched: Any) -> None:
    view = watched(OPEN)
    text = view.show(snapshot(rows=ended(50)))
    assert "target 50/s" in text
    assert "20%" in text
    assert "8 s left" in text
    lines = {line.strip("│ ").partition("  ")[0]: line for line in text.splitlines()}
    assert "p50 20 ms" in lines["TTFT"]
    assert "p99 100 ms" in lines["end to end"]
    assert "p50 1 ms" in lines["lag"]


def test_gaps_between_chunks_are_read_from_the_shards_files(watched: Any) -> None:
    view = watched(OPEN)
    (view.spool / "0.arrivals").write_bytes(np.arange(0, 50 * MS, 5 * MS, dtype=np.int64).tobytes())
    text = view.show(snapshot(rows=ended(1, chunk_count=10)))
    line = next(line for line in text.splitlines() if "ITL" in line)
    assert "p50 5 ms" in line


def test_streams_in_flight_are_shown_before_any_has_ended(watched: Any) -> None:
    text = watched(OPEN).show(snapshot(ok=0, peeks=np.array([[30 * MS, 7 * MS]])))
    assert "30 ms" in next(line for line in text.splitlines() if "TTFT" in line)


def test_failures_are_counted_by_kind(watched: Any) -> None:
    view = watched(OPEN)
    lines = [{"code": "http_503", "message": "busy"}, {"code": "reset", "message": ""}]
    (view.spool / "0.failures").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = view.show(
        snapshot(failed=3, rows=ended(3, failure=1, first_token=0)), snapshot(failed=4, rows=ended(1, failure=2))
    )
    assert "failed 4" in text
    assert "http_503 3   reset 1" in text


def test_a_failure_that_is_not_written_yet_is_counted(watched: Any) -> None:
    assert "? 1" in watched(OPEN).show(snapshot(failed=1, rows=ended(1, failure=1)))


def test_stopping(watched: Any) -> None:
    assert "press Ctrl-C again to end now" in watched(OPEN).show(snapshot(stopping=True))


def test_after_the_last_send_it_waits_for_responses(watched: Any) -> None:
    text = watched(OPEN).show(snapshot(elapsed=11.0))
    assert "waiting for the last responses" in text
    assert "100%" in text


def offered(text: str) -> str:
    return rate(text, "offered")


def rate(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if name in line).partition(f"{name} ")[2].split()[0]


def test_the_time_before_the_start_does_not_lower_the_rate(watched: Any) -> None:
    preparing = [snapshot(started=False, elapsed=0.0, sent=0)] * 3
    assert offered(watched(OPEN).show(*preparing, snapshot(elapsed=1.81, sent=48))) == "26.52/s"


def test_the_rate_is_that_of_the_last_seconds(watched: Any) -> None:
    sent = [(1.0, 10), (2.0, 20), (3.0, 30), (8.0, 530), (8.5, 580)]
    assert offered(watched(OPEN).show(*(snapshot(elapsed=at, sent=count) for at, count in sent))) == "100/s"


@pytest.mark.parametrize(
    ("load", "last"),
    [(OPEN, 500), (CLOSED, 200), (CLOSED | {"requests": None, "duration": "10s"}, 321)],
    ids=["open", "by requests", "by time"],
)
def test_the_rates_do_not_fall_while_waiting_for_the_last_responses(watched: Any, load: Any, last: int) -> None:
    view = watched({name: value for name, value in load.items() if value is not None})
    steps = [(6.0, 6 * last // 10), (10.0, last)]
    text = view.show(*(snapshot(elapsed=at, sent=count, ok=count - 5) for at, count in steps))
    before = rate(text, "completed")
    assert float(before.removesuffix("/s")) == pytest.approx(last / 10, rel=0.03)
    later = view.show(*(snapshot(elapsed=10.0 + late, sent=last, ok=last) for late in (0.25, 2.0, 9.0)))
    assert rate(later, "completed") == before
    assert ("offered" in later) == (load is OPEN)
    if load is OPEN:
        assert offered(later) == offered(text) == "50/s"


def test_offered_and_completed_agree_when_the_server_keeps_up(watched: Any) -> None:
    """Responses take 2 s: until the first one nothing is completed, which must not count as a lower rate."""
    at = [step / 4 for step in range(1, 17)]
    snapshots = [snapshot(elapsed=now, sent=round(50 * now), ok=max(round(50 * (now - 2)), 0)) for now in at]
    text = watched(OPEN).show(*snapshots)
    assert float(offered(text).removesuffix("/s")) == pytest.approx(50, rel=0.02)
    assert float(rate(text, "completed").removesuffix("/s")) == pytest.approx(50, rel=0.02)


def test_the_rate_does_not_fall_after_ctrl_c(watched: Any) -> None:
    view = watched(OPEN)
    before = offered(view.show(snapshot(elapsed=2.0, sent=100)))
    assert offered(view.show(snapshot(elapsed=5.0, sent=100, stopping=True))) == before == "50/s"


def test_requests_that_wait_for_the_cap_are_still_to_be_sent(watched: Any) -> None:
    view = watched(OPEN)
    view.show(snapshot(elapsed=9.0, sent=90), snapshot(elapsed=10.0, sent=100, queued=400))
    assert offered(view.show(snapshot(elapsed=14.0, sent=140, queued=360))) == "10/s"


def test_large_rates_are_written_out(watched: Any) -> None:
    text = watched(OPEN | {"rate": 20_000}).show(snapshot(elapsed=1.0, sent=12_345))
    assert "constant 20,000/s" in text and "target 20,000/s" in text
    assert offered(text) == "12,345/s"


def test_drain_between_stages_is_shown_and_does_not_count_as_progress(watched: Any) -> None:
    view = watched({"type": "constant", "rate": "50:60:10", "duration": "10s"})
    text = view.show(snapshot(elapsed=10.0), snapshot(elapsed=16.0, in_flight=7, draining=True))
    assert "draining: 7 in flight before the next stage" in text
    assert " 50%" in text
    text = view.show(snapshot(elapsed=21.0, stage=1))
    assert "draining" not in text
    assert " 75%" in text and "target 60/s" in text


def test_pause_between_stages_is_shown_and_counts_as_progress(watched: Any) -> None:
    view = watched({"stages": [OPEN, OPEN | {"rate": 60}], "pause": "20s"})
    text = view.show(snapshot(elapsed=20.0, pausing=True))
    assert "pausing before the next stage" in text and " 50%" in text
    text = view.show(snapshot(elapsed=35.0, stage=1))
    assert "pausing" not in text and "target 60/s" in text


def test_the_target_is_that_of_the_current_stage(watched: Any) -> None:
    view = watched({"stages": [OPEN, CLOSED | {"duration": "5s"}, {"type": "ramp", "end": 100, "duration": "10s"}]})
    assert "3 stages" in view.show(snapshot(stage=0))
    assert "target 50/s" in view.show(snapshot(stage=0))
    assert "target 8 in flight" in view.show(snapshot(stage=1, elapsed=11.0))
    assert "target 50/s" in view.show(snapshot(stage=2, elapsed=20.0))


def test_a_long_name_does_not_break_the_frame(watched: Any) -> None:
    view = watched(OPEN, url="http://" + "a-very-long-name." * 9 + "example")
    view.show(snapshot(started=False))
    view.show(snapshot(rows=ended(3)))


def test_without_a_terminal_progress_is_plain_lines(watched: Any) -> None:
    view = watched(OPEN, terminal=False)
    view.show(snapshot(rows=ended(9)))
    first, line, *rest = view.written.getvalue().splitlines()
    assert first == "http://127.0.0.1:8000 and 1 more · my-model · constant 50/s · 2 client processes"
    assert line.split()[:8] == ["2.0s", "20%", "target", "50/s", "offered", "50/s", "completed", "45/s"]
    assert "TTFT p50 20 ms p99 20 ms" in line
    assert rest == []


# --- the course of the run -------------------------------------------------------------------------------------------


def course(view: Watched, seconds: int, streamed: bool = True) -> list[str]:
    """The lines of the sparklines after snapshots every 250 ms of a run whose rate rises and whose latency is constant."""
    snapshots, ok = [], 0
    for step in range(1, 4 * seconds + 1):
        ok += step
        rows = ended(5) if streamed else ended(5, first_token=0)
        snapshots.append(snapshot(elapsed=step / 4, sent=ok, ok=ok, rows=rows))
    text = view.show(*snapshots)
    return [line.strip("│ ") for line in text.splitlines() if "█" in line]


def test_sparklines_show_the_rate_and_the_p99_of_ttft(watched: Any) -> None:
    rate, p99 = course(watched(OPEN), 8)
    assert rate.split() == ["completed/s", "▁▂▃▄▅▆▇█", "max", "122/s"]
    assert p99.split() == ["TTFT", "p99", "█" * 8, "max", "20", "ms"]


def test_without_streams_the_sparkline_is_that_of_the_end_to_end_time(watched: Any) -> None:
    _, p99 = course(watched(OPEN), 4, streamed=False)
    assert p99.split() == ["end", "to", "end", "p99", "█" * 4, "max", "100", "ms"]


@pytest.mark.parametrize("seconds", [47, 48, 49, 200, 1000])
def test_sparklines_of_a_long_run_are_not_wider(watched: Any, seconds: int) -> None:
    rate, p99 = (line.split() for line in course(watched(OPEN | {"duration": "1h"}), seconds))
    assert 20 <= len(rate[1]) <= 48 and len(p99[2]) == len(rate[1])
    assert list(rate[1]) == sorted(rate[1], key="▁▂▃▄▅▆▇█".index), "the rate rises"


def test_a_pause_leaves_a_gap_in_the_p99(watched: Any) -> None:
    view = watched(OPEN)
    text = view.show(
        *(snapshot(elapsed=at, rows=ended(5)) for at in (0.5, 1.5)),
        *(snapshot(elapsed=at) for at in (2.5, 3.5)),
        *(snapshot(elapsed=at, rows=ended(5)) for at in (4.5, 5.5)),
    )
    assert "TTFT p99      ██  █" in text


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (CLOSED, "closed loop, 8 in flight"),
        (OPEN, "constant 50/s"),
        ({"type": "ramp", "start": 5, "end": 100, "duration": "1s"}, "ramp 5 to 100/s"),
        ({"type": "steps", "rates": [10, 20], "duration": "1s"}, "steps 10, 20/s"),
        ({"type": "bursts", "rate": 9, "on": 1, "off": 1, "duration": "2s"}, "bursts 9/s"),
        ({"stages": [OPEN, OPEN]}, "2 stages"),
    ],
)
def test_the_load_in_a_few_words(load: dict[str, Any], text: str) -> None:
    assert describe(from_mapping({"server": {"url": "http://x"}, "load": load}).load) == text


def test_the_preparation_of_requests_is_shown(watched: Any) -> None:
    assert "preparing requests 40% ..." in watched(CLOSED).show(snapshot(started=False, prepared=0.4))
    assert "preparing connections ..." in watched(CLOSED).show(snapshot(started=False, prepared=1.0))


def test_without_a_terminal_a_long_preparation_is_a_line(watched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 100.0
    monkeypatch.setattr("time.monotonic", lambda: seconds)
    view = watched(CLOSED, terminal=False)
    for seconds in (101.0, 102.5, 103.0, 108.0):
        view.view.progress(snapshot(started=False, elapsed=0.0, prepared=(seconds - 100) / 10))
    assert [line for line in view.written.getvalue().splitlines() if "preparing" in line] == [
        "preparing requests 25% ...",
        "preparing requests 80% ...",
    ]


# --- the server's own figures ----------------------------------------------------------------------------------------

OBSERVED = {"running": 12.0, "waiting": 3.0, "kv_cache_use": 0.453, "gpu_power": 300.0}


def test_the_servers_own_figures_have_a_line(watched: Any) -> None:
    text = watched(OPEN).show(snapshot(observed=OBSERVED))
    (line,) = (line.strip("│ ") for line in text.splitlines() if "waiting" in line)
    assert line == "server   running 12   waiting 3   KV cache 45%"


def test_figures_that_the_server_does_not_report_are_left_out(watched: Any) -> None:
    assert "server   waiting 0.5\n" in "\n".join(
        line.strip("│ ") for line in watched(OPEN).show(snapshot(observed={"waiting": 0.5})).splitlines()
    )
    assert "server" not in watched(OPEN).show(snapshot(observed={}))


def test_the_plain_line_has_the_servers_own_figures(watched: Any) -> None:
    view = watched(OPEN, terminal=False)
    view.show(snapshot(rows=ended(9), observed=OBSERVED))
    assert "server running 12 waiting 3 KV cache 45%" in view.written.getvalue().splitlines()[1]


# --- the end ---------------------------------------------------------------------------------------------------------


def test_what_the_end_waits_for_is_shown(watched: Any) -> None:
    view = watched(OPEN)
    assert "observers" not in view.show(snapshot())
    view.view.waiting(["promql", "otlp"])
    assert "waiting for the observers: promql, otlp; press Ctrl-C" in view.show(snapshot())


def test_without_a_terminal_what_the_end_waits_for_is_one_line(watched: Any) -> None:
    view = watched(OPEN, terminal=False)
    view.show(snapshot())
    view.view.waiting(["promql", "otlp"])
    view.view.waiting(["otlp"])
    assert view.written.getvalue().count("waiting for the observers") == 1
    assert "waiting for the observers: promql, otlp" in view.written.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_what_cannot_be_reached_at_the_start_is_a_line(watched: Any, terminal: bool) -> None:
    view = watched(OPEN, terminal=terminal)
    view.view.warn("http://a:1/metrics: connection refused; its metrics will be missing")
    assert "http://a:1/metrics: connection refused; its metrics will be missing" in view.written.getvalue()


def test_the_line_about_probing_is_removed_and_what_follows_starts_in_the_first_column() -> None:
    written = io.StringIO()
    view = LiveView(SafeConsole(file=written, force_terminal=True, width=100))
    view.probing()
    assert "probing the server" in written.getvalue()
    view.over()
    assert written.getvalue().endswith("\r\x1b[2K")
