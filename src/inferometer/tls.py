"""The TLS settings of connections to a server, as an SSL context."""

import ssl

import msgspec

from inferometer.errors import UserError


class TlsSettings(msgspec.Struct, frozen=True):
    """The settings of `server.tls`, and what the connections are for."""

    verify: bool
    ca: str | None
    cert: str | None
    key: str | None
    is_http2: bool


def context(tls: TlsSettings) -> ssl.SSLContext:
    """The context for https and grpcs: the system's CAs or a given one, a client certificate, or no verification."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ssl.SSLError):
        raise UserError(
            f"{tls.ca} is not a readable PEM file of certificates", "give the CA's PEM file", "server.tls.ca"
        ) from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.key and not tls.cert:
        raise UserError("the certificate of this key is missing", "give it with {server.tls.cert}", "server.tls.key")
    if tls.cert:
        try:
            context.load_cert_chain(tls.cert, tls.key)
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or (error.reason if isinstance(error, ssl.SSLError) else "")
            raise UserError(
                f"{tls.cert} and its key cannot be loaded: {reason}",
                "give PEM files of a certificate and of its key",
                "server.tls.cert",
            ) from None
    context.set_alpn_protocols(["h2"] if tls.is_http2 else ["http/1.1"])
    return context
