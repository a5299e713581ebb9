"""Observers in their threads: none of them holds up or breaks a run."""

import threading
import time
from collections.abc import Sequence

from waiting import until

from inferometer.errors import UserError
from inferometer.observe.observer import HelperCpu, Observer, Observers
from inferometer.series import Columns, TimeSeries


class Counting(Observer):
    """Records each call; waits in `mark` for `go`."""

    def __init__(self, go: threading.Event | None = None) -> None:
        self.calls: list[str | int] = []
        self.marked = threading.Event()
        self._go = go

    def start(self) -> None:
        self.calls.append("start")

    def mark(self, stage: int) -> None:
        self.calls.append(stage)
        self.marked.set()
        if self._go is not None:
            self._go.wait(10)

    def end(self) -> Sequence[TimeSeries]:
        self.calls.append("end")
        columns = Columns("test")
        columns.append("calls", {}, 5, len(self.calls))
        return columns.series()


class Sampling(Counting):
    interval = 0.01

    def sample(self) -> None:
        self.calls.append("sample")
        if self.calls.count("sample") == 3:
            self.marked.set()

    def problems(self) -> dict[str, str]:
        return {"calls": "some are missing"}

    def now(self) -> dict[str, float]:
        return {"running": 2.0}


class Hanging(Counting):
    def __init__(self, method: str) -> None:
        super().__init__()
        self._method = method

    def start(self) -> None:
        if self._method == "start":
            threading.Event().wait()

    def end(self) -> Sequence[TimeSeries]:
        threading.Event().wait()
        return []


class Failing(Counting):
    def __init__(self, method: str, error: Exception) -> None:
        super().__init__()
        self._method, self._error = method, error

    def start(self) -> None:
        self._raise("start")

    def mark(self, stage: int) -> None:
        self.marked.set()
        self._raise("mark")

    def end(self) -> Sequence[TimeSeries]:
        self._raise("end")
        return []

    def _raise(self, method: str) -> None:
        if method == self._method:
            raise self._error


def test_an_observer_samples_at_its_interval_between_start_and_end() -> None:
    observer = Sampling()
    with Observers({"sampling": observer}) as observers:
        observers.start()
        assert observer.marked.wait(10)
        assert observers.now() == {"running": 2.0}
        observers.end()
    assert observer.calls[0] == "start" and observer.calls[-1] == "end"
    assert set(observer.calls[1:-1]) == {"sample"}
    assert observers.errors == {"calls": "some are missing"}
    assert observers.cpu_seconds["sampling"] > 0


def test_an_observer_with_a_long_interval_samples_right_before_the_run_begins() -> None:
    observer = Sampling()
    observer.interval = 1000.0
    with Observers({"sampling": observer}) as observers:
        observers.start()
        begun = time.monotonic() + 0.05
        observers.begin(int(begun * 1e9))
        until(lambda: "sample" in observer.calls)
        observers.end()
    assert observer.calls == ["start", "sample", "end"]


def test_an_observer_is_started_marked_and_ended_in_this_order() -> None:
    counting = Counting()
    observers = Observers({"counting": counting})
    observers.start()
    assert counting.calls == ["start"]
    for stage in (0, 0, 1, 1):
        observers.mark(stage)
    assert counting.marked.wait(10)
    (series,) = observers.end()
    assert (series.source, series.name, series.at.tolist(), series.value.tolist()) == ("test", "calls", [5], [3])
    assert counting.calls == ["start", 1, "end"]
    assert observers.errors == {}


def test_a_busy_observer_gets_only_the_latest_stage() -> None:
    go = threading.Event()
    counting = Counting(go)
    with Observers({"slow": counting}) as observers:
        observers.start()
        observers.mark(1)
        assert counting.marked.wait(10)
        begin = time.monotonic()
        for stage in (2, 3, 4):
            observers.mark(stage)
        assert time.monotonic() - begin < 5, "announcing a stage does not wait"
        counting.marked.clear()
        go.set()
        assert counting.marked.wait(10)
        observers.end()
    assert counting.calls == ["start", 1, 4, "end"]


def test_a_stage_that_is_over_before_it_could_be_announced_is_skipped() -> None:
    go = threading.Event()
    counting = Counting(go)
    observers = Observers({"slow": counting})
    observers.start()
    observers.mark(1)
    assert counting.marked.wait(10)
    observers.mark(2)
    threading.Timer(0.05, go.set).start()
    observers.end()
    assert counting.calls == ["start", 1, "end"]


def test_observers_that_hang_cost_a_reason_and_the_others_keep_their_series() -> None:
    makers: dict[str, Observer] = {"start": Hanging("start"), "good": Counting(), "end": Hanging("end")}
    observers = Observers(makers)
    observers.start(timeout=0.4)
    observers.mark(1)
    series = observers.end(timeout=0.4)
    assert [each.name for each in series] == ["calls"]
    assert observers.errors == {name: "did not end within 0.4 s" for name in ("start", "end")}


def test_waiting_for_observers_is_shown_and_can_be_ended() -> None:
    observers = Observers({"good": Counting(), "hangs": Hanging("end")})
    observers.start()
    shown: list[Sequence[str]] = []

    def waiting(names: Sequence[str]) -> None:
        shown.append(names)
        observers.stop_waiting()

    assert [row.name for row in observers.end(timeout=60, waiting=waiting)] == ["calls"]
    assert shown == [("hangs",)]
    assert observers.errors == {"hangs": "ended by Ctrl-C"}


def test_observers_that_raise_cost_a_reason_and_the_others_keep_their_series() -> None:
    failing = {
        "start": Failing("start", UserError("no GPU", "install one")),
        "mark": Failing("mark", ValueError("odd")),
        "end": Failing("end", OSError("gone")),
    }
    observers = Observers({**failing, "good": Counting()})
    observers.start()
    observers.mark(1)
    assert failing["mark"].marked.wait(10)
    assert [each.name for each in observers.end()] == ["calls"]
    assert observers.errors == {"start": "no GPU", "mark": "ValueError: odd", "end": "OSError: gone"}


def test_leaving_the_block_ends_the_threads() -> None:
    before = threading.active_count()
    with Observers({"counting": Counting()}) as observers:
        observers.start()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threading.active_count() <= before


class Closing(Observer):
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_leaving_the_block_closes_observers_whether_or_not_they_were_started() -> None:
    for is_started in (False, True):
        observer = Closing()
        with Observers({"closing": observer}) as observers:
            if is_started:
                observers.start()
                observers.end()
            assert not observer.is_closed
        assert observer.is_closed


def test_without_observers_nothing_happens() -> None:
    with Observers({}) as observers:
        assert not observers
        observers.start()
        observers.mark(1)
        assert observers.end() == ()


class Helped(Observer):
    """Lets another thread work."""

    def __init__(self) -> None:
        self._cpu = HelperCpu()

    def start(self) -> None:
        thread = threading.Thread(target=self._work)
        thread.start()
        thread.join()

    def helper_cpu(self) -> float:
        return self._cpu.seconds

    def _work(self) -> None:
        with self._cpu.counted():
            while time.thread_time() < 0.05:
                pass


def test_the_cpu_time_of_an_observer_includes_its_helper_threads() -> None:
    with Observers({"helped": Helped()}) as observers:
        observers.start()
        observers.end()
    assert 0.045 < observers.cpu_seconds["helped"] < 5
