"""Which Prometheus endpoints a run scrapes: those of the config, or those that the measured servers turn out to have."""

import re
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urlsplit

import msgspec

from inferometer.config.schema import TLS, Server
from inferometer.errors import UserError
from inferometer.observe.observer import Observer
from inferometer.observe.scrape import Endpoint, NotOffered, fetch
from inferometer.probe import reach
from inferometer.probe.connect import Peer
from inferometer.probe.reach import Reached
from inferometer.wire.target import Target, parse

_KEY = "observe.prometheus"
_PATH = "/metrics"
_HOST = re.compile(r"(localhost|\[[0-9a-fA-F:]+\]|[\w.-]+(?=:\d))(:\d+)?([/?].*)?")
"""A URL without a scheme: `localhost`, `host:9100`, `[::1]:9100/metrics`."""
_LOOK_TIMEOUT = 1.0
"""Seconds in which a server must show that it has an endpoint."""
_TRITON_PORTS = (8000, 8001)
_TRITON_METRICS_PORT = 8002


def given(urls: Sequence[str], server: Server, reached: Reached) -> list[Endpoint]:
    """Return the endpoints with these URLs. Raises UserError when one is not a URL. The headers of the run, and so its API key, go
    only to the measured servers themselves.

    URLs may differ in the query alone, which is not shown because it may have a token: these get a number.
    """
    found = [_given(url, server, reached) for url in urls]
    count: Counter[str] = Counter()
    endpoints = []
    for endpoint in {(each.url, each.path): each for each in found}.values():
        count[endpoint.url] += 1
        number = f"#{count[endpoint.url]}" if count[endpoint.url] > 1 else ""
        endpoints.append(msgspec.structs.replace(endpoint, url=endpoint.url + number))
    return endpoints


def offered(server: Server, reached: Reached) -> tuple[list[Endpoint], list[str]]:
    """Return the endpoints that the measured servers have, and the URLs of servers that have none. Each endpoint is read once; one
    that cannot be read now is kept, so that the scrapes record why."""
    found: dict[str, Endpoint] = {}
    without: list[str] = []
    with ThreadPoolExecutor(max_workers=8) as pool:
        endpoints = pool.map(lambda target: _first(_candidates(target, server, reached)), reached.targets)
        for target, endpoint in zip(reached.targets, endpoints, strict=True):
            if endpoint is None:
                without.append(target.url)
            else:
                found.setdefault(endpoint.url, endpoint)
    return list(found.values()), without


class LeftOut(Observer):
    """Records which of several servers have no metrics, while others do: the figures are not those of all."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls

    def problems(self) -> Mapping[str, str]:
        """Return the servers that are left out."""
        servers = ", ".join(self._urls)
        return {"prometheus": f"no metrics of {servers} were found; name the endpoints of all servers with --observe"}


def _given(url: str, server: Server, reached: Reached) -> Endpoint:
    not_http = UserError(f"{_shown(url)!r} is not an HTTP URL", f"write http://HOST:PORT{_PATH}", _KEY)
    try:
        parts = urlsplit(f"http://{url}" if _HOST.fullmatch(url) else url)
        base = parse(f"{parts.scheme}://{parts.netloc}")
    except (ValueError, UserError):
        raise not_http from None
    if base.grpc:
        raise not_http
    path = quote(parts.path if parts.path.strip("/") else _PATH, safe="/%:@!$&'()*+,;=~")
    query = "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~?[]") if parts.query else ""
    measured = next((target for target in reached.targets if _is_same(target, base)), None)
    headers = reach.request_headers(measured, server, reached.secrets) if measured is not None else {}
    own = {"Authorization": base.credentials} if base.credentials else {}
    context = _context(server, is_measured=measured is not None) if base.tls else None
    return Endpoint(Peer(base, context), path + query, f"{base.url}{path}", headers | own)


def _shown(url: str) -> str:
    """The URL as the user wrote it, without what may be secret."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    return scheme + separator + rest.rpartition("@")[2].partition("?")[0]


def _is_same(target: Target, other: Target) -> bool:
    return (target.host, target.port, target.tls) == (other.host, other.port, other.tls)


def _candidates(target: Target, server: Server, reached: Reached) -> list[Endpoint]:
    """Return where a server may have its metrics, the likeliest first."""
    found = []
    if not target.grpc:
        headers = reach.request_headers(target, server, reached.secrets)
        root = msgspec.structs.replace(target, prefix="")
        context = _context(server, is_measured=True) if target.tls else None
        for path in dict.fromkeys((target.prefix + _PATH, _PATH)):
            found.append(Endpoint(Peer(root, context), path, f"{root.url}{path}", headers))
    if target.port in _TRITON_PORTS and reached.facts is not None and reached.facts.server.name == "triton":
        host = f"[{target.host}]" if ":" in target.host else target.host
        metrics = parse(f"http://{host}:{_TRITON_METRICS_PORT}")
        found.append(Endpoint(Peer(metrics), _PATH, f"{metrics.url}{_PATH}"))
    return found


def _first(endpoints: Sequence[Endpoint]) -> Endpoint | None:
    """Return the first one that has a page of metrics, else the first that may have one: it is slow, fails or requires a key."""
    failing = None
    for endpoint in endpoints:
        try:
            _, page = fetch(endpoint, _LOOK_TIMEOUT)
        except NotOffered:
            continue
        except UserError:
            failing = failing or endpoint
            continue
        if page.samples or page.types:  # an empty page may be anything
            return endpoint
    return failing


def _context(server: Server, is_measured: bool) -> ssl.SSLContext:
    """Return the TLS settings of the run; other servers do not get the client's certificate."""
    if not is_measured:
        server = msgspec.structs.replace(server, tls=TLS(ca=server.tls.ca, verify=server.tls.verify))
    context = reach.tls_context(server)
    context.set_alpn_protocols(["http/1.1"])
    return context
