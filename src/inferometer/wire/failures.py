"""The failure codes that reports count by, and what each of them means.

Two families of codes are not in the table: `http_NNN` for every HTTP status other than 200, and `grpc_NAME` for every gRPC
status other than OK.
"""

import ssl

CODES = {
    # reported by the decoders
    "error_frame": "the server sent an error inside the stream",
    "error_body": "the server returned status 200 with an error in the body",
    "not_json": "the server returned status 200 with a body that is not JSON (a web page?)",
    "not_streamed": "the server sent the response in one piece although streaming was requested",
    "malformed_json": "an event or body is not the JSON that the API specifies",
    "compressed": "the response is compressed, but not as gzip or deflate, which are the formats that can be read",
    "malformed_http": "the response is not valid HTTP/1.1",
    "wrong_output": "the response is not what the data says that it must be (data.validate)",
    "too_large": "the response is far longer than what was requested: the server does not end it",
    "empty": "the response is complete, but carries no token although tokens were requested",
    "truncated": "the stream ended without [DONE] or a finish reason",
    "cut_short": "the connection or stream closed in the middle of the response",
    "malformed_http2": "the server violated the HTTP/2 protocol or speaks another protocol",
    "malformed_grpc": "the response is not valid gRPC",
    "not_grpc": "the server responded, but not with gRPC",
    "stream_reset": "the server reset the HTTP/2 stream",
    # reported by the engine
    "connect_refused": "nothing is listening at that address",
    "connect_failed": "the connection could not be opened",
    "connect_timeout": "the connection was not established within timeouts.connect",
    "tls": "the TLS handshake failed",
    "closed": "the server closed the connection without sending a response",
    "reset": "the server reset the connection",
    "first_token_timeout": "no token arrived within timeouts.first_token",
    "idle_timeout": "no chunk arrived within timeouts.idle of the previous one",
    "total_timeout": "the response was not complete within timeouts.total",
    "unfinished": "the load had ended, and the response made no progress for client.grace, or for as long as the load took",
    "no_sockets": "this machine ran out of file descriptors or ports",
    "dropped": "the request was not sent: the concurrency cap was reached and load.when_full is drop",
    "cancelled": "the run ended before the response was complete",
    "lost": "the client process that handled the request died",
    # reported by engines without a server
    "engine_error": "the engine could not complete the request",
}

NOT_REACHED = frozenset(("connect_refused", "connect_failed", "connect_timeout", "tls"))
"""The failures of requests that did not reach the server."""

MAX_MESSAGE = 300

MALFORMED = (ValueError, RecursionError)
"""What decoders of JSON raise for text that is not JSON, or is nested too deeply."""


def meaning(code: str) -> str:
    """Describe `code` in a phrase for reports and error messages."""
    if code.startswith(("http_", "grpc_")):
        return f"the server responded with status {code[5:]}"
    return CODES.get(code, code)


PAGE = "a web page"
"""What the message of a response that is one starts with."""
_PAGES_OF_PROXIES = ("http_429", "http_502", "http_503", "http_504")
"""Later requests may reach the server."""


def is_page(code: str, message: str) -> bool:
    """Whether the response is a page of a web server, rather than of a proxy or a redirect."""
    return message.startswith(PAGE) and not code.startswith("http_3") and code not in _PAGES_OF_PROXIES


def is_tls(start: bytes) -> bool:
    """Whether the bytes begin with a TLS record: an alert or a handshake."""
    return start[:2] in (b"\x15\x03", b"\x16\x03")


def bounded(message: str) -> str:
    """Put a server's message on one line and limit its length to MAX_MESSAGE."""
    line = " ".join(message.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 3] + "..."


def excerpt(data: bytes, most: int = 200) -> str:
    """The start of a body, on one line. `...` marks a cut, by which `printable.hide` finds a secret that was cut there."""
    return bounded(data[:most].decode("utf-8", "replace") + ("..." if len(data) > most else ""))


def tls_reason(error: ssl.SSLError) -> str:
    """Describe why a handshake failed, without OpenSSL's source positions."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return bounded(f"the server's certificate is not accepted: {error.verify_message}")
    return bounded((error.reason or str(error)).replace("_", " ").lower())
