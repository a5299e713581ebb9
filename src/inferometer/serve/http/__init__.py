"""The HTTP/1.1 server: request parsing (parse), sockets and TLS (listener, connection, tls), responses (answers,
reply)."""
