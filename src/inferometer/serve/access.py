"""Who may use the server (the bearer token), and who did (the access log), over HTTP and gRPC."""

import hmac
import sys
from datetime import UTC, datetime
from urllib.parse import quote

from inferometer.timing.clock import now

CHALLENGE = b'WWW-Authenticate: Bearer realm="inferometer"\r\n'
"""The header required with status 401."""
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


def why_not(token: str | None, given: bytes) -> str:
    """Return why a request with this `authorization` header (gRPC: metadata) is refused, or "" if it is allowed. A
    token of None means that no token is required."""
    if token is None:
        return ""
    kind, _, secret = given.partition(b" ")
    if kind.lower() == b"bearer" and hmac.compare_digest(secret.strip(), token.encode()):
        return ""
    is_missing = "the bearer token is missing: send the header Authorization: Bearer TOKEN"
    return "the bearer token is not valid" if given else is_missing


def log(client: str, method: str, path: str, status: str, arrived: int) -> None:
    """Write one line to standard error: the time, the client, the method, the path, the status, and the time since the
    request arrived. It has no headers and no bodies."""
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    words = when, client, method, quote(path, safe=_PRINTABLE), status
    sys.stderr.write(" ".join(word or "-" for word in words) + f" {(now() - arrived) / 1e6:.3f} ms\n")
