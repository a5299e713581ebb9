"""An observer that scrapes a Prometheus endpoint: at the start, at the observer's interval, when a stage begins, and at the end.

Stored are `up` at every scrape, and other samples when they have changed. Buckets of histograms, most of a page, are stored only
at the start, when a stage begins and at the end; the sum and the count of a histogram are stored like everything else.

A server may count a request only after it has sent the response. So when nothing is in flight, before the first stage and after
the last, the page is read until its counters have not changed for a while.
"""

import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from inferometer.errors import UserError
from inferometer.observe.observer import Observer
from inferometer.probe import query
from inferometer.probe.connect import Peer, Refused
from inferometer.series import SeriesRow
from inferometer.server_metrics import families
from inferometer.server_metrics.exposition import NotAnExposition, Page, Sample, parse_page
from inferometer.server_metrics.targets import SOURCE, STAGE, UP
from inferometer.timing.clock import now
from inferometer.wire.context import USER_AGENT
from inferometer.wire.failures import bounded

TIMEOUT = 2.0
"""Seconds to connect, and from the request to the end of the page."""
MAX_PAGE = 8 * 2**20
"""Bytes of a page."""
_HEADERS = USER_AGENT | {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}

_NOT_OFFERED = (404, 405, 501)
"""HTTP status codes of a server that has no such endpoint."""

_READ_EVERY_S = 0.06
_READ_FOR_S = 0.5
"""Then take what there is: other clients may be using the server."""
_SHOWN_REASONS = 3


class NotOffered(UserError):  # noqa: N818 - not an error of the server
    """The server has no metrics at this endpoint."""


class Endpoint(msgspec.Struct, frozen=True):
    """An endpoint to scrape."""

    peer: Peer
    path: str
    url: str
    """As it is stored and shown: without credentials and query."""
    headers: dict[str, str] = {}
    """Credentials and the like."""


def fetch(endpoint: Endpoint, timeout: float = TIMEOUT) -> tuple[int, Page]:
    """Return the page, and the instant halfway between the request and the first byte of the response (CLOCK_MONOTONIC ns).

    Raises UserError, without a remedy, when the page could not be read: NotOffered, if there is none.
    """
    peer = msgspec.structs.replace(
        endpoint.peer, connect_timeout=timeout, timeout=0
    )  # reads are limited by the deadline
    headers = _HEADERS | endpoint.headers
    try:
        reply = query.http(peer, "GET", endpoint.path, headers, deadline=timeout, max_size=MAX_PAGE)
    except UserError as error:  # the report names the endpoint before the reason
        reason = error.what.removeprefix(f"{peer.target.url}: ").removeprefix(f"GET {endpoint.path}: ")
        raise (NotOffered if isinstance(error, Refused) else UserError)(reason) from None
    if reply.status in _NOT_OFFERED:
        raise NotOffered(f"HTTP status {reply.status}")
    if reply.status != 200:
        raise UserError(f"HTTP status {reply.status}")
    if (encoding := reply.headers.get("content-encoding", "identity")) != "identity":
        raise UserError(f"the page is encoded ({bounded(encoding)}), although that was not accepted")
    try:
        return (reply.sent + reply.first_byte) // 2, parse_page(reply.body.decode("utf-8", "replace"))
    except NotAnExposition as error:
        raise NotOffered(str(error)) from None


class Scrape(Observer):
    """Scrapes one endpoint."""

    def __init__(self, endpoint: Endpoint, interval: float, model: str = "") -> None:
        """`model` is the measured one: the live view shows its figures, if the server reports them by model."""
        self.interval = interval
        self._endpoint = endpoint
        self._model = model
        self._columns: dict[tuple[str, tuple[tuple[str, str], ...]], _Column] = {}
        self._up = _Column(UP, {"target": endpoint.url})
        self._stages = _Column(STAGE, {"target": endpoint.url})
        self._reasons: Counter[str] = Counter()
        self._now: Mapping[str, float] = {}

    def start(self) -> None:
        """Take the values from before the first request."""
        self._scrape_until_unchanged()
        if self._reasons:
            self.warning = f"{self._endpoint.url}: {next(iter(self._reasons))}; its metrics will be missing"

    def mark(self, stage: int) -> None:
        """Take the values at the start of a stage."""
        if self._scrape(with_buckets=True) is not None:
            self._stages.append(self._up.at[-1], stage)

    def sample(self) -> None:
        """Take the current values."""
        self._scrape()

    def end(self) -> list[SeriesRow]:
        """Take the values from after the last request, and return all rows."""
        self._scrape_until_unchanged()
        return [row for column in (self._up, self._stages, *self._columns.values()) for row in column.rows()]

    def problems(self) -> Mapping[str, str]:
        """Return why scrapes failed."""
        if not self._reasons:
            return {}
        failed, scrapes = self._reasons.total(), len(self._up.at)
        reasons = self._reasons.most_common(_SHOWN_REASONS)
        why = "; ".join(f"{reason} ({count})" for reason, count in reasons) if len(reasons) > 1 else reasons[0][0]
        return {self._endpoint.url: why if failed == scrapes else f"{failed} of {scrapes} scrapes failed: {why}"}

    def now(self) -> Mapping[str, float]:
        """Return what the latest page says; nothing if it could not be read."""
        return self._now

    def _scrape(self, with_buckets: bool = False) -> Page | None:
        try:
            at, page = fetch(self._endpoint)
        except UserError as error:
            self._up.append(now(), 0)
            self._reasons[error.what] += 1
            self._now = {}
            return None
        self._up.append(at, 1)
        stored = [sample for sample in page.samples if sample.name != UP and (with_buckets or not _is_bucket(sample))]
        for sample in stored:
            self._store(at, sample)
        self._now = families.latest(stored, self._model)
        return page

    def _store(self, at: int, sample: Sample) -> None:
        key = (sample.name, tuple(sample.labels.items()))
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = _Column(sample.name, _labelled(sample.labels, self._endpoint.url))
        if not column.value or column.value[-1] != sample.value:
            column.append(at, sample.value)

    def _scrape_until_unchanged(self) -> None:
        begin = time.monotonic()
        page = self._scrape(with_buckets=True)
        while page is not None and time.monotonic() - begin < _READ_FOR_S:
            time.sleep(_READ_EVERY_S)
            earlier, page = page, self._scrape(with_buckets=True)
            if page is not None and _totals(page) == _totals(earlier):
                return


class _Column:
    """The values of a series that were stored, and when."""

    def __init__(self, name: str, labels: dict[str, str]) -> None:
        self._name, self._labels = name, labels
        self.at, self.value = array("q"), array("d")

    def append(self, at: int, value: float) -> None:
        self.at.append(at)
        self.value.append(value)

    def rows(self) -> Iterator[SeriesRow]:
        for at, value in zip(self.at, self.value, strict=True):
            yield SeriesRow(SOURCE, self._name, self._labels, at, value)


def _labelled(labels: Mapping[str, str], url: str) -> dict[str, str]:
    """Add the endpoint; a label of that name is renamed as Prometheus does it."""
    return {"exported_target" if name == "target" else name: value for name, value in labels.items()} | {"target": url}


def _is_bucket(sample: Sample) -> bool:
    return sample.name.endswith("_bucket") and "le" in sample.labels


def _totals(page: Page) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return what changes only when the server counts something: whole-numbered counters and the counts of histograms and summaries.
    Not what grows with time, such as CPU seconds, and not what this very scrape changes."""
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for sample in page.samples
        if sample.value.is_integer()
        and not sample.name.startswith(_OWN)
        and (page.types.get(sample.name) == "counter" or sample.name.endswith(("_total", "_count")))
    }


_OWN = ("process_", "python_", "go_", "http_", "promhttp_")
"""Prefixes of metrics about the process and its HTTP server."""
