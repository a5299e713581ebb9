"""Sends spans and metrics of a run to an OpenTelemetry receiver (OTLP) while the run is in progress.

The observer's thread reads the requests that have ended and makes messages; a thread of its own sends them, one at a time. What has
not been sent yet stays in the run's spool on disk, so a slow receiver costs no memory, and one that comes back gets everything.

- A message that the receiver has certainly not processed is sent again later. One without a response in time is not: it may have arrived.
- After a failure, no message of the same kind is sent for a while, longer each time.
- After the run, the first failure of its kind or the deadline ends the sending. Spans that have not been received by then are lost, and counted.
"""

import queue
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from inferometer.observe.observer import END_TIMEOUT, HelperCpu, Observer
from inferometer.publish.families import LiveFamilies
from inferometer.publish.new_rows import NewRows, Rows
from inferometer.publish.otlp_metrics import metrics_message
from inferometer.publish.otlp_transport import Message, Outcome, Transport, error_text, parse
from inferometer.publish.spans import SpanMaker
from inferometer.records import ROW
from inferometer.series import TimeSeries
from inferometer.timing.clock import wall_offset

_CONNECT_TIMEOUT = 1.0
"""Seconds in which the receiver must accept a connection before the run."""
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


class OtlpExport(Observer):
    """Sends the messages of its sources. `receiver` is how problems name the receiver."""

    interval = _INTERVAL

    def __init__(self, transport: Transport, receiver: str, timeout: float, sources: "Sequence[Source]") -> None:
        self._sender = _Sender(transport)
        self._receiver, self._timeout = receiver, timeout
        self._sources = sources
        self._sent: _Sent | None = None  # the message that is being sent

    def start(self) -> None:
        """Find out whether the receiver can be reached. Whatever it is, messages are sent: the receiver may be back by then."""
        target = parse(self._receiver)
        try:
            socket.create_connection((target.host, target.port), _CONNECT_TIMEOUT).close()
        except (OSError, UnicodeError) as error:
            self.warning = f"{self._receiver}: cannot connect: {error_text(error)}; what is sent there will be lost"

    def sample(self) -> None:
        self._send(time.monotonic() + _INTERVAL, self._timeout)

    def end(self) -> Sequence[TimeSeries]:
        timeout = min(self._timeout, _MOST_AT_END)
        deadline = time.monotonic() + timeout
        if self._sent is not None:  # a message from before the end: if it fails, the others are still tried
            self._receive(deadline)
        for source in self._sources:
            source.end()
            source.delivery.resume()
        self._send(deadline, timeout)
        if self._sent is not None:
            for source in self._sources:
                source.delivery.reason = source.delivery.reason or f"no response within {timeout:g} s"
        return ()

    def helper_cpu(self) -> float:
        return self._sender.cpu.seconds

    def close(self) -> None:
        self._sender.close()

    def problems(self) -> Mapping[str, str]:
        no_time = f"there was no time left after the run (export.otlp.timeout is {self._timeout:g} s)"
        return {
            f"otlp {source.name}": f"{source.offered - source.delivery.received:,} of {source.offered:,} {source.unit} were not "
            f"sent to {self._receiver}: {source.delivery.reason or no_time}"
            for source in self._sources
            if source.delivery.received < source.offered
        }

    def _send(self, until: float, timeout: float) -> None:
        """Send one message after the other until there is nothing left, all sources have failed, or this instant has come."""
        while time.monotonic() < until:
            if self._sent is not None:
                self._receive(until)
                continue
            self._sent = self._next()
            if self._sent is None:
                return
            self._sender.send(self._sent.message, timeout)

    def _next(self) -> "_Sent | None":
        for source in self._sources:
            if not source.delivery.is_paused and (message := source.next()) is not None:
                return _Sent(source, *message)
        return None

    def _receive(self, until: float) -> None:
        """Wait for the outcome of the message that is being sent, and take note of it."""
        outcome = self._sender.outcome(until)
        if outcome is None or self._sent is None:
            return
        sent, self._sent = self._sent, None
        sent.source.delivery.note(outcome, sent.size)
        if outcome.can_retry:
            sent.source.take_back(sent.message, sent.size)


class Source(Protocol):
    """Makes messages of one kind."""

    name: str
    unit: str
    """What `offered` counts."""
    delivery: "Delivery"

    @property
    def offered(self) -> int:
        """How much there was to send so far."""

    def next(self) -> tuple[Message, int] | None:
        """Return the next message and how much it has of what `offered` counts; None if there is nothing to send now."""

    def take_back(self, message: Message, size: int) -> None:
        """Keep a message that was not received, to send it again."""

    def end(self) -> None:
        """Note that the run has ended."""


class _Sent(NamedTuple):
    source: Source
    message: Message
    size: int


class Delivery:
    """What became of a source's messages, and the pause after one that failed."""

    def __init__(self) -> None:
        self.received = 0
        self.reason = ""
        """Why the latest message that failed did so."""
        self._paused_until, self._pause = 0.0, _FIRST_PAUSE

    @property
    def is_paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def resume(self) -> None:
        self._paused_until = 0.0

    def note(self, outcome: Outcome, size: int) -> None:
        self.reason = outcome.reason or self.reason
        if outcome.is_received:
            self.received += max(size - outcome.rejected, 0)
            self._pause = _FIRST_PAUSE
        else:
            self._paused_until = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)


class EndedSpans:
    """The spans of the requests that have ended."""

    name = unit = "spans"

    def __init__(self, rows: NewRows, maker: SpanMaker) -> None:
        self._new_rows, self._maker = rows, maker
        self._pieces: Iterator[tuple[int, Rows]] = iter(())
        self._shard, self._rows = 0, np.empty(0, ROW)  # what has been read and is not in a message yet
        self._again: tuple[Message, int] | None = None
        self.delivery = Delivery()

    @property
    def offered(self) -> int:
        return self._new_rows.count

    def next(self) -> tuple[Message, int] | None:
        again, self._again = self._again, None
        if again is not None:
            return again
        if not len(self._rows):
            self._read()
        rows, self._rows = self._rows[:_MOST_SPANS], self._rows[_MOST_SPANS:]
        if not len(rows):
            return None
        return self._maker.message(rows, partial(self._new_rows.failure, self._shard), wall_offset()), len(rows)

    def take_back(self, message: Message, size: int) -> None:
        self._again = message, size

    def end(self) -> None:
        return

    def _read(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:  # the last look has come to its end: look again
            self._pieces = self._new_rows.pieces()
            piece = next(self._pieces, None)
        if piece is not None:
            self._shard, self._rows = piece


class LiveMetrics:
    """The metrics of the run, every few seconds and at the end."""

    name, unit = "metrics", "messages"

    def __init__(self, run: str, families: LiveFamilies) -> None:
        self._run, self._families = run, families
        self._started = time.time_ns()
        self._due = time.monotonic() + _METRICS_EVERY
        self.offered = 0
        self.delivery = Delivery()

    def next(self) -> tuple[Message, int] | None:
        if time.monotonic() < self._due:
            return None
        self._due = time.monotonic() + _METRICS_EVERY
        self.offered += 1
        self._families.update()
        return metrics_message(self._run, self._families.read(), self._started, time.time_ns()), 1

    def take_back(self, message: Message, size: int) -> None:
        """Drop the message: the next one has newer figures."""

    def end(self) -> None:
        self._due = 0.0


class _Sender:
    """Sends one message at a time in a thread of its own, which never holds up the end of a run."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.cpu = HelperCpu()
        self._messages: queue.SimpleQueue[tuple[Message, float] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def send(self, message: Message, timeout: float) -> None:
        """Start to send a message, which may take this many seconds. The outcome of the one before must be known."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
            self._thread.start()
        self._messages.put((message, timeout))

    def outcome(self, until: float) -> Outcome | None:
        """Wait for the outcome of the message until this instant; None if there is none yet."""
        try:
            return self._outcomes.get(timeout=max(until - time.monotonic(), 0))
        except queue.Empty:
            return None

    def close(self) -> None:
        self._messages.put(None)
        self._transport.close()

    def _run(self) -> None:
        while (entry := self._messages.get()) is not None:
            try:
                with self.cpu.counted():
                    outcome = self._transport.send(*entry)
                self._outcomes.put(outcome)
            except Exception as error:  # whatever it was, it must not cost the run
                self._outcomes.put(Outcome(False, reason=f"{type(error).__name__}: {error}"))
