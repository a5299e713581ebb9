"""A base URL taken apart: where to connect, and what to call it in a request."""

import base64
from urllib.parse import quote, unquote, urlsplit

import msgspec

from inferometer.errors import UserError

_PORTS = {"http": 80, "https": 443, "grpc": 80, "grpcs": 443}


class Target(msgspec.Struct, frozen=True):
    host: str
    port: int
    tls: bool
    prefix: str
    """The path before /v1/..., without a slash at its end."""
    authority: str
    """The Host header."""
    grpc: bool = False
    """Speaks HTTP/2 and gRPC."""
    credentials: str = ""
    """An Authorization header's value, where the URL carried user:password@."""

    @property
    def url(self) -> str:
        """The URL again, without credentials."""
        return f"{'grpc' if self.grpc else 'http'}{'s' * self.tls}://{self.authority}{self.prefix}"


def parse(url: str) -> Target:
    """`http://host:8000`, `https://host/prefix/v1`, `http://[::1]:8000`; UserError says what is wrong."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UserError(f"server.url: {_shown(url)} is not a URL: {error}", "write http://HOST:PORT") from None
    if parts.scheme not in _PORTS:
        raise UserError(
            f"server.url: {_shown(url)} starts with no scheme that is known here",
            "write http://HOST:PORT, https://HOST or grpc://HOST:PORT",
        )
    if not parts.hostname:
        raise UserError(f"server.url: {_shown(url)} names no host", "write http://HOST:PORT")
    if parts.query or parts.fragment:
        raise UserError(f"server.url: {_shown(url)} has a ? or # part", "give the base URL alone")
    if parts.scheme.startswith("grpc") and parts.path.strip("/"):
        raise UserError(f"server.url: {_shown(url)} has a path, which gRPC has no use for", "write grpc://HOST:PORT")
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


def _shown(url: str) -> str:
    """The URL with credentials left out, for a message."""
    before, at, after = url.rpartition("@")
    return repr(f"{before.partition('//')[0]}//...@{after}" if at else url)
