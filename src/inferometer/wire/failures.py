"""What can go wrong, each with a code of its own; the codes are what reports count by.

The table says what a code means. Beside it stand `http_NNN` for every status that is not 200, and `grpc_NAME`
for every gRPC status that is not OK.
"""

import ssl

CODES = {
    # said by the decoders
    "error_frame": "the server sent an error inside the stream",
    "error_body": "the server answered 200 with an error in the body",
    "not_json": "the server answered 200 with something that is not JSON (a web page?)",
    "not_streamed": "the server answered in one piece though a stream was asked for",
    "malformed_json": "a frame or body is not the JSON that the API promises",
    "malformed_http": "the answer breaks HTTP/1.1",
    "truncated": "the stream ended with neither [DONE] nor a finish reason",
    "cut_short": "the connection closed in the middle of the answer",
    "malformed_http2": "the server breaks HTTP/2, or speaks something else",
    "malformed_grpc": "the answer breaks gRPC",
    "not_grpc": "the server answers, but not with gRPC",
    "stream_reset": "the server reset the stream",
    # said by the engine
    "connect_refused": "nothing listens at that address",
    "connect_failed": "the connection could not be opened",
    "connect_timeout": "the connection was not open within timeouts.connect",
    "tls": "the TLS handshake failed",
    "closed": "the server closed the connection without an answer",
    "reset": "the server reset the connection",
    "first_token_timeout": "no token within timeouts.first_token",
    "idle_timeout": "no chunk within timeouts.idle of the last",
    "total_timeout": "not complete within timeouts.total",
    "no_sockets": "this machine ran out of file descriptors or ports",
    "dropped": "the concurrency cap was reached and load.when_full is drop",
    "cancelled": "the run ended before the answer did",
    "lost": "the client process that held it died",
}

MAX_MESSAGE = 300


def meaning(code: str) -> str:
    """What `code` means, in words."""
    if code.startswith(("http_", "grpc_")):
        return f"the server answered with status {code[5:]}"
    return CODES.get(code, code)


def is_tls(start: bytes) -> bool:
    """It begins with a record of TLS: an alert or a handshake."""
    return start[:2] in (b"\x15\x03", b"\x16\x03")


def bounded(message: str) -> str:
    """A server's message on one line, of bounded length."""
    line = " ".join(message.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 3] + "..."


def tls_reason(error: ssl.SSLError) -> str:
    """Say what is wrong with a handshake, without OpenSSL's source positions."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return bounded(f"the server's certificate is not accepted: {error.verify_message}")
    return bounded((error.reason or str(error)).replace("_", " ").lower())
