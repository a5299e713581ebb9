"""HTTP/1.1: requests out of bytes (parse), the sockets they come over (connection), the bytes of answers (answers)."""
