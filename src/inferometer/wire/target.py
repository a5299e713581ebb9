"""A base URL in parts: where to connect, and what requests call the server."""

import base64
from urllib.parse import quote, unquote, urlsplit

import msgspec

from inferometer.apis import APIS, DEFAULT_APIS
from inferometer.errors import UserError

_PORTS = {"http": 80, "https": 443, "grpc": 80, "grpcs": 443}


class Target(msgspec.Struct, frozen=True):
    host: str
    port: int
    tls: bool
    prefix: str
    """The path before /v1/..., without a trailing slash."""
    authority: str
    """The Host header."""
    grpc: bool = False
    """Speaks HTTP/2 and gRPC."""
    credentials: str = ""
    """Value of the Authorization header, if the URL has user:password@."""

    @property
    def url(self) -> str:
        """The URL without credentials."""
        return f"{'grpc' if self.grpc else 'http'}{'s' * self.tls}://{self.authority}{self.prefix}"


def parse(url: str) -> Target:
    """Parse `http://host:8000`, `https://host/prefix/v1` or `http://[::1]:8000`; raises UserError if it is not a base URL."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _invalid(url, f"is not a URL: {error}", "write http://HOST:PORT") from None
    if parts.scheme not in _PORTS:
        raise _invalid(
            url, "does not start with a known scheme", "write http://HOST:PORT, https://HOST or grpc://HOST:PORT"
        )
    if not parts.hostname:
        raise _invalid(url, "has no host", "write http://HOST:PORT")
    if parts.query or parts.fragment:
        raise _invalid(url, "has a query or a fragment (? or #)", "give the base URL alone")
    if parts.scheme.startswith("grpc") and parts.path.strip("/"):
        raise _invalid(url, "has a path, which gRPC does not use", "write grpc://HOST:PORT")
    path = parts.path.rstrip("/")
    endpoints = [(end, row.name) for row in APIS.values() for end in (row.path, row.warm_path) if end]
    if found := next((each for each in endpoints if path.endswith(each[0])), None):
        base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path.removesuffix(found[0])}"
        with_api = "" if found[1] == DEFAULT_APIS["http"] else f", with {{server.api={found[1]}}}"
        raise _invalid(url, "is an endpoint, not a base URL", f"write {base}{with_api}")
    credentials = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        credentials = "Basic " + base64.b64encode(pair.encode()).decode()
    prefix = quote(parts.path, safe="/%:@!$&'()*+,;=~").rstrip("/").removesuffix("/v1").rstrip("/")
    return Target(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        tls=parts.scheme in ("https", "grpcs"),
        grpc=parts.scheme.startswith("grpc"),
        prefix=prefix,
        authority=parts.netloc.rpartition("@")[2],
        credentials=credentials,
    )


def _invalid(url: str, what: str, remedy: str) -> UserError:
    before, at, after = url.rpartition("@")
    shown = f"{before.partition('//')[0]}//...@{after}" if at else url  # without credentials
    return UserError(f"{shown!r} {what}", remedy, "server.url")
