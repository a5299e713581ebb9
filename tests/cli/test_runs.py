"""`inferometer runs`: the list of stored runs, and outputs that are refused."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from command import LENIENT, assert_one_line, cli, options

from inferometer.conduct.catalog import catalog
from inferometer.report.runs_table import render
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run, two repeats and a sweep of two."""
    runs = tmp_path_factory.mktemp("stored") / "runs"
    load = ("--requests", "6", "--concurrency", "2", "--input-tokens", "4", "--output-tokens", "3", "--quiet")
    with running(simulator(timing=Fixed(ttft=0.002, itl=0.0005))) as url:
        for more in ((), ("--repeat", "2"), ("--set", "data.input=[4, 5]")):
            result = cli("run", url, *load, *options(LENIENT | {"output": runs}), *more)
            assert result.status == 0, result
    yield runs


def names(*arguments: str | Path) -> list[str]:
    return [entry["kind"] for entry in json.loads(cli("runs", *arguments, "--json").out)]


def test_runs_are_listed_with_what_they_are(stored: Path) -> None:
    entries = json.loads(cli("runs", stored, "--json").out)
    assert [(entry["kind"], entry["runs"], entry["verdict"], entry["state"]) for entry in entries] == [
        ("run", 1, "VALID", "complete"),
        ("repeats", 2, "2 VALID", "complete"),
        ("sweep", 2, "2 VALID", "complete"),
    ]
    assert all(entry["model"] == "sim" and entry["server"].startswith("http://127.0.0.1") for entry in entries)
    assert (entries[0]["requests"], entries[0]["load"]) == (6, "closed loop, 2 in flight, 6 requests")
    assert entries[0]["rate"] > 0
    table = cli("runs", stored).out.splitlines()
    assert len(table) == 4
    assert all(entry["name"] in line for entry, line in zip(entries, table[1:], strict=True))


def test_json_goes_to_standard_output_or_to_a_file(stored: Path, tmp_path: Path) -> None:
    printed, out = cli("runs", stored, "--json").out, tmp_path / "out.json"
    assert cli("runs", "--json", stored).out == printed
    assert cli("runs", stored, "--json", out).out == "" and out.read_text() == printed


def test_percentiles_that_are_infinite_or_not_supported_are_shown_as_such(stored: Path, tmp_path: Path) -> None:
    folder = next(path.parent for path in stored.glob("*/summary.json"))
    shutil.copytree(folder, tmp_path / folder.name)
    summary = json.loads((folder / "summary.json").read_bytes())
    summary["metrics"]["ttft"] |= {"p50": "inf", "p99": "inf", "supported": {"p50": True, "p99": False}}
    (tmp_path / folder.name / "summary.json").write_text(json.dumps(summary))
    line = cli("runs", tmp_path).out.splitlines()[1]
    assert " VALID " in line and line.split().count("inf") == line.split().count("inf*") == 1


def test_only_our_own_styles_reach_the_terminal_as_escape_sequences(stored: Path) -> None:
    evil = "m\x1b]52;c;x\x07\x1b[2J\x9b2K\u202e"
    text = render([msgspec.structs.replace(entry, model=evil) for entry in catalog(str(stored))], 300, color=True)
    assert "m\ufffd]52;c;x" in text
    assert re.sub(r"\x1b\[[0-9;]*m|\n", "", text).isprintable()


def test_filters_select_runs(stored: Path) -> None:
    assert names(stored, "--model", "SI", "--since", "2h", "--verdict", "valid", "--state", "complete") == [
        "run",
        "repeats",
        "sweep",
    ]
    assert names(stored, "--model", "llama") == names(stored, "--verdict", "INVALID") == []
    assert names(stored, "--since", "2999-01-01") == names(stored, "--state", "incomplete") == []
    assert {*(name for path in stored.glob("*/runs.json") for name in names(path.parent))} == {"repeats", "sweep"}
    assert "no run matches" in cli("runs", stored, "--model", "llama").err


def test_damaged_and_empty_folders_are_listed_as_such(stored: Path, tmp_path: Path) -> None:
    run = next(path.parent for path in stored.glob("*/manifest.json") if not path.parent.is_symlink())
    for name, manifest in (("20260101-000000-aaaa", b"{"), ("20260101-000001-bbbb", None)):
        shutil.copytree(run, tmp_path / name)
        (tmp_path / name / "manifest.json").unlink()
        if manifest is not None:
            (tmp_path / name / "manifest.json").write_bytes(manifest)
    (tmp_path / "something-else").mkdir()
    entries = json.loads(cli("runs", tmp_path, "--json").out)
    assert [(entry["name"], entry["state"]) for entry in entries] == [
        ("20260101-000000-aaaa", "damaged"),
        ("20260101-000001-bbbb", "incomplete"),
    ]


def test_many_runs_are_read_from_manifests_and_summaries_only(stored: Path, tmp_path: Path) -> None:
    run = next(path.parent for path in stored.glob("*/manifest.json") if not path.parent.is_symlink())
    for number in range(200):
        folder = tmp_path / f"20260101-{number:06}-aaaa"
        folder.mkdir()
        for name in ("manifest.json", "summary.json"):
            (folder / name).symlink_to(run / name)
    assert len(names(tmp_path)) == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs", "nowhere"), ("nowhere", "no such folder")),
        (("runs", "s4://bucket/x"), ("s4://", "not a kind of storage")),
        (("runs", "--since", "yesterday"), ("--since yesterday",)),
        (("runs", "push"), ("no folder to upload",)),
        (("runs", "push", "nowhere", "s3://bucket/x"), ("nowhere", "no such folder")),
        (("runs", "push", "/etc", "s3://bucket/x"), ("/etc", "no run in this folder")),
        (("report", "s3://"), ("not the URL of a bucket",)),
        (("report", "s3://key:secret@bucket/x"), ("must not contain credentials",)),
        (("compare", "ftp://a/b", "ftp://a/c"), ("ftp://",)),
        (("plot", "s4://a/b", "--list"), ("s4://",)),
    ],
)
def test_bad_names_are_refused(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert_one_line(result, *words)
    assert "secret" not in result.err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"output": "s4://bucket/x"}, ("output", "s4:// is not a kind of storage")),
        ({"output": "s3://"}, ("output", "not the URL of a bucket")),
        ({"output": "s3:/bucket/x"}, ("output", "did you mean s3://bucket/x?")),
        ({"output": "''"}, ("output", "empty")),
        ({"storage.endpoint": "minio:9000"}, ("storage.endpoint", "not an HTTP URL")),
        ({"storage.timeout": "10ms"}, ("storage.timeout", "too short")),
        ({"storage.local": "s3://bucket"}, ("storage.local", "a folder on this machine")),
        ({"storage.addressing": "sideways"}, ("storage.addressing",)),
    ],
)
def test_bad_storage_settings_are_refused(settings: dict[str, str], words: tuple[str, ...]) -> None:
    assert_one_line(cli("run", "http://127.0.0.1:1", *options(settings)), *words)


def test_a_pipe_gets_at_most_160_columns(stored: Path, tmp_path: Path) -> None:
    folder = next(path.parent for path in stored.glob("*/summary.json"))
    shutil.copytree(folder, tmp_path / folder.name)
    path = tmp_path / folder.name / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["config"]["server"]["model"] = "/models/" + "a-long-name/" * 12
    path.write_text(json.dumps(manifest))
    lines = cli("runs", tmp_path).out.splitlines()
    assert all(len(line) <= 160 for line in lines) and "p99" in lines[0], "a long name does not cost the figures"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(stored: Path, width: int) -> None:
    lines = render(catalog(str(stored)), width, color=False).splitlines()
    assert len(lines) == 4 and max(map(len, lines)) <= width
    assert all(title in lines[0].split() for title in ("name", "state", "verdict", "model", "load", "req/s"))
