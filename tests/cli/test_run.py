"""`inferometer run` and `report` from the outside: what they print and write, and their exit status, for good and bad input."""

import csv
import io
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import trustme
import yaml
from command import Result, assert_one_line, cli
from helpers import STREAM, Client, http_response, polite, scripted
from kserve_peers import over_http

from inferometer.serve.background import running
from inferometer.serve.settings import Settings, simulator
from inferometer.serve.sim.settings import Fixed, Sim

FEW = [
    "--requests",
    "3",
    "--concurrency",
    "1",
    "--prompt",
    "hello",
    "--output-tokens",
    "2",
    "--set",
    "client.processes=0",
    "--set",
    "client.probe=false",
]


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.01, itl=0.001))) as url:
        yield url


def run(folder: Path, source: str | Path, *more: str | Path) -> Result:
    return cli("run", source, *FEW, "--set", f"output={folder}", *more)


def runs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("2*"))


# --- good input ------------------------------------------------------------------------------------------------------


def test_a_url_is_enough_for_a_valid_run(tmp_path: Path, sim: str) -> None:
    lenient = ("--set", "limits={lag: 1s, cpu: 1, stalls: 1}", "--set", "load.think=1ms")
    result = run(tmp_path, sim, *lenient, "--set", "server.stream=false")
    assert result.status == 0, result.out
    assert "VALID" in result.out
    assert "· sim ·" in result.out
    assert str(runs(tmp_path)[0]) in result.out
    assert max(len(line) for line in result.out.splitlines()) <= 100


def test_the_report_can_be_printed_again_byte_for_byte(tmp_path: Path, sim: str) -> None:
    result = run(tmp_path, sim, "--explain")
    for folder in (*runs(tmp_path), tmp_path / "LATEST"):
        assert cli("report", folder, "--explain").out == result.out


def test_a_url_without_a_scheme_is_stored_with_the_one_that_was_found(tmp_path: Path, sim: str) -> None:
    run(tmp_path, sim.removeprefix("http://"))
    manifest = json.loads((tmp_path / "LATEST" / "manifest.json").read_text())
    assert manifest["config"]["server"]["url"] == [sim]


def test_a_setting_that_fails_later_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "bench.yaml").write_text("server: {url: 'https://127.0.0.1:1', tls: {ca: /nowhere}}\n")
    result = cli("run", tmp_path / "bench.yaml")
    assert_one_line(result, f"{tmp_path}/bench.yaml: server.tls.ca: /nowhere is not a readable PEM file")


def test_an_invalid_run_exits_with_1(tmp_path: Path, sim: str) -> None:
    result = run(tmp_path, sim, "--model", "nonsense")
    assert result.status == 1
    assert "INVALID" in result.out
    assert "http_404" in result.out
    assert cli("report", tmp_path / "LATEST").status == 1


def test_json_on_standard_output_is_summary_json_and_nothing_else(tmp_path: Path, sim: str) -> None:
    result = run(tmp_path, sim, "--json", "-")
    tree = json.loads(result.out)
    assert tree["schema"] == 3
    assert tree["counts"]["ok"] == 3
    assert result.out.encode() == (runs(tmp_path)[0] / "summary.json").read_bytes()
    assert cli("report", tmp_path / "LATEST", "--json", "-").out == result.out


def test_json_and_csv_go_to_files_and_the_report_is_printed(tmp_path: Path, sim: str) -> None:
    result = run(tmp_path, sim, "--json", tmp_path / "out.json", "--csv", tmp_path / "out.csv")
    assert "requests/s" in result.out
    assert json.loads((tmp_path / "out.json").read_bytes())["counts"]["ok"] == 3
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert [row["n_out"] for row in rows] == ["2"] * 3
    assert cli("report", tmp_path / "LATEST", "--csv", "-").out == (tmp_path / "out.csv").read_text()


def test_without_a_terminal_progress_is_plain_lines_on_standard_error(tmp_path: Path, sim: str) -> None:
    result = run(tmp_path, sim)
    assert result.err.startswith(f"{sim} · sim · closed loop, 1 in flight")
    assert "\x1b" not in result.out + result.err
    assert run(tmp_path, sim, "--quiet").err == ""


def test_options_override_the_file(tmp_path: Path, sim: str) -> None:
    path = tmp_path / "bench.yaml"
    tree = {
        "server": {"url": sim},
        "load": {"type": "closed", "concurrency": 2, "duration": "30s"},
        "data": {"input": 9},
    }
    path.write_text(yaml.safe_dump(tree))
    result = cli(
        "run", path, "--requests", "4", "--output-tokens", "3", "--json", "-", "--set", f"output={tmp_path / 'runs'}",
        "--set", "client.processes=0",
    )  # fmt: skip
    found = json.loads(result.out)
    assert found["counts"]["ok"] == 4
    assert found["metrics"]["input_tokens"]["mean"] >= 9
    assert found["metrics"]["output_tokens"]["mean"] == 3


def test_rate_makes_it_an_open_loop(tmp_path: Path, sim: str) -> None:
    result = cli(
        "run", sim, "--rate", "200", "--requests", "10", "--prompt", "a", "--prompt", "b", "--json", "-",
        "--set", f"output={tmp_path}", "--set", "client.processes=0",
    )  # fmt: skip
    assert json.loads(result.out)["counts"]["ok"] == 10
    assert json.loads((tmp_path / "LATEST" / "manifest.json").read_bytes())["plan"][0]["type"] == "poisson"


def test_requests_from_a_jsonl_file(tmp_path: Path) -> None:
    seen: list[object] = []

    def script(client: Client) -> None:
        while request := client.request():
            seen.append(json.loads(request[2]))
            client.send(http_response())

    lines = tmp_path / "asks.jsonl"
    lines.write_text('{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}], "output": 7}\n')
    with scripted(script) as url:
        result = cli(
            "run", url, "--model", "m", "--requests", "2", "--concurrency", "1", "--set", "data={type: jsonl}",
            "--set", f"data.path={lines}", "--set", f"output={tmp_path / 'runs'}", "--set", "client.processes=0",
                "--set", "client.probe=false", "--set", "observe.prometheus=[]",
        )  # fmt: skip
    assert result.status in (0, 1), result
    assert [(body["messages"][0]["content"], body["max_tokens"]) for body in seen] == [("one", 128), ("two", 7)]  # type: ignore[index]


# --- bad input -------------------------------------------------------------------------------------------------------


def no_run_left(folder: Path) -> bool:
    return not list(folder.rglob("*/spool")) and not runs(folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "load.rat=5"), ("load.rat: unknown key",)),
        (("--set", "server.modle=x"), ("server.modle: unknown key", "did you mean server.model?")),
        (("--set", "load.concurrency=many"), ("load.concurrency", "whole number")),
        (("--rate", "0"), ("load.rate", "more than 0")),
        (("--duration", "soon"), ("load.duration", "a duration such as")),
        (("--requests", "0"), ("load: never ends",)),
        (("--concurrency", "-1"), ("load.concurrency", "at least 1")),
        (("--set", "nonsense"), ("key=value",)),
        (("--set", "data={type: jsonl, path: /nowhere}"), ("/nowhere",)),
        (("--set", "data.tokenizer=/nowhere"), ("/nowhere",)),
        (("--prompt", ""), ("data.prompts.0 is empty",)),
        (("--json", "/nowhere/out.json"), ("/nowhere/out.json",)),
        (("--csv", "/tmp"), ("/tmp",)),
        (("--json", "-", "--csv", "-"), ("standard output",)),
        (("--set", "server.api_key_env=NOT_SET_ANYWHERE"), ("NOT_SET_ANYWHERE", "export it")),
        (("--set", "server.api_key_file=/nowhere"), ("/nowhere",)),
        (("--set", "server.tls.ca=/nowhere"), ("/nowhere",)),
        (("--set", "server.headers={x: \"a\\nb\"}"), ("server.headers",)),
        (("--set", "server.headers={x: \"\\u2603\"}"), ("server.headers",)),
        (("--set", "server.headers={\"x y\": z}"), ("server.headers",)),
        (("--rate", "1e9", "--duration", "1h"), ("requests",)),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_line(
    tmp_path: Path, sim: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = cli("run", sim, "--set", f"output={tmp_path}", "--set", "client.processes=0", *arguments)
    assert_one_line(result, *words)
    assert no_run_left(tmp_path)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("http://127.0.0.1:1", ("connection refused", "start the server")),
        ("http://nonexistent.invalid", ("nonexistent.invalid does not resolve",)),
        ("ftp://127.0.0.1", ("scheme",)),
        ("http://", ("has no host",)),
        ("http://127.0.0.1:99999", ("is not a URL",)),
        ("http://[::1", ("is not a URL",)),
        ("http://127.0.0.1:80/?x=1", ("? or #",)),
        ("http://user:geheim@127.0.0.1:1", ("connection refused",)),
        ("http://127.0.0.1:1/\u2603", ("127.0.0.1:1",)),
        ("/nowhere/bench.yaml", ("No such file",)),
        ("127.0.0.1:1", ("connection refused", "start the server")),
        ("nowhere.yaml", ("No such file", "http")),
    ],
)
def test_bad_sources_are_one_line(tmp_path: Path, source: str, words: tuple[str, ...]) -> None:
    result = cli("run", source, "--set", f"output={tmp_path}")
    assert_one_line(result, *words)
    assert "geheim" not in result.err
    assert no_run_left(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server: {url: http://127.0.0.1:1\n", ("is not YAML", "line")),
        ("load: {type: closed}", ("server: missing",)),
        ("server: http://x", ("server: must be a section",)),
        ("just text", ("no sections",)),
        ("server: {url: 5}", ("server.url",)),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(text)
    assert_one_line(cli("run", path, "--set", f"output={tmp_path}"), *words)


@pytest.mark.parametrize("flags", [("--rate", "5"), ("--requests", "5"), ("--input-tokens", "5"), ("--model", "m")])
@pytest.mark.parametrize(
    "text", ["server: 5\nload: 5\ndata: 5", "server:\nload:\ndata:", "server: [x]\nload: [x]\ndata: x"]
)
def test_options_over_a_file_with_the_wrong_kind_of_section(tmp_path: Path, text: str, flags: tuple[str, ...]) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(text)
    assert_one_line(cli("run", path, *flags, "--set", f"output={tmp_path}"))


# --- servers that are not what the URL says --------------------------------------------------------------------------


def always(data: bytes):  # type: ignore[no-untyped-def]
    def script(client: Client) -> None:
        while client.request():
            client.send(data)

    return script


PAGE = b"<!doctype html><h1>It works!</h1>"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            http_response(PAGE),
            ("It works!", "next: this is a web page, not an LLM server", "--set server.api=kserve", "--model"),
        ),
        (http_response(b'{"object": "list"}'), ("not OpenAI's JSON",)),
        (http_response(b'{"data": []}'), ("does not list any model",)),
        (http_response(b'{"data": [5]}'), ("not OpenAI's JSON",)),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", ("requires an API key", "--api-key-env")),
        (
            b"HTTP/1.1 500 Oh\r\nContent-Length: 9\r\n\r\nout of it",
            ("status 500: out of it", "next: name the model with --model NAME"),
        ),
        (b"SSH-2.0-OpenSSH_9\r\n", ("GET /v1/models",)),
        (b"", ("GET /v1/models",)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nshort", ("GET /v1/models",)),
    ],
    ids=["html", "no data", "no model", "odd", "401", "500", "ssh", "silent", "short"],
)
def test_a_server_without_openais_api_is_one_line(tmp_path: Path, data: bytes, words: tuple[str, ...]) -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(data)

    with scripted(script) as url:
        assert_one_line(run(tmp_path, url), *words)
    assert no_run_left(tmp_path)


@pytest.mark.parametrize(
    ("path", "data", "words"),
    [
        ("", b"", "if it speaks TLS, or check that it is an HTTP server"),
        ("", b"\0\0\0\4\0\0\0\0\0", "write grpc://"),
        (
            "/v3",
            b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
            "next: check the path of server.url; for a tensor server use --set server.api=kserve",
        ),
    ],
    ids=["closed", "gRPC", "path"],
)
def test_the_remedy_does_not_mention_the_model_when_that_would_not_help(
    tmp_path: Path, path: str, data: bytes, words: str
) -> None:
    with scripted(always(data) if data else lambda client: None) as url:
        result = run(tmp_path, url + path)
    assert_one_line(result, words)
    assert "model" not in result.err.replace("/v1/models", "")


def test_the_remedy_mentions_the_model_when_the_server_lists_none(tmp_path: Path) -> None:
    with scripted(always(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")) as url:
        assert_one_line(
            run(tmp_path, url), "next: name the model with --model NAME", "check the path", "--set server.api=kserve"
        )


def test_a_bad_output_folder_names_the_setting(tmp_path: Path, sim: str) -> None:
    (tmp_path / "file").write_text("")
    result = cli("run", sim, "--requests", "1", "--set", f"output={tmp_path}/file/runs")
    assert_one_line(result, "not a folder", "--output")


def test_a_web_page_is_a_report_with_failures_when_the_model_was_named(tmp_path: Path) -> None:
    with scripted(always(http_response(PAGE))) as url:
        result = run(tmp_path, url, "--model", "m")
    assert result.status == 1
    assert "not_json" in result.out
    assert "It works!" in result.out


def test_an_untrusted_certificate_is_one_line(tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with scripted(polite, context) as url:
        assert_one_line(run(tmp_path, url), "certificate is not accepted", "server.tls.ca")
    assert no_run_left(tmp_path)


@pytest.mark.slow
def test_a_server_that_accepts_one_connection_does_not_hang_the_start(tmp_path: Path) -> None:
    """Its connection queue is full after the probe: the connections of the run do not open within timeouts.connect."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        more = "--model m --concurrency 9 --requests 9 --set server.timeouts.connect=300ms -q"
        result = run(tmp_path, url, *more.split())
    assert_one_line(result, url)
    assert no_run_left(tmp_path)


@pytest.mark.slow
def test_a_silent_server_does_not_hang_the_start(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.request()
        client.request()

    with scripted(script) as url:
        more = ("-q", "--set", "client.warm=true", "--set", "server.timeouts.connect=300ms")
        assert_one_line(run(tmp_path, url, "--model", "m", *more), url)
    assert no_run_left(tmp_path)


# --- secrets ---------------------------------------------------------------------------------------------------------

KEY, HEADER, PASSWORD, FIELD = "sk-geheim-1234567890", "kopf-geheim-42", "pass-geheim-77", "feld-geheim-99"
SECRETS = (KEY, HEADER, PASSWORD, FIELD)


def echoing(client: Client) -> None:
    """Respond once; then fail with an error that repeats the request, including its secrets."""
    count = 0
    while request := client.request():
        _, headers, body = request
        count += 1
        if count % 2:
            client.send(http_response(STREAM))
        else:
            text = json.dumps({"error": {"message": f"refused: {headers} {body.decode()}"}}).encode()
            client.send(b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))


@pytest.mark.parametrize("source", ["options", "file"])
@pytest.mark.parametrize("processes", [0, 1])
def test_no_secret_is_in_any_file_or_on_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, processes: int
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    (tmp_path / "key").write_text(f"{KEY}\n")
    given = {
        "options": ["--api-key-env", "SOME_KEY", "--header", f"X-Own: {HEADER}", "--insecure"],
        "file": [*("--set", f"server.api_key_file={tmp_path / 'key'}", "--set", f"server.headers={{X-Own: {HEADER}}}")],
    }
    settings = (
        f"server.body={{api_key: {FIELD}, user: me}}", f"output={tmp_path / 'runs'}",
        f"client.processes={processes}",
    )  # fmt: skip
    with scripted(echoing) as url:
        result = cli(
            "run", url.replace("//", f"//someone:{PASSWORD}@"), "--model", "m", "--requests", "4", "--concurrency", "1",
            "--prompt", "hi", "--json", tmp_path / "out.json", "--csv", tmp_path / "out.csv", "--explain", *given[source],
            *(part for setting in settings for part in ("--set", setting)),
        )  # fmt: skip
    assert result.status == 1, result
    again = cli("report", tmp_path / "runs" / "LATEST", "--explain")
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "key"}
    assert len(files) >= 7
    for secret in SECRETS:
        for text in (result.out, result.err, again.out, again.err):
            assert secret not in text
        for path, data in files.items():
            assert secret.encode() not in data, path
    messages = str(pq.read_table(tmp_path / "runs" / "LATEST" / "requests.parquet")["message"].to_pylist())
    assert "refused" in messages
    assert not [secret for secret in SECRETS if secret in messages or secret[:8] in messages]


@pytest.mark.parametrize(("api", "status"), [("kserve", 401), ("completions", 400)])
def test_no_secret_is_on_the_screen_when_the_server_refuses_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: str, status: int
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)

    def refusing(client: Client) -> None:
        while request := client.request():
            text = json.dumps({"error": f"refused: {request[1]}"}).encode()
            client.send(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%b" % (status, len(text), text))

    data = ("--set", "data.type=tensors", "--set", "server.model=m") if api == "kserve" else ("--prompt", "hi")
    with scripted(refusing) as url:
        result = cli(
            "run", url, "--requests", "4", "--concurrency", "1", "--set", f"output={tmp_path / 'runs'}",
            "--set", f"server.api={api}", "--set", "server.api_key_env=SOME_KEY", *data,
        )  # fmt: skip
    assert result.status == 2, result
    assert "refused" in result.err
    assert KEY not in result.err + result.out


def test_a_parameter_with_the_name_of_a_secret_is_in_no_file(tmp_path: Path) -> None:
    with scripted(over_http()) as url:
        result = cli(
            "run", url, "--model", "pair", "--requests", "4", "--concurrency", "1", "--set", "server.api=kserve",
            "--set", "data.type=tensors", "--set", f"server.parameters={{api_key: {FIELD}, priority: 1}}",
            "--set", f"output={tmp_path / 'runs'}",
        )  # fmt: skip
    assert result.status in (0, 1), result
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(b"priority" in data for data in files.values())
    assert not [path for path, data in files.items() if FIELD.encode() in data]


def test_an_unknown_output_is_an_error_before_the_run(tmp_path: Path) -> None:
    with scripted(over_http()) as url:
        result = cli(
            "run", url, "--model", "pair", "--requests", "4", "--set", "server.api=kserve",
            "--set", "server.outputs=[SIM]", "--set", f"output={tmp_path / 'runs'}",
        )  # fmt: skip
    assert_one_line(result, "no output 'SIM'", "did you mean SUM?")


def test_the_given_key_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", f" {KEY} ")
    with running(Settings(sim=Sim(timing=Fixed(ttft=0.001, itl=0.001)), http=0, token=KEY)) as url:
        assert "requires an API key" in run(tmp_path, url).err
        assert (
            json.loads(run(tmp_path, url, "--set", "server.api_key_env=SOME_KEY", "--json", "-").out)["counts"]["ok"]
            == 3
        )


@pytest.mark.parametrize("text", ["", "  \n", "two\nlines", "schl\u00fcssel"])
def test_an_impossible_key_is_one_line_without_the_key(tmp_path: Path, sim: str, text: str) -> None:
    (tmp_path / "key").write_text(text)
    result = run(tmp_path, sim, "--set", f"server.api_key_file={tmp_path / 'key'}")
    assert_one_line(result)
    assert not text.strip() or text not in result.err


def test_a_secret_of_the_wrong_type_is_not_repeated(tmp_path: Path, sim: str) -> None:
    assert_one_line(
        result := run(tmp_path, sim, "--set", f"server.headers={{Authorization: [{KEY}]}}"), "server.headers"
    )
    assert KEY not in result.err


# --- report ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/nowhere", "/etc/hostname", "/usr/bin"])
def test_a_report_of_something_else_is_one_line(path: str) -> None:
    assert_one_line(cli("report", path), path)


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, sim: str) -> None:
    run(tmp_path, sim)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "inferometer", "report", str(tmp_path / "LATEST")],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr


# --- ranges ----------------------------------------------------------------------------------------------------------


def test_a_range_is_a_stage_for_each_value(tmp_path: Path, sim: str) -> None:
    common = ("--prompt", "hello", "--output-tokens", "2", "--set", "client.processes=0", "--set", f"output={tmp_path}")
    result = cli("run", sim, "--concurrency", "1:3:2", "--requests", "4", *common, "--perf-csv", "-")
    assert [line.split(",")[0] for line in result.out.splitlines()] == ["Concurrency", "1", "3"]
    result = cli("run", sim, "--rate", "100:200:100", "--requests", "4", *common)
    assert "100/s " in result.out and "200/s " in result.out
    assert cli("report", tmp_path / "LATEST").out == result.out


@pytest.mark.parametrize(
    ("flag", "text", "word"),
    [("--concurrency", "8:1", "ends below its start"), ("--rate", "1:x", "is not a range of numbers")],
)
def test_a_bad_range_is_one_line(flag: str, text: str, word: str) -> None:
    assert_one_line(cli("run", "http://127.0.0.1:1", flag, text), word)


# --- parts, starts, and where a run is stored ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--shard", "0/2"), ("--shard needs --start-at",)),
        (("--shard", "2/2", "--start-at", "+9s"), ("there is no part 2 of 2", "the last one is 1/2")),
        (("--start-at", "2020-01-01T00:00:00Z"), ("ago by the clock of this machine",)),
        (("--shard", "0/2", "--start-at", "+9s", "--repeat", "2"), ("--shard: it is about a single run",)),
        (("--start-at", "+9s", "--set", "data.output=[2, 4]"), ("--start-at: it is about a single run",)),
        (("--shard", "0/2", "--start-at", "+9s"), ("load: the load cannot be divided into 2 parts",)),
    ],
    ids=["no start", "no such part", "past", "repeats", "sweep", "one user"],
)
def test_a_part_that_cannot_be_measured_is_an_error(
    tmp_path: Path, sim: str, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_one_line(run(tmp_path, sim, "--quiet", *options), *words)
    assert not tmp_path.exists() or runs(tmp_path) == []
