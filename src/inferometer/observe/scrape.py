"""An observer that scrapes a Prometheus endpoint: at the start, at the observer's interval, when a stage begins, and at the end.

Stored are `up` at every scrape, and other samples when they have changed, or NaN when they are not on the page any more. Buckets of histograms, most of a page, are stored only
at the start, when a stage begins and at the end; the sum and the count of a histogram are stored like everything else.

A server may count a request only after it has sent the response. So when nothing is in flight, before the first stage and after
the last, the page is read until its counters have not changed for a while.
"""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from inferometer.errors import UserError
from inferometer.observe.observer import Observer
from inferometer.probe import query
from inferometer.probe.connect import Peer, Refused
from inferometer.series import Column, TimeSeries
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

_Key = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a series."""


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
        self._columns: dict[_Key, Column] = {}
        self._present: dict[bool, set[_Key]] = {False: set(), True: set()}
        """What the latest page had, by whether it is a bucket."""
        self._up = Column(SOURCE, UP, {"target": endpoint.url})
        self._stages = Column(SOURCE, STAGE, {"target": endpoint.url})
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

    def end(self) -> Sequence[TimeSeries]:
        """Take the values from after the last request, and return all series."""
        self._scrape_until_unchanged()
        return [column.series() for column in (self._up, self._stages, *self._columns.values()) if column.at]

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
        stored = {_key(sample): sample for sample in page.samples if sample.name != UP and not _is_bucket(sample)}
        self._store(at, stored, buckets=False)
        if with_buckets:
            self._store(at, {_key(sample): sample for sample in page.samples if _is_bucket(sample)}, buckets=True)
        self._now = families.latest(stored.values(), self._model)
        return page

    def _store(self, at: int, samples: Mapping[_Key, Sample], buckets: bool) -> None:
        """Store what has changed, and NaN for series that are not on the page any more: what is stored holds until the next value."""
        for key in self._present[buckets] - samples.keys():
            self._columns[key].append_change(at, math.nan)
        self._present[buckets] = set(samples)
        for key, sample in samples.items():
            column = self._columns.get(key)
            if column is None:
                labels = _labelled(sample.labels, self._endpoint.url)
                column = self._columns[key] = Column(SOURCE, sample.name, labels)
            column.append_change(at, sample.value)

    def _scrape_until_unchanged(self) -> None:
        begin = time.monotonic()
        page = self._scrape(with_buckets=True)
        while page is not None and time.monotonic() - begin < _READ_FOR_S:
            time.sleep(_READ_EVERY_S)
            earlier, page = page, self._scrape(with_buckets=True)
            if page is not None and _totals(page) == _totals(earlier):
                return


def _labelled(labels: Mapping[str, str], url: str) -> dict[str, str]:
    """Add the endpoint; a label of that name is renamed as Prometheus does it."""
    return {"exported_target" if name == "target" else name: value for name, value in labels.items()} | {"target": url}


def _key(sample: Sample) -> _Key:
    return sample.name, tuple(sample.labels.items())


def _is_bucket(sample: Sample) -> bool:
    return sample.name.endswith("_bucket") and "le" in sample.labels


def _totals(page: Page) -> dict[_Key, float]:
    """Return what changes only when the server counts something: whole-numbered counters and the counts of histograms and summaries.
    Not what grows with time, such as CPU seconds, and not what this very scrape changes."""
    return {
        _key(sample): sample.value
        for sample in page.samples
        if sample.value.is_integer()
        and not sample.name.startswith(_OWN)
        and (page.types.get(sample.name) == "counter" or sample.name.endswith(("_total", "_count")))
    }


_OWN = ("process_", "python_", "go_", "http_", "promhttp_")
"""Prefixes of metrics about the process and its HTTP server."""
