"""`inferometer.run`, `open`, `compare` and `capacity`: what they return, and where they may be called from."""

import asyncio
import html
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import LENIENT

import inferometer
from inferometer.serve.background import Running

QUICK = {key: yaml.safe_load(str(value)) for key, value in LENIENT.items()} | {
    "load": {"type": "closed", "concurrency": 4, "requests": 40},
    "data": {"type": "synthetic", "input": 16, "output": 4},
}


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return QUICK | {"output": str(folder)} | more


@pytest.fixture(scope="module")
def run(served: Running, tmp_path_factory: pytest.TempPathFactory) -> inferometer.Run:
    folder = tmp_path_factory.mktemp("runs")
    return inferometer.run(served.url, settings(folder), slo=["ttft.p50 < 10s", "e2e.p50 < 1us"])


def test_a_run_has_figures_and_a_verdict(run: inferometer.Run) -> None:
    assert run.valid and run.verdict == "VALID" and run.checks
    assert 0.005 <= run.metric("ttft", "p50") == run.metric("ttft.p50") == run.summary.metrics["ttft"].p50 < 1
    assert (
        run.metric("ttft.p99") == run.summary.metrics["ttft"].p99 and not run.summary.metrics["ttft"].supported["p99"]
    )
    assert run.metric("throughput.requests") > 0 and run.metric("failure_rate") == 0 and run.metric("e2e", "count") > 30
    assert [one.status for one in run.slo] == ["met", "missed"] and not run.passed()
    assert run.judge("ttft.p50 < 10s").passed() and run.judge().slo == ()
    assert run.folder.is_dir() and run.config["seed"] is not None
    assert repr(run).startswith("<inferometer.Run VALID: 40 ok, 0 failed")


def test_a_run_sends_the_inputs_that_it_is_given(served: Running, tmp_path: Path) -> None:
    made = inferometer.dummy_inputs(served.grpc, model="identity", batch=2, length=3, count=4)
    doubles = {"INPUT0": [[0.1, 0.2, 0.3, 0.4]]}  # 64-bit floats, of another shape
    found = inferometer.run(
        served.url, settings(tmp_path), inputs=[*made, doubles], server={"url": served.url, "model": "identity"}
    )
    assert (found.summary.counts.ok, found.summary.counts.failed) == (40, 0)
    assert len({row["bytes_out"] for row in found.requests.to_pylist()}) == 2
    assert not Path(found.config["data"]["fill"][1:]).exists()  # type: ignore[index]
    with pytest.raises(inferometer.Error, match=r"inputs=\[\{"):
        inferometer.run(served.url, inputs=[1, 2])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tftt", "p99"), "did you mean ttft?"),
        (("ttft", "p42"), "no statistic 'p42'"),
        (("throughput", "request"), "did you mean requests?"),
        (("queue", "mean"), "the run has no queue.mean"),
        (("goodput",), None),
    ],
)
def test_a_figure_that_there_is_not_says_why(
    run: inferometer.Run, arguments: tuple[str, ...], words: str | None
) -> None:
    if words is None:
        assert run.metric(*arguments) >= 0
        return
    with pytest.raises(inferometer.Error, match=re.escape(words)):
        run.metric(*arguments)
    with pytest.raises(inferometer.Error, match="there is no stage 5"):
        run.metric("ttft", "p50", stage=5)


def test_records_are_tables(run: inferometer.Run) -> None:
    table = run.requests
    assert len(table) == 40
    rows = table.to_pylist()
    for row in rows:
        assert row["ttft_s"] == pytest.approx((row["first_token"] - row["sent"]) / 1e9)
    assert len(run.chunks) == sum(row["chunk_count"] for row in rows) and run.chunks.column_names == [
        "arrival",
        "tokens",
    ]
    assert {"source", "name", "labels", "at", "value"} == set(run.series.column_names)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_records_are_data_frames(run: inferometer.Run, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    frame = getattr(run, f"to_{library}")()
    assert len(frame) == 40 and frame["ttft_s"].median() == pytest.approx(run.metric("ttft", "p50"), rel=0.3)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(inferometer.Error, match=rf"pip install 'inferometer\[{library}\]'"):
        getattr(run, f"to_{library}")()


def test_the_page_is_shown_in_a_frame_of_its_own(run: inferometer.Run, tmp_path: Path) -> None:
    page = run.html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page and page.startswith("<!doctype html>")
    frame = run._repr_html_()
    (content,) = re.findall(r'^<iframe srcdoc="([^"]*)" title="[^"]*" sandbox="allow-scripts allow-popups"', frame)
    assert html.unescape(content) == page
    with pytest.raises(inferometer.Error, match="give a path that can be written"):
        run.html(tmp_path)


def test_a_stored_run_is_opened_and_judged_again(run: inferometer.Run) -> None:
    same = inferometer.open(run.folder)
    assert same.summary == run.summary and same.report() == run.report()
    assert [one.status for one in inferometer.open(str(run.folder), slo="ttft.p50 < 10s").slo] == ["met"]
    with pytest.raises(inferometer.Error, match="no such folder"):
        inferometer.open(run.folder / "nothing")


def test_config_is_a_file_or_a_mapping_with_overrides(served: Running, tmp_path: Path) -> None:
    tree = {"server": {"url": served.url}, "output": str(tmp_path), "report": {"json": str(tmp_path / "out.json")}}
    (tmp_path / "bench.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    given = QUICK | {"load.requests": 8, "output": tmp_path / "elsewhere"}
    made = inferometer.run(tmp_path / "bench.yaml", given, seed=5)
    assert made.summary.counts.ok == 8 and made.folder.parent == tmp_path / "elsewhere" and made.config["seed"] == 5
    assert json.loads((tmp_path / "out.json").read_text())["counts"]["ok"] == 8


def test_keywords_are_the_options_of_the_command(served: Running, tmp_path: Path) -> None:
    found = inferometer.run(
        served.url, {key: value for key, value in QUICK.items() if key not in ("load", "data")},
        rate=100, requests=10, output_tokens=3, input_tokens=8, output=tmp_path, model="sim", slo="e2e.p50 < 10s",
        header={"X-Own": "5"}, price_per_hour="2.5/gpu", gpus=2, percentiles=[50, 75], limits={"rate": 0, "lag": "1h"},
    )  # fmt: skip
    config: Any = found.config
    assert (config["load"]["type"], config["load"]["rate"], config["data"]["output"]) == ("poisson", 100, 3)
    assert found.summary.counts.ok == 10 and found.folder.parent == tmp_path
    assert (config["cost"]["price_per_hour"], config["cost"]["per"], config["cost"]["gpus"]) == (2.5, "gpu", 2)
    assert config["report"]["percentiles"] == [50, 75] and config["limits"]["rate"] == 0


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"rate": 5, "concurrency": 2}, "rate (open loop) and concurrency (closed loop) exclude each other"),
        ({"rate": "fast"}, "rate: 'fast' is neither a number nor a range"),
        ({"gpus": "two"}, "gpus: "),
        ({"scaling": "big"}, "use none, inception, vgg, unit, imagenet"),
        ({"scaling": "unit"}, "scaling needs image"),
        ({"rat": 5}, "rat"),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_a_keyword_that_is_not_right_is_named(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(inferometer.Error) as caught:
        inferometer.run("http://127.0.0.1:1", **keywords)
    assert words in str(caught.value) and "--" not in str(caught.value).replace("--help", "")


@pytest.mark.parametrize(
    ("config", "overrides", "words"),
    [
        (5, {}, "config is of the type int"),
        ("/nowhere.yaml", {}, "/nowhere.yaml: No such file"),
        ({"server": {"url": "http://127.0.0.1:1"}}, {"load.rate": -5}, "load.rate"),
        ({"server": {"url": "http://127.0.0.1:1"}}, {"load.stages.7.rate": 5}, "load.stages"),
        ({"server": {"url": "http://127.0.0.1:1"}}, {"slo": ["ttfft < 5"]}, "ttfft"),
        ({"server": {"url": "http://127.0.0.1:1"}}, {"lod": {}}, "lod"),
        ({"server": {"url": "http://127.0.0.1:1"}}, {}, "connection refused"),
        ({"server": {"url": "http://127.0.0.1:1"}, "sweep": {"seed": [1, 2]}}, {}, "sweep"),
    ],
)
def test_bad_config_is_an_error_that_names_the_key(config: Any, overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(inferometer.Error) as caught:
        inferometer.run(config, overrides)
    assert words in str(caught.value)


def test_runs_are_made_in_a_running_event_loop_and_in_other_threads(served: Running, tmp_path: Path) -> None:
    async def in_loop() -> inferometer.Run:
        return inferometer.run(served.url, settings(tmp_path))

    handler = signal.getsignal(signal.SIGINT)
    found = [asyncio.run(in_loop())]
    thread = threading.Thread(target=lambda: found.append(inferometer.run(served.url, settings(tmp_path))))
    thread.start()
    thread.join()
    assert [one.summary.counts.ok for one in found] == [40, 40]
    assert signal.getsignal(signal.SIGINT) == handler


def test_a_script_needs_no_main_guard_and_no_terminal(served: Running, tmp_path: Path) -> None:
    """The client processes import the package, not the script of the user."""
    given = settings(tmp_path) | {"client.processes": 1}
    script = tmp_path / "user.py"
    script.write_text(
        f"import inferometer\nprint('once')\nprint(inferometer.run({served.url!r}, {given!r}).summary.counts.ok)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("once\n40\n", "")


def test_progress_is_shown_on_standard_error(
    served: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inferometer.run(served.url, settings(tmp_path), progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "closed loop" in err


def test_a_comparison_has_ratios_and_conditions(run: inferometer.Run, served: Running, tmp_path: Path) -> None:
    for _ in range(5):  # 40 requests have no interval if the client was held up in one of the runs
        other = inferometer.run(served.url, settings(tmp_path), slo=["ttft.p50 < 10s", "e2e.p50 < 1us"])
        found = inferometer.compare(run, str(other.folder), fail_if="ttft.p50 worse by 900%")
        one = found.metrics["ttft.p50"]
        if one.ci[0] is not None:
            break
        run = inferometer.run(served.url, settings(tmp_path))
    assert one.ratio is not None and one.ci[0] is not None and one.ci[0] <= one.ratio
    assert found.passed() and found.conditions[0].status == "passes" and found.notes
    assert set(found.differs) <= set(found.metrics)
    assert "<iframe" in found._repr_html_() and "ttft" in found.report() and repr(found).startswith("<inferometer.Comp")
    with pytest.raises(inferometer.Error, match=r"^fail_if: .*did you mean ttft\.p99"):
        inferometer.compare(run, other, fail_if="ttft")
    with pytest.raises(inferometer.Error, match="no run on side B"):
        inferometer.compare(run, [])


@pytest.mark.slow
def test_the_capacity_has_an_interval_and_probes(served: Running, tmp_path: Path) -> None:
    found = inferometer.capacity(
        served.url,
        {"output": tmp_path, "data.output": 4},
        slo="ttft.p50 < 10s",
        by="concurrency",
        budget=10,
        at_least=1,
    )
    assert found.passed and found.value is not None and found.value >= 1 and found.interval[0] == found.value
    assert found.probes and found.folder.is_dir() and found.by == "concurrency"
    assert ("<iframe" in found._repr_html_() and "concurrency" in repr(found)) or "flight" in repr(found)
    assert found.report()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": "speed"}, "use rate, concurrency, users"),
        ({"budget": "1s"}, "budget must be at least 10 s"),
        ({"budget": "soon"}, "budget"),
        ({"slo": "ttfft < 5"}, "ttfft"),
        ({"load": {"rate": 5}}, "the search sets the load itself"),
        ({"start": -1}, "start must be more than 0"),
    ],
)
def test_bad_options_of_a_search_are_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(inferometer.Error) as caught:
        inferometer.capacity("http://127.0.0.1:1", **options)
    assert words in str(caught.value)
