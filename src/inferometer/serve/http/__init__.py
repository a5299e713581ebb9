"""HTTP/1.1: request parsing (parse), connections and the access log (connection), responses (responses)."""
