"""The live Prometheus endpoint of a run: http://HOST:PORT/metrics, from before the first request until the run is stored.

It is an observer without series. Its thread keeps the counts up to date, so that a scrape never has much to catch up on; each
scrape is served in a thread of its own, of which there are at most _MAX_CONNECTIONS.
"""

import contextlib
import errno
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from inferometer.errors import UserError
from inferometer.observe.observer import HelperCpu, Observer
from inferometer.publish.families import LiveFamilies
from inferometer.publish.page import CONTENT_TYPE, page
from inferometer.series import TimeSeries

LOOPBACK = "127.0.0.1"
_UPDATE_EVERY = 0.5
"""Seconds between two updates of the counts."""
_PAGE_LASTS = 0.1
"""Seconds for which a page is served again, so that many scrapes cost no more than ten per second."""
_MAX_CONNECTIONS = 8
"""Connections served at a time; others are closed."""
_CLIENT_TIMEOUT = 5.0
"""Seconds to wait for a client to send or to take something."""
_CLOSES_WITHIN = 0.1
"""Seconds until the server notices that it is to end."""
_HINT = b"Inferometer: the metrics of the run in progress are at /metrics\n"


class LiveEndpoint(Observer):
    """Serves the metrics of a run. Raises UserError when the address cannot be used."""

    interval = _UPDATE_EVERY

    def __init__(self, families: LiveFamilies, port: int, host: str = LOOPBACK) -> None:
        self._families = families
        self._host = f"[{host}]" if ":" in host else host
        self._server = _listen(host, port, self.page)
        self._serving: threading.Thread | None = None
        self._lock = threading.Lock()
        self._page, self._made = b"", -math.inf

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._server.server_address[1]}/metrics"

    def start(self) -> None:
        serve = partial(self._server.serve_forever, poll_interval=_CLOSES_WITHIN)
        self._serving = threading.Thread(target=serve, name="live metrics", daemon=True)
        self._serving.start()
        self._families.update()

    def mark(self, stage: int) -> None:
        self._families.mark(stage)

    def sample(self) -> None:
        self._families.update()

    def end(self) -> Sequence[TimeSeries]:
        """Take the final values, which are served until `close`."""
        self._families.update()
        with self._lock:
            self._made = -math.inf
        return ()

    def helper_cpu(self) -> float:
        return self._server.cpu_seconds

    def close(self) -> None:
        if self._serving is not None:  # otherwise `shutdown` would wait forever
            self._server.shutdown()
        self._server.server_close()

    def page(self) -> bytes:
        """Return the page as of now, or of a moment ago."""
        with self._lock:
            if time.monotonic() - self._made >= _PAGE_LASTS:
                with contextlib.suppress(
                    OSError
                ):  # the run has been stored, and its spool is gone: the counts are final
                    self._families.update()
                self._page, self._made = page(self._families.read()), time.monotonic()
            return self._page


class _Server(ThreadingTCPServer):
    """Serves each connection in a daemon thread, up to a limit."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, host: str, port: int, read_page: Callable[[], bytes]) -> None:
        self.read_page = read_page
        self._connections_cpu, self._loop_cpu = HelperCpu(), 0.0
        self._free = threading.Semaphore(_MAX_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    @property
    def cpu_seconds(self) -> float:
        return self._connections_cpu.seconds + self._loop_cpu

    def service_actions(self) -> None:
        """Note what the thread that accepts connections has taken so far; called by it again and again."""
        self._loop_cpu = time.thread_time()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            with self._connections_cpu.counted():
                super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that went away, and keep their errors off the console."""


class _Handler(BaseHTTPRequestHandler):
    """Serves one request per connection, so that an idle client occupies nothing."""

    server: _Server
    timeout = _CLIENT_TIMEOUT

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._respond(200, CONTENT_TYPE, self.server.read_page())
        elif path == "/":
            self._respond(200, "text/plain; charset=utf-8", _HINT)
        else:
            self._respond(404, "text/plain; charset=utf-8", _HINT)

    def _respond(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep scrapes off the console."""


def _listen(host: str, port: int, read_page: Callable[[], bytes]) -> _Server:
    try:
        return _Server(host, port, read_page)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise UserError(
                f"this machine has no address {host}",
                f"write {LOOPBACK}, or 0.0.0.0 for all interfaces",
                key="export.metrics_host",
            ) from None
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {os.strerror(error.errno or 0)}"
        raise UserError(
            f"port {port} on {host} {reason}", "choose another port, or 0 for a free one", key="export.metrics_port"
        ) from None
