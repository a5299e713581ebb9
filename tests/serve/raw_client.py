"""A client that hides nothing: the bytes, the frames, and how the connection ended."""

import json
import socket
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Response:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    """Whether the body was complete according to HTTP."""
    reset: bool = False

    @property
    def events(self) -> list[str]:
        """The data of the SSE events; fails if the bytes are not `data: ...` and an empty line."""
        text = self.body.decode()
        assert text.endswith("\n\n"), text
        frames = text[:-2].split("\n\n")
        assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames), text
        return [frame[6:] for frame in frames]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    def __init__(self, url: str, timeout: float = 30) -> None:
        host, port = url.removeprefix("http://").rsplit(":", 1)
        self.sock = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout)
        self.reads: list[bytes] = []
        self._buffer = b""
        self._reset = False

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def request(self, path: str, body: Any = None, method: str = "", **headers: str) -> Response:
        self.send(request(path, body, method, **headers))
        return self.response(head_only=method == "HEAD")

    def response(self, head_only: bool = False, until_end: bool = False) -> Response:
        response = Response()
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                response.reset = self._reset
                return response
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        response.status = int(status.split()[1])
        response.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if response.status == 100:
            response.complete = True
        elif "transfer-encoding" in response.headers:
            response.complete = self._chunked(response)
        elif until_end:
            while self._more():
                pass
            response.body, self._buffer = self._buffer, b""
        else:
            response.complete = head_only or self._sized(response, int(response.headers["content-length"]))
        response.reset = self._reset
        return response

    def at_end(self) -> bool:
        """Whether nothing is left and the server has closed."""
        return not self._buffer and not self._more()

    def _chunked(self, response: Response) -> bool:
        body = bytearray()
        complete = self._chunks(body)
        response.body = bytes(body)
        return complete

    def _chunks(self, body: bytearray) -> bool:
        while True:
            while b"\r\n" not in self._buffer:
                if not self._more():
                    return False
            size_line, _, self._buffer = self._buffer.partition(b"\r\n")
            size = int(size_line, 16)
            while len(self._buffer) < size + 2:
                if not self._more():
                    return False
            body += self._buffer[:size]
            assert self._buffer[size : size + 2] == b"\r\n"
            self._buffer = self._buffer[size + 2 :]
            if not size:
                return True

    def _sized(self, response: Response, size: int) -> bool:
        whole = True
        while whole and len(self._buffer) < size:
            whole = self._more()
        response.body, self._buffer = self._buffer[:size], self._buffer[size:]
        return whole

    def _more(self) -> bool:
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            self._reset = True
            return False
        if data:
            self.reads.append(data)
        self._buffer += data
        return bool(data)


def request(path: str, body: Any = None, method: str = "", **headers: str) -> bytes:
    """Return the bytes of a request; a body that is not bytes is sent as JSON."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    method = method or ("GET" if body is None else "POST")
    lines = [f"{method} {path} HTTP/1.1", "Host: sim"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content
