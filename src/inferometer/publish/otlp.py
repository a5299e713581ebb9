"""Sends spans and metrics of a run to an OpenTelemetry receiver (OTLP) while the run is in progress.

The observer's thread reads the requests that have ended and makes messages; a thread of its own sends them, one at a time. What has
not been sent yet stays in the run's spool on disk, so a slow receiver costs no memory, and one that comes back gets everything.

- A message that the receiver has certainly not processed is sent again later. One without a response in time is not: it may have arrived.
- After a failure, nothing is sent for a while, longer each time.
- After the run, the first failure or the deadline ends the sending. Spans that have not been received by then are lost, and counted.
"""

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from inferometer.observe.observer import END_TIMEOUT, Observer
from inferometer.publish.families import LiveFamilies
from inferometer.publish.new_rows import NewRows, Rows
from inferometer.publish.otlp_metrics import metrics_message
from inferometer.publish.otlp_transport import Message, Outcome, Transport
from inferometer.publish.spans import SpanMaker
from inferometer.records import ROW
from inferometer.series import SeriesRow
from inferometer.timing.clock import wall_offset

_INTERVAL = 0.5
"""Seconds between two looks for requests that have ended. Messages may be sent for as long, one after the other."""
_METRICS_EVERY = 5.0
"""Seconds between two messages with metrics."""
_MOST_SPANS = 2_000
"""Maximum number of spans in a message: about 1 MB. Receivers take at least 4 MB."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
"""Seconds without sending after a failure: they double with every further one."""
_MOST_AT_END = END_TIMEOUT - 1.0
"""Seconds that sending may take after the run, whatever the config says: observers have no more."""


class _Export(NamedTuple):
    """A message, and how many spans it has; 0: it has metrics."""

    message: Message
    spans: int


class OtlpExport(Observer):
    """Sends what `spans` and `families` offer; None: nothing of the kind. `receiver` is how problems name the receiver."""

    interval = _INTERVAL

    def __init__(
        self,
        transport: Transport,
        receiver: str,
        timeout: float,
        spans: "EndedSpans | None",
        metrics: "LiveMetrics | None",
    ) -> None:
        self._sender = _Sender(transport)
        self._receiver, self._timeout = receiver, timeout
        self._spans, self._metrics = spans, metrics
        self._pending: _Export | None = None  # being sent, or to be sent again
        self._pause = _Pause()
        self._reason = ""  # why the latest message that failed did so

    def mark(self, stage: int) -> None:
        if self._metrics is not None:
            self._metrics.mark(stage)

    def sample(self) -> None:
        self._send(time.monotonic() + _INTERVAL, self._timeout)

    def end(self) -> Sequence[SeriesRow]:
        deadline = time.monotonic() + min(self._timeout, _MOST_AT_END)
        if self._sender.is_busy:  # a message from before the end: if it fails, the others are still tried
            self._receive(deadline)
        self._pause.end()
        if self._metrics is not None:
            self._metrics.is_due = True
        self._send(deadline, min(self._timeout, _MOST_AT_END))
        return ()

    def close(self) -> None:
        self._sender.close()

    def problems(self) -> Mapping[str, str]:
        reason = self._reason or f"there was no time left after the run (export.otlp.timeout is {self._timeout:g} s)"
        counts = {"otlp spans": self._spans, "otlp metrics": self._metrics}
        return {
            name: f"{count.offered - count.received:,} of {count.offered:,} {count.unit} were not sent to {self._receiver}: {reason}"
            for name, count in counts.items()
            if count is not None and count.received < count.offered
        }

    def _send(self, until: float, timeout: float) -> None:
        """Send one message after the other until there is nothing left, one fails, or this instant has come."""
        while time.monotonic() < until:
            if self._sender.is_busy:
                self._receive(until)
                continue
            if self._pause.is_on:
                return
            self._pending = self._pending or self._next()
            if self._pending is None:
                return
            self._sender.send(self._pending.message, timeout)

    def _next(self) -> _Export | None:
        """Make the next message: metrics first, because they are short."""
        message = self._metrics.next() if self._metrics is not None else None
        if message is not None:
            return _Export(message, 0)
        return self._spans.next() if self._spans is not None else None

    def _receive(self, until: float) -> None:
        """Wait for the outcome of the message that is being sent, and take note of it."""
        outcome = self._sender.outcome(until)
        if outcome is None:
            return
        export, self._pending = self._pending, None
        assert export is not None
        self._reason = outcome.reason or self._reason
        if not outcome.is_received:
            self._pause.begin()
            if outcome.can_retry and export.spans:  # the next message with metrics has newer ones
                self._pending = export
            return
        self._pause = _Pause()
        if self._spans is not None and export.spans:
            self._spans.received += export.spans - outcome.rejected
        elif self._metrics is not None:
            self._metrics.received += not outcome.rejected


class EndedSpans:
    """The spans of the requests that have ended, in messages."""

    unit = "spans"

    def __init__(self, rows: NewRows, maker: SpanMaker) -> None:
        self._new_rows, self._maker = rows, maker
        self._pieces: Iterator[tuple[int, Rows]] = iter(())
        self._shard, self._rows = 0, np.empty(0, ROW)  # what has been read and is not in a message yet
        self.received = 0
        """Spans that the receiver has accepted."""

    @property
    def offered(self) -> int:
        """Requests that have ended."""
        return self._new_rows.count

    def next(self) -> _Export | None:
        """Return the next message; None if there are no more requests that have ended."""
        if not len(self._rows):
            self._read()
        rows, self._rows = self._rows[:_MOST_SPANS], self._rows[_MOST_SPANS:]
        if not len(rows):
            return None
        failure_of = partial(self._new_rows.failure, self._shard)
        return _Export(self._maker.message(rows, failure_of, wall_offset()), len(rows))

    def _read(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:  # the last look has come to its end: look again
            self._pieces = self._new_rows.pieces()
            piece = next(self._pieces, None)
        if piece is not None:
            self._shard, self._rows = piece


class LiveMetrics:
    """The metrics of the run, in messages."""

    unit = "messages"

    def __init__(self, run: str, families: LiveFamilies) -> None:
        self._run, self._families = run, families
        self._started = time.time_ns()
        self._due = time.monotonic() + _METRICS_EVERY
        self.is_due = False
        """A message is due now, however short ago the last one was."""
        self.offered = 0
        self.received = 0
        """Messages that the receiver has accepted."""

    def mark(self, stage: int) -> None:
        self._families.mark(stage)

    def next(self) -> ExportMetricsServiceRequest | None:
        """Return the next message; None if it is not due yet."""
        if not self.is_due and time.monotonic() < self._due:
            return None
        self.is_due, self._due = False, time.monotonic() + _METRICS_EVERY
        self.offered += 1
        self._families.update()
        return metrics_message(self._run, self._families.read(), self._started, time.time_ns())


class _Pause:
    """The time after a failure in which nothing is sent."""

    def __init__(self) -> None:
        self._until, self._length = 0.0, _FIRST_PAUSE

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self._until

    def begin(self) -> None:
        self._until = time.monotonic() + self._length
        self._length = min(2 * self._length, _LONGEST_PAUSE)

    def end(self) -> None:
        self._until = 0.0


class _Sender:
    """Sends one message at a time in a thread of its own, which never holds up the end of a run."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._messages: queue.SimpleQueue[tuple[Message, float] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.is_busy = False

    def send(self, message: Message, timeout: float) -> None:
        """Send a message within a number of seconds. Allowed if it is not busy."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
            self._thread.start()
        self.is_busy = True
        self._messages.put((message, timeout))

    def outcome(self, until: float) -> Outcome | None:
        """Wait for the outcome of the message until this instant; None if there is none yet."""
        try:
            outcome = self._outcomes.get(timeout=max(until - time.monotonic(), 0))
        except queue.Empty:
            return None
        self.is_busy = False
        return outcome

    def close(self) -> None:
        self._messages.put(None)
        self._transport.close()

    def _run(self) -> None:
        while (entry := self._messages.get()) is not None:
            try:
                self._outcomes.put(self._transport.send(*entry))
            except Exception as error:  # whatever it was, it must not cost the run
                self._outcomes.put(Outcome(False, reason=f"{type(error).__name__}: {error}"))
