"""The bearer token: whether a request may come in."""

import hmac

CHALLENGE = b'WWW-Authenticate: Bearer realm="inferometer"\r\n'
"""The header that belongs to 401."""


def why_not(token: str | None, given: bytes) -> str:
    """Why a request may not come in whose header (gRPC: metadata) `authorization` is `given`; "" where it may. None: no token
    is asked for."""
    if token is None:
        return ""
    kind, _, secret = given.partition(b" ")
    if kind.lower() == b"bearer" and hmac.compare_digest(secret.strip(), token.encode()):
        return ""
    return (
        "the bearer token is not valid"
        if given
        else "the bearer token is missing: send the header Authorization: Bearer TOKEN"
    )
