"""Connections without a protocol: the listening socket (listener), a client's socket on the event loop (transport), and
TLS (tls)."""
