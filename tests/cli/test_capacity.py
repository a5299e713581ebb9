"""`inferometer capacity` from the outside: one real search against the simulator, and bad input."""

import html
import json
from pathlib import Path

import pytest
from command import assert_one_line, cli

from inferometer.errors import UserError
from inferometer.probe import local
from inferometer.report import capacity_view
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

SETTINGS = ("--set", "client.processes=0", "--set", "observe.prometheus=[]")


@pytest.mark.slow
def test_a_real_search_ends_with_an_interval_and_words(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with running(simulator(timing=Fixed(ttft=0.02, itl=0.002, max_batch=2))) as url:
        result = cli(
            "capacity", url.replace("//", "//user:hush@"), "--slo", "ttft.p90 < 100ms", "--output-tokens", "6", "--budget", "20s",
            "--set", f"output={tmp_path}", "--json", out, "--precision", "50%", *SETTINGS,
            "--html", tmp_path / "out.html", "--markdown", tmp_path / "out.md", "--junit", tmp_path / "out.xml",
        )  # fmt: skip
    answer = json.loads(out.read_text())["capacity"]
    assert answer["rate"]["high"] is not None, result.out
    assert answer["limited_by"] == "ttft.p90"
    assert answer["rate"]["high"] > 10  # it serves 66 per second on a machine that is not busy
    assert answer["rate"]["low"] is None or answer["rate"]["low"] < 100
    assert result.status == (0 if answer["rate"]["low"] and answer["basis"]["low"] != "estimated" else 1)
    assert answer["words"] in " ".join(result.out.split())
    assert "time to first token" in answer["words"]
    assert {"explore", "narrow"} <= {probe["purpose"] for probe in answer["probes"]}
    folder = Path(answer["folder"])
    assert json.loads((folder / "capacity.json").read_text())["capacity"] == answer
    assert (tmp_path / "LATEST").resolve() == folder.resolve()
    assert "How the search closed in" in (tmp_path / "out.html").read_text()
    assert answer["words"][1:] in html.unescape((tmp_path / "out.md").read_text())
    assert 'name="capacity found"' in (tmp_path / "out.xml").read_text()
    assert not any("hush" in file.read_text() for file in (out, *tmp_path.glob("out.*"), folder / "capacity.json"))
    again = cli("report", tmp_path / "LATEST", "--html", tmp_path / "again.html")
    assert again.out == result.out and (tmp_path / "again.html").read_bytes() == (tmp_path / "out.html").read_bytes()
    assert all((folder / probe["folder"] / "summary.json").exists() for probe in answer["probes"])
    assert (
        "so the search takes up to 20 s" in result.err
        and "4 in flight, " in result.err
        and " requests/s: " in result.err
    )


def test_one_request_at_a_time_may_be_too_slow_already(tmp_path: Path) -> None:
    with running(simulator(timing=Fixed(ttft=0.02, itl=0.001))) as url:
        result = cli(
            "capacity", url, "--slo", "ttft.p90 < 1ms", "--output-tokens", "2", "--budget", "10s", "--set", f"output={tmp_path}", *SETTINGS
        )  # fmt: skip
    text = " ".join(result.out.split())
    assert result.status == 1 and "one request at a time already violates ttft.p90 < 1ms (it takes " in text


def test_a_budget_that_cannot_suffice_is_refused(tmp_path: Path) -> None:
    with running(simulator(timing=Fixed(ttft=1.5, itl=0.001))) as url:
        result = cli(
            "capacity", url, "--output-tokens", "2", "--budget", "10s", "--set", f"output={tmp_path}", *SETTINGS, "-q"
        )
    assert_one_line(result, "--budget: 10s is too short for a search: a response takes 1.5", "give it 2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--slo", "ttfft.p99 < 500ms"), ("--slo", "column 1", "did you mean ttft?")),
        (("--slo", "chatt"), ("there is no preset 'chatt'", "did you mean chat?")),
        (("--slo", "ttft.p99 < 500"), ("needs a unit",)),
        (("--html", "-", "--markdown", "-"), ("--html - and --markdown - both write to standard output",)),
        (("--set", "load.rate=5"), ("the search sets the load itself",)),
        (("--json", "/nowhere/at/all.json"), ("/nowhere/at/all.json",)),
        (("--set", "report.json=/nowhere/at/all.json"), ("/nowhere/at/all.json",)),
        (("--set", "report.csv=out.csv"), ("report.csv", "a search for the capacity has json, html, markdown, junit")),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_one_line(cli("capacity", "http://127.0.0.1:9", *arguments), *words)


def test_model_for_a_file_without_a_server_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "bench.yaml"
    file.write_text("server:\n")
    assert_one_line(cli("capacity", file, "--model", "sim"), "server.url: missing")


MIX = """
data:
  type: mix
  classes:
  - {name: chat, slo: ttft.p90 < 1ms, data: {type: synthetic, input: 8, output: 2}}
  - {name: batch, slo: e2e.p90 < 1s, data: {type: synthetic, input: 8, output: 2}}
"""


@pytest.mark.parametrize(
    ("ending", "words"),
    [(KeyboardInterrupt(), "interrupted"), (UserError("the server is gone"), "the server is gone")],
)
def test_a_search_that_ends_early_writes_its_reports_and_judges_classes(
    ending: BaseException, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndsAfterAProbe(capacity_view.SearchView):
        def probed(self, probe: object, found: object) -> None:
            raise ending

    monkeypatch.setattr(capacity_view, "SearchView", EndsAfterAProbe)
    (tmp_path / "mix.yaml").write_text(MIX)
    paths = {name: tmp_path / f"out.{name}" for name in ("json", "html", "markdown", "junit")}
    with running(simulator(timing=Fixed(ttft=0.005, itl=0.001))) as url:
        result = cli(
            "capacity", tmp_path / "mix.yaml", "--set", f"server.url={url}", "--budget", "10s", "--start", "50", "-q",
            "--set", f"output={tmp_path}", "--at-least", "10", *SETTINGS,
            *(argument for name, path in paths.items() for argument in (f"--{name}", path)),
        )  # fmt: skip
    assert result.status == 1 and words in " ".join(result.out.split())
    answer = json.loads(paths["json"].read_text())["capacity"]
    assert answer["limited_by"] == "chat: ttft.p90" and answer["slos"] == [
        "chat: ttft.p90 < 1ms",
        "batch: e2e.p90 < 1s",
    ]
    assert {one["class"] for one in answer["probes"][0]["slos"]} == {"chat", "batch"}
    assert all(words in paths[name].read_text().lower() for name in ("html", "markdown"))
    assert "at least 10 requests/s" in paths["junit"].read_text()


def test_a_server_that_does_not_respond_is_one_line(tmp_path: Path) -> None:
    result = cli("capacity", "http://127.0.0.1:9", "--set", f"output={tmp_path}", "--quiet")
    assert_one_line(result, "127.0.0.1:9")
    assert not list(tmp_path.iterdir())


def test_without_a_url_the_usual_ports_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PORTS", {1: "nothing"})
    assert_one_line(cli("capacity"), "no server was found", "ports 1", "inferometer serve")


def test_a_server_on_a_usual_port_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(simulator(timing=Fixed())) as url:
        monkeypatch.setattr(local, "PORTS", {1: "nothing", int(url.rpartition(":")[2]): "the simulator"})
        assert local.find_server() == url
