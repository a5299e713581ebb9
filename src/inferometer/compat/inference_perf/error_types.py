"""What inference-perf calls a failure: the `error_type` of its records."""

_NAMES = {
    "connect_refused": "ClientConnectorError",
    "connect_failed": "ClientConnectorError",
    "connect_timeout": "TimeoutError",
    "tls": "ClientConnectorSSLError",
    "closed": "ServerDisconnectedError",
    "reset": "ClientOSError",
    "no_sockets": "ClientOSError",
    "first_token_timeout": "TimeoutError",
    "idle_timeout": "TimeoutError",
    "total_timeout": "TimeoutError",
    "cut_short": "ClientPayloadError",
    "malformed_http": "ClientResponseError",
    "malformed_json": "JSONDecodeError",
    "not_json": "JSONDecodeError",
    "cancelled": "CancelledError",
}
"""By failure code (wire/failures.py): the exception that its HTTP client, aiohttp, raises."""


def error_type(code: str) -> str:
    """The error type of a failure: `HTTP Error 503`, `TimeoutError`, or the name of an exception."""
    if code.startswith("http_"):
        return f"HTTP Error {code[5:]}"
    return _NAMES.get(code, "Exception")
