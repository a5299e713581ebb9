"""A proxy in front of an object store, which records requests, and can cut the connection or stall in the middle of them."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator

_REQUEST = re.compile(rb"(?:^|\r\n|[^A-Z])(GET|HEAD|PUT|POST|DELETE) (/\S*) HTTP/1\.1\r\n")


class Proxy:
    """Forwards bytes between its own port and a server on this machine.

    `fault` is a word: a request with it in its path is cut off (`cut`) or never forwarded (`stall`), and so is everything after it,
    until `fault` is "" again.
    """

    def __init__(self, target: str) -> None:
        self._target = int(target.rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[str] = []
        self.fault = ""
        self.kind = "cut"
        self.tripped = threading.Event()

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.kind == "cut" and self.tripped.is_set():
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._upstream, args=(client, server), daemon=True).start()
                threading.Thread(target=self._downstream, args=(server, client), daemon=True).start()

    def repair(self) -> None:
        self.fault = ""
        self.tripped.clear()

    def close(self) -> None:
        self._listener.close()

    def written(self) -> list[str]:
        """The paths of objects that were written, in order."""
        return [line.partition(" ")[2] for line in self.requests if line.startswith(("PUT ", "POST "))]

    def _upstream(self, client: socket.socket, server: socket.socket) -> None:
        try:
            self._forward(client, server)
        except OSError:
            pass
        finally:  # a shutdown wakes up the other thread, and frees a server that has only one
            for each in (client, server):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(1 << 16):
            lines = [f"{match[1].decode()} {match[2].decode()}" for match in _REQUEST.finditer(data)]
            self.requests += lines
            if self.fault and any(self.fault in line and line.startswith(("PUT", "POST")) for line in lines):
                self.tripped.set()
            if self.tripped.is_set() and self.kind == "cut":
                server.sendall(data[: len(data) // 2])
                return
            if not self.tripped.is_set():
                server.sendall(data)

    def _downstream(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)


@contextlib.contextmanager
def proxied(target: str) -> Iterator[Proxy]:
    proxy = Proxy(target)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
