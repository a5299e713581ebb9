"""The bearer token: whether a request may come in."""

import hmac

from inferometer.serve.http.parse import Request

CHALLENGE = b'WWW-Authenticate: Bearer realm="inferometer"\r\n'
"""The header that belongs to 401."""


def why_not(token: str | None, request: Request) -> str:
    """Why it may not come in; "" where it may. None: no token is asked for."""
    if token is None:
        return ""
    given = request.headers.get(b"authorization", b"")
    kind, _, secret = given.partition(b" ")
    if kind.lower() == b"bearer" and hmac.compare_digest(secret.strip(), token.encode()):
        return ""
    return "the API key is wrong" if given else "no API key was given (Authorization: Bearer KEY)"
