"""The seam for observers, and the threads that keep them from holding up a run.

An observer records something beside the run: a server's statistics, its metrics, a machine's GPUs. Its methods are called when
the run starts, when a stage begins, every `interval` seconds and when the run has ended, and it returns time series for
`series.parquet`.

Each observer is called in a thread of its own. One that raises or hangs costs its own series and a line in the manifest, never the run. One that
is still busy when several stages begin sees only the latest of them, so a jump in the stage's number means that it missed the
stages in between.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol

from inferometer.errors import UserError
from inferometer.series import TimeSeries
from inferometer.server_metrics.vocabulary import QUANTITIES
from inferometer.units import NS

START_TIMEOUT = 10.0
"""Seconds that all observers together may take before t=0; a slower one starts while the run is in progress."""
END_TIMEOUT = 10.0
"""Seconds that all observers together may take after the last request; the series of a slower one are lost."""

_EARLY = 0.02
"""Seconds before t=0 at which every observer takes a sample, so that short runs have one from their start."""
_WAIT_STEP = 0.05
"""Seconds after which the end of the waiting is noticed."""
_TELL_EVERY = 0.5
"""Seconds between two calls that say which observers have not ended."""


class Observer(Protocol):
    """Records something beside a run. All methods but `now` and `close` are called in one thread, never in parallel. Inherit from this
    class: what an observer has no use for, it leaves out."""

    interval: float = 0.0
    """Seconds between two calls of `sample`; 0: it is not called."""
    warning: str = ""
    """After `start`: what will be missing, in a sentence for the live view; empty: nothing that is known yet."""

    def start(self) -> None:
        """Prepare, and take the values from before the first request."""
        return

    def mark(self, stage: int) -> None:
        """Take the values at the start of a stage (the first stage, 0, is not announced)."""
        return

    def sample(self) -> None:
        """Take the current values. A call that takes longer than the interval delays the next one; none are made up for."""
        return

    def end(self) -> Sequence[TimeSeries]:
        """Take the values from after the last request, and return all series, their times by CLOCK_MONOTONIC. After a run of many hours
        there are millions of values: record them in columns (series.py), so that nothing is left to be done for each of them."""
        return ()

    def problems(self) -> Mapping[str, str]:
        """Return what is missing from the series, and why: the reason by what it is about. Called after `end`."""
        return {}

    def helper_cpu(self) -> float:
        """Return the CPU seconds of the threads that the observer started itself (HelperCpu). Called after `end`."""
        return 0.0

    def now(self) -> Mapping[str, float]:
        """Return the latest figures for the live view, by the names of server_metrics/vocabulary.py. Called in the main thread at any
        time, so it must return at once."""
        return {}

    def close(self) -> None:
        """Release what the observer holds. Called in the main thread, at the end of everything: the run has been stored, or has failed,
        possibly before `start`. It must return soon."""
        return


class HelperCpu:
    """CPU time that the helper threads of an observer have taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seconds = 0.0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Add what this thread takes in the block."""
        begin = time.thread_time()
        try:
            yield
        finally:
            took = time.thread_time() - begin
            with self._lock:
                self.seconds += took


class Observers:
    """Drives observers, by name, from start to end. Use it as a context manager: leaving it ends the threads and closes the
    observers."""

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        self._threads = {name: _ObserverThread(observer) for name, observer in observers.items()}
        self._is_waiting = True
        self.errors: dict[str, str] = {}
        """Why an observer's series are missing or incomplete, by its name or by what they are about; complete after `end`."""
        self.cpu_seconds: dict[str, float] = {}
        """CPU time of each observer's threads; complete after `end`."""

    def __enter__(self) -> "Observers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for thread in self._threads.values():
            thread.tell(ending=True)
            thread.observer.close()

    def __bool__(self) -> bool:
        return bool(self._threads)

    def start(self, timeout: float = START_TIMEOUT) -> None:
        """Start all observers at once and wait until they are ready, but not longer than `timeout`."""
        deadline = time.monotonic() + timeout
        for thread in self._threads.values():
            thread.start()
        for thread in self._threads.values():
            thread.ready.wait(max(deadline - time.monotonic(), 0))

    def begin(self, t0: int) -> None:
        """Announce the start of the run, in ns by CLOCK_MONOTONIC, so that samples are taken right before it."""
        for thread in self._threads.values():
            thread.tell(extra=t0 / NS - _EARLY)

    def mark(self, stage: int) -> None:
        """Announce the current stage; returns at once. Announcing a stage again has no effect."""
        for thread in self._threads.values():
            thread.tell(stage=stage)

    def now(self) -> dict[str, float]:
        """Return the latest figures of all observers, for the live view: sums of their values, or means of shares and the like."""
        values: dict[str, list[float]] = {}
        for thread in self._threads.values():
            for name, value in thread.observer.now().items():
                values.setdefault(name, []).append(value)
        return {name: sum(each) if _is_additive(name) else sum(each) / len(each) for name, each in values.items()}

    def stop_waiting(self) -> None:
        """Make `end` return now, without the series of observers that have not ended. Safe in a signal handler."""
        self._is_waiting = False  # not an Event: the thread that the signal interrupts may hold its lock

    def end(
        self, timeout: float = END_TIMEOUT, *, waiting: Callable[[Sequence[str]], None] = lambda _: None
    ) -> tuple[TimeSeries, ...]:
        """End all observers at once and return the series of those that end within `timeout`. From time to time, `waiting` is called with
        the names of those that have not ended yet."""
        deadline = time.monotonic() + timeout
        for thread in self._threads.values():
            thread.tell(ending=True)
        self._wait(deadline, waiting)
        late = f"did not end within {timeout:g} s" if self._is_waiting else "ended by Ctrl-C"
        series: list[TimeSeries] = []
        for name, thread in self._threads.items():
            ended = thread.ended.is_set()
            series += thread.series if ended else ()
            if error := thread.error if ended else late:
                self.errors[name] = error
            if ended:
                self.errors |= thread.observer.problems()
                self.cpu_seconds[name] = thread.cpu_seconds + thread.observer.helper_cpu()
        return tuple(series)

    def _wait(self, deadline: float, waiting: Callable[[Sequence[str]], None]) -> None:
        """Wait until all observers have ended, until the deadline, or until `stop_waiting` is called."""
        due = time.monotonic() + _TELL_EVERY
        while self._is_waiting and time.monotonic() < deadline:
            pending = {name: thread for name, thread in self._threads.items() if not thread.ended.is_set()}
            if not pending:
                return
            if time.monotonic() >= due:
                waiting(tuple(pending))
                due = time.monotonic() + _TELL_EVERY
            next(iter(pending.values())).ended.wait(min(_WAIT_STEP, max(deadline - time.monotonic(), 0)))


def _is_additive(name: str) -> bool:
    return name not in QUANTITIES or QUANTITIES[name].is_additive


class _ObserverThread:
    """One observer and its thread."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._changed = threading.Condition()
        self._stage = 0
        self._ending = False
        self._extra = math.inf
        self.ready, self.ended = threading.Event(), threading.Event()
        self.series: tuple[TimeSeries, ...] = ()
        self.error = ""
        self.cpu_seconds = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="observer", daemon=True).start()

    def tell(self, stage: int = 0, ending: bool = False, extra: float = math.inf) -> None:
        """Announce a stage, the end, or the time (monotonic, in seconds) of an additional sample."""
        with self._changed:
            self._extra = min(self._extra, extra)
            self._stage, self._ending = max(stage, self._stage), self._ending or ending
            self._changed.notify()

    def _run(self) -> None:
        try:
            self.observer.start()
            self.ready.set()
            self._follow_stages()
            self.series = tuple(self.observer.end())
        except UserError as error:
            self.error = error.what
        except Exception as error:  # whatever it was, it must not cost the run
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.cpu_seconds = time.thread_time()
            self.ready.set()
            self.ended.set()

    def _follow_stages(self) -> None:
        """Announce stages, and sample in between, until the end. If the run ends while a stage is still to be announced, that stage is
        skipped: its values would be those of the end.
        """
        marked = 0
        interval = self.observer.interval
        due = time.monotonic() + interval
        while True:
            with self._changed:
                while not self._ending and self._stage == marked and not (interval and self._is_due(due)):
                    self._changed.wait(max(min(due, self._extra) - time.monotonic(), 0) if interval else None)
                if self._ending:
                    return
                has_new_stage, marked = self._stage > marked, self._stage
            if has_new_stage:
                self.observer.mark(marked)
            else:
                self.observer.sample()
                due = max(due + interval, time.monotonic())

    def _is_due(self, due: float) -> bool:
        """Whether to sample now. An additional sample is taken once."""
        at = time.monotonic()
        is_extra = at >= self._extra
        if is_extra:
            self._extra = math.inf
        return is_extra or at >= due
