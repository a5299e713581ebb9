"""Starts a real Prometheus server (Debian's package `prometheus`) that scrapes given servers every second."""

import contextlib
import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import yaml
from waiting import until

INTERVAL = 1.0


class Prometheus:
    """A running server."""

    def __init__(self, url: str, process: "subprocess.Popen[bytes]") -> None:
        self.url = url
        self._process = process

    def value(self, expression: str) -> float | None:
        """Return the value of an expression now; None if there is none."""
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{urlencode({'query': expression})}", timeout=10) as reply:
            found = json.load(reply)["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@contextlib.contextmanager
def prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Scrape /metrics of these base URLs as the job `servers`, once a second, until the end of the block."""
    port = free_port()
    hosts = [urlsplit(target).netloc for target in targets]
    config = {
        "global": {"scrape_interval": f"{INTERVAL:g}s", "scrape_timeout": "900ms"},
        "scrape_configs": [{"job_name": "servers", "static_configs": [{"targets": hosts}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    server = Prometheus(f"http://127.0.0.1:{port}", process)
    try:
        until(lambda: _is_ready(server.url), "Prometheus is ready", 30)
        yield server
    finally:
        server.end()


def wait_for_scrapes(server: Prometheus, count: int) -> None:
    """Wait until each target has been scraped `count` times."""
    until(lambda: (server.value("min(count_over_time(up[1m]))") or 0) >= count, f"{count} scrapes", 30)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
