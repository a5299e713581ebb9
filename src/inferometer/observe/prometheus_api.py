"""The HTTP API of a Prometheus server, and of whatever offers the same API: Thanos, Mimir, managed services."""

import ssl
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from inferometer.config.secret import without_password
from inferometer.errors import UserError
from inferometer.printable import hide
from inferometer.probe import query
from inferometer.probe.connect import Peer
from inferometer.probe.roundtrip import TooLarge
from inferometer.wire.context import USER_AGENT
from inferometer.wire.failures import MALFORMED, bounded, excerpt
from inferometer.wire.target import Target, parse

MAX_BYTES = 64 << 20
"""Maximum size of a response."""
_CONNECT_TIMEOUT = 3.0
_SETTING_AT_FAULT = (400, 401, 403, 404, 405)
"""Statuses that say that a setting is wrong, and that it will still be wrong after the run."""
_TOO_MUCH = 422
"""Prometheus' status for a query that it cannot execute, most often because it would load too many samples."""

Kind = Literal["setting", "too_much", "trouble"]
"""Why there is no result: the URL, the token or the expression is wrong; the result is too large; or the server cannot be reached or
has an error of its own."""
_T = TypeVar("_T")


class QueryError(UserError):
    """A query without a result."""

    def __init__(self, what: str, kind: Kind = "trouble") -> None:
        super().__init__(what)
        self.kind = kind


class Result(msgspec.Struct, frozen=True):
    """One series of a result."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    """Seconds since 1970, and the value in Prometheus' notation."""
    histograms: msgspec.Raw = msgspec.Raw()
    """Native histograms; not decoded."""


class Answer(msgspec.Struct, frozen=True):
    """What the server returned for a query, and when (CLOCK_MONOTONIC ns)."""

    data: msgspec.Raw
    sent: int
    done: int
    warnings: tuple[str, ...] = ()

    def series(self) -> list[Result]:
        """Decode a matrix."""
        return _decoded(self.data, _Matrix).result

    def scalar(self) -> float:
        return float(_decoded(self.data, _Scalar).result[1])


class _Matrix(msgspec.Struct, tag_field="resultType", tag="matrix"):
    result: list[Result]


class _Scalar(msgspec.Struct, tag_field="resultType", tag="scalar"):
    result: tuple[float, str]


class _Envelope(msgspec.Struct, rename="camel"):
    status: str
    data: msgspec.Raw = msgspec.Raw()
    error: str = ""
    error_type: str = ""
    warnings: tuple[str, ...] = ()


class PrometheusApi:
    """Sends queries to one server. All methods raise QueryError, without the secrets, if there is no result."""

    def __init__(self, url: str, headers: Mapping[str, str], secrets: Sequence[str] = ()) -> None:
        """Raises UserError when `url` is not a URL. `secrets` are removed from messages."""
        target = _target(url)
        credentials = {"Authorization": target.credentials} if target.credentials else {}
        self._peer = Peer(target, _tls_context() if target.tls else None)
        self._headers = USER_AGENT | credentials | dict(headers) | {"Content-Type": "application/x-www-form-urlencoded"}
        self._secrets = tuple(secrets)
        self.url = target.url

    def evaluate(self, expression: str, at: float | None, timeout: float) -> Answer:
        """Evaluate at one time: seconds since 1970; None: the server's present."""
        return self._post(
            "/api/v1/query", {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"}), timeout
        )

    def evaluate_range(self, expression: str, begin: float, end: float, step: float, timeout: float) -> Answer:
        """Evaluate at `begin` and every `step` seconds until `end`."""
        times = {"start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return self._post("/api/v1/query_range", {"query": expression} | times, timeout)

    def metric_names(self, timeout: float) -> list[str]:
        """Return the names of all metrics that the server has."""
        return _decoded(self._send("GET", "/api/v1/label/__name__/values", b"", timeout).data, list[str])

    def _post(self, path: str, form: dict[str, str], timeout: float) -> Answer:
        """POST, because expressions may be longer than a URL may be."""
        return self._send("POST", path, urlencode(form).encode(), timeout)

    def _send(self, method: str, path: str, body: bytes, timeout: float) -> Answer:
        limits = {"connect_timeout": min(timeout, _CONNECT_TIMEOUT), "timeout": timeout}
        peer = msgspec.structs.replace(self._peer, **limits)
        try:
            reply = query.http(peer, method, path, self._headers, body, deadline=timeout, max_size=MAX_BYTES)
            return _answer(reply)
        except QueryError as error:
            raise QueryError(hide(f"{self.url}: {error.what}", self._secrets), error.kind) from None
        except UserError as error:
            kind: Kind = "too_much" if isinstance(error, TooLarge) else "trouble"
            raise QueryError(hide(error.what, self._secrets), kind) from None


def _answer(reply: query.Reply) -> Answer:
    kind: Kind = (
        "setting" if reply.status in _SETTING_AT_FAULT else "too_much" if reply.status == _TOO_MUCH else "trouble"
    )
    if 300 <= reply.status < 400:
        to = without_password(reply.headers.get("location", "")) or "nowhere"
        raise QueryError(f"HTTP {reply.status}: it redirects to {to}", "setting")
    try:
        envelope = msgspec.json.decode(reply.body, type=_Envelope)
    except MALFORMED:
        raise QueryError(
            f"HTTP {reply.status}: {_excerpt(reply)}", "setting" if reply.status == 200 else kind
        ) from None
    if envelope.status != "success":
        reason = ": ".join(part for part in (envelope.error_type, envelope.error) if part) or envelope.status
        raise QueryError(bounded(f"HTTP {reply.status}: {reason}"), kind)
    return Answer(envelope.data, reply.sent, reply.done, envelope.warnings)


def _excerpt(reply: query.Reply) -> str:
    """Describe a body that is not a Prometheus server's."""
    if "html" in reply.headers.get("content-type", "") or reply.body.lstrip()[:1] == b"<":
        return "a web page instead of a result"
    text = excerpt(reply.body, 1000)
    return text or "an empty body instead of a result"


def _decoded(data: msgspec.Raw, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except MALFORMED as error:
        raise QueryError(f"the result is not what was queried: {error}") from None


def _target(url: str) -> Target:
    try:
        target = parse(url)
    except UserError as error:
        raise UserError(error.what, "write http://HOST:PORT or https://HOST/PREFIX", "observe.promql.url") from None
    if target.grpc:
        raise UserError(f"{target.url}: Prometheus does not speak gRPC", "write http://HOST:PORT", "observe.promql.url")
    path = urlsplit(url).path.rstrip("/")
    if path.endswith("/api/v1"):  # the URL of the API instead of the base URL
        return msgspec.structs.replace(target, prefix=target.prefix.removesuffix("/api"))
    is_cut = path.endswith("/v1")  # `parse` removes it from the URLs of OpenAI's API; here it belongs to the prefix
    return msgspec.structs.replace(target, prefix=target.prefix + "/v1" * is_cut)


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
