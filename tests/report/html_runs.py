"""Made-up runs for the HTML report, and a reader for its pages."""

import json
from html.parser import HTMLParser
from typing import Any

import msgspec
import numpy as np
import server_series
import synthetic_run as made

from inferometer.analysis.summary import Summary, summarise
from inferometer.records import Failure, Run, Spent, StagePlan, StageStatistics
from inferometer.report.html import run_page

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> & 'quoted'"
SLOS = ["ttft.p90 < 60ms", "itl.p99 < 11ms", "failure_rate < 1%"]


def plain() -> Run:
    """One stage in closed loop, with the scrapes of a server."""
    rows, chunks = made.closed_rows()
    run = made.run(rows, chunks, config=made.manifest().config | {"slo": SLOS})
    series = server_series.vllm(rows, server_series.scrapes_of(rows))
    return msgspec.structs.replace(run, series=lambda: series)


def staged(name: str = "fast") -> Run:
    """Two stages of two classes, some of whose requests fail; every text that others wrote is hostile to the page."""
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] >= 300
    rows["class"] = rows["id"] % 2
    made.fail(rows, slice(0, 3))
    plan = (
        StagePlan(type="poisson", open=True, name=name, rate=100.0, duration=3.0),
        StagePlan(type="constant", open=True, name="second", rate=100.0, duration=3.0),
    )
    data = {"type": "mix", "classes": [{"name": "chat"}, {"name": name}]}
    config = made.manifest().config | {"slo": SLOS, "data": data}
    return made.run(
        rows, chunks, failures=(Failure("http_503", HOSTILE),), plan=plan, config=config, classes=("chat", name)
    )


def tensors() -> Run:
    """A KServe model over gRPC that reports its times for each request, and sums of them."""
    rows = made.blank(600)
    rows["intended"] = np.arange(600) * 10 * made.MS
    rows["sent"] = rows["intended"] + 50_000
    rows["done"] = rows["sent"] + 7 * made.MS + np.arange(600) * 1_000
    rows["n_in"] = rows["n_out"] = -1
    rows["queue"], rows["compute"] = 2 * made.MS, 4 * made.MS
    rows["counted_by"], rows["open_loop"] = 0, 1
    server = {"url": "grpc://127.0.0.1:8001", "model": "resnet", "api": "kserve", "stream": False}
    return made.run(
        rows,
        plan=(StagePlan(type="constant", open=True, rate=100.0, duration=6.0),),
        config={"server": server, "data": {"type": "tensors"}, "slo": ["e2e.p99 < 20ms"]},
        server={"batch": 4},
        statistics=(StageStatistics(2400, 300, Spent(600, 1), queue=Spent(600, 600 * 2 * made.MS)),),
    )


def empty() -> Run:
    return made.run(made.blank(0), sampled=(), started="")


class Page(HTMLParser):
    """What a browser would see: the elements, the text outside of scripts and styles, and the charts' data."""

    def __init__(self, source: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.charts: dict[str, dict[str, Any]] = {}
        self._inside = ""
        self.feed(source.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = f"{tag} {dict(attrs).get('type')}"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script application/json":
            self.charts = json.loads(data)["charts"]
        elif not self._inside:
            self.text += f" {data}"

    def ids(self, tag: str) -> list[str | None]:
        return [attrs.get("id") for name, attrs in self.tags if name == tag]

    def chart(self, title: str) -> dict[str, Any]:
        """The first chart whose title contains the words."""
        return next(chart for chart in self.charts.values() if title in chart["title"])


def encoded(run: Run, summary: Summary | None = None) -> bytes:
    return run_page.encode(run, summary or summarise(run))


def page(run: Run) -> Page:
    return Page(encoded(run))
