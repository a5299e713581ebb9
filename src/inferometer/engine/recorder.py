"""Records how each request ended, and stops the run when the disk is full."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.run_state import RunState
from inferometer.records import CANCELLED, COUNTED_BY, Sample
from inferometer.store.spool import Spool
from inferometer.types import Fail

if TYPE_CHECKING:
    from inferometer.store.body_spool import BodySpool

_BY_TOKENIZER = COUNTED_BY.index("tokenizer")


class Recorder:
    """`texts` are responses without usage from the server, with their request ids: their tokens are counted after the run.
    It stays empty unless the recorder `keeps_texts`."""

    def __init__(
        self,
        spool: Spool,
        state: RunState,
        on_disk_full: Callable[[], None],
        keeps_texts: bool = False,
        bodies: "BodySpool | None" = None,
    ) -> None:
        self._spool = spool
        self._spool.failure(CANCELLED, "")  # written now, so that rows can refer to it even on a full disk
        self._state = state
        self._on_disk_full = on_disk_full
        self._keeps_texts = keeps_texts
        self._bodies = bodies
        self.responses: dict[int, tuple[str, str | None]] = {}
        """With `bodies`: the text and the finish reason of responses that are not yet recorded, by the request's id."""
        self.texts: list[tuple[int, str]] = []

    def record(self, ended: Sequence[Ended]) -> None:
        """Record requests that ended. When the disk is full, earlier records stay, and few more can be added."""
        state, flights, is_full = self._state, list[Flight](), False
        for flight, event, text in ended:
            if flight.n_in >= 0 and not flight.in_counted_by:  # known before the request was sent
                flight.in_counted_by = _BY_TOKENIZER
            if isinstance(event, Fail):
                state.failed += 1
                try:
                    flight.failure = self._spool.failure(event.code, event.message)
                except OSError:
                    is_full = True
                    continue
            else:
                state.ok += 1
                if self._keeps_texts and text is not None and not flight.counted_by:
                    self.texts.append((flight.id, text))
            flights.append(flight)
        try:
            self._spool.add(flights)
            if self._bodies is not None:
                for flight in flights:
                    if flight.sent:
                        self._bodies.add(flight, *self.responses.pop(flight.id, ("", None)))
        except OSError:
            is_full = True
        if is_full:
            self._disk_is_full()

    def flush(self) -> None:
        """Write the texts that were kept since the last call to their file."""
        if self._bodies is not None:
            try:
                self._bodies.flush()
            except OSError:
                self._disk_is_full()

    def sample(self, sample: Sample) -> None:
        try:
            self._spool.sample(sample)
        except OSError:
            self._disk_is_full()

    def save_counts(self, counts: list[int], counted_by: int) -> None:
        """Store the token counts of `texts`, made after the run."""
        ids = (id for id, _ in self.texts)
        self._spool.set_tokens(dict(zip(ids, counts, strict=True)), counted_by)

    def count_chunks(self) -> None:
        """Take the number of chunks for that of tokens, for responses whose tokens neither side has counted."""
        self._spool.count_chunks(COUNTED_BY.index("chunks"))

    def _disk_is_full(self) -> None:
        control = self._spool.control
        if not control["disk_full"]:  # ending the requests in flight records them, which leads here again
            control["disk_full"] = 1
            self._on_disk_full()
