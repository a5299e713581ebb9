"""Connections without a protocol: the listening socket (listener), and a client's socket on the event loop, with or
without TLS (transport)."""
