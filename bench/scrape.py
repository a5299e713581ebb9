"""Does scraping disturb a run? The lag and the CPU time of an open-loop load, with one scrape per second of targets good and bad.

The load goes to the null server; the target is a process of its own. All cases take turns, and the
quietest of several rounds counts: on a shared machine, others disturb most of them more than scraping does.

healthy: a page of 1,400 samples; slow: sends a byte every 50 ms; dies: is killed in the middle of the run; html: a web page;
large: 10 MB without a Content-Length, of which the client reads 8 MiB.

Lag: from the intended instant to the send. CPU: of the whole command, from its start to the report.
"""

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from bench.common import SERVER_CORE, Line, Measured, measure, median, null_server, pinned, show

RATE = 500
SECONDS = 10
ROUNDS = 5
CHUNKS = 16
CASES = ("none", "healthy", "slow", "dies", "html", "large")
LIMIT = 1.5
FLOOR_US = 200.0
"""Below this lag, ratios are noise."""


def main() -> int:
    if sys.argv[1:] == ["serve"]:
        return _serve()
    found: dict[str, list[Measured]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder, null_server(chunks=CHUNKS) as url:
        for _ in range(ROUNDS):
            for case in CASES:
                with _target(case) as target:
                    found[case].append(_run(folder, url, [target] if target else []))
    return show("scrape", [line for case in CASES for line in _lines(case, found)])


def _run(folder: str, url: str, targets: list[str]) -> Measured:
    return measure(
        folder, url, "--rate", str(RATE), "--duration", f"{SECONDS}s",
        data__type="prompts", data__prompts=["hello"], data__output=CHUNKS, observe__prometheus=targets,
    )  # fmt: skip


def _lines(case: str, found: dict[str, list[Measured]]) -> list[Line]:
    lags, costs = ([figure(one) for one in found[case]] for figure in (_lag, _cpu))
    if case == "none":
        return [
            Line("lag p99 without scraping", f"{min(lags):.0f} us (median {median(lags):.0f})"),
            Line("CPU per request without scraping", f"{min(costs):.0f} us (median {median(costs):.0f})"),
        ]
    lag, cost = (min(each) / min(map(figure, found["none"])) for each, figure in ((lags, _lag), (costs, _cpu)))
    reasons = found[case][-1].run.manifest.observer_errors
    is_held = lag <= LIMIT or min(lags) <= FLOOR_US
    return [
        Line(
            f"{case}: lag p99 / without",
            f"{lag:.2f} ({min(lags):.0f} us, median {median(lags):.0f})",
            f"<= {LIMIT}, or {FLOOR_US:.0f} us",
            is_held,
        ),
        Line(f"{case}: CPU per request / without", f"{cost:.2f} ({min(costs):.0f} us, median {median(costs):.0f})"),
        Line(f"{case}: reason", next(iter(reasons.values()), "none"), ok=bool(reasons) == (case != "healthy")),
    ]


def _lag(found: Measured) -> float:
    rows = found.run.records.rows
    return float(np.percentile((rows["sent"] - rows["intended"]) / 1e3, 99))


def _cpu(found: Measured) -> float:
    return 1e6 * found.cpu / len(found.run.records.rows)


# --- the target ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _target(case: str) -> Iterator[str]:
    if case == "none":
        yield ""
        return
    command = pinned(SERVER_CORE, sys.executable, "-m", "bench.scrape", "serve")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        death = threading.Timer(SECONDS / 2, process.kill)
        try:
            if case == "dies":
                death.start()
            yield f"http://127.0.0.1:{port}/{case}"
        finally:
            death.cancel()
            process.kill()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()  # HTTP/1.0: the page ends when the connection does
        for piece, pause in _pieces(self.path.strip("/")):
            self.wfile.write(piece)
            time.sleep(pause)

    def log_message(self, *_: object) -> None:
        return


def _pieces(case: str) -> Iterator[tuple[bytes, float]]:
    if case == "slow":
        yield from ((b"#", 0.05) for _ in range(10_000))
    elif case == "html":
        yield b"<!DOCTYPE html><html><body>Not a page of metrics</body></html>", 0
    elif case == "large":
        yield from ((b"# nothing\n" * 1_000, 0) for _ in range(1_000))
    else:
        label = 'model_name="a/model-of-some-size",engine="0"'
        yield (
            b"".join(b"metric_%d{%b} %d\n" % (n, label.encode(), time.monotonic_ns() % 10**6) for n in range(1_400)),
            0,
        )


def _serve() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        print(server.server_port, flush=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that give up
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
