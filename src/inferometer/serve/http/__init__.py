"""HTTP/1.1: connections and the access log (connection), responses (responses). Requests are parsed by wire/http1_requests."""
