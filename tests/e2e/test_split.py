"""Where the time went, in whole runs: a server is counted once, and without a split the report says why."""

import json
from pathlib import Path

import kserve_peers
from helpers import Client, measure, scripted

from inferometer import conduct
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import console

LOAD = {"type": "closed", "concurrency": 1, "requests": 10}
PAIR = {"api": "kserve-json", "model": "pair"}


def time_split_line(run: Run, summary: Summary) -> str:
    found = [line for line in console.render(run, summary).splitlines() if "where the time went" in line]
    assert len(found) == 1
    return found[0].strip()


def test_two_urls_of_one_server_count_once(tmp_path: Path) -> None:
    one = kserve_peers.over_http(statistics=True)
    with scripted(one) as first, scripted(one) as second:
        run, summary = measure(tmp_path, [first, second], server=PAIR, data={"type": "tensors"}, load=LOAD)
    assert sorted(run.records.rows["url"].tolist()) == [0] * 5 + [1] * 5
    assert summary.breakdown is not None and summary.breakdown.counted == 10
    assert time_split_line(run, summary).split(", ms")[1].split() == ["e2e", "client", "overhead", "queue", "compute"]
    assert "overhead: network and server" in console.render(run, summary)
    assert summary.no_breakdown is None and run.manifest.no_statistics == ("",)


def test_report_says_that_the_server_offers_no_statistics(tmp_path: Path) -> None:
    with scripted(kserve_peers.over_http()) as url:
        run, summary = measure(tmp_path, url, server=PAIR, data={"type": "tensors"}, load=LOAD)
    assert time_split_line(run, summary) == "where the time went   not known: the server offers no statistics"
    assert conduct.open_run(str(run.folder))[1].no_breakdown == "the server offers no statistics"
    assert json.loads((run.folder / "summary.json").read_bytes())["no_breakdown"] == "the server offers no statistics"


def test_error_of_the_statistics_is_reported_without_the_api_key(tmp_path: Path) -> None:
    usual = kserve_peers.over_http()

    def script(client: Client) -> None:
        usual(_FailingStatistics(client))

    server = PAIR | {"headers": {"Authorization": "Bearer sesame-0815"}}
    with scripted(script) as url:
        run, summary = measure(tmp_path, url, server=server, data={"type": "tensors"}, load=LOAD)
    assert summary.no_breakdown is not None and "failed with status 500: cannot say, (removed)" in summary.no_breakdown
    assert "sesame" not in (run.folder / "manifest.json").read_text() + console.render(run, summary)


class _FailingStatistics(Client):
    """Responds to requests for statistics itself, with an error."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.sock, client.number)

    def request(self) -> tuple[str, dict[str, str], bytes] | None:
        while (found := super().request()) and "/stats" in found[0]:
            body = json.dumps({"error": f"cannot say, {found[1]['authorization']}"}).encode()
            self.send(f"HTTP/1.1 500 X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        return found
