"""Checks the bearer token of a request."""

import hmac

CHALLENGE = b'WWW-Authenticate: Bearer realm="inferometer"\r\n'
"""The header required with status 401."""


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
